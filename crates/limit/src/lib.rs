//! The pure core: defines limits and decides whether a request may draw from them.
//!
//! It contains no clock, I/O, async code, floats or maps: a function takes the old state and a
//! moment and returns a verdict and the new state. Every store translates these functions, and one
//! suite (`tests/conformance`) holds all stores to them.

#![forbid(unsafe_code)]
// Floats round, so `burst + rate x T` could not be proven for them.
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
pub mod in_flight;
pub mod kept;
pub mod key;
pub mod lease;
mod other_numbers;
pub mod hex;
pub mod printable;
pub mod quota;
mod settled;
pub mod sliding_log;
pub mod sliding_window;
pub mod stepped;
pub mod limit_spec;
pub mod time;
pub mod token_bucket;
pub mod words;

use std::sync::Arc;

pub use algorithm::Algorithm;
pub use bucket::{Granted, Judged, Next, Refused, Report, State};
pub use calendar::Calendar;
pub use claim::{CLAIMS_MAX, Change, Claim, Corrects, Draw, Settlement, Standing, Verdict};
pub use conditions::{Conditions, Following, RateConditions};
pub use draw::draw_all;
pub use kept::StoredBucket;
pub use key::KeyBytes;
pub use limit_spec::{Align, Kind, Penalty, Terms, WAIT_MAX};
pub use quota::{Quota, QuotaError, Rate, UNITS_MAX};
pub use time::{Micros, Timestamp};
pub use token_bucket::TokenBucket;

/// One named limit with one set of numbers. A limit with tiers is one `Limit` per tier; its
/// candidate is another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub name: Arc<str>,
    /// The place among the limits of one policy, dense from zero: the index of store tables.
    pub index: usize,
    /// The tier these numbers belong to; `None`: callers without a tier.
    pub tier: Option<Arc<str>>,
    /// Whether the limit is live or a candidate.
    pub role: Role,
    pub algorithm: Algorithm,
    /// Whether refusals by this limit refuse requests.
    pub mode: Mode,
    /// The share of keys the limit is enforced for, in hundredths of a percent (10,000: all).
    pub enforce_for: u16,
    /// Where the limit's buckets are stored.
    pub placement: Placement,
    /// What happens when the shared store does not respond.
    pub when_down: WhenDown,
    /// What a fail-over of the shared store does to the limit's buckets.
    pub on_failover: OnFailover,
    /// Whether units of a busy bucket may be leased from the shared store (shared limits only).
    pub lease: bool,
    /// Bytes the limit's local table may use.
    pub memory: usize,
    /// Whether grants can be corrected later: by settlements, refunds, or for a client that leaves.
    pub refundable: bool,
    /// Whether operators may fill buckets: gateways ask again soon for those they found empty.
    pub resettable: bool,
    /// Blocks a key that is refused too often; live limits only.
    pub penalty: Option<Penalty>,
    /// The currency in millionths of which the limit counts; `None`: it counts units.
    pub currency: Option<Arc<str>>,
    /// The percentages of its units whose use is an event, in ascending order; empty: none.
    pub events: Vec<u8>,
}

/// A live limit, or a candidate: judged on the same traffic and only counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    Live,
    Candidate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    Enforce,
    /// The refusal is only counted.
    Shadow,
    /// The limit is not evaluated.
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    Local,
    /// In the configured store, shared by every gateway that uses it.
    Shared,
}

/// How a limit decides when its store does not respond in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WhenDown {
    Allow,
    Refuse,
    /// Enforce this gateway's share (the limit over the number of replicas) in the process.
    LocalShare,
}

/// What happens to buckets when the store fails over and may have lost charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnFailover {
    /// Keep the state that the promoted store has.
    Keep,
    /// Start every bucket empty: a fail-over refills nothing.
    Drain,
}

/// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
