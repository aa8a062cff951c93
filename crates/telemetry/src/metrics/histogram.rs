//! Histograms with fixed bounds in whole microseconds.

use std::sync::atomic::{AtomicU64, Ordering};

/// A histogram of durations. `N` is the number of bounds plus one: the last bucket has no bound.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    bounds: &'static [u64],
    buckets: [AtomicU64; N],
    sum_micros: AtomicU64,
}

impl<const N: usize> Histogram<N> {
    /// An empty histogram with these ascending upper bounds in microseconds, one fewer than `N`.
    pub fn new(bounds: &'static [u64]) -> Self {
        assert!(
            bounds.len() + 1 == N,
            "one bucket per bound and one above them all"
        );
        Self {
            bounds,
            buckets: [const { AtomicU64::new(0) }; N],
            sum_micros: AtomicU64::new(0),
        }
    }

    pub fn observe(&self, micros: u64) {
        if let Some(bucket) = self.buckets.get(self.index(micros)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// Counts a duration if only one thread writes: an add without a lock prefix.
    pub(super) fn observe_alone(&self, micros: u64) {
        if let Some(bucket) = self.buckets.get(self.index(micros)) {
            super::cells::add(bucket, 1);
        }
        super::cells::add(&self.sum_micros, micros);
    }

    pub fn snapshot(&self) -> Snapshot {
        let bounds = self.bounds.iter().map(|micros| seconds(*micros));
        let counts = self
            .buckets
            .iter()
            .map(|count| count.load(Ordering::Relaxed));
        let buckets: Vec<_> = bounds.chain([f64::INFINITY]).zip(counts).collect();
        Snapshot {
            count: buckets.iter().map(|(_, count)| count).sum(),
            buckets,
            sum: seconds(self.sum_micros.load(Ordering::Relaxed)),
        }
    }

    pub(super) fn absorb(&self, other: &Self) {
        for (mine, theirs) in self.buckets.iter().zip(&other.buckets) {
            mine.fetch_add(theirs.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.sum_micros
            .fetch_add(other.sum_micros.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Bounds are inclusive, like Prometheus' `le`. Searched from the bottom, because most
    /// durations are in the first buckets.
    fn index(&self, micros: u64) -> usize {
        let place = self.bounds.iter().position(|bound| micros <= *bound);
        place.unwrap_or(self.bounds.len())
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The upper bound in seconds and the count of each bucket; the last bound is infinite.
    pub buckets: Vec<(f64, u64)>,
    pub sum: f64,
    pub count: u64,
}

/// Microseconds as the base unit of metrics. 2^53 microseconds are 285 years: no digit is lost.
#[expect(
    clippy::cast_precision_loss,
    reason = "below 2^53 in any process's life"
)]
pub(super) fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

/// The boundaries of OpenTelemetry's `http.server.request.duration`, microseconds.
pub(super) const REQUEST_BOUNDS: &[u64] = &[
    5_000, 10_000, 25_000, 50_000, 75_000, 100_000, 250_000, 500_000, 750_000, 1_000_000,
    2_500_000, 5_000_000, 7_500_000, 10_000_000,
];

/// The time that the gateway adds to a request: from 10 us to 100 ms.
pub(super) const OVERHEAD_BOUNDS: &[u64] = &[
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000,
];
