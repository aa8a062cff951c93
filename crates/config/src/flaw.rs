//! A mistake in a part of a string.

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
    /// A flaw at bytes `start..end`.
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

    /// Adds what to do.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The same flaw in a string that starts `by` bytes earlier.
    pub(crate) fn shifted(mut self, by: usize) -> Self {
        self.start += by;
        self.end += by;
        self
    }
}
