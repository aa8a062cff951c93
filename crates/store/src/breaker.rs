//! The circuit breaker: when calls to a store are worth making. A pure state machine; time is handed in.
//!
//! It does not call anything and holds no timer: whoever owns the connection asks it and tells it.

use tollgate_limit::{Micros, Timestamp};

/// Failures in a row after which the circuit opens. One lost reply is weather, three are a climate; at the default
/// `answer_within` of 20 ms a frozen server costs requests 60 ms in all, and 20 more where the first called by itself.
pub const FAILURES_MAX: u32 = 3;
/// The first wait between two probes of a server that is down.
pub const PROBE_FIRST: Micros = Micros(50_000);
/// The longest wait between two probes of a server that cannot be reached: it is asked again as soon as it can be.
pub const PROBE_LAST: Micros = Micros(200_000);
/// And of one that refuses us for what somebody has to mend.
pub const PROBE_LASTING: Micros = Micros(1_000_000);

/// Whether a server is worth asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Circuit {
    /// Calls go out.
    Closed,
    /// Calls are answered with failure at once; probes go out now and then.
    Open,
}

/// Counts failures and says when to stop asking, and when to try again.
#[derive(Debug)]
pub struct Breaker {
    circuit: Circuit,
    failures: u32,
    probe_wait: Micros,
    probe_at: Timestamp,
}

impl Breaker {
    /// A breaker that is open and probes at once: nothing is known of the server yet.
    pub const fn new(now: Timestamp) -> Self {
        Self {
            circuit: Circuit::Open,
            failures: 0,
            probe_wait: PROBE_FIRST,
            probe_at: now,
        }
    }

    /// Whether calls go out.
    pub const fn circuit(&self) -> Circuit {
        self.circuit
    }

    /// A call was answered.
    pub const fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// A call got no answer in time. Returns whether this opened the circuit.
    pub fn failed(&mut self, now: Timestamp) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.failures >= FAILURES_MAX && self.trip(now)
    }

    /// The connection is gone, or the server is no longer the one that may be written to. Returns whether this
    /// opened the circuit.
    pub fn trip(&mut self, now: Timestamp) -> bool {
        let opened = self.circuit == Circuit::Closed;
        if opened {
            self.circuit = Circuit::Open;
            self.probe_wait = PROBE_FIRST;
            self.probe_at = now;
        }
        opened
    }

    /// How long until the next probe is due; zero: now.
    pub const fn until_probe(&self, now: Timestamp) -> Micros {
        self.probe_at.since(now)
    }

    /// A probe was answered: calls go out again.
    pub const fn probe_succeeded(&mut self) {
        self.circuit = Circuit::Closed;
        self.failures = 0;
        self.probe_wait = PROBE_FIRST;
    }

    /// A probe failed: the next waits twice as long, up to [`PROBE_LAST`] or, where the obstacle is `lasting`,
    /// [`PROBE_LASTING`], less up to a quarter by `jitter` (0..=255), so that many gateways do not knock in step.
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
    fn three_failures_in_a_row_open_the_circuit_and_an_answer_between_them_does_not() {
        let mut breaker = Breaker::new(at(0));
        breaker.probe_succeeded();
        assert!(!breaker.failed(at(1)));
        assert!(!breaker.failed(at(2)));
        breaker.succeeded();
        assert!(!breaker.failed(at(3)));
        assert!(!breaker.failed(at(4)));
        assert_eq!(breaker.circuit(), Circuit::Closed);
        assert!(breaker.failed(at(5)));
        assert_eq!(breaker.circuit(), Circuit::Open);
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
        assert_eq!(breaker.circuit(), Circuit::Closed);
    }
}
