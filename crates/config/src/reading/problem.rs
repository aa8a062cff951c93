//! Problems in a configuration, collected so that all are reported together.

use super::source::Place;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    #[default]
    Error,
    Warning,
}

/// One mistake: what it is, where, and what would do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Problem {
    pub(crate) severity: Severity,
    pub(crate) title: String,
    /// The first mark is the mistake itself; the others explain it.
    pub(crate) marks: Vec<Mark>,
    pub(crate) notes: Vec<String>,
    pub(crate) helps: Vec<String>,
    /// Whether the text is not TOML here: other mistakes on such a line are consequences.
    pub(crate) syntax: bool,
    /// Whether something is missing: it may stand where the text is not TOML.
    pub(crate) missing: bool,
    /// Whether the mistake is a secret in clear, which messages must not repeat.
    pub(crate) secret: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub(crate) place: Place,
    pub(crate) label: String,
}

impl Problem {
    pub(crate) fn error(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            ..Self::default()
        }
    }

    pub(crate) fn warning(title: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::error(title)
        }
    }

    /// All of it without its place, in a line.
    pub(crate) fn words(&self) -> String {
        let label = self.marks.first().map(|mark| mark.label.as_str());
        let parts = std::iter::once(self.title.as_str())
            .chain(label.filter(|label| !label.is_empty()))
            .chain(self.helps.iter().map(String::as_str));
        parts.collect::<Vec<_>>().join("; ")
    }

    /// Points at a place; the first call points at the mistake.
    pub(crate) fn at(&mut self, place: Place, label: impl Into<String>) -> &mut Self {
        self.marks.push(Mark {
            place,
            label: label.into(),
        });
        self
    }

    pub(crate) fn note(&mut self, note: impl Into<String>) -> &mut Self {
        self.notes.push(note.into());
        self
    }

    pub(crate) fn help(&mut self, help: impl Into<String>) -> &mut Self {
        self.helps.push(help.into());
        self
    }

    pub(crate) fn maybe_help(&mut self, help: Option<impl Into<String>>) -> &mut Self {
        self.helps.extend(help.map(Into::into));
        self
    }
}

/// How variables without a value and without a default are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unset {
    #[default]
    Refused,
    /// A value is assumed, and [`crate::Config::assumed`] names the variable: for places without secrets.
    Assumed,
}

#[derive(Debug, Default)]
pub(crate) struct Problems {
    list: Vec<Problem>,
    /// The errors, and the warnings, that are not in the list because it has [`SHOWN_MAX`] of them.
    more: [usize; 2],
    /// The last of these, for more to be said about it.
    last: Option<Problem>,
    unset: Unset,
    /// Unset variables, with the problem to report if no value can be assumed for them.
    missing: Vec<(String, Problem)>,
}

impl Problems {
    pub(crate) fn new(unset: Unset) -> Self {
        Self {
            unset,
            ..Self::default()
        }
    }

    /// Records an unset variable; returns whether to assume a value for it.
    pub(crate) fn assume(&mut self, variable: &str, problem: Problem) -> bool {
        let assumed = self.unset == Unset::Assumed;
        if assumed {
            self.missing.push((variable.to_owned(), problem));
        } else {
            self.push(problem);
        }
        assumed
    }

    pub(crate) fn assumed(&self) -> Vec<String> {
        let mut names: Vec<String> = self.missing.iter().map(|(name, _)| name.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// The problems to report for those variables if the configuration cannot be built without them.
    pub(crate) fn unset(&self) -> Vec<Problem> {
        self.missing
            .iter()
            .map(|(_, problem)| problem.clone())
            .collect()
    }

    /// Adds a problem, and returns it for more to be said about it.
    pub(crate) fn push(&mut self, problem: Problem) -> &mut Problem {
        let severity = problem.severity;
        let alike = self.list.iter().filter(|one| one.severity == severity);
        if alike.count() >= SHOWN_MAX {
            self.more[severity as usize] += 1;
            return self.last.insert(problem);
        }
        self.list.push(problem);
        let last = self.list.len() - 1;
        &mut self.list[last]
    }

    pub(crate) fn any_error(&self) -> bool {
        self.list
            .iter()
            .any(|problem| problem.severity == Severity::Error)
    }

    /// All of them, in the order of the file, after the places where the text is not TOML: what
    /// follows such a place in its table is not read.
    pub(crate) fn into_sorted(mut self) -> Vec<Problem> {
        self.list.sort_by_key(|problem| {
            let place = problem.marks.first();
            let place = place.map(|mark| (mark.place.file, mark.place.start));
            (!problem.syntax, place)
        });
        // A mistake in a list that many routes share is reported once.
        self.list.dedup_by(|one, other| {
            let place = |problem: &Problem| problem.marks.first().map(|mark| mark.place);
            one.title == other.title && place(one).is_some() && place(one) == place(other)
        });
        let [errors, warnings] = self.more;
        let more =
            |what: &str, count| format!("there are more {what} than these: {count} are not shown");
        if errors > 0 {
            self.list.push(Problem::error(more("errors", errors)));
        }
        if warnings > 0 {
            self.list.push(Problem::warning(more("warnings", warnings)));
        }
        self.list
    }
}

/// The most errors, and the most warnings, that are shown: each takes time in proportion to the file.
pub(crate) const SHOWN_MAX: usize = 100;

/// The candidate most similar to `word`, if it is similar enough to be the intended one.
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

/// "did you mean `x`?" if a candidate is similar, otherwise `otherwise`.
pub(crate) fn near_or<'c>(
    word: &str,
    candidates: impl IntoIterator<Item = &'c str>,
    otherwise: impl Into<String>,
) -> String {
    match nearest(word, candidates) {
        Some(near) => format!("did you mean `{near}`?"),
        None => otherwise.into(),
    }
}

/// "did you mean `x`?" if a candidate is similar, otherwise the list of candidates.
pub fn suggestion(what: &str, word: &str, candidates: &[&str]) -> String {
    let names = || candidates.iter().copied();
    let otherwise = match candidates {
        [] => format!("no {what} is defined"),
        _ => format!("known are {}", listed(names())),
    };
    near_or(word, names(), otherwise)
}

/// A mistake in a part of a string, with its reason.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Flaw {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) title: String,
    pub(crate) label: String,
    pub(crate) help: Option<String>,
}

impl Flaw {
    pub(crate) fn new(
        start: usize,
        end: usize,
        title: impl Into<String>,
        label: impl Into<String>,
    ) -> Self {
        Self {
            start,
            end,
            title: title.into(),
            label: label.into(),
            help: None,
        }
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    pub(crate) fn shifted(mut self, by: usize) -> Self {
        self.start += by;
        self.end += by;
        self
    }
}
