//! Each algorithm against the oracle, step by step, on random limits and random traces.

use fastrand::Rng;
use tollgate_limit::{Algorithm, Change, Kind, Micros, State, Terms, Timestamp, Verdict};

use crate::oracle::{Event, Oracle};
use crate::random::{self, START};

/// One bucket as the core and as the oracle see it.
pub(crate) struct Pair {
    pub(crate) algorithm: Algorithm,
    pub(crate) terms: Terms,
    pub(crate) state: Option<State>,
    pub(crate) oracle: Oracle,
}

impl Pair {
    /// Terms that cannot be represented give no pair.
    pub(crate) fn new(terms: Terms) -> Option<Self> {
        let algorithm = Algorithm::new(&terms).ok()?;
        Some(Self {
            algorithm,
            oracle: Oracle::new(&terms),
            state: None,
            terms,
        })
    }

    /// What the definition answers.
    pub(crate) fn expected(&self, cost: u64, now: Timestamp) -> Verdict {
        match self.oracle.wait(cost, now) {
            None => Verdict::Deny { retry_after: None },
            Some(wait) if wait <= self.terms.max_wait => Verdict::Allow { wait },
            Some(wait) => Verdict::Deny {
                retry_after: Some(Micros(wait.0 - self.terms.max_wait.0)),
            },
        }
    }

    /// Draws, and holds the answer against the definition.
    pub(crate) fn draw(&mut self, cost: u64, now: Timestamp) -> Verdict {
        let expected = self.expected(cost, now);
        let decided = self.algorithm.decide(self.state.as_ref(), cost, now);
        assert_eq!(
            decided.standing.verdict, expected,
            "{:?} cost {cost} at {now:?} in {:?}",
            self.terms, self.state
        );
        match expected {
            Verdict::Allow { wait } => {
                self.oracle.record(Event::Grant {
                    due: now.after(wait).as_micros(),
                    cost,
                });
                self.state = decided.state;
            }
            Verdict::Deny { .. } => {
                assert_eq!(decided.state, self.state, "a refusal writes nothing")
            }
        }
        expected
    }

    fn immediately(&self, cost: u64, now: Timestamp) -> bool {
        matches!(self.algorithm.judge(self.state.as_ref(), cost, now), Ok(granted) if granted.wait == Micros::ZERO)
    }

    /// What the bucket says of itself is true of it.
    fn check_report(&self, rng: &mut Rng, now: Timestamp) {
        let report = self.algorithm.report(self.state.as_ref(), now);
        let forgotten = Self {
            state: None,
            oracle: Oracle::new(&self.terms),
            ..self.clone()
        };
        // In a log, units that are left stand behind the requests that wait.
        let queue = self
            .oracle
            .grants()
            .last()
            .is_some_and(|(due, _)| *due > now.as_micros());
        if self.terms.debt == 0 && !queue {
            assert!(
                report.remaining == 0 || self.immediately(report.remaining, now),
                "{report:?} of {:?}",
                self.terms
            );
            assert!(
                !self.immediately(report.remaining + 1, now),
                "{report:?} of {:?} in {:?}",
                self.terms,
                self.state
            );
        }
        // A bucket that is forgotten at its expiry is not missed, and not one microsecond earlier for a token bucket.
        let Some(expiry) = self
            .state
            .as_ref()
            .and_then(|state| self.algorithm.expiry(state))
        else {
            return;
        };
        let then = expiry.max(now);
        let cost = random::cost(rng, self.algorithm.greatest_cost());
        let judge = |pair: &Self, at| {
            pair.algorithm
                .decide(pair.state.as_ref(), cost, at)
                .standing
        };
        assert_eq!(
            judge(self, then),
            judge(&forgotten, then),
            "{:?} in {:?}",
            self.terms,
            self.state
        );
        if expiry > now && self.terms.kind != Kind::SlidingWindow {
            let before = Timestamp::from_micros(expiry.as_micros() - 1);
            assert!(
                !self.immediately(self.algorithm.greatest_cost(), before),
                "{:?} in {:?}",
                self.terms,
                self.state
            );
        }
    }

    /// No span of time, no window has more grants than the limit says.
    pub(crate) fn check_bounds(&self) {
        let grants = self.oracle.grants();
        let [amount, period, burst, debt] = [
            self.terms.amount,
            self.terms.period.0,
            self.terms.burst.unwrap_or(self.terms.amount),
            self.terms.debt,
        ]
        .map(u128::from);
        for (first, (start, _)) in grants.iter().enumerate() {
            let mut granted = 0u128;
            for (end, cost) in &grants[first..] {
                granted += u128::from(*cost);
                let span = u128::from(end - start);
                let within = match self.terms.kind {
                    Kind::TokenBucket => {
                        granted.saturating_sub(burst + debt) * period <= amount * span
                    }
                    Kind::Interval => granted <= burst + debt + amount * span.div_ceil(period),
                    Kind::FixedWindow if debt > 0 => true,
                    Kind::FixedWindow => {
                        let windows =
                            if self.oracle.window_start(*start) == self.oracle.window_start(*end) {
                                1
                            } else {
                                2
                            };
                        span >= period / 2 || granted <= windows * amount
                    }
                    Kind::SlidingLog => span >= period || granted <= amount,
                    Kind::SlidingWindow => span >= period || granted < 2 * amount || amount == 0,
                    Kind::InFlight => true,
                };
                assert!(
                    within,
                    "{granted} from {start} to {end} under {:?}",
                    self.terms
                );
            }
        }
    }
}

impl Clone for Pair {
    fn clone(&self) -> Self {
        Self {
            algorithm: self.algorithm.clone(),
            terms: self.terms.clone(),
            state: self.state.clone(),
            oracle: self.oracle.clone(),
        }
    }
}

/// One random trace under one random limit; settlements where the oracle knows them.
fn trace(rng: &mut Rng, kind: Kind, steps_back: bool) {
    let mut terms = random::terms(rng, kind);
    if steps_back {
        terms.max_wait = Micros::ZERO;
    }
    let Some(mut pair) = Pair::new(terms) else {
        return;
    };
    let settled = kind == Kind::TokenBucket
        && pair.terms.max_wait == Micros::ZERO
        && !pair.terms.shared
        && !steps_back
        && rng.bool();
    let (mut now, mut told) = (START, None);
    for _ in 0..60 {
        now += random::pause(rng, &pair.terms, told);
        if steps_back && rng.u8(..6) == 0 {
            now -= rng.u64(0..=pair.terms.period.0 * 2).min(now);
        }
        let at = Timestamp::from_micros(now);
        let cost = random::cost(rng, pair.algorithm.greatest_cost());
        told = match pair.draw(cost, at) {
            Verdict::Allow { .. } => None,
            Verdict::Deny { retry_after } => retry_after,
        };
        if settled && rng.u8(..4) == 0 {
            let units = rng.u64(0..=pair.algorithm.greatest_cost().min(100));
            let (change, event) = if rng.bool() {
                (Change::Refund { units }, Event::Refund { at: now, units })
            } else {
                (
                    Change::Charge { more: units },
                    Event::Charge { at: now, units },
                )
            };
            pair.algorithm.settle(&mut pair.state, change, at);
            pair.oracle.record(event);
        }
        if !steps_back {
            pair.check_report(rng, at);
        }
    }
    if !settled && !steps_back {
        pair.check_bounds();
    }
}

#[test]
fn a_token_bucket_is_its_definition() {
    random::seeds(600, |rng| trace(rng, Kind::TokenBucket, false));
}

#[test]
fn an_interval_bucket_is_its_definition() {
    random::seeds(400, |rng| trace(rng, Kind::Interval, false));
}

#[test]
fn a_fixed_window_is_its_definition() {
    random::seeds(400, |rng| trace(rng, Kind::FixedWindow, false));
}

#[test]
fn a_sliding_window_is_its_definition() {
    random::seeds(400, |rng| trace(rng, Kind::SlidingWindow, false));
}

#[test]
fn a_sliding_log_is_its_definition() {
    random::seeds(400, |rng| trace(rng, Kind::SlidingLog, false));
}

#[test]
fn token_bucket_clock_stepping_back_adds_nothing() {
    random::seeds(300, |rng| trace(rng, Kind::TokenBucket, true));
}
