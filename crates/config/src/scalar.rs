//! Strings, numbers, words and lists: the small values in tables.

use std::ops::Range;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use toml::de::DeValue;

use super::env::{Interpolated, has_default, interpolate};
use super::problem::{Problem, listed, nearest};
use super::reader::{Node, Read, Reader};
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
    pub(crate) fn read_as(node: Node<'_>, reader: &mut Reader<'_>, wanted: &str) -> Option<Self> {
        let DeValue::String(written) = node.value else {
            reader.mismatch(node, wanted, node.value);
            return None;
        };
        let verbatim = reader.text.get(node.place.range()).is_some_and(|token| {
            token.len() == written.len() + 2 && token[1..].starts_with(written.as_ref())
        });
        if !written.contains("${") {
            return Some(Self {
                value: written.clone().into_owned(),
                verbatim,
                from_environment: Vec::new(),
                assumed: false,
                has_default: false,
            });
        }
        let has_default = has_default(written);
        let secret = reader
            .path
            .last()
            .is_some_and(|key| SECRETS.contains(&key.as_str()));
        match interpolate(written, reader.env) {
            Ok(text) => {
                let Interpolated {
                    value,
                    from_environment,
                } = text;
                Some(Self {
                    value,
                    verbatim: false,
                    from_environment,
                    assumed: false,
                    has_default,
                })
            }
            Err(errors) => {
                let mut assumed = !errors.is_empty();
                for error in errors {
                    let place = if verbatim {
                        part(node.place, error.start, error.end)
                    } else {
                        node.place
                    };
                    let help = if secret {
                        Some(NO_DEFAULT.to_owned())
                    } else {
                        error.help
                    };
                    let problem = Problem::error(error.title)
                        .at(place, error.label)
                        .maybe_help(help);
                    match error.unset {
                        Some(variable) => assumed &= reader.problems.assume(&variable, problem),
                        None => {
                            reader.problems.push(problem);
                            assumed = false;
                        }
                    }
                }
                // A value can be assumed only if no other key depends on it; other values count as
                // unreadable.
                let key = reader.path.last().map_or("", String::as_str);
                let free = SECRETS.contains(&key) || reader.path == ["store", "url"];
                (assumed && free).then(|| Self {
                    value: ASSUMED.to_owned(),
                    verbatim: false,
                    from_environment: std::iter::once(0..ASSUMED.len()).collect(),
                    assumed: true,
                    has_default: false,
                })
            }
        }
    }
}

impl Text {
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
    fn read(node: Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        Self::read_as(node, reader, "a string")
    }
}

impl Read for bool {
    fn read(node: Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        if let DeValue::Boolean(value) = node.value {
            return Some(*value);
        }
        from_variable(node, reader, "`true` or `false`")
    }
}

/// A whole number, zero or more.
impl Read for u64 {
    fn read(node: Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        let DeValue::Integer(number) = node.value else {
            return from_variable(node, reader, "a whole number");
        };
        let read = Self::from_str_radix(number.as_str(), number.radix()).ok();
        if read.is_none() {
            let label = if number.as_str().starts_with('-') {
                "negative"
            } else {
                "more than 18446744073709551615"
            };
            let problem = Problem::error(format!(
                "`{}` must be a whole number, zero or more",
                reader.name()
            ))
            .at(node.place, label);
            reader.problems.push(problem);
        }
        read
    }
}

/// A number or boolean from the environment, which is written as a string with a variable.
pub(crate) fn from_variable<T: std::str::FromStr>(
    node: Node<'_>,
    reader: &mut Reader<'_>,
    wanted: &str,
) -> Option<T> {
    match node.value {
        DeValue::String(written) if written.contains("${") => {}
        other => {
            reader.mismatch(node, wanted, other);
            return None;
        }
    }
    let text = Text::read_as(node, reader, wanted)?;
    let read = text.value.trim().parse().ok();
    if read.is_none() {
        // Its value is not shown: it may be a secret that was meant for another variable.
        let problem = Problem::error(format!("`{}` must be {wanted}", reader.name()));
        reader
            .problems
            .push(problem.at(node.place, "the environment says something else"));
    }
    read
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
    fn read(node: Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        match node.value {
            DeValue::Table(_) => T::read(node, reader).map(Self::Table),
            _ => S::read(node, reader).map(Self::Short),
        }
    }
}

/// One value or a list of them.
#[derive(Clone, Debug)]
pub(crate) struct OneOrMany<T> {
    pub(crate) list: Vec<At<T>>,
}

impl<T: Read> Read for OneOrMany<T> {
    fn read(node: Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        if matches!(node.value, DeValue::Array(_)) {
            return Vec::read(node, reader).map(|list| Self { list });
        }
        T::read(node, reader).map(|value| Self {
            list: vec![At {
                value,
                place: node.place,
            }],
        })
    }
}

impl<T: Read> Read for Vec<At<T>> {
    fn read(node: Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        let DeValue::Array(array) = node.value else {
            reader.mismatch(node, "a list", node.value);
            return None;
        };
        let mut list = Vec::with_capacity(array.len());
        let mut whole = true;
        for (index, value) in array.iter().enumerate() {
            let place = Place::new(reader.file, value.span());
            let last = reader.path.pop().unwrap_or_default();
            reader.path.push(format!("{last}[{index}]"));
            match T::read(
                Node {
                    value: value.get_ref(),
                    place,
                },
                reader,
            ) {
                Some(value) => list.push(At { value, place }),
                None => whole = false,
            }
            reader.path.pop();
            reader.path.push(last);
        }
        whole.then_some(list)
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
    fn read(node: Node<'_>, reader: &mut Reader<'_>) -> Option<Self> {
        let table = reader.table(node)?;
        let mut named = Self::default();
        let mut keys: Vec<_> = table.iter().collect();
        keys.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in keys {
            let name = At {
                value: key.get_ref().clone().into_owned(),
                place: Place::new(reader.file, key.span()),
            };
            let place = Place::new(reader.file, value.span());
            reader.path.push(name.value.clone());
            match T::read(
                Node {
                    value: value.get_ref(),
                    place,
                },
                reader,
            ) {
                Some(value) => named.entries.push((name, At { value, place })),
                None => named.broken.push(name),
            }
            reader.path.pop();
        }
        Some(named)
    }
}

/// "one of `a`, `b` and `c`", for messages.
pub(crate) fn choice(words: &[&str]) -> String {
    match words {
        [one, other] => format!("\"{one}\" or \"{other}\""),
        _ => format!(
            "one of {}",
            words
                .iter()
                .map(|word| format!("\"{word}\""))
                .collect::<Vec<_>>()
                .join(", ")
        ),
    }
}

/// Reports that `word` is not one of `words`.
pub(crate) fn not_a_choice(word: &str, words: &[&str], node: Node<'_>, reader: &mut Reader<'_>) {
    let problem = Problem::error(format!("`{}` cannot be \"{word}\"", reader.name()));
    let problem = match nearest(word, words.iter().copied()) {
        Some(near) => problem.at(node.place, format!("did you mean \"{near}\"?")),
        None => problem.at(node.place, "no such choice"),
    };
    let problem = problem.maybe_help(slips::of_word(&reader.path, word).map(str::to_owned));
    reader
        .problems
        .push(problem.note(format!("the choices are {}", listed(words.iter().copied()))));
}

macro_rules! schema_of {
    ($(@[$($generics:tt)*])? $type:ty, $name:literal, $generator:ident => $schema:expr) => {
        impl $(<$($generics)*>)? JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }

            fn json_schema($generator: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    };
}
pub(crate) use schema_of;

schema_of!(Text, "Text", _generator => json_schema!({ "type": "string" }));
schema_of!(@[S: JsonSchema, T: JsonSchema] ShortOr<S, T>, "ShortOr", generator => {
    let (short, table) = (generator.subschema_for::<S>(), generator.subschema_for::<T>());
    json_schema!({ "anyOf": [short, table] })
});
schema_of!(@[T: JsonSchema] OneOrMany<T>, "OneOrMany", generator => {
    let one = generator.subschema_for::<T>();
    json_schema!({ "anyOf": [one, { "type": "array", "items": one }] })
});
schema_of!(@[T: JsonSchema] Named<T>, "Named", generator => {
    let one = generator.subschema_for::<T>();
    json_schema!({ "type": "object", "additionalProperties": one })
});
schema_of!(@[T: JsonSchema] At<T>, "At", generator => generator.subschema_for::<T>());
