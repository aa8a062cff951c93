//! Measures the demand for a leased bucket in this gateway.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_limit::{Micros, Timestamp};

/// Units requested per life of a lease.
#[derive(Debug)]
pub(super) struct Demand {
    since: AtomicU64,
    /// In the current life of a lease, and in the last one.
    units: AtomicU64,
    before: AtomicU64,
}

impl Demand {
    /// No demand so far.
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            since: AtomicU64::new(now.as_micros()),
            units: AtomicU64::new(0),
            before: AtomicU64::new(0),
        }
    }

    pub(super) fn count(&self, units: u64, now: Timestamp, life: Micros) {
        self.units.fetch_add(units, Ordering::Relaxed);
        let since = self.since();
        let passed = now.since(since);
        if passed < life {
            return;
        }
        let mine = self.since.compare_exchange(
            since.as_micros(),
            now.as_micros(),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        if mine.is_ok() {
            let units = u128::from(self.units.swap(0, Ordering::Relaxed)) * u128::from(life.0)
                / u128::from(passed.0);
            self.before
                .store(u64::try_from(units).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    pub(super) fn in_a_life(&self) -> u64 {
        self.units
            .load(Ordering::Relaxed)
            .max(self.before.load(Ordering::Relaxed))
    }

    pub(super) fn since(&self) -> Timestamp {
        Timestamp::from_micros(self.since.load(Ordering::Relaxed))
    }
}
