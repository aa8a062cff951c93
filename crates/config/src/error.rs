//! All mistakes in a configuration, for people and for programs.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::files::cannot_read;
use super::quick::by_option;
use super::reading::{Problem, Severity, Sources};
use super::render::render;

pub struct ConfigError {
    pub(crate) problems: Vec<Problem>,
    pub(crate) sources: Sources,
    pub(crate) files: Vec<PathBuf>,
}

impl ConfigError {
    pub fn render(&self, colour: bool) -> String {
        let mut text = render(&self.problems, &self.sources, colour);
        let errors = self.errors();
        if errors > 1 {
            text.push_str(&format!("\n\n{errors} errors"));
        }
        text
    }

    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        let problems = self.problems.iter();
        problems
            .map(|problem| Diagnostic::of(problem, &self.sources))
            .collect()
    }

    pub fn unreadable(path: &Path, error: &std::io::Error) -> Self {
        let title = cannot_read(path, error);
        Self {
            problems: vec![Problem::error(title)],
            sources: Sources::default(),
            files: vec![path.to_path_buf()],
        }
    }

    /// Every file that was read or searched for: if one of them changes, the configuration may
    /// become valid.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// How many errors there are, warnings not counted.
    pub fn errors(&self) -> usize {
        self.problems
            .iter()
            .filter(|problem| problem.severity == Severity::Error)
            .count()
    }

    /// Each problem with the option that it is about, for a text that options stand for
    /// ([`super::quick()`]): its lines and columns mean nothing to its reader.
    pub fn by_option(&self) -> Vec<String> {
        let problems = self.problems.iter();
        problems
            .map(|problem| by_option(problem, &self.sources))
            .collect()
    }

    /// Each problem in a line without its place, for a text that its reader has not written.
    pub fn words(&self) -> Vec<String> {
        self.problems.iter().map(Problem::words).collect()
    }

    /// One line per problem, for logs: `gateway.toml:3:1: unknown key …`.
    pub fn lines(&self) -> Vec<String> {
        self.problems
            .iter()
            .map(|problem| match problem.marks.first() {
                Some(mark) => {
                    let (name, line, column) = self.sources.position(mark.place);
                    format!("{name}:{line}:{column}: {}", problem.title)
                }
                None => problem.title.clone(),
            })
            .collect()
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for ConfigError {}

/// A problem for programs: editors, CI annotations, `tollgate check --format json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    pub severity: &'static str,
    pub message: String,
    /// The places; the first is the mistake, the others explain it. Empty if it has no place.
    pub spans: Vec<Span>,
    pub notes: Vec<String>,
    pub help: Vec<String>,
}

/// A place in a file. Lines and columns begin at 1, columns count characters, and the end is one past the last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Span {
    pub file: String,
    pub line: usize,
    pub column: usize,
    pub end_line: usize,
    pub end_column: usize,
    pub label: String,
}

impl Diagnostic {
    pub fn error(message: &str) -> Self {
        Self {
            severity: "error",
            message: message.to_owned(),
            ..Self::default()
        }
    }

    pub(crate) fn of(problem: &Problem, sources: &Sources) -> Self {
        let spans = problem.marks.iter().map(|mark| {
            let (file, line, column) = sources.position(mark.place);
            let mut end = mark.place;
            end.start = end.end;
            let (_, end_line, end_column) = sources.position(end);
            Span {
                file: file.to_owned(),
                line,
                column,
                end_line,
                end_column,
                label: mark.label.clone(),
            }
        });
        Self {
            severity: match problem.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
            },
            message: problem.title.clone(),
            spans: spans.collect(),
            notes: problem.notes.clone(),
            help: problem.helps.clone(),
        }
    }
}
