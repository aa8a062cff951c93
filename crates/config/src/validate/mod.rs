//! Converts the mirror to valid types. Every function reports all mistakes it finds and continues.

pub(crate) mod callers;
pub(crate) mod costs;
pub(crate) mod identities;
mod leases;
pub(crate) mod limits;
pub(crate) mod responses;
pub(crate) mod routes;
pub(crate) mod server;
pub(crate) mod store;
pub(crate) mod tests_table;
pub(crate) mod together;
pub(crate) mod upstreams;

use std::path::{Path, PathBuf};

use super::env::Env;
use super::include::plain;
use super::problem::{Problem, Problems, suggestion};
use super::quantity::{Count, Flaw, Size, Time};
use super::reader::{Field, Setting};
use super::scalar::{Named, Text};
use super::settings::Secret;
use super::source::{At, Place, Sources};
use tollgate_limit::Micros;
use tollgate_policy::route::ParseError;

/// The inputs of validation besides the mirror.
pub(crate) struct Context<'c> {
    pub(crate) sources: &'c mut Sources,
    pub(crate) problems: &'c mut Problems,
    pub(crate) files: &'c mut Vec<PathBuf>,
    pub(crate) env: Env<'c>,
}

impl Context<'_> {
    /// Adds a problem.
    pub(crate) fn push(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// A path in the file; relative paths start in the directory of the file that contains them.
    pub(crate) fn path(&self, text: &At<Text>) -> PathBuf {
        let path = Path::new(text.as_str());
        if path.is_absolute() {
            path.to_path_buf()
        } else {
            self.sources.of(text.place.file).base.join(path)
        }
    }

    /// A path whose file must exist and be readable.
    pub(crate) fn readable(&mut self, text: &At<Text>, what: &str) -> Option<PathBuf> {
        let path = self.path(text);
        // A missing file may appear later, so it is watched for.
        self.files.push(path.clone());
        let why = match std::fs::File::open(&path).and_then(|file| file.metadata()) {
            Ok(meta) if !meta.is_dir() => return Some(path),
            Ok(_) => "it is a directory".to_owned(),
            Err(error) => plain(&error),
        };
        self.push(
            Problem::error(format!("cannot read `{}`: {why}", path.display())).at(text.place, what),
        );
        None
    }

    /// The content of a file that the configuration names.
    pub(crate) fn content(&mut self, text: &At<Text>, what: &str) -> Option<String> {
        let path = self.readable(text, what)?;
        match std::fs::read_to_string(&path) {
            Ok(content) => Some(content),
            Err(error) => {
                let title = format!("cannot read `{}`: {}", path.display(), plain(&error));
                self.push(Problem::error(title).at(text.place, what));
                None
            }
        }
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
            let problem = Problem::error(format!("`{key}` and `{key}_file` are both written"));
            self.push(
                problem
                    .at(file.place, "one of them must go")
                    .at(text.place, "the other"),
            );
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
            self.push(in_clear(key, text.place));
            return None;
        }
        Some(text.with(Secret::new(text.as_str())))
    }

    /// Reports that `name` is not one of `names`.
    pub(crate) fn unknown(&mut self, what: &str, name: &str, place: Place, names: &[&str]) {
        self.push(
            Problem::error(format!("unknown {what} `{name}`"))
                .at(place, suggestion(what, name, names)),
        );
    }

    /// Reports a mistake that a parser of the policy found in a string.
    pub(crate) fn parse_error(
        &mut self,
        title: impl Into<String>,
        error: ParseError,
        text: &At<Text>,
    ) {
        self.push(Problem::error(title).at(text.part(error.at.start, error.at.end), error.message));
    }

    /// Reports a flaw in a string.
    pub(crate) fn flaw(&mut self, flaw: Flaw, text: &At<Text>) {
        self.push(flaw.problem(text));
    }

    /// A number that must be in `least..=most`.
    pub(crate) fn within(&mut self, setting: Setting<u64>, least: u64, most: u64) -> u64 {
        let Setting { key, value, place } = setting;
        if let (Some(place), false) = (place, (least..=most).contains(&value)) {
            let label = if value < least {
                format!("the least is {least}")
            } else {
                format!("the most is {most}")
            };
            self.push(Problem::error(format!("`{key}` is out of bounds")).at(place, label));
        }
        value.clamp(least, most)
    }

    /// A duration that must not be zero.
    pub(crate) fn time(&mut self, setting: Setting<Time>) -> Micros {
        if setting.value.0 == Micros::ZERO
            && let Some(place) = setting.place
        {
            let label = "zero is not \"off\": nothing would ever be in time";
            let title = format!("`{}` is out of bounds", setting.key);
            self.push(Problem::error(title).at(place, label));
        }
        self.span(setting)
    }

    /// A duration that may be zero, and at most a year.
    pub(crate) fn span(&mut self, setting: Setting<Time>) -> Micros {
        let Setting { key, value, place } = setting;
        if let (Some(place), true) = (place, value.0 > LONGEST) {
            let title = format!("`{key}` is out of bounds");
            self.push(Problem::error(title).at(place, "more than a year"));
        }
        value.0
    }

    /// A number of at most `most`; `None`: computed by the gateway.
    pub(crate) fn count(&mut self, setting: &Setting<Count>, most: u64) -> Option<u64> {
        match setting.value {
            Count::Auto => None,
            Count::Exactly(number) => {
                let Setting { key, place, .. } = *setting;
                let value = number;
                Some(self.within(Setting { key, value, place }, 1, most))
            }
        }
    }

    /// A size in bytes that must have a bound.
    pub(crate) fn bounded(&mut self, setting: Setting<Size>, least: u64, most: u64) -> u64 {
        let Setting { key, value, place } = setting;
        let (title, label) = match value {
            Size::Bytes(bytes) if (least..=most).contains(&bytes) => return bytes,
            Size::Bytes(bytes) if bytes < least => (
                "is out of bounds",
                format!("the least is {}", bytes_words(least)),
            ),
            Size::Bytes(_) => (
                "is out of bounds",
                format!("the most is {}", bytes_words(most)),
            ),
            Size::Unlimited => (
                "must have a bound",
                "whatever a caller can fill is bounded".to_owned(),
            ),
        };
        if let Some(place) = place {
            self.push(Problem::error(format!("`{key}` {title}")).at(place, label));
        }
        most
    }
}

/// The problem of a secret in clear.
pub(crate) fn in_clear(key: &str, place: Place) -> Problem {
    let variable = format!("TOLLGATE_{}", key.to_uppercase());
    Problem::error(format!("`{key}` stands in clear in the file"))
        .secret()
        .at(place, "a secret does not belong here")
        .help(format!(
            "read it from the environment: {key} = \"${{{variable}}}\"; or from a file of its own: {key}_file = \"…\""
        ))
}

/// Bytes in the largest unit that divides them.
pub(crate) fn bytes_words(bytes: u64) -> String {
    [(30, "GiB"), (20, "MiB"), (10, "KiB")]
        .into_iter()
        .find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift)
        .map_or_else(
            || format!("{bytes} bytes"),
            |(shift, unit)| format!("{} {unit}", bytes >> shift),
        )
}

/// The names of a section, including those whose tables could not be read.
pub(crate) fn names_of<T>(field: &Field<Named<T>>) -> Vec<&str> {
    let Some(named) = field.get() else {
        return Vec::new();
    };
    let whole = named.entries.iter().map(|(name, _)| name.value.as_str());
    whole
        .chain(named.broken.iter().map(|name| name.value.as_str()))
        .collect()
}

/// The entries of a section.
pub(crate) fn entries_of<T>(field: &Field<Named<T>>) -> &[(At<String>, At<T>)] {
    field.get().map_or(&[], |named| named.entries.as_slice())
}

/// The entries of a list.
pub(crate) fn list_of<T>(field: &Field<Vec<At<T>>>) -> &[At<T>] {
    field.get().map_or(&[], |list| list.value.as_slice())
}

/// The longest timeout that is accepted.
const LONGEST: Micros = Micros::from_secs(366 * 86_400);
