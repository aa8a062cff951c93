//! What is said of each setting: where it is, what became of it, how the two compare and whom that favours.

use std::fmt;

use tollgate_config::yaml::Node;

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub file: String,
    pub line: usize,
}

impl Place {
    pub(crate) fn of(node: &Node) -> Self {
        Self {
            file: node.file.to_string(),
            line: node.line,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub place: Place,
    pub what: String,
    pub limit: Option<String>,
    pub outcome: Outcome,
}

impl Finding {
    pub(crate) fn add(&mut self, difference: Difference) {
        match &mut self.outcome {
            Outcome::Equal => self.outcome = Outcome::Differs(vec![difference]),
            Outcome::Differs(differences) if differences.contains(&difference) => {}
            Outcome::Differs(differences) => differences.push(difference),
            Outcome::NotImported(_) | Outcome::Nothing(_) => {}
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Both judge every request of a log alike.
    Equal,
    Differs(Vec<Difference>),
    /// It has no counterpart, or is not understood.
    NotImported(String),
    Nothing(String),
}

impl Outcome {
    pub(crate) fn of(differences: Vec<Difference>) -> Self {
        if differences.is_empty() {
            return Self::Equal;
        }
        Self::Differs(differences)
    }

    pub(crate) const fn word(&self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Differs(_) => "differs",
            Self::NotImported(_) => "not imported",
            Self::Nothing(_) => "nothing to import",
        }
    }
}

/// One way in which a limit and its translation differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub what: String,
    pub favour: Favour,
}

impl Difference {
    pub(crate) fn words(&self) -> String {
        format!("differs: {}; {}", self.what, self.favour.words())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Favour {
    /// More is admitted than before.
    Clients,
    /// Less is admitted than before.
    Upstream,
    Either,
}

impl Favour {
    pub const fn words(self) -> &'static str {
        match self {
            Self::Clients => "in the clients' favour",
            Self::Upstream => "in the upstream's favour",
            Self::Either => "in the favour of one or the other",
        }
    }

    fn by(self, what: impl Into<String>) -> Difference {
        Difference {
            what: what.into(),
            favour: self,
        }
    }
}

pub(crate) fn clients(what: impl Into<String>) -> Difference {
    Favour::Clients.by(what)
}

pub(crate) fn upstream(what: impl Into<String>) -> Difference {
    Favour::Upstream.by(what)
}

pub(crate) fn either(what: impl Into<String>) -> Difference {
    Favour::Either.by(what)
}

pub(crate) fn by_method() -> Difference {
    either("HEAD counts as GET here, and methods that no route names share one bucket")
}
