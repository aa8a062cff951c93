//! The circuit breaker: decides when calls to a store are useful. It is pure; time is passed in.
//!
//! The owner of the connection queries it and reports results to it.

use tollgate_limit::{Micros, Timestamp};

/// Open the circuit after three failures in a row, so that one lost response does not open it. At
/// the default `answer_within` of 20 ms a frozen server costs requests 60 ms in total, and 20 ms
/// more if the first request called by itself.
pub const FAILURES_MAX: u32 = 3;
/// The first wait between two probes of a server that is down.
pub const PROBE_FIRST: Micros = Micros(50_000);
/// The longest wait between two probes of a server that cannot be reached.
pub const PROBE_LAST: Micros = Micros(200_000);
/// The longest wait between two probes of a server that refuses us until an operator acts.
pub const PROBE_LASTING: Micros = Micros(1_000_000);

/// Counts failures and decides when to stop calling and when to probe.
#[derive(Debug)]
pub struct Breaker {
    /// Whether calls fail immediately; probes go out at intervals then.
    is_open: bool,
    failures: u32,
    /// Whether a call got a response since the circuit was closed.
    is_proven: bool,
    probe_wait: Micros,
    probe_at: Timestamp,
}

impl Breaker {
    /// A breaker that is open and probes immediately, because the server's state is unknown.
    pub const fn new(now: Timestamp) -> Self {
        Self {
            is_open: true,
            failures: 0,
            is_proven: false,
            probe_wait: PROBE_FIRST,
            probe_at: now,
        }
    }

    pub const fn is_open(&self) -> bool {
        self.is_open
    }

    pub const fn succeeded(&mut self) {
        self.failures = 0;
        self.is_proven = true;
    }

    pub const fn is_proven(&self) -> bool {
        self.is_proven
    }

    /// Records that a call got no response in time; returns whether this opened the circuit.
    pub fn failed(&mut self, now: Timestamp) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.failures >= FAILURES_MAX && self.trip(now)
    }

    /// Records that the connection is gone, or that the server may no longer be written to; returns
    /// whether this opened the circuit.
    pub fn trip(&mut self, now: Timestamp) -> bool {
        let opened = !self.is_open;
        if opened {
            self.is_open = true;
            self.probe_wait = PROBE_FIRST;
            self.probe_at = now;
        }
        opened
    }

    /// How long until the next probe is due; zero: now.
    pub const fn until_probe(&self, now: Timestamp) -> Micros {
        self.probe_at.since(now)
    }

    /// Records that a probe succeeded: calls go out again.
    pub const fn probe_succeeded(&mut self) {
        self.is_open = false;
        self.failures = 0;
        self.is_proven = false;
        self.probe_wait = PROBE_FIRST;
    }

    /// Records that a probe failed. The next wait is twice as long, up to [`PROBE_LAST`] or, for a
    /// `lasting` obstacle, [`PROBE_LASTING`]. `jitter` (0..=255) shortens it by up to a quarter, so
    /// that many gateways do not probe at the same time.
    pub fn probe_failed(&mut self, now: Timestamp, jitter: u8, lasting: bool) {
        let most = if lasting { PROBE_LASTING } else { PROBE_LAST };
        let wait = self.probe_wait.0.min(most.0);
        let shorter = wait / 4 * u64::from(jitter) / 255;
        self.probe_at = now.after(Micros(wait - shorter));
        self.probe_wait = Micros((wait * 2).min(most.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    #[test]
    fn circuit_opens_after_three_failures_in_a_row_only() {
        let mut breaker = Breaker::new(at(0));
        breaker.probe_succeeded();
        assert!(!breaker.failed(at(1)));
        assert!(!breaker.failed(at(2)));
        breaker.succeeded();
        assert!(!breaker.failed(at(3)));
        assert!(!breaker.failed(at(4)));
        assert!(!breaker.is_open());
        assert!(breaker.failed(at(5)));
        assert!(breaker.is_open());
        assert!(!breaker.failed(at(6)), "it opens once");
    }

    #[test]
    fn breaker_probes_start_at_once_then_back_off_further_where_the_obstacle_lasts() {
        let mut breaker = Breaker::new(at(0));
        assert_eq!(breaker.until_probe(at(0)), Micros::ZERO);
        let mut now = at(0);
        let mut waits = Vec::new();
        for _ in 0..8 {
            breaker.probe_failed(now, 0, true);
            let wait = breaker.until_probe(now);
            waits.push(wait.0);
            now = now.after(wait);
        }
        assert_eq!(
            waits,
            [
                50_000, 100_000, 200_000, 400_000, 800_000, 1_000_000, 1_000_000, 1_000_000
            ]
        );
        breaker.probe_failed(now, 255, true);
        assert_eq!(breaker.until_probe(now), Micros(750_000));
        breaker.probe_failed(now, 0, false);
        assert_eq!(
            breaker.until_probe(now),
            Micros(200_000),
            "it is there again, and starts"
        );
        breaker.probe_succeeded();
        assert!(!breaker.is_open());
    }
}
