//! Strings of the file, their `${…}` replaced.

use std::ops::Range;
use std::path::PathBuf;

use serde_json::{Value, json};
use toml::de::DeValue;

use super::context::Context;
use super::declare::forms;
use super::env::{Interpolated, has_default, interpolate};
use super::problem::Flaw;
use super::problem::Problem;
use super::reader::{Node, Read, mismatch};
use super::schema::Defs;
use super::source::{At, Place};

const NO_DEFAULT: &str = "set it; a secret has no default in the file";
/// Replaces a secret that is not available: as long as the shortest accepted secret.
const ASSUMED: &str = "assumed:0123456789abcdef";
/// Keys whose values are secrets: no default is proposed for them.
const SECRETS: [&str; 3] = ["secret", "key_secret", "password"];

/// A string of the file, its `${…}` replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Text {
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
            let Flaw {
                start,
                end,
                title,
                label,
                help,
            } = error.flaw;
            let place = if verbatim {
                part(node.place, start, end)
            } else {
                node.place
            };
            let help = if secret {
                Some(NO_DEFAULT.to_owned())
            } else {
                help
            };
            let mut problem = Problem::error(title);
            problem.at(place, label).maybe_help(help);
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

forms! {
    for String = |text, _| Some(text.value.value.clone());
}

forms! {
    /// A path, which starts in the directory of the file that contains it.
    for PathBuf = |text, context| Some(context.path(text));
}
