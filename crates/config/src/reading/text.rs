//! Strings of the file, their `${…}` replaced, and the files and secrets that they name.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use serde_json::{Value, json};
use toml::de::DeValue;

use super::context::Context;
use super::declare::forms;
use super::defs::Defs;
use super::env::{EnvError, interpolate};
use super::problem::{Flaw, Problem};
use super::reader::{Field, Node, Read, mismatch};
use super::source::{At, Place};
use crate::files::{cannot_read, plain};
use tollgate_policy::routes::ParseError;

const NO_DEFAULT: &str = "set it; a secret has no default in the file";
/// Replaces a secret that is not available: as long as the shortest accepted secret.
const ASSUMED: &str = "assumed:0123456789abcdef";
/// Keys whose values are secrets: no default is proposed for them.
const SECRETS: [&str; 3] = ["secret", "key_secret", "password"];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) value: String,
    /// Whether it is in the file character by character between its quotes, so that parts of it
    /// have places.
    verbatim: bool,
    /// The bytes of it that came from the environment. Defaults are in the file.
    pub(super) from_environment: Vec<Range<usize>>,
    /// Whether its value is unknown, because it depends on an unset variable.
    pub(crate) assumed: bool,
    /// Whether the file has a default for a variable (`${VAR:-default}`), which is then in clear.
    pub(crate) has_default: bool,
}

impl Text {
    /// Reads a string; `wanted` describes what the key accepts, for the message if it is not a string.
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
        let text = At {
            value: Self {
                verbatim,
                ..Self::plain(written)
            },
            place: node.place,
        };
        if !written.contains("${") {
            return Some(text);
        }
        let errors = match interpolate(written, context.env) {
            Ok(value) => {
                if !value.from_environment.is_empty() {
                    context.from_environment.insert(value.value.clone());
                }
                return Some(text.with(value));
            }
            Err(errors) => errors,
        };
        let key = context.keys.last().map_or("", String::as_str);
        let secret = SECRETS.contains(&key);
        let mut assumed = true;
        for EnvError { unset, flaw } in errors {
            let place = text.part(flaw.start, flaw.end);
            let help = if secret {
                Some(NO_DEFAULT.to_owned())
            } else {
                flaw.help
            };
            let mut problem = Problem::error(flaw.title);
            problem.at(place, flaw.label).maybe_help(help);
            match unset {
                Some(variable) => assumed &= context.problems.assume(&variable, problem),
                None => {
                    context.problems.push(problem);
                    assumed = false;
                }
            }
        }
        // A value can be assumed only if no other key depends on it; other values count as unreadable.
        let free = secret || context.name() == "store.url";
        let value = Self {
            from_environment: std::iter::once(0..ASSUMED.len()).collect(),
            assumed: true,
            ..Self::plain(ASSUMED)
        };
        (assumed && free).then(|| text.with(value))
    }

    /// A string that is not in the file.
    pub(crate) fn plain(value: &str) -> Self {
        Self {
            value: value.to_owned(),
            ..Self::default()
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
        if !self.value.verbatim {
            return self.place;
        }
        let first = self.place.range().start + 1;
        Place::new(self.place.file, first + start..first + end)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.value.value
    }
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
    for PathBuf = |text, context| Some(context.path(text));
}

impl Context<'_> {
    /// A path in the file; relative paths start in the directory of the file that contains them.
    pub(crate) fn path(&self, text: &At<Text>) -> PathBuf {
        self.sources.of(text.place.file).base.join(text.as_str())
    }

    pub(crate) fn readable(&mut self, text: &At<Text>, what: &str) -> Option<PathBuf> {
        let path = self.path(text);
        if self.sealed {
            return Some(path);
        }
        // A missing file may appear later, so it is watched for.
        self.files.push(path.clone());
        let why = match std::fs::File::open(&path).and_then(|file| file.metadata()) {
            Ok(meta) if !meta.is_dir() => return Some(path),
            Ok(_) => "it is a directory".to_owned(),
            Err(error) => plain(&error),
        };
        let title = format!("cannot read `{}`: {why}", path.display());
        self.error(title, text.place, what);
        None
    }

    pub(crate) fn bytes(&mut self, text: &At<Text>, what: &str) -> Option<(PathBuf, Vec<u8>)> {
        let path = self.readable(text, what)?;
        if self.sealed {
            return Some((path, Vec::new()));
        }
        let read = std::fs::read(&path).map_err(|error| {
            self.error(cannot_read(&path, &error), text.place, what);
        });
        Some((path, read.ok()?))
    }

    pub(crate) fn content(&mut self, text: &At<Text>, what: &str) -> Option<String> {
        let (path, content) = self.bytes(text, what)?;
        let content = String::from_utf8(content).ok();
        if content.is_none() {
            let title = format!("cannot read `{}`: it is not UTF-8", path.display());
            self.error(title, text.place, what);
        }
        content
    }

    /// A secret: from the environment, or from the file that its `_file` variant names (without one
    /// newline at the end). Never in clear in the file.
    pub(crate) fn secret(
        &mut self,
        key: &str,
        text: &Field<Text>,
        file: &Field<Text>,
    ) -> Option<At<Secret>> {
        if let (Some(text), Some(file)) = (text.get(), file.get()) {
            let title = format!("`{key}` and `{key}_file` are both written");
            self.either(title, file.place, text.place);
            return None;
        }
        if let Some(file) = file.get() {
            let content = self.content(file, "the secret is read from here")?;
            let content = content.strip_suffix('\n').unwrap_or(&content);
            let content = content.strip_suffix('\r').unwrap_or(content);
            return Some(file.with(Secret::new(content)));
        }
        let text = text.get()?;
        if !text.is_from_environment(0, text.as_str().len()) || text.has_default {
            let variable = format!("TOLLGATE_{}", key.to_uppercase());
            self.in_clear(format!("`{key}` is written in clear in the file"), text.place)
                .help(format!(
                    "read it from the environment: {key} = \"${{{variable}}}\"; or from a file of its own: {key}_file = \"…\""
                ));
            return None;
        }
        Some(text.with(Secret::new(text.as_str())))
    }

    /// Whether a secret is too long to be guessed from what is made of it; reports one that is not.
    pub(crate) fn is_long(&mut self, key: &str, secret: &At<Secret>, help: &str) -> bool {
        let length = secret.expose().len();
        if length < SECRET_LEAST {
            let title = format!("`{key}` is shorter than {SECRET_LEAST} characters");
            self.error(title, secret.place, format!("{length} characters"))
                .help(help);
        }
        length >= SECRET_LEAST
    }

    /// Reports a secret that the file contains in clear; messages mask it.
    pub(crate) fn in_clear(&mut self, title: impl Into<String>, place: Place) -> &mut Problem {
        let problem = self.error(title, place, "a secret does not belong here");
        problem.secret = true;
        problem
    }

    /// What a parser of the policy made of a string; reports its mistake.
    pub(crate) fn parsed<T>(
        &mut self,
        read: Result<T, ParseError>,
        title: impl Into<String>,
        text: &At<Text>,
    ) -> Option<T> {
        let report = |error: ParseError| {
            let place = text.part(error.at.start, error.at.end);
            self.error(title, place, error.message);
        };
        read.map_err(report).ok()
    }

    /// What a string was read as; without a value reports that it `is_not` what its key accepts.
    pub(crate) fn value_of<T>(
        &mut self,
        text: &At<Text>,
        read: Option<T>,
        is_not: &str,
        expected: &str,
    ) -> Option<T> {
        if read.is_none() {
            let title = format!("`{}` {is_not}", text.as_str());
            self.error(title, text.place, expected);
        }
        read
    }

    pub(crate) fn flaw(&mut self, flaw: Flaw, text: &At<Text>) {
        self.error(flaw.title, text.part(flaw.start, flaw.end), flaw.label)
            .maybe_help(flaw.help);
    }
}

/// Shorter secrets can be guessed from a signature, or from a stolen key name.
const SECRET_LEAST: usize = 16;

/// A value that must not be shown: its `Debug` output shows only that it exists.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "Secret(…)");
    }
}
