//! Strings, numbers, words and lists: the small values in tables.

use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;

use serde_json::{Value, json};
use toml::de::DeValue;

use super::context::Context;
use super::env::{Interpolated, has_default, interpolate};
use super::problem::{Problem, listed, nearest};
use super::reader::{Node, Read, Table, mismatch};
use super::schema::Defs;
use super::slips;
use super::source::{At, Place};

const NO_DEFAULT: &str = "set it; a secret has no default in the file";
/// Replaces a secret that is not available: as long as the shortest accepted secret.
const ASSUMED: &str = "assumed:0123456789abcdef";
/// Keys whose values are secrets: no default is proposed for them.
const SECRETS: [&str; 3] = ["secret", "key_secret", "password"];

/// A string of the file, its `${…}` replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Text {
    /// The string.
    pub(crate) value: String,
    /// Whether it is in the file character by character between its quotes, so that parts of it
    /// have places.
    verbatim: bool,
    /// The bytes of it that came from the environment.
    from_environment: Vec<Range<usize>>,
    /// Whether its value is unknown, because it depends on an unset variable.
    pub(crate) assumed: bool,
    /// Whether the file has a default for a variable (`${VAR:-default}`), which is then in clear.
    pub(crate) has_default: bool,
}

impl Text {
    /// Reads a string; `wanted` describes what the key accepts, for the message if it is not a
    /// string.
    pub(crate) fn read_as(
        node: Node<'_>,
        context: &mut Context<'_>,
        wanted: &str,
    ) -> Option<At<Self>> {
        let DeValue::String(written) = node.value else {
            mismatch(node, wanted, node.value, context);
            return None;
        };
        let token = context.sources.text(node.place);
        let verbatim = token.len() == written.len() + 2 && token[1..].starts_with(written.as_ref());
        let at = |value| At {
            value,
            place: node.place,
        };
        if !written.contains("${") {
            return Some(at(Self {
                verbatim,
                ..Self::plain(written)
            }));
        }
        let key = context.keys.last().map_or("", String::as_str).to_owned();
        let secret = SECRETS.contains(&key.as_str());
        let errors = match interpolate(written, context.env) {
            Ok(text) => {
                let Interpolated {
                    value,
                    from_environment,
                } = text;
                return Some(at(Self {
                    from_environment,
                    has_default: has_default(written),
                    ..Self::plain(&value)
                }));
            }
            Err(errors) => errors,
        };
        let mut assumed = !errors.is_empty();
        for error in errors {
            let place = if verbatim {
                part(node.place, error.start, error.end)
            } else {
                node.place
            };
            let mut problem = Problem::error(error.title);
            let help = if secret {
                Some(NO_DEFAULT.to_owned())
            } else {
                error.help
            };
            problem.at(place, error.label).maybe_help(help);
            match error.unset {
                Some(variable) => assumed &= context.problems.assume(&variable, problem),
                None => {
                    context.problems.push(problem);
                    assumed = false;
                }
            }
        }
        // A value can be assumed only if no other key depends on it; other values count as
        // unreadable.
        let free = secret || context.name() == "store.url";
        (assumed && free).then(|| {
            at(Self {
                from_environment: std::iter::once(0..ASSUMED.len()).collect(),
                assumed: true,
                ..Self::plain(ASSUMED)
            })
        })
    }

    /// A string that is not in the file.
    pub(crate) fn plain(value: &str) -> Self {
        Self {
            value: value.to_owned(),
            verbatim: false,
            from_environment: Vec::new(),
            assumed: false,
            has_default: false,
        }
    }
}

impl At<Text> {
    /// Whether the bytes `start..end` of the string, all of them, came from the environment.
    pub(crate) fn is_from_environment(&self, start: usize, end: usize) -> bool {
        self.value
            .from_environment
            .iter()
            .any(|part| part.start <= start && end <= part.end)
    }

    /// The place of bytes `start..end` of the string, or of the whole string if it is not verbatim.
    pub(crate) fn part(&self, start: usize, end: usize) -> Place {
        if self.value.verbatim {
            part(self.place, start, end)
        } else {
            self.place
        }
    }

    /// The string.
    pub(crate) fn as_str(&self) -> &str {
        &self.value.value
    }
}

fn part(place: Place, start: usize, end: usize) -> Place {
    let start = place.range().start + 1 + start;
    let end = place.range().start + 1 + end;
    Place::new(place.file, start..end)
}

impl Read for Text {
    type Value = Self;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self> {
        Self::read_as(node, context, "a string").map(|at| at.value)
    }

    fn schema(_: &mut Defs) -> Value {
        json!({ "type": "string" })
    }
}

impl Read for String {
    type Value = Self;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self> {
        Text::read(node, context).map(|text| text.value)
    }

    fn schema(defs: &mut Defs) -> Value {
        Text::schema(defs)
    }
}

/// A path, which starts in the directory of the file that contains it.
impl Read for PathBuf {
    type Value = Self;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self> {
        let text = Text::read_as(node, context, "a string")?;
        Some(context.path(&text))
    }

    fn schema(defs: &mut Defs) -> Value {
        Text::schema(defs)
    }
}

impl Read for bool {
    type Value = Self;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self> {
        if let DeValue::Boolean(value) = node.value {
            return Some(*value);
        }
        from_variable(node, context, "`true` or `false`")
    }

    fn schema(_: &mut Defs) -> Value {
        json!({ "type": "boolean" })
    }
}

/// Whole numbers, zero or more. A number that is too large for its type becomes the largest: every
/// key of such a type has a range below that.
macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Read for $type {
            type Value = Self;

            fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self> {
                whole(node, context).map(|number| Self::try_from(number).unwrap_or(Self::MAX))
            }

            fn schema(_: &mut Defs) -> Value {
                json!({ "type": "integer", "minimum": 0 })
            }

            fn outside(value: &Self, range: &RangeInclusive<u64>) -> Option<String> {
                outside(u64::try_from(*value).unwrap_or(u64::MAX), range, |bound| bound.to_string())
            }
        }
    )*};
}

numbers!(u64 usize u32 u16 u8);

fn whole(node: Node<'_>, context: &mut Context<'_>) -> Option<u64> {
    let DeValue::Integer(number) = node.value else {
        return from_variable(node, context, "a whole number");
    };
    let read = u64::from_str_radix(number.as_str(), number.radix()).ok();
    if read.is_none() {
        let label = if number.as_str().starts_with('-') {
            "negative"
        } else {
            "more than 18446744073709551615"
        };
        let title = format!("`{}` must be a whole number, zero or more", context.name());
        context.error(title, node.place, label);
    }
    read
}

/// Why `value` lies outside `range`, its bounds in words.
pub(crate) fn outside(
    value: u64,
    range: &RangeInclusive<u64>,
    words: impl Fn(u64) -> String,
) -> Option<String> {
    if value < *range.start() {
        Some(format!("the least is {}", words(*range.start())))
    } else if value > *range.end() {
        Some(format!("the most is {}", words(*range.end())))
    } else {
        None
    }
}

/// A number or boolean from the environment, which is written as a string with a variable.
pub(crate) fn from_variable<T: std::str::FromStr>(
    node: Node<'_>,
    context: &mut Context<'_>,
    wanted: &str,
) -> Option<T> {
    match node.value {
        DeValue::String(written) if written.contains("${") => {}
        other => {
            mismatch(node, wanted, other, context);
            return None;
        }
    }
    let text = Text::read_as(node, context, wanted)?;
    let read = text.value.value.trim().parse().ok();
    if read.is_none() {
        // The value is not shown: it may be a secret that was meant for another variable.
        let title = format!("`{}` must be {wanted}", context.name());
        context.error(title, node.place, "the environment says something else");
    }
    read
}

/// A value with its place.
impl<T: Read> Read for At<T> {
    type Value = At<T::Value>;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self::Value> {
        let value = T::read(node, context)?;
        Some(At {
            value,
            place: node.place,
        })
    }

    fn schema(defs: &mut Defs) -> Value {
        T::schema(defs)
    }
}

/// A key that may be left out.
impl<T: Read> Read for Option<T> {
    type Value = Option<T::Value>;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self::Value> {
        T::read(node, context).map(Some)
    }

    fn schema(defs: &mut Defs) -> Value {
        T::schema(defs)
    }

    fn absent() -> Option<Self::Value> {
        Some(None)
    }

    fn outside(value: &Self::Value, range: &RangeInclusive<u64>) -> Option<String> {
        T::outside(value.as_ref()?, range)
    }
}

/// An entry of a list whose other entries are used even if it cannot be read (`None`).
pub(crate) struct OrBroken<T>(T);

impl<T: Read> Read for OrBroken<T> {
    type Value = Option<T::Value>;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self::Value> {
        Some(T::read(node, context))
    }

    fn schema(defs: &mut Defs) -> Value {
        T::schema(defs)
    }
}

/// A value that may be a table or a short form.
#[derive(Clone, Debug)]
pub(crate) enum ShortOr<S, T> {
    /// The short form.
    Short(S),
    /// The table.
    Table(T),
}

impl<S: Read, T: Read> Read for ShortOr<S, T> {
    type Value = ShortOr<S::Value, T::Value>;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self::Value> {
        match node.value {
            DeValue::Table(_) => T::read(node, context).map(ShortOr::Table),
            _ => S::read(node, context).map(ShortOr::Short),
        }
    }

    fn schema(defs: &mut Defs) -> Value {
        json!({ "anyOf": [S::schema(defs), T::schema(defs)] })
    }
}

/// One value or a list of them.
pub(crate) struct OneOrMany<T>(T);

impl<T: Read> Read for OneOrMany<T> {
    type Value = Vec<At<T::Value>>;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self::Value> {
        if matches!(node.value, DeValue::Array(_)) {
            return Vec::<At<T>>::read(node, context);
        }
        At::<T>::read(node, context).map(|one| vec![one])
    }

    fn schema(defs: &mut Defs) -> Value {
        json!({ "anyOf": [T::schema(defs), Vec::<T>::schema(defs)] })
    }
}

impl<T: Read> Read for Vec<T> {
    type Value = Vec<T::Value>;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self::Value> {
        let DeValue::Array(array) = node.value else {
            mismatch(node, "a list", node.value, context);
            return None;
        };
        let last = context.keys.pop().unwrap_or_default();
        let read: Vec<Option<T::Value>> = array
            .iter()
            .enumerate()
            .map(|(index, value)| {
                let place = Place::new(node.place.file, value.span());
                let value = value.get_ref();
                context.inside(&format!("{last}[{index}]"), place, |context| {
                    T::read(Node { value, place }, context)
                })
            })
            .collect();
        context.keys.push(last);
        read.into_iter().collect()
    }

    fn schema(defs: &mut Defs) -> Value {
        json!({ "type": "array", "items": T::schema(defs) })
    }

    fn absent() -> Option<Self::Value> {
        Some(Vec::new())
    }
}

/// A table whose keys the user chooses: names of limits, headers and similar. In the order of the
/// file.
#[derive(Clone, Debug)]
pub(crate) struct Named<T> {
    pub(crate) entries: Vec<(At<String>, At<T>)>,
    /// Keys whose values could not be read. They exist, so they must not be reported as unknown.
    pub(crate) broken: Vec<At<String>>,
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            broken: Vec::new(),
        }
    }
}

impl<T: Read> Read for Named<T> {
    type Value = Named<T::Value>;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Self::Value> {
        let table = Table::of(node, context)?;
        let mut named = Named::default();
        let mut keys: Vec<_> = table.keys.iter().collect();
        keys.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in keys {
            let name = At {
                value: key.get_ref().clone().into_owned(),
                place: Place::new(node.place.file, key.span()),
            };
            let place = Place::new(node.place.file, value.span());
            let value = value.get_ref();
            let read = context.inside(&name.value, place, |context| {
                At::<T>::read(Node { value, place }, context)
            });
            match read {
                Some(value) => named.entries.push((name, value)),
                None => named.broken.push(name),
            }
        }
        Some(named)
    }

    fn schema(defs: &mut Defs) -> Value {
        json!({ "type": "object", "additionalProperties": T::schema(defs) })
    }

    fn absent() -> Option<Self::Value> {
        Some(Named::default())
    }
}

/// The index of the chosen word; reports a text that is none of `words`.
pub(crate) fn choose(words: &[&str], node: Node<'_>, context: &mut Context<'_>) -> Option<usize> {
    let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    let wanted = match quoted.as_slice() {
        [one, other] => format!("{one} or {other}"),
        all => format!("one of {}", all.join(", ")),
    };
    let text = Text::read_as(node, context, &wanted)?;
    let word = text.as_str();
    let chosen = words.iter().position(|known| *known == word);
    if chosen.is_none() {
        let label = nearest(word, words.iter().copied()).map_or_else(
            || "no such choice".to_owned(),
            |near| format!("did you mean \"{near}\"?"),
        );
        let help = slips::of_word(&context.keys, word);
        let title = format!("`{}` cannot be \"{word}\"", context.name());
        context
            .error(title, node.place, label)
            .maybe_help(help)
            .note(format!("the choices are {}", listed(words.iter().copied())));
    }
    chosen
}

/// Declares forms of strings: what is made of one, and the function that makes it.
macro_rules! texts {
    ($($(#[doc = $doc:literal])* $name:ident -> $value:ty = $make:expr;)*) => {$(
        $(#[doc = $doc])*
        pub(crate) enum $name {}

        impl $crate::reader::Read for $name {
            type Value = $value;

            fn read(node: $crate::reader::Node<'_>, context: &mut $crate::context::Context<'_>) -> Option<$value> {
                let text = $crate::scalar::Text::read_as(node, context, "a string")?;
                let make: fn(&$crate::source::At<$crate::scalar::Text>, &mut $crate::context::Context<'_>) -> Option<$value> = $make;
                make(&text, context)
            }

            fn schema(defs: &mut $crate::schema::Defs) -> serde_json::Value {
                <$crate::scalar::Text as $crate::reader::Read>::schema(defs)
            }
        }
    )*};
}
pub(crate) use texts;
