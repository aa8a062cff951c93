//! What reading and checking share: the texts, the problems found, the environment and the files.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::env::Env;
use super::problem::{Problem, Problems, suggestion};
use super::source::{Place, Sources};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// A gateway, which forwards requests.
    Gateway,
    /// A service, which limits its own requests.
    Service,
}

pub(crate) struct Context<'e> {
    pub(crate) sources: Sources,
    pub(crate) problems: Problems,
    pub(crate) files: Vec<PathBuf>,
    pub(crate) env: Env<'e>,
    /// The strings of which a part came from the environment: they may be secrets.
    pub(crate) from_environment: HashSet<String>,
    pub(crate) program: Program,
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
            from_environment: HashSet::new(),
            program: Program::Gateway,
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

    pub(crate) fn name(&self) -> String {
        self.keys.join(".")
    }

    /// The place of the value with this dotted name, if it is written.
    pub(crate) fn place(&self, name: &str) -> Option<Place> {
        self.places.as_ref()?.get(name)?.last().copied()
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

    pub(crate) fn twice(
        &mut self,
        title: impl Into<String>,
        again: Place,
        first: Place,
    ) -> &mut Problem {
        self.error(title, again, "again here")
            .at(first, "first here")
    }

    pub(crate) fn either(
        &mut self,
        title: impl Into<String>,
        one: Place,
        other: Place,
    ) -> &mut Problem {
        self.error(title, one, "one of them must go")
            .at(other, "the other")
    }

    pub(crate) fn unknown(&mut self, what: &str, name: &str, place: Place, names: &[&str]) {
        let label = suggestion(what, name, names);
        self.error(format!("unknown {what} `{name}`"), place, label);
    }
}
