//! The state kept for one bucket, and what an algorithm says of it.

use super::sliding_log::{Entry, Log};
use super::time::{Micros, Timestamp};

/// The state of one bucket: two or three integers, but for the log. A bucket that is full (whose window is over, in
/// which nobody is) equals no bucket, so `None` stands for it everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// A token bucket.
    Level(Level),
    /// A token bucket that warms up.
    Warming(Warming),
    /// An interval bucket or a fixed window.
    Steps(Steps),
    /// A two-window estimate.
    Pair(Pair),
    /// A log of grants.
    Log(Log),
    /// Requests in flight.
    Held(Held),
}

/// What a grant makes of a bucket, of any algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The new level.
    Level(Level),
    /// The new level and coldness.
    Warming(Warming),
    /// The new units.
    Steps(Steps),
    /// The new counts.
    Pair(Pair),
    /// The entry that the log gains.
    Entry(Entry),
    /// The new number in flight.
    Held(Held),
}

impl State {
    pub(super) fn level(state: Option<&Self>) -> Option<Level> {
        if let Some(Self::Level(level)) = state {
            Some(*level)
        } else {
            None
        }
    }

    pub(super) fn warming(state: Option<&Self>) -> Option<Warming> {
        if let Some(Self::Warming(warming)) = state {
            Some(*warming)
        } else {
            None
        }
    }

    pub(super) fn steps(state: Option<&Self>) -> Option<Steps> {
        if let Some(Self::Steps(steps)) = state {
            Some(*steps)
        } else {
            None
        }
    }

    pub(super) fn pair(state: Option<&Self>) -> Option<Pair> {
        if let Some(Self::Pair(pair)) = state {
            Some(*pair)
        } else {
            None
        }
    }

    pub(super) fn log(state: Option<&Self>) -> Option<&Log> {
        if let Some(Self::Log(log)) = state {
            Some(log)
        } else {
            None
        }
    }

    pub(super) fn held(state: Option<&Self>) -> Option<Held> {
        if let Some(Self::Held(held)) = state {
            Some(*held)
        } else {
            None
        }
    }
}

/// A token bucket: its level in unit-microseconds (one unit is the quota's `p`), as it stood at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Unit-microseconds; below zero: debt, or waiting requests have taken ahead.
    pub level: i64,
    /// When it stood so; never decreases.
    pub at: Timestamp,
}

/// A token bucket that warms up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Warming {
    /// The bucket it is when warm.
    pub level: Level,
    /// Its coldness (Guava's stored permits) in unit-microseconds, when the level is next full.
    pub cold: u64,
}

/// A bucket that is refilled in steps: whole units, and when the step they belong to began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Units left; below zero: debt, or waiting requests have taken ahead.
    pub units: i64,
    /// The start of the current step (window); never decreases.
    pub since: Timestamp,
}

/// Counts of two adjacent windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The start of the current window; never decreases.
    pub start: Timestamp,
    /// Units granted in the window before.
    pub previous: u64,
    /// Units granted in the current window.
    pub current: u64,
}

/// A concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Units in flight.
    pub units: u64,
}

/// A bucket's answer to a cost: the grant with the state that records it, or the refusal, which changes nothing.
pub type Judged<S> = Result<Granted<S>, Refused>;

/// The bucket can pay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted<S> {
    /// How long the request must be held first (shaping); zero: not at all.
    pub wait: Micros,
    /// The bucket once it has paid.
    pub next: S,
}

/// The bucket cannot pay now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// A lone caller that waits exactly this long is admitted, one microsecond less is not; `None`: there is no such
    /// time.
    pub retry_after: Option<Micros>,
}

impl Refused {
    /// There is no time after which the request would pass.
    pub const NEVER: Self = Self { retry_after: None };

    /// The request passes after `wait`.
    pub const fn after(wait: Micros) -> Self {
        Self {
            retry_after: Some(wait),
        }
    }
}

/// How a bucket stands at a moment: the numbers quota headers are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Whole units left.
    pub remaining: u64,
    /// Until the bucket is full, or its window ends.
    pub reset: Micros,
    /// The effective window of the `RateLimit` header: the time in which the rate yields `remaining`, so that a client
    /// who spends `remaining` evenly over it keeps to the rate; with nothing left, the time to the next unit.
    pub effective: Micros,
}
