//! Counters and health of a store.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters, each with its name in metrics and its description; and gauges, which have none.
macro_rules! counters {
    (
        $name:ident { $($field:ident = $metric:literal: $help:literal,)* }
        $($gauge:ident)?
    ) => {
        #[derive(Debug, Default)]
        pub struct $name {
            $(#[doc = $help] pub $field: AtomicU64,)*
            $(pub $gauge: AtomicU64,)?
        }

        impl $name {
            pub fn named(&self) -> [(&'static str, &'static str, u64); [$($metric),*].len()] {
                [$(($metric, $help, self.$field.load(Ordering::Relaxed))),*]
            }
        }
    };
}

counters! {
    Counters {
        calls = "store_calls": "Calls sent to the shared store",
        asked = "store_requests": "Requests for which the shared store was asked",
        refused_locally = "store_local_refusals": "Requests refused without asking the shared store, because it would have refused them",
        timeouts = "store_timeouts": "Requests for which the shared store did not respond in time",
        unavailable = "store_unavailable": "Requests for which the shared store could not be asked",
        corrections_dropped = "store_corrections_dropped": "Settlements, refunds and releases that were not made: too many waited, the shared store refused them, or the gateway ended",
        corrections_unconfirmed = "store_corrections_unconfirmed": "Settlements, refunds and releases to which the shared store gave no response, and which it may not have made",
        draws_unknown = "store_draws_unknown": "Refused requests that the shared store may have charged: it gave no response",
        diverged = "store_divergences": "Groups of requests in which the shared store granted another number than the core would have",
        connects = "store_connects": "Connections made to the shared store",
    }
}

counters! {
    LeaseCounters {
        leases = "store_leases": "Leases taken from the shared store",
        units = "store_leased_units": "Units of limits in leases taken from the shared store",
        grants = "store_lease_grants": "Times a request's leased units were found in the process",
        given_back = "store_lease_units_given_back": "Leased units that went back unused",
        forfeited = "store_lease_units_forfeited": "Leased units that were lost, at most: a return, or the response with a lease, came late or never",
    }
    out
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Whether calls go out; for a cluster: to at least one of its masters.
    pub up: bool,
    /// The servers with a part of the buckets: one, or a cluster's masters; and how many do not respond.
    pub servers: usize,
    pub down: usize,
    pub last_error: String,
}

impl Health {
    pub(super) fn is_known(&self) -> bool {
        self.up || !self.last_error.is_empty()
    }
}
