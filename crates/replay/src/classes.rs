//! Requests between the log and the judge. A log has many lines of each distinct request and key: these have numbers.

use indexmap::IndexSet;

use crate::simulation::Response;
use crate::subject::Side;

/// One request, in 16 bytes: when it began, how long it took, and which of the distinct requests it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// Microseconds since the Unix epoch.
    pub(crate) at: u64,
    /// Microseconds, at most 71 minutes.
    pub(crate) lasting: u32,
    pub(crate) class: u32,
}

pub(crate) type Classes = IndexSet<Class>;

/// All that decides what becomes of a request.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Class {
    /// What it draws from, under each policy.
    pub(crate) sides: Vec<Side>,
    /// Whether the log says that it was admitted; `None`: it says nothing of limits.
    pub(crate) recorded: Option<bool>,
    /// Whether a limiter refused it when the log was written.
    pub(crate) was_refused: bool,
    /// Where charges depend on it.
    pub(crate) response: Option<Response>,
}

#[derive(Debug, Default)]
pub(crate) struct Interner(IndexSet<Box<[u8]>>);

impl Interner {
    pub(crate) fn number(&mut self, text: &[u8]) -> u32 {
        let place = match self.0.get_index_of(text) {
            Some(place) => place,
            None => self.0.insert_full(text.into()).0,
        };
        small(place)
    }

    pub(crate) fn text(&self, number: u32) -> &[u8] {
        let text = self.0.get_index(number as usize);
        text.map_or(&[], |text| text)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// A place in a list as a number of 32 bits: no log has so many distinct lines.
pub(crate) fn small(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}
