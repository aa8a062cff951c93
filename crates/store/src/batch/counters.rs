//! Counters and health of a store.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one store, for metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Calls sent to the server.
    pub calls: AtomicU64,
    /// Requests that went to the server.
    pub asked: AtomicU64,
    /// Requests refused locally, from a bound, without a call.
    pub refused_locally: AtomicU64,
    /// Requests that failed because no response came in time.
    pub timeouts: AtomicU64,
    /// Requests that failed because the store could not be asked.
    pub unavailable: AtomicU64,
    /// Corrections that were certainly not made, and are not sent again.
    pub corrections_dropped: AtomicU64,
    /// Corrections without a response, which are not sent again.
    pub corrections_unconfirmed: AtomicU64,
    /// Refused requests for which the store may have charged units all the same.
    pub draws_unknown: AtomicU64,
    /// Groups of which the server granted a different number than the core would have.
    pub diverged: AtomicU64,
    /// Times a connection was made.
    pub connects: AtomicU64,
}

/// A store's health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Whether calls go out; for a cluster: to at least one of its masters.
    pub up: bool,
    /// Servers with a part of the buckets: one, or a cluster's masters.
    pub servers: usize,
    /// Of these, the servers that do not respond.
    pub down: usize,
    /// The last error; empty: none yet.
    pub last_error: String,
}

impl Health {
    /// Whether a connection was established or has failed.
    pub(super) fn is_known(&self) -> bool {
        self.up || !self.last_error.is_empty()
    }
}

impl Counters {
    /// Each counter with its name in metrics and its description.
    pub fn named(&self) -> [(&'static str, &'static str, u64); 10] {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            (
                "store_calls",
                "Calls sent to the shared store",
                read(&self.calls),
            ),
            (
                "store_requests",
                "Requests for which the shared store was asked",
                read(&self.asked),
            ),
            (
                "store_local_refusals",
                "Requests refused without asking the shared store, because it would have refused them",
                read(&self.refused_locally),
            ),
            (
                "store_timeouts",
                "Requests for which the shared store did not respond in time",
                read(&self.timeouts),
            ),
            (
                "store_unavailable",
                "Requests for which the shared store could not be asked",
                read(&self.unavailable),
            ),
            (
                "store_corrections_dropped",
                "Settlements, refunds and releases that were not made: too many waited, the shared store refused them, or the gateway ended",
                read(&self.corrections_dropped),
            ),
            (
                "store_corrections_unconfirmed",
                "Settlements, refunds and releases to which the shared store gave no response, and which it may not have made",
                read(&self.corrections_unconfirmed),
            ),
            (
                "store_draws_unknown",
                "Refused requests that the shared store may have charged: it gave no response",
                read(&self.draws_unknown),
            ),
            (
                "store_divergences",
                "Groups of requests in which the shared store granted another number than the core would have",
                read(&self.diverged),
            ),
            (
                "store_connects",
                "Connections made to the shared store",
                read(&self.connects),
            ),
        ]
    }
}
