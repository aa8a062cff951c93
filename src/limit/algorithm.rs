//! The closed set of algorithms, and `decide`: one exhaustive match.

use std::sync::Arc;

use super::in_flight::InFlight;
use super::quota::{Quota, QuotaError};
use super::time::{Micros, Timestamp};
use super::token_bucket::TokenBucket;
use super::words;

/// What the file says of one limit, before it is known to be representable. [`Algorithm::new`] checks it.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Which algorithm.
    pub kind: Kind,
    /// Units per period; for [`Kind::InFlight`] the most at once (the period is then zero).
    pub amount: u64,
    /// The period.
    pub period: Micros,
    /// The most at once; `None`: the amount.
    pub burst: Option<u64>,
    /// How fixed windows are aligned.
    pub align: Align,
    /// Units a bucket may go below zero by, the next caller paying.
    pub debt: u64,
    /// The longest a request may wait for its token; zero: never.
    pub max_wait: Micros,
    /// The time a cold bucket takes to reach its full rate; zero: none.
    pub warm_up: Micros,
    /// Whether the buckets live in a shared store (then `burst x period < 2^53`) or in the process.
    pub shared: bool,
}

/// The algorithms by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Continuous refill.
    TokenBucket,
    /// The whole amount at once, each whole period since first use.
    Interval,
    /// A count per window.
    FixedWindow,
    /// Two-window estimate.
    SlidingWindow,
    /// Exact log of grants.
    SlidingLog,
    /// A concurrency limit.
    InFlight,
}

/// Where fixed windows begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Align {
    /// At the first request after the last window ended.
    #[default]
    FirstHit,
    /// At multiples of the period since the Unix epoch.
    Clock,
    /// At boundaries worked out from a calendar (day, week, month; zone; anchor day).
    Calendar(Arc<Calendar>),
}

/// Window boundaries in ascending order, worked out outside the core; it knows no zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    /// The starts of consecutive windows; the last entry ends the last window.
    pub boundaries: Vec<Timestamp>,
    /// In words: "day in Europe/Berlin".
    pub words: String,
}

/// An algorithm with its checked parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// Continuous refill: `burst + rate x T` in every span T.
    TokenBucket(TokenBucket),
    /// At most so many at once.
    InFlight(InFlight),
}

impl Algorithm {
    /// Checks `terms`.
    ///
    /// # Errors
    /// Every reason the limit cannot be represented exactly.
    pub fn new(terms: &Terms) -> Result<Self, Vec<QuotaError>> {
        if terms.kind == Kind::InFlight {
            return InFlight::new(terms.amount).map(Self::InFlight);
        }
        let quota = Quota::new(terms.amount, terms.period, terms.burst.unwrap_or(terms.amount))?;
        TokenBucket::new(quota, terms.debt, terms.max_wait, terms.shared).map(Self::TokenBucket)
    }

    /// The limit said back in words: "20 at once, then one every 600 ms; at most 120 in any minute".
    pub fn words(&self) -> String {
        match self {
            Self::TokenBucket(bucket) => {
                let quota = bucket.quota();
                let most = quota.amount.saturating_add(quota.burst).saturating_add(bucket.debt());
                format!(
                    "{} at once, then {}; at most {most} in any {}",
                    quota.burst,
                    words::pace(quota),
                    words::period(quota.period)
                )
            }
            Self::InFlight(limit) => format!("at most {} at once", limit.most()),
        }
    }

    /// Quota and window of the `RateLimit-Policy` header: `q`, and `w` in whole seconds where there is one.
    pub fn policy_quota(&self) -> (u64, Option<u64>) {
        match self {
            Self::TokenBucket(bucket) => {
                let quota = bucket.quota();
                (quota.burst, Some(quota.time_for(quota.burst).ceil_secs().max(1)))
            }
            Self::InFlight(limit) => (limit.most(), None),
        }
    }
}
