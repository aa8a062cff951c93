//! Problems for programs: editors, CI annotations, `tollgate check --format json`.

use serde::Serialize;

use super::reading::{Problem, Severity, Sources};

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
