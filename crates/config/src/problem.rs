//! What is wrong with a configuration: problems, collected, never one at a time.

use super::env::Unset;
use super::source::Place;

/// Whether a problem stops the start or is only told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// Nothing starts.
    Error,
    /// It starts, and says so.
    Warning,
}

/// One mistake: what it is, where, and what would do.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) severity: Severity,
    pub(crate) title: String,
    /// The first mark is the mistake itself; the others explain it.
    pub(crate) marks: Vec<Mark>,
    pub(crate) notes: Vec<String>,
    pub(crate) helps: Vec<String>,
    /// Whether the text is no TOML here: what else is wrong on such a line is an echo.
    pub(crate) syntax: bool,
    /// Whether the mistake is a secret that stands in clear: messages must not spread it.
    pub(crate) secret: bool,
}

/// A place with what to say about it.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub(crate) place: Place,
    pub(crate) label: String,
}

impl Problem {
    /// A mistake that stops the start.
    pub(crate) fn error(title: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            title: title.into(),
            marks: Vec::new(),
            notes: Vec::new(),
            helps: Vec::new(),
            syntax: false,
            secret: false,
        }
    }

    /// Something that is legal and hardly meant.
    pub(crate) fn warning(title: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::error(title)
        }
    }

    /// What it points at is a secret, which messages show masked.
    pub(crate) fn secret(self) -> Self {
        Self {
            secret: true,
            ..self
        }
    }

    /// Points at a place; the first call points at the mistake.
    pub(crate) fn at(mut self, place: Place, label: impl Into<String>) -> Self {
        self.marks.push(Mark {
            place,
            label: label.into(),
        });
        self
    }

    /// Adds a fact.
    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// Adds what to do.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.helps.push(help.into());
        self
    }

    /// Adds what to do, if there is something to say.
    pub(crate) fn maybe_help(self, help: Option<String>) -> Self {
        match help {
            Some(help) => self.help(help),
            None => self,
        }
    }
}

/// The problems found so far.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    list: Vec<Problem>,
    unset: Unset,
    /// Variables that are not set, with what is to be said where nothing can be assumed for them.
    missing: Vec<(String, Problem)>,
}

impl Problems {
    /// None yet.
    pub(crate) fn new(unset: Unset) -> Self {
        Self {
            unset,
            ..Self::default()
        }
    }

    /// Takes in that a variable is not set; whether something is to be assumed in its place.
    pub(crate) fn assume(&mut self, variable: &str, problem: Problem) -> bool {
        match self.unset {
            Unset::Refused => self.push(problem),
            Unset::Assumed => self.missing.push((variable.to_owned(), problem)),
        }
        self.unset == Unset::Assumed
    }

    /// The variables that something was assumed for.
    pub(crate) fn assumed(&self) -> Vec<String> {
        let mut names: Vec<String> = self.missing.iter().map(|(name, _)| name.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// What is to be said of those variables where nothing can be made without them.
    pub(crate) fn unset(&self) -> Vec<Problem> {
        self.missing
            .iter()
            .map(|(_, problem)| problem.clone())
            .collect()
    }

    /// Takes one in.
    pub(crate) fn push(&mut self, problem: Problem) {
        self.list.push(problem);
    }

    /// Whether any of them stops the start.
    pub(crate) fn any_error(&self) -> bool {
        self.list
            .iter()
            .any(|problem| problem.severity == Severity::Error)
    }

    /// All of them, in the order of the file.
    pub(crate) fn into_sorted(mut self) -> Vec<Problem> {
        self.list.sort_by_key(|problem| {
            problem
                .marks
                .first()
                .map(|mark| (mark.place.file, mark.place.start))
        });
        // What is wrong in a list that many routes share is told once.
        self.list.dedup_by(|one, other| {
            let place = |problem: &Problem| problem.marks.first().map(|mark| mark.place);
            one.title == other.title && place(one).is_some() && place(one) == place(other)
        });
        self.list
    }
}

/// The candidate nearest to `word`, when it is near enough to be what was meant.
pub fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let folded = word.to_ascii_lowercase().replace('-', "_");
    candidates
        .into_iter()
        .map(|candidate| {
            (
                strsim::damerau_levenshtein(
                    &folded,
                    &candidate.to_ascii_lowercase().replace('-', "_"),
                ),
                candidate,
            )
        })
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len().min(word.len()) / 4)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Names for a sentence: "`a`, `b` and `c`", at most a dozen.
pub(crate) fn listed<'c>(names: impl IntoIterator<Item = &'c str>) -> String {
    const MOST: usize = 12;
    let names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    match names.as_slice() {
        [] => "none".to_owned(),
        [one] => one.clone(),
        [.., _] if names.len() > MOST => format!(
            "{} and {} more",
            names[..MOST].join(", "),
            names.len() - MOST
        ),
        [head @ .., last] => format!("{} and {last}", head.join(", ")),
    }
}

/// "did you mean `x`?" when something is near, otherwise what there is to choose from.
pub(crate) fn suggestion(what: &str, word: &str, candidates: &[&str]) -> String {
    match nearest(word, candidates.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if candidates.is_empty() => format!("no {what} is defined"),
        None => format!("known are {}", listed(candidates.iter().copied())),
    }
}
