//! The state of one bucket, and the types in which an algorithm reports on it.

use super::sliding_log::{Entry, Log};
use super::time::{Micros, Timestamp};

/// The state of one bucket: two or three integers, except for the log. A full bucket (one whose
/// window is over, or with nothing in flight) equals no bucket, so `None` represents it everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Level(Level),
    Steps(Steps),
    Pair(Pair),
    Log(Log),
    Held(Held),
}

/// The new state of a bucket after a grant, for any algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Level(Level),
    Steps(Steps),
    Pair(Pair),
    Entry(Entry),
    Held(Held),
}

impl State {
    pub(super) fn level(state: Option<&Self>) -> Option<Level> {
        match state? {
            Self::Level(level) => Some(*level),
            _ => None,
        }
    }

    pub(super) fn steps(state: Option<&Self>) -> Option<Steps> {
        match state? {
            Self::Steps(steps) => Some(*steps),
            _ => None,
        }
    }

    pub(super) fn pair(state: Option<&Self>) -> Option<Pair> {
        match state? {
            Self::Pair(pair) => Some(*pair),
            _ => None,
        }
    }

    pub(super) fn log(state: Option<&Self>) -> Option<&Log> {
        match state? {
            Self::Log(log) => Some(log),
            _ => None,
        }
    }

    pub(super) fn held(state: Option<&Self>) -> Option<Held> {
        match state? {
            Self::Held(held) => Some(*held),
            _ => None,
        }
    }
}

/// A token bucket: its level at a moment, in unit-microseconds (one unit is the quota's `p`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Unit-microseconds; below zero in debt, or when waiting requests have drawn in advance.
    pub level: i64,
    /// The moment of that level; never decreases.
    pub at: Timestamp,
}

/// A bucket that is refilled in steps: what was used, and the start of the step it was used in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Units used. Above the burst: the bucket is in debt, or waiting requests have drawn in advance.
    pub used: u64,
    /// The start of the current step (window); never decreases.
    pub since: Timestamp,
    /// Units that a step frees: the largest amount it was drawn under.
    pub amount: u64,
}

/// Counts of two adjacent windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The start of the current window; never decreases.
    pub start: Timestamp,
    /// Units granted in the window before.
    pub previous: u64,
    pub current: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub units: u64,
}

/// The verdict on a cost: a grant with the state that records it, or a refusal.
pub type Judged<S> = Result<Granted<S>, Refused>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted<S> {
    /// How long the request must be held first (shaping); zero: it is not held.
    pub wait: Micros,
    /// The bucket after the cost is paid.
    pub next: S,
}

/// The bucket cannot pay now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// A single caller that waits exactly this long is admitted; one that waits a microsecond less
    /// is not. `None`: no such time exists.
    pub retry_after: Option<Micros>,
}

impl Refused {
    /// A refusal that no wait resolves.
    pub const NEVER: Self = Self { retry_after: None };

    /// A refusal after which the request passes once `wait` has elapsed.
    pub const fn after(wait: Micros) -> Self {
        Self {
            retry_after: Some(wait),
        }
    }
}

/// The numbers of a bucket at a moment, from which quota headers are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    pub remaining: u64,
    /// Whole units below zero, rounded up: a debt, or units that waiting requests have drawn in advance.
    pub owed: u64,
    /// Time until the bucket is full, or its window ends.
    pub reset: Micros,
    /// The effective window of the `RateLimit` header: the time in which the rate yields
    /// `remaining`. A client that spends `remaining` evenly over this time keeps to the rate. With
    /// nothing left, it is the time to the next unit.
    pub effective: Micros,
    /// When the window of a draw of now ends; of a log, when the draw leaves it; zero: no windows.
    pub window_end: Timestamp,
}
