//! Declarations of the file's tables and words: one for the type, its reader, its JSON Schema and
//! the reference, so that they cannot disagree.

/// The keys of a declaration, with which the reader, the JSON Schema and the reference work.
macro_rules! keys {
    ($([$($about:literal)*] [$($help:expr)?] $field:ident [$kind:ty] [$($range:expr)?] [$($default:tt)?] [$($example:tt)?];)*) => {
        [$($crate::reading::reader::Key {
            name: $crate::reading::reader::key_of(stringify!($field)),
            about: &[$($about),*],
            required: $crate::reading::declare::first([$($help)?]),
            range: $crate::reading::declare::first([$($range)?]),
            default: $crate::reading::declare::first([$(stringify!($default))?]),
            example: $crate::reading::declare::first([$(stringify!($example))?]),
            schema: <$kind as $crate::reading::reader::Read>::schema,
            accepts: |text| $crate::reading::reader::accepts::<$kind>(
                $crate::reading::reader::key_of(stringify!($field)), $crate::reading::declare::first([$($range)?]), text,
            ),
        }),*]
    };
}

/// The only element of what a macro may leave empty.
pub(crate) fn first<T, const N: usize>(list: [T; N]) -> Option<T> {
    list.into_iter().next()
}

/// Declares a table of the file as a mirror: each key is a [`Field`](super::reader::Field) with its place.
///
/// ```text
/// /// What the key means.
/// @required("how to write it") key: Kind [1..=100] = "default" => "example",
/// ```
///
/// Default and example are written as in the file. A key with a default has a method of its name
/// that returns the value. Without an example, the default serves as one.
macro_rules! table {
    ($(#[doc = $doc:literal])* $name:ident {
        $($(#[doc = $about:literal])* $(@required($help:expr))? $field:ident : $kind:ty $([$range:expr])? $(= $default:tt)? $(=> $example:tt)?,)*
    }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug, Default)]
        pub(crate) struct $name {
            $($(#[doc = $about])* pub(crate) $field: $crate::reading::reader::Field<<$kind as $crate::reading::reader::Read>::Value>,)*
        }

        impl $name {
            pub(crate) fn read_table(table: &$crate::reading::reader::Table<'_>, context: &mut $crate::reading::context::Context<'_>) -> Self {
                let keys = $crate::reading::declare::keys! {
                    $([$($about)*] [$($help)?] $field [$kind] [$($range)?] [$($default)?] [$($example)?];)*
                };
                table.check_keys(&keys, context);
                let [$($field),*] = &keys;
                Self { $($field: table.field::<$kind>($field, context),)* }
            }

            $($(
                pub(crate) fn $field(&self) -> $crate::reading::source::At<<$kind as $crate::reading::reader::Read>::Value> {
                    self.$field.or_written::<$kind>(stringify!($field), stringify!($default))
                }
            )?)*
        }

        impl $crate::reading::reader::Mirror for $name {
            fn place(&self, key: &str) -> Option<$crate::reading::source::Place> {
                match key {
                    $(stringify!($field) => self.$field.place(),)*
                    _ => unreachable!("`{key}` is no key of this table"),
                }
            }
        }

        impl $crate::reading::reader::Read for $name {
            type Value = Self;

            fn read(node: $crate::reading::reader::Node<'_>, context: &mut $crate::reading::context::Context<'_>) -> Option<Self> {
                $crate::reading::reader::Table::of(node, context).map(|table| Self::read_table(&table, context))
            }

            fn schema(defs: &mut $crate::reading::defs::Defs) -> serde_json::Value {
                defs.table(stringify!($name), &[$($doc),*], &$crate::reading::declare::keys! {
                    $([$($about)*] [$($help)?] $field [$kind] [$($range)?] [$($default)?] [$($example)?];)*
                })
            }
        }
    };
}

/// Declares a table of the file whose keys are the fields of the type that runs: a type of this
/// crate (`pub struct Name`), or of another one (`for path::Type as Name`).
///
/// ```text
/// /// What the key means.
/// @required("how to write it") key: Type as Kind [1..=100] = "default" => "example",
/// ```
///
/// `Kind` says how the file writes the value, where that is not the type itself; for a type of
/// another crate it stands alone, since that crate declares the field. `check function`
/// after the keys names a function that sees the made value and the places of its keys. `make
/// expression` makes the type from the values of the keys, where its fields are not those.
macro_rules! settings {
    ($(#[doc = $doc:literal])* pub struct $name:ident { $($keys:tt)* } $($more:tt)*) => {
        $crate::reading::declare::settings! { @struct [$($doc)*] $name [] $($keys)* }
        $crate::reading::declare::settings! { $(#[doc = $doc])* for $name as $name { $($keys)* } $($more)* }
    };
    (@struct [$($doc:literal)*] $name:ident [$($done:tt)*]
        $(#[doc = $about:literal])* $(@required($help:expr))? $field:ident : $type:ty $(as $kind:ty)? $([$range:expr])? $(= $default:tt)? $(=> $example:tt)?, $($rest:tt)*
    ) => {
        $crate::reading::declare::settings! { @struct [$($doc)*] $name [$($done)* $(#[doc = $about])* pub $field: $type,] $($rest)* }
    };
    (@struct [$($doc:literal)*] $name:ident [$($done:tt)*]) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name { $($done)* }
    };
    (@make [$($field:ident)*]) => { Self { $($field,)* } };
    (@make [$($field:ident)*] $make:expr) => { $make };
    (@kind $type:ty) => { $type };
    (@kind $type:ty, $kind:ty) => { $kind };
    ($(#[doc = $doc:literal])* for $final:ty as $name:ident {
        $($(#[doc = $about:literal])* $(@required($help:expr))? $field:ident : $type:ty $(as $kind:ty)? $([$range:expr])? $(= $default:tt)? $(=> $example:tt)?,)*
    } $(make $make:expr;)? $(check $check:path;)?) => {
        impl $crate::reading::reader::Read for $final {
            type Value = Self;

            fn read(node: $crate::reading::reader::Node<'_>, context: &mut $crate::reading::context::Context<'_>) -> Option<Self> {
                let table = $crate::reading::reader::Table::of(node, context)?;
                let keys = $crate::reading::declare::keys! {
                    $([$($about)*] [$($help)?] $field [$crate::reading::declare::settings!(@kind $type $(, $kind)?)] [$($range)?] [$($default)?] [$($example)?];)*
                };
                table.check_keys(&keys, context);
                let [$($field),*] = &keys;
                $(let $field = table.value::<$crate::reading::declare::settings!(@kind $type $(, $kind)?)>($field, context);)*
                $(let $field = $field?;)*
                let made = $crate::reading::declare::settings!(@make [$($field)*] $($make)?);
                $($check(&made, &table, context);)?
                Some(made)
            }

            fn schema(defs: &mut $crate::reading::defs::Defs) -> serde_json::Value {
                defs.table(stringify!($name), &[$($doc),*], &$crate::reading::declare::keys! {
                    $([$($about)*] [$($help)?] $field [$crate::reading::declare::settings!(@kind $type $(, $kind)?)] [$($range)?] [$($default)?] [$($example)?];)*
                })
            }

            fn absent() -> Option<Self> {
                $crate::reading::reader::literal::<Self>("defaults", "{}")
            }
        }
    };
}

/// Declares a choice between words: the enum (`pub enum Name`, or one of another crate: `for
/// path::Type`), how it is read, and its JSON Schema.
macro_rules! words {
    ($(#[doc = $doc:literal])* $visible:vis enum $name:ident { $($(#[doc = $about:literal])* $variant:ident = $word:literal,)* }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visible enum $name { $($(#[doc = $about])* $variant,)* }

        $crate::reading::declare::words! { for $name { $($(#[doc = $about])* $variant = $word,)* } }
    };
    (for $name:path { $($(#[doc = $about:literal])* $variant:ident = $word:literal,)* }) => {
        impl $crate::reading::scalar::Word for $name {
            const WORDS: &'static [(Self, &'static str)] = &[$((Self::$variant, $word)),*];
        }

        impl $crate::reading::reader::Read for $name {
            type Value = Self;

            fn read(node: $crate::reading::reader::Node<'_>, context: &mut $crate::reading::context::Context<'_>) -> Option<Self> {
                let chosen = $crate::reading::scalar::choose(&[$($word),*], node, context)?;
                [$(Self::$variant),*].into_iter().nth(chosen)
            }

            fn schema(_: &mut $crate::reading::defs::Defs) -> serde_json::Value {
                let about = [$($crate::reading::defs::sentence(&[$($about),*])),*];
                serde_json::json!({ "type": "string", "enum": [$($word),*], "enumDescriptions": about })
            }
        }
    };
}

/// Declares forms that are made of others, by default of a string: how the file writes the form
/// (`as Kind`), what is made of it, and the function that makes it. The function sees the value with
/// its place; `None`: the value cannot be made, and the context has the reason.
///
/// A form is a name that only declarations use, or (`for Type`) the type that is made.
macro_rules! forms {
    ($($(#[doc = $doc:literal])* $name:ident -> $value:ty $(as $kind:ty)? = $make:expr;)*) => {$(
        $(#[doc = $doc])*
        pub(crate) enum $name {}

        $crate::reading::declare::forms! { @read $name, $value, [$($kind)?], $make }
    )*};
    ($(#[doc = $doc:literal])* for $value:ty $(as $kind:ty)? = $make:expr;) => {
        $crate::reading::declare::forms! { @read $value, $value, [$($kind)?], $make }
    };
    (@kind []) => { $crate::reading::text::Text };
    (@kind [$kind:ty]) => { $kind };
    (@read $form:ty, $value:ty, $kind:tt, $make:expr) => {
        impl $crate::reading::reader::Read for $form {
            type Value = $value;

            fn read(node: $crate::reading::reader::Node<'_>, context: &mut $crate::reading::context::Context<'_>) -> Option<$value> {
                let make: fn(
                    &$crate::reading::source::At<<$crate::reading::declare::forms!(@kind $kind) as $crate::reading::reader::Read>::Value>,
                    &mut $crate::reading::context::Context<'_>,
                ) -> Option<$value> = $make;
                let read = <$crate::reading::source::At<$crate::reading::declare::forms!(@kind $kind)> as $crate::reading::reader::Read>::read(node, context)?;
                make(&read, context)
            }

            fn schema(defs: &mut $crate::reading::defs::Defs) -> serde_json::Value {
                <$crate::reading::declare::forms!(@kind $kind) as $crate::reading::reader::Read>::schema(defs)
            }
        }
    };
}

pub(crate) use {forms, keys, settings, table, words};
