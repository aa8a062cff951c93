//! What a request asks of its buckets, and what they answered.

use smallvec::SmallVec;

use super::Limit;
use super::bucket::{Judged, Report};
use super::conditions::Conditions;
use super::time::{Micros, Timestamp};

/// The most limits one request can be charged on; a route with more is a configuration error.
pub const CLAIMS_MAX: usize = 16;

/// One bucket a request must draw from.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The limit.
    pub limit: &'a Limit,
    /// The caller's encoded identity under the limit's scope ([`super::key::KeyBytes`]).
    pub key: &'a [u8],
    /// Units to draw. Zero is allowed: it asks without taking.
    pub cost: u64,
    /// Whether this bucket's refusal refuses the request. Shadow limits, candidates and keys outside `enforce_for`
    /// are judged and charged in the same pass but never veto.
    pub enforced: bool,
    /// What the limit's upstream has taught; `None`: the limit learns nothing.
    pub conditions: Option<&'a Conditions>,
}

impl<'a> Claim<'a> {
    /// An enforced claim of a limit that learns nothing.
    pub const fn new(limit: &'a Limit, key: &'a [u8], cost: u64) -> Self {
        Self {
            limit,
            key,
            cost,
            enforced: true,
            conditions: None,
        }
    }
}

/// What one bucket answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The bucket's own verdict, whatever the other claims got.
    pub verdict: Verdict,
    /// Whole units left after this draw (before it, when nothing was taken).
    pub remaining: u64,
    /// Until the bucket is full, or its window ends.
    pub reset: Micros,
    /// The effective window of the `RateLimit` header's `t`: the time in which the rate yields `remaining`; with nothing
    /// left, the time to the next unit; for windows, the time to their end.
    pub effective: Micros,
}

impl Standing {
    /// A bucket's verdict with its numbers.
    pub const fn new(verdict: Verdict, report: Report) -> Self {
        Self {
            verdict,
            remaining: report.remaining,
            reset: report.reset,
            effective: report.effective,
        }
    }
}

/// One bucket's verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The bucket can pay.
    Allow {
        /// How long the request must be held before it may go on (shaping); zero: at once.
        wait: Micros,
    },
    /// The bucket cannot pay now.
    Deny {
        /// A lone caller that waits exactly this long is admitted; `None`: there is no such time (concurrency, or a
        /// cost that never fits).
        retry_after: Option<Micros>,
    },
}

impl Verdict {
    /// Whether the bucket can pay.
    #[inline(always)]
    pub const fn is_allow(self) -> bool {
        matches!(self, Self::Allow { .. })
    }
}

impl<S> From<&Judged<S>> for Verdict {
    fn from(judged: &Judged<S>) -> Self {
        match judged {
            Ok(granted) => Self::Allow { wait: granted.wait },
            Err(refused) => Self::Deny {
                retry_after: refused.retry_after,
            },
        }
    }
}

/// What the buckets of one request answered: all charged or none. A fact; what the gateway makes of it is the
/// limiter's `tollgate_limiter::Decision`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draw {
    /// Whether every enforced claim could pay, and so every claim that could was charged.
    pub granted: bool,
    /// One standing per claim, in the order of the claims.
    pub standings: SmallVec<[Standing; 4]>,
}

/// A correction of an earlier grant.
#[derive(Clone, Copy, Debug)]
pub struct Settlement<'a> {
    /// The limit that was charged.
    pub limit: &'a Limit,
    /// The key that was charged.
    pub key: &'a [u8],
    /// What changes.
    pub change: Change,
    /// What the grant that a refund undoes was made under; `None`: it gets back its written cost.
    pub conditions: Option<&'a Conditions>,
}

impl<'a> Settlement<'a> {
    /// A correction in the limit's own numbers.
    pub const fn new(limit: &'a Limit, key: &'a [u8], change: Change) -> Self {
        Self {
            limit,
            key,
            change,
            conditions: None,
        }
    }
}

/// What a settlement changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The real cost was `more` units above the estimate: charge them too (the bucket may go into bounded debt).
    Charge {
        /// Units to take.
        more: u64,
    },
    /// The real cost was lower, or the request does not count: give `units` back, never above the burst.
    Refund {
        /// Units to give back.
        units: u64,
    },
    /// The request was never sent on: give `units` back, also those of a request that still waited for its token if
    /// nobody waits behind it.
    Withdraw {
        /// Units to give back.
        units: u64,
        /// When the bucket was to be full again once the request had drawn: still so, nobody drew since.
        full_at: Timestamp,
    },
    /// The request has ended: free its place in a concurrency limit.
    Release {
        /// Places to free.
        units: u64,
    },
}
