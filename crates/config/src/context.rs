//! What reading and checking share: the texts, the problems found, the environment and the files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::env::Env;
use super::files::{cannot_read, plain};
use super::problem::Flaw;
use super::problem::{Problem, Problems, suggestion};
use super::reader::Field;
use super::settings::{Listener, Secret};
use super::source::{At, Place, Sources};
use super::text::Text;
use tollgate_policy::routes::ParseError;

/// The program that a configuration is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// A gateway, which forwards requests.
    Gateway,
    /// A service, which limits its own requests.
    Service,
}

/// The state of reading and checking one configuration.
pub(crate) struct Context<'e> {
    pub(crate) sources: Sources,
    pub(crate) problems: Problems,
    pub(crate) files: Vec<PathBuf>,
    pub(crate) env: Env<'e>,
    pub(crate) program: Program,
    /// The listener in place of the file's (`tollgate run --listen`).
    pub(crate) listen: Option<Listener>,
    /// The parts of the dotted name of what is being read.
    pub(crate) keys: Vec<String>,
    /// The places of values, by dotted name; entries of lists in several files have the same names.
    /// `None`: they are not recorded.
    pub(crate) places: Option<HashMap<String, Vec<Place>>>,
    /// Whether files are left alone: the text is a default or an example.
    pub(crate) sealed: bool,
    /// Whether a list is accepted in place of the value that is being read.
    pub(crate) or_list: bool,
}

impl<'e> Context<'e> {
    pub(crate) fn new(env: Env<'e>, problems: Problems) -> Self {
        Self {
            sources: Sources::default(),
            problems,
            files: Vec::new(),
            env,
            program: Program::Gateway,
            listen: None,
            keys: Vec::new(),
            places: Some(HashMap::new()),
            sealed: false,
            or_list: false,
        }
    }

    /// A context for a text of this program: every variable is `1`, and no file is opened.
    pub(crate) fn sealed(text: &str) -> Self {
        let mut context = Self::new(&|_| Some("1".to_owned()), Problems::default());
        context.sources.add("", text, Path::new(""));
        Self {
            sealed: true,
            ..context
        }
    }

    /// Reads a part of the file: `name` at `place`.
    pub(crate) fn inside<T>(
        &mut self,
        name: &str,
        place: Place,
        read: impl FnOnce(&mut Self) -> T,
    ) -> T {
        self.keys.push(name.to_owned());
        let name = self.places.is_some().then(|| self.name());
        if let (Some(places), Some(name)) = (&mut self.places, name) {
            places.entry(name).or_default().push(place);
        }
        let or_list = std::mem::take(&mut self.or_list);
        let read = read(self);
        self.or_list = or_list;
        self.keys.pop();
        read
    }

    /// The dotted name of what is being read.
    pub(crate) fn name(&self) -> String {
        self.keys.join(".")
    }

    /// The place of the value with this dotted name, if it is written.
    pub(crate) fn place(&self, name: &str) -> Option<Place> {
        self.places.as_ref()?.get(name)?.last().copied()
    }

    /// Whether the listener for clients is not the default one.
    pub(crate) fn is_listener_written(&self) -> bool {
        self.listen.is_some() || self.place("server.listen").is_some()
    }

    /// The place inside `outer` of a value whose dotted name ends like this.
    pub(crate) fn place_inside(&self, outer: Place, end: &str) -> Option<Place> {
        let within = |place: &&Place| outer.contains(**place);
        let named = self.places.iter().flatten();
        let named = named.filter(|(name, _)| name.ends_with(end));
        named.flat_map(|(_, places)| places).find(within).copied()
    }

    pub(crate) fn error(
        &mut self,
        title: impl Into<String>,
        place: Place,
        label: impl Into<String>,
    ) -> &mut Problem {
        self.problems.push(Problem::error(title)).at(place, label)
    }

    /// Reports a legal but probably unintended setting at a place.
    pub(crate) fn warning(
        &mut self,
        title: impl Into<String>,
        place: Place,
        label: impl Into<String>,
    ) -> &mut Problem {
        self.problems.push(Problem::warning(title)).at(place, label)
    }

    /// Reports something that the value of a key names and that cannot be opened, at the key or at
    /// the table that it is in.
    pub(crate) fn unopened(&mut self, key: &str, what: String) {
        let mut outer = key;
        let place = loop {
            match (self.place(outer), outer.rfind(['.', '['])) {
                (None, Some(end)) => outer = &outer[..end],
                (place, _) => break place,
            }
        };
        let problem = self
            .problems
            .push(Problem::error(format!("`{key}`: {what}")));
        if let Some(place) = place {
            problem.at(place, "a gateway with this file does not start");
        }
    }

    /// Reports that `again` repeats `first`.
    pub(crate) fn twice(
        &mut self,
        title: impl Into<String>,
        again: Place,
        first: Place,
    ) -> &mut Problem {
        self.error(title, again, "again here")
            .at(first, "first here")
    }

    /// Reports two settings of which one must go.
    pub(crate) fn either(
        &mut self,
        title: impl Into<String>,
        one: Place,
        other: Place,
    ) -> &mut Problem {
        self.error(title, one, "one of them must go")
            .at(other, "the other")
    }

    /// A path in the file; relative paths start in the directory of the file that contains them.
    pub(crate) fn path(&self, text: &At<Text>) -> PathBuf {
        self.sources.of(text.place.file).base.join(text.as_str())
    }

    /// A path whose file must exist and be readable.
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

    /// A file that the configuration names, with its content.
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

    /// The content of a text file that the configuration names.
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

    /// Reports that `name` is not one of `names`.
    pub(crate) fn unknown(&mut self, what: &str, name: &str, place: Place, names: &[&str]) {
        let label = suggestion(what, name, names);
        self.error(format!("unknown {what} `{name}`"), place, label);
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

    pub(crate) fn flaw(&mut self, flaw: Flaw, text: &At<Text>) {
        self.error(flaw.title, text.part(flaw.start, flaw.end), flaw.label)
            .maybe_help(flaw.help);
    }
}

/// Shorter secrets can be guessed from a signature, or from a stolen key name.
const SECRET_LEAST: usize = 16;
