//! What can be wrong in a short text of the file, and between the parts of a policy.

/// A mistake between the parts of a policy, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildError {
    pub title: String,
    /// The part that is wrong, and why; then the parts that explain it.
    pub marks: Vec<(Part, String)>,
    pub help: Option<&'static str>,
}

/// A part of a policy, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Route(usize),
    /// The key of an identity.
    Identity(usize),
    /// What an identity says of a request without its key.
    WhenMissing(usize),
}

impl BuildError {
    pub(crate) fn new(title: String, part: Part, label: impl Into<String>) -> Self {
        Self {
            title,
            marks: vec![(part, label.into())],
            help: None,
        }
    }

    pub(crate) fn at(mut self, part: Part, label: &str) -> Self {
        self.marks.push((part, label.to_owned()));
        self
    }

    pub(crate) fn help(self, help: &'static str) -> Self {
        let help = Some(help);
        Self { help, ..self }
    }
}

/// A mistake in a short text of the file, with its byte range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ParseError {
    /// The bytes of the text that are wrong: `start..end`, never beyond the text.
    pub at: std::ops::Range<usize>,
    /// What is wrong and what would be accepted, in one sentence.
    pub message: String,
}

impl ParseError {
    pub(crate) fn new(at: std::ops::Range<usize>, message: impl Into<String>) -> Self {
        Self {
            at,
            message: message.into(),
        }
    }

    pub(crate) fn shifted(mut self, by: usize) -> Self {
        self.at = self.at.start + by..self.at.end + by;
        self
    }
}
