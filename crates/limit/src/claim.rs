//! What a request wants to draw from its buckets, and what each bucket decided.

use smallvec::SmallVec;

use super::Limit;
use super::bucket::{Judged, Report};
use super::conditions::Conditions;
use super::time::{Micros, Timestamp};

/// The most buckets that one draw asks; a route with more is a configuration error.
pub const CLAIMS_MAX: usize = 16;

/// One bucket a request must draw from.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    pub limit: &'a Limit,
    /// The caller's encoded identity under the limit's scope ([`super::key::KeyBytes`]).
    pub key: &'a [u8],
    /// Units to draw. Zero is allowed: it checks the bucket without taking units.
    pub cost: u64,
    /// Whether a refusal by this bucket refuses the request. Shadow limits, candidates and keys
    /// outside `enforce_for` are judged and charged in the same pass but never refuse.
    pub enforced: bool,
    /// What the limit has learnt from its upstream; `None`: the limit does not learn.
    pub conditions: Option<&'a Conditions>,
}

impl<'a> Claim<'a> {
    /// An enforced claim of a limit that does not learn.
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

/// The decision of one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The bucket's own verdict, independent of the other claims.
    pub verdict: Verdict,
    /// Whole units left after this draw (before it, if nothing was taken); below zero what is owed. One
    /// number for both, because a request's context has these of each claim.
    pub left: i64,
    /// Time until the bucket is full, or its window ends.
    pub reset: Micros,
    /// The effective window, `t` in the `RateLimit` header: the time in which the rate yields
    /// `remaining`; with nothing left, the time to the next unit; for windows, the time to their end.
    pub effective: Micros,
    /// The end of the window that a draw of now belongs to, by the clock of the store that decided. A
    /// draw that waits belongs to the window in which it is due. Of a log: the moment at which the draw
    /// leaves it. Zero: the algorithm has no windows.
    pub window_end: Timestamp,
}

impl Standing {
    pub const fn new(verdict: Verdict, report: Report) -> Self {
        // (Below 2^63: what a limit can count at most.)
        let left = match report.owed {
            0 => report.remaining as i64,
            owed => -(owed as i64),
        };
        Self {
            verdict,
            left,
            reset: report.reset,
            effective: report.effective,
            window_end: report.window_end,
        }
    }

    #[inline]
    pub fn remaining(&self) -> u64 {
        u64::try_from(self.left).unwrap_or(0)
    }

    /// Whole units below zero ([`Report::owed`]).
    pub fn owed(&self) -> u64 {
        u64::try_from(self.left.saturating_neg()).unwrap_or(0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Allow {
        /// How long the request must be held before it continues (shaping); zero: it is not held.
        wait: Micros,
    },
    /// The bucket cannot pay now.
    Deny {
        /// A single caller that waits exactly this long is admitted. `None`: no such time exists (a
        /// concurrency limit, or a cost above the burst).
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

/// The decision of all buckets of one request: all are charged, or none. What the gateway does with
/// it is the limiter's `tollgate_limiter::Decision`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draw {
    /// Whether every enforced claim could pay. If so, every claim that could pay was charged.
    pub granted: bool,
    /// One standing per claim, in the order of the claims.
    pub standings: SmallVec<[Standing; 4]>,
    /// The moment of the decision, or earlier, by the store's clock; zero: it is not known.
    pub at: Timestamp,
}

#[derive(Clone, Copy, Debug)]
pub struct Settlement<'a> {
    pub limit: &'a Limit,
    pub key: &'a [u8],
    pub change: Change,
    /// The conditions of the refunded grant; `None`: the refund is the written cost.
    pub conditions: Option<&'a Conditions>,
    pub corrects: Corrects,
}

/// The draw that a settlement corrects. The reset of a bucket begins a generation: a draw of before it
/// returns nothing to the bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Corrects {
    /// Not known: the settlement is made whatever has happened since.
    #[default]
    Any,
    /// The draw of this moment by the clock of its store ([`Draw::at`]).
    DrawOf(Timestamp),
    /// None: an operator resets the bucket.
    Reset,
}

impl Corrects {
    /// The draw of `at`; zero: it is not known.
    pub fn draw_of(at: Timestamp) -> Self {
        if at == Timestamp::default() {
            Self::Any
        } else {
            Self::DrawOf(at)
        }
    }

    /// Whether `change` returns units that were drawn before the last reset of the bucket.
    pub fn is_of_before(self, reset: Option<Timestamp>, change: Change) -> bool {
        let returns = matches!(
            change,
            Change::Refund { .. } | Change::RefundWithin { .. } | Change::Withdraw { .. }
        );
        let is_before = |at| reset.is_some_and(|reset| at <= reset);
        matches!(self, Self::DrawOf(at) if returns && is_before(at))
    }
}

impl<'a> Settlement<'a> {
    /// A correction of any draw, with the limit's numbers as written.
    pub const fn new(limit: &'a Limit, key: &'a [u8], change: Change) -> Self {
        Self {
            limit,
            key,
            change,
            conditions: None,
            corrects: Corrects::Any,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The real cost was `more` units above the estimate: charge them too, up to a bounded debt.
    Charge { more: u64 },
    /// The real cost was lower, or does not count: give back `units`, never above the burst.
    Refund { units: u64 },
    /// Like [`Change::Refund`], but only to the window of the grant, while that counts: its units are
    /// no units of another window. This is checked where the bucket is, however late the refund arrives.
    RefundWithin {
        units: u64,
        /// When the window of the grant ends, by the store's clock ([`Standing::window_end`]).
        window_end: Timestamp,
    },
    /// The request was never forwarded: give back `units`. This also covers a request that was
    /// still waiting for its token, if no other request waits after it.
    Withdraw {
        units: u64,
        /// When the bucket was due to be full after this draw. If that moment is unchanged, no
        /// request has drawn since.
        full_at: Timestamp,
    },
    /// The request has ended: free its place in a concurrency limit.
    Release { units: u64 },
}
