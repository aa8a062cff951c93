//! What can be wrong in a short text of the file, and between the parts of a policy.

/// Why the parts are not a valid policy. Routes, rules and identities are given by index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// Two routes match the same requests, and neither is more specific.
    Tie { first: usize, second: usize },
    /// Every request a route matches is taken by more specific ones.
    Unreachable { route: usize, by: Vec<usize> },
    /// A route's path has an encoded slash, and such paths are refused.
    EncodedSlash(usize),
    /// An identity uses a segment that a route does not capture.
    UnknownCapture {
        route: usize,
        identity: usize,
        name: String,
    },
    /// A template names a segment that its route does not capture.
    TemplateCapture { route: usize, name: String },
    /// `when_missing = "use:…"` leads back to its start.
    IdentityCycle(usize),
    /// An identity with listed callers has a composite key, or an address, so there is no single
    /// key to hash.
    CallersOfComposite(usize),
    /// The sources of an identity that takes the first of them are not interchangeable.
    FirstOfMixed(usize),
    /// An identity has no source, or too many.
    Sources(usize),
    /// More is asked of bodies than one reader looks for.
    BodyAsked(usize),
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
