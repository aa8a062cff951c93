//! The pure core: what a limit is, and whether a request may draw from it.
//!
//! No clock, I/O, async, float or map lives here: old state and a moment in, verdict and new state out. Every store
//! is a translation of these functions and is held to them by one suite (`tests/conformance`).

#![forbid(unsafe_code)]
// Floats round: `burst + rate x T` could not be proven of them.
#![deny(clippy::float_arithmetic)]

pub mod algorithm;
pub mod bucket;
pub mod calendar;
pub mod claim;
mod combine;
pub mod conditions;
pub mod draw;
#[cfg(any(test, feature = "fixtures"))]
#[doc(hidden)]
pub mod fixtures;
pub mod fixed_window;
pub mod in_flight;
pub mod interval;
pub mod rescale;
pub mod key;
pub mod lease;
pub mod packed;
pub mod quota;
mod settled;
pub mod sliding_log;
pub mod sliding_window;
pub mod stepped;
pub mod limit_spec;
pub mod time;
pub mod token_bucket;
pub mod warm_up;
pub mod words;

use std::sync::Arc;

pub use algorithm::{Algorithm, Decided};
pub use bucket::{Granted, Judged, Next, Refused, Report, State};
pub use calendar::Calendar;
pub use claim::{CLAIMS_MAX, Change, Claim, Draw, Settlement, Standing, Verdict};
pub use conditions::{Conditions, Following, RateConditions};
pub use draw::draw_all;
pub use key::KeyBytes;
pub use limit_spec::{Align, Kind, Terms};
pub use packed::Packed;
pub use quota::{Quota, QuotaError};
pub use rescale::Kept;
pub use time::{Micros, Timestamp};
pub use token_bucket::TokenBucket;

/// One named limit with one set of numbers: a limit with tiers is one `Limit` per tier, and its candidate another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Its name in the file.
    pub name: Arc<str>,
    /// Place among the limits of one compiled policy, dense from zero; stores index their tables by it.
    pub index: usize,
    /// The tier whose numbers these are; `None`: everyone else.
    pub tier: Option<Arc<str>>,
    /// Live, or judged beside the live one.
    pub role: Role,
    /// The algorithm with its numbers.
    pub algorithm: Algorithm,
    /// Whether its refusals count.
    pub mode: Mode,
    /// The share of keys it is enforced for, in hundredths of a percent (10,000: all).
    pub enforce_for: u16,
    /// Where its buckets live.
    pub placement: Placement,
    /// What happens when its shared store does not answer.
    pub when_down: WhenDown,
    /// What a fail-over of its shared store does to its buckets.
    pub on_failover: OnFailover,
    /// Whether a hot total may be leased from the shared store (limits of a shared store only).
    pub lease: bool,
    /// Bytes its local table may take.
    pub memory: usize,
    /// Whether grants can be corrected later (settle, refund, `count = "failures"`, a held caller who leaves): such tables
    /// keep a floor.
    pub refundable: bool,
}

/// Live, or a candidate judged beside it on the same traffic and only counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The limit in force.
    Live,
    /// Its candidate.
    Candidate,
}

/// What a limit's refusals do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// They refuse.
    Enforce,
    /// They are counted.
    Shadow,
    /// The limit is not looked at.
    Off,
}

/// Where buckets live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// In this process.
    Local,
    /// In the configured store, shared by every gateway that uses it.
    Shared,
}

/// What a limit answers when its store does not, in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WhenDown {
    /// Admit, and count it.
    Allow,
    /// Refuse with 503.
    Refuse,
    /// Enforce this gateway's share (the limit over the number of replicas) in the process.
    LocalShare,
}

/// What happens to buckets when the store fails over and may have lost charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnFailover {
    /// Keep what the promoted store knows.
    Keep,
    /// Start every bucket empty: no refill across the event.
    Drain,
}

/// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
