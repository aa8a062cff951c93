//! What all algorithms have of a limit's numbers.

use super::Algorithm;
use super::time::Micros;

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
}
