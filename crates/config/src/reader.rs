//! Reads the parsed tree into the raw mirror, collecting every structural mistake instead of stopping at the first.
//!
//! serde stops at its first error and loses positions inside `flatten` and `untagged`; this reader
//! does not. A key that cannot be read becomes [`Field::Broken`], so that later steps know that it
//! was written and report nothing more.

use toml::de::{DeTable, DeValue};

use super::env::Env;
use super::problem::{Problem, Problems, listed, nearest};
use super::slips;
use super::source::{At, Place};

/// The state for reading one text.
pub(crate) struct Reader<'r> {
    /// The number of the text.
    pub(crate) file: u32,
    /// The text.
    pub(crate) text: &'r str,
    /// The environment.
    pub(crate) env: Env<'r>,
    /// Where mistakes are collected.
    pub(crate) problems: &'r mut Problems,
    /// The dotted name of the table being read, for messages.
    pub(crate) path: Vec<String>,
}

/// A value of the tree with its place.
#[derive(Clone, Copy)]
pub(crate) struct Node<'n> {
    pub(crate) value: &'n DeValue<'n>,
    pub(crate) place: Place,
}

/// A type that can be read from a value of the file. `None`: it could not be read, and the reader
/// has reported why.
pub(crate) trait Read: Sized {
    /// Reads it.
    fn read(node: Node<'_>, reader: &mut Reader<'_>) -> Option<Self>;
}

/// A key of a table.
#[derive(Clone, Debug, Default)]
pub(crate) enum Field<T> {
    /// It is not written.
    #[default]
    Absent,
    /// It is written but cannot be read; this was reported.
    Broken,
    /// It is written.
    Here(At<T>),
}

impl<T> Field<T> {
    /// The value, if it could be read.
    pub(crate) fn get(&self) -> Option<&At<T>> {
        match self {
            Self::Here(value) => Some(value),
            Self::Absent | Self::Broken => None,
        }
    }

    /// Whether the file does not contain it.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    /// The value, or `default`.
    pub(crate) fn or(&self, default: T) -> T
    where
        T: Clone,
    {
        self.get().map_or(default, |at| at.value.clone())
    }

    /// Its place.
    pub(crate) fn place(&self) -> Option<Place> {
        self.get().map(|at| at.place)
    }
}

impl<'r> Reader<'r> {
    /// Reads one key of `table`.
    pub(crate) fn field<T: Read>(&mut self, table: &DeTable<'_>, key: &str) -> Field<T> {
        let Some(value) = table.get(key) else {
            return Field::Absent;
        };
        self.path.push(key.to_owned());
        let node = Node {
            value: value.get_ref(),
            place: Place::new(self.file, value.span()),
        };
        let read = T::read(node, self).map(|value| At {
            value,
            place: node.place,
        });
        self.path.pop();
        read.map_or(Field::Broken, Field::Here)
    }

    /// The table in `node`; reports a mistake if it is not a table.
    pub(crate) fn table<'n>(&mut self, node: Node<'n>) -> Option<&'n DeTable<'n>> {
        match node.value {
            DeValue::Table(table) => Some(table),
            other => {
                self.mismatch(node, "a table", other);
                None
            }
        }
    }

    /// Reports every key of `table` that is not in `known`.
    pub(crate) fn known_keys(&mut self, table: &DeTable<'_>, known: &[&str]) {
        let mut unknown: Vec<_> = table
            .keys()
            .filter(|key| !known.contains(&key.get_ref().as_ref()))
            .collect();
        unknown.sort_by_key(|key| key.span().start);
        for key in unknown {
            let place = Place::new(self.file, key.span());
            let name = key.get_ref().as_ref();
            let inside = if self.path.is_empty() {
                "at the top of the file".to_owned()
            } else {
                format!("in `{}`", self.path.join("."))
            };
            let problem = Problem::error(format!("unknown key `{name}` {inside}"));
            let slip = slips::of_key(&self.path, name);
            let problem = match nearest(name, known.iter().copied()) {
                Some(near) if slip.is_none() => {
                    problem.at(place, format!("did you mean `{near}`?"))
                }
                _ => problem.at(place, "no such key"),
            };
            let problem = match slip {
                Some(help) => problem.help(help),
                None => problem.note(format!(
                    "keys known here: {}",
                    listed(sorted(known).iter().copied())
                )),
            };
            self.problems.push(problem);
        }
    }

    /// Reports that `node` is not `wanted`.
    pub(crate) fn mismatch(&mut self, node: Node<'_>, wanted: &str, found: &DeValue<'_>) {
        let article = match found {
            DeValue::Integer(_) | DeValue::Array(_) => "an",
            _ => "a",
        };
        let found = match found {
            DeValue::Boolean(_) => "boolean",
            DeValue::Datetime(_) => "date or time",
            other => other.type_str(),
        };
        let name = self.name();
        self.problems.push(
            Problem::error(format!("`{name}` must be {wanted}"))
                .at(node.place, format!("this is {article} {found}"))
                .maybe_help(slips::of_value(&self.path, node.value)),
        );
    }

    /// The dotted name of what is being read.
    pub(crate) fn name(&self) -> String {
        self.path.join(".")
    }
}

fn sorted<'k>(known: &[&'k str]) -> Vec<&'k str> {
    let mut known = known.to_vec();
    known.sort_unstable();
    known
}

/// The value of a key with a default: the written value, or the default.
#[derive(Clone, Debug)]
pub(crate) struct Setting<T> {
    /// The key.
    pub(crate) key: &'static str,
    /// The value.
    pub(crate) value: T,
    /// Its place in the file; `None`: it is the default.
    pub(crate) place: Option<Place>,
}

impl<T: Read + Clone> Setting<T> {
    /// The value of `field`, or the one that `default` writes in TOML.
    pub(crate) fn of(key: &'static str, field: &Field<T>, default: &str) -> Self {
        let value = match field.get() {
            Some(at) => at.value.clone(),
            None => literal(key, default)
                .expect("a default is a value of its key: the tests of `schema` read each"),
        };
        let place = field.place();
        Self { key, value, place }
    }
}

impl<T> Setting<T> {
    /// The value with its place; a default has none.
    pub(crate) fn at(self) -> At<T> {
        At {
            value: self.value,
            place: self.place.unwrap_or_default(),
        }
    }
}

impl<T: Clone> Field<T> {
    /// The value under its key, if it is written.
    pub(crate) fn setting(&self, key: &'static str) -> Option<Setting<T>> {
        let at = self.get()?;
        let (value, place) = (at.value.clone(), Some(at.place));
        Some(Setting { key, value, place })
    }
}

/// Reads a value from this program's source, a default or an example, as if it were in a file.
pub(crate) fn literal<T: Read>(key: &str, toml: &str) -> Option<T> {
    let text = format!("{key} = {toml}");
    let (table, errors) = DeTable::parse_recoverable(&text);
    let mut problems = Problems::default();
    let mut reader = Reader {
        file: 0,
        text: &text,
        env: &|_| Some("1".to_owned()),
        problems: &mut problems,
        path: Vec::new(),
    };
    match reader.field(table.get_ref(), key) {
        Field::Here(at) if errors.is_empty() && !problems.any_error() => Some(at.value),
        _ => None,
    }
}

/// The key of a field of the mirror: `r#match` is `match`.
pub(crate) fn key_of(field: &'static str) -> &'static str {
    field.strip_prefix("r#").unwrap_or(field)
}

/// Declares a table of the file: the struct that mirrors it, how it is read, its defaults, and its
/// JSON Schema (and with it the reference). One declaration, so that they cannot disagree.
///
/// ```text
/// /// What the key means.
/// @required key: Type = "default" => "example",
/// ```
///
/// Default and example are written as in the file. A key with a default has a method of its name
/// that returns the [`Setting`]. Without an example, the default serves as one.
macro_rules! table {
    ($(#[doc = $doc:literal])* $name:ident {
        $($(#[doc = $about:literal])* $(@$required:ident)? $field:ident : $type:ty $(= $default:tt)? $(=> $example:tt)?,)*
    }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug, Default)]
        pub(crate) struct $name {
            $($(#[doc = $about])* pub(crate) $field: $crate::reader::Field<$type>,)*
        }

        impl $name {
            /// Reads the table's keys.
            pub(crate) fn read_table(table: &toml::de::DeTable<'_>, reader: &mut $crate::reader::Reader<'_>) -> Self {
                use $crate::reader::key_of;
                reader.known_keys(table, &[$(key_of(stringify!($field))),*]);
                Self { $($field: reader.field(table, key_of(stringify!($field))),)* }
            }

            $($(
                /// The key's value, or its default.
                pub(crate) fn $field(&self) -> $crate::reader::Setting<$type> {
                    $crate::reader::Setting::of(stringify!($field), &self.$field, stringify!($default))
                }
            )?)*
        }

        impl $crate::reader::Read for $name {
            fn read(node: $crate::reader::Node<'_>, reader: &mut $crate::reader::Reader<'_>) -> Option<Self> {
                reader.table(node).map(|table| Self::read_table(table, reader))
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let mut table = $crate::schema::TableSchema::new(generator);
                $(table.key::<$type>($crate::schema::Key {
                    name: $crate::reader::key_of(stringify!($field)),
                    about: &[$($about),*],
                    required: !<[&str]>::is_empty(&[$(stringify!($required))?]),
                    default: [$(stringify!($default))?].first().copied(),
                    example: [$(stringify!($example))?].first().copied(),
                });)*
                table.finish(&[$($doc),*])
            }
        }
    };
}

/// Declares a choice between words: the enum, how it is read, and its JSON Schema.
macro_rules! words {
    ($(#[doc = $doc:literal])* $visible:vis enum $name:ident { $($(#[doc = $about:literal])* $variant:ident = $word:literal,)* }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visible enum $name { $($(#[doc = $about])* $variant,)* }

        impl $crate::reader::Read for $name {
            fn read(node: $crate::reader::Node<'_>, reader: &mut $crate::reader::Reader<'_>) -> Option<Self> {
                const WORDS: &[&str] = &[$($word),*];
                let text = $crate::scalar::Text::read_as(node, reader, &$crate::scalar::choice(WORDS))?;
                match text.value.as_str() {
                    $($word => Some(Self::$variant),)*
                    other => {
                        $crate::scalar::not_a_choice(other, WORDS, node, reader);
                        None
                    }
                }
            }
        }

        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let about = [$($crate::schema::sentence(&[$($about),*])),*];
                schemars::json_schema!({ "type": "string", "enum": [$($word),*], "enumDescriptions": about })
            }
        }
    };
}

pub(crate) use {table, words};
