//! The numbers of an algorithm that a store keeps with a bucket, and when two algorithms have the
//! same.

use std::mem::discriminant;

use crate::limit_spec::Align;
use crate::time::Micros;
use crate::{Algorithm, TokenBucket};

impl Algorithm {
    /// The most units at once; a concurrency limit has none.
    pub fn burst(&self) -> u64 {
        self.quota().map_or(0, |quota| quota.burst)
    }

    /// The longest a request may wait.
    pub fn max_wait(&self) -> Micros {
        match self {
            Self::TokenBucket(bucket) => bucket.max_wait(),
            Self::Interval(bucket) | Self::FixedWindow(bucket) => bucket.max_wait(),
            Self::SlidingWindow(window) => window.max_wait(),
            Self::SlidingLog(log) => log.max_wait(),
            Self::InFlight(_) => Micros::ZERO,
        }
    }

    /// The same numbers without those a store does not keep with a bucket: no debt, no settlement,
    /// and the `max_wait` of the current draw.
    pub(super) fn bare(&self, max_wait: Micros) -> Self {
        match self {
            Self::TokenBucket(bucket) => Self::TokenBucket(bucket.bare(max_wait)),
            Self::Interval(bucket) => Self::Interval(bucket.bare(max_wait)),
            Self::FixedWindow(bucket) => Self::FixedWindow(bucket.bare(max_wait)),
            Self::SlidingWindow(window) => Self::SlidingWindow(window.bare()),
            Self::SlidingLog(log) => Self::SlidingLog(log.bare(max_wait)),
            other => other.clone(),
        }
    }
}

/// Whether a state means the same under both algorithms. Debt and waiting do not matter, because
/// they are not part of the state.
pub(super) fn same_numbers(a: &Algorithm, b: &Algorithm) -> bool {
    let same_align = |a: &Align, b: &Align| discriminant(a) == discriminant(b);
    match (a, b) {
        (Algorithm::TokenBucket(a), Algorithm::TokenBucket(b)) => {
            let numbers =
                |bucket: &TokenBucket| (bucket.quota().n, bucket.quota().p, bucket.full());
            numbers(a) == numbers(b)
        }
        (Algorithm::Interval(a), Algorithm::Interval(b))
        | (Algorithm::FixedWindow(a), Algorithm::FixedWindow(b)) => {
            let (one, other) = (a.quota(), b.quota());
            (one.amount, one.burst, one.period) == (other.amount, other.burst, other.period)
                && same_align(a.align(), b.align())
        }
        (Algorithm::SlidingWindow(a), Algorithm::SlidingWindow(b)) => {
            (a.quota().amount, a.quota().period) == (b.quota().amount, b.quota().period)
        }
        (Algorithm::SlidingLog(a), Algorithm::SlidingLog(b)) => {
            (a.quota().amount, a.quota().period) == (b.quota().amount, b.quota().period)
        }
        (Algorithm::InFlight(_), Algorithm::InFlight(_)) => true,
        _ => a == b,
    }
}
