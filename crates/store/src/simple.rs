//! The common case: requests for token buckets in which none waits and no fail-over drains. Redis and
//! MariaDB decide these with a fraction of the general work.

use super::batch::{Wanted, Wants};
use super::wire_form::{TOKEN_BUCKET, WireForm, signed};
use tollgate_limit::quota::SHARED_BOUND;
use tollgate_limit::{Algorithm, Micros};

/// The numbers of a request for one token bucket, in the limit's own fractions of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Simple {
    pub(crate) n: i64,
    pub(crate) p: i64,
    pub(crate) capacity: i64,
    pub(crate) price: i64,
    /// The level that one request needs.
    pub(crate) need: i64,
    pub(crate) lowest: i64,
}

impl Simple {
    /// `None`: a request may wait, a fail-over drains, or nothing is charged.
    pub(crate) fn of(shape: &WireForm, cost: u64) -> Option<Self> {
        if shape.lease().is_some() {
            None
        } else {
            Self::even_leased(shape, cost)
        }
    }

    /// Like [`Simple::of`], also for a bucket with leases.
    pub(crate) fn even_leased(shape: &WireForm, cost: u64) -> Option<Self> {
        let Algorithm::TokenBucket(bucket) = shape.algorithm() else {
            return None;
        };
        debug_assert_eq!(shape.kind(), TOKEN_BUCKET, "the kind of a token bucket");
        let (quota, debt) = (bucket.quota(), bucket.debt());
        let most = quota.burst.saturating_add(debt);
        if cost == 0 || cost > most || bucket.max_wait() > Micros::ZERO || shape.drains() {
            return None;
        }
        let (n, p, capacity) = (signed(quota.n), signed(quota.p), bucket.full());
        let (owed, price) = (signed(debt) * p, signed(cost) * p);
        let lowest = bucket.floor().min(-owed);
        Some(Self {
            n,
            p,
            capacity,
            price,
            need: (price - owed).max(0),
            lowest,
        })
    }

    /// The microseconds after which the bucket is full from any level of its own.
    pub(crate) fn lasts(&self) -> i64 {
        (self.capacity - self.lowest) / self.n + 1
    }

    /// The microseconds by which the elapsed time is clamped before it is multiplied.
    pub(crate) fn fill(&self) -> i64 {
        span(self.n)
    }
}

/// The microseconds in which any level reaches any capacity, also from other numbers' debt.
pub(crate) fn span(n: i64) -> i64 {
    2 * SHARED_BOUND / n + 1
}

/// Whether each claim of a request is the common case.
pub(crate) fn are_simple(wants: &Wants) -> bool {
    let simple =
        |wanted: &Wanted| wanted.enforced && Simple::of(&wanted.shape, wanted.cost).is_some();
    !wants.is_empty() && wants.iter().all(simple)
}
