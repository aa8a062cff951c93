//! What the limiter has to know of an algorithm beyond its verdicts.

use crate::limit::token_bucket::TokenBucket;
use crate::limit::{Algorithm, Quota};

/// Whether its units are places that are held until the request ends.
pub(super) fn is_in_flight(algorithm: &Algorithm) -> bool {
    matches!(algorithm, Algorithm::InFlight(_))
}

/// Whether its units belong to a window that ends: a later refund would land in another one.
pub(super) fn is_windowed(algorithm: &Algorithm) -> bool {
    !matches!(algorithm, Algorithm::TokenBucket(_) | Algorithm::InFlight(_))
}

/// One of `replicas` equal shares: the rate divided exactly, the burst rounded down but at least one unit.
pub(super) fn share(algorithm: &Algorithm, replicas: u32) -> Algorithm {
    let replicas = u64::from(replicas.max(1));
    let shared = match algorithm {
        Algorithm::TokenBucket(bucket) => {
            let quota = bucket.quota();
            let period = crate::limit::Micros(quota.period.0.saturating_mul(replicas));
            Quota::new(quota.amount, period, (quota.burst / replicas).max(1))
                .and_then(|quota| TokenBucket::new(quota, bucket.debt() / replicas, bucket.max_wait(), false))
                .map(Algorithm::TokenBucket)
        }
        Algorithm::InFlight(limit) => {
            crate::limit::in_flight::InFlight::new((limit.most() / replicas).max(1)).map(Algorithm::InFlight)
        }
    };
    // A share that cannot be counted exactly falls back to the whole limit, here at least not exceeded by one gateway.
    shared.unwrap_or_else(|_| algorithm.clone())
}
