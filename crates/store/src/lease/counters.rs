//! What leases have brought and cost, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one store's leases.
#[derive(Debug, Default)]
pub struct LeaseCounters {
    /// Leases taken.
    pub leases: AtomicU64,
    /// Units in them.
    pub units: AtomicU64,
    /// Requests whose leased units were all taken here.
    pub grants: AtomicU64,
    /// Units that were sent back unused. (A call that is lost until it is too late makes them forfeited as well.)
    pub given_back: AtomicU64,
    /// Units that were left of leases and went back too late, or not at all.
    pub forfeited: AtomicU64,
    /// Leases held now.
    pub out: AtomicU64,
}

impl LeaseCounters {
    /// Each counter by its name in metrics, with what it counts. (`out` is a gauge, and not among them.)
    pub fn named(&self) -> [(&'static str, &'static str, u64); 5] {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            (
                "store_leases",
                "Leases taken from the shared store",
                read(&self.leases),
            ),
            (
                "store_leased_units",
                "Units of limits in leases taken from the shared store",
                read(&self.units),
            ),
            (
                "store_lease_grants",
                "Times a request's leased units were found in the process",
                read(&self.grants),
            ),
            (
                "store_lease_units_given_back",
                "Leased units that went back unused",
                read(&self.given_back),
            ),
            (
                "store_lease_units_forfeited",
                "Leased units that were left and lost",
                read(&self.forfeited),
            ),
        ]
    }
}
