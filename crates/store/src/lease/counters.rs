//! Counters of leases, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one store's leases.
#[derive(Debug, Default)]
pub struct LeaseCounters {
    /// Leases received.
    pub leases: AtomicU64,
    /// Units in those leases.
    pub units: AtomicU64,
    /// Requests whose leased units were all taken from leases held here.
    pub grants: AtomicU64,
    /// Units returned unused. (If a call is lost until it is too late, they also count as
    /// forfeited.)
    pub given_back: AtomicU64,
    /// Units left in leases that were returned too late or not at all.
    pub forfeited: AtomicU64,
    /// Leases held now.
    pub out: AtomicU64,
}

impl LeaseCounters {
    /// Each counter with its name in metrics and its description. (`out` is a gauge and not
    /// included.)
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
