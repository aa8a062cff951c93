//! All mistakes in a configuration, for people and for programs.

use std::fmt;
use std::path::{Path, PathBuf};

use super::diagnostic::Diagnostic;
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
