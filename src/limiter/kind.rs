//! What the limiter has to know of an algorithm beyond its verdicts.

use crate::limit::Algorithm;

/// Whether its units are places that are held until the request ends.
pub(super) fn is_in_flight(algorithm: &Algorithm) -> bool {
    matches!(algorithm, Algorithm::InFlight(_))
}

/// Whether its units belong to a window that ends: a later refund would land in another one.
pub(super) fn is_windowed(algorithm: &Algorithm) -> bool {
    !matches!(algorithm, Algorithm::TokenBucket(_) | Algorithm::InFlight(_))
}
