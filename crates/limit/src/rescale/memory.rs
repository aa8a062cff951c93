//! What a kept bucket remembers of other numbers, and when it may be forgotten.

use super::Kept;
use crate::bucket::{Level, State, Steps};
use crate::sliding_log::Log;
use crate::time::{Micros, Timestamp};
use crate::{Algorithm, TokenBucket};

impl Kept {
    /// What the bucket remembers of other numbers: the burst that must be filled, or the moment (in
    /// microseconds) that must pass, before it is forgotten. Zero: nothing.
    pub fn beyond(&self) -> u64 {
        self.beyond
    }

    /// The moment from which it equals no bucket under any numbers; `None` for units in flight,
    /// which do not expire.
    pub fn expiry(&self) -> Option<Timestamp> {
        match &self.state {
            None => Some(Timestamp::from_micros(self.beyond)),
            Some(state) => self.algorithm.expiry_beyond(state, self.beyond),
        }
    }

    /// The burst it remembers; windows and logs remember a moment instead.
    pub(super) fn remembered_burst(&self) -> u64 {
        match self.algorithm {
            Algorithm::TokenBucket(_) | Algorithm::Interval(_) => self.beyond,
            _ => 0,
        }
    }

    pub(super) fn is_forgotten(&self, now: Timestamp) -> bool {
        match (&self.state, self.beyond) {
            (None, 0) => true,
            _ => self.expiry().is_some_and(|expiry| expiry <= now),
        }
    }

    /// A full bucket that still remembers is kept as a full state.
    pub(super) fn stay_full(&mut self, now: Timestamp) {
        if self.state.is_none() && self.beyond > 0 {
            self.state = self.algorithm.full_state(now);
        }
    }

    /// Subtracts the units that time has added above the capacity from the remembered burst.
    pub(super) fn move_on(&mut self, now: Timestamp) {
        if self.beyond == 0 {
            return;
        }
        if let Some((bucket, level)) = self
            .state
            .as_ref()
            .and_then(|state| token_bucket(&self.algorithm, state))
        {
            let quota = bucket.quota();
            let wide = i128::from(self.beyond) * i128::from(quota.p);
            let gained = i128::from(now.since(level.at).0) * i128::from(quota.n);
            let over = (i128::from(level.level) + gained).min(wide) - i128::from(bucket.full());
            if over > 0 {
                let units = over / i128::from(quota.p);
                self.beyond -= u64::try_from(units).unwrap_or(0).min(self.beyond);
            }
            if self.beyond <= quota.burst {
                self.beyond = 0;
            }
            let level = Level {
                level: bucket.level(Some(level), now),
                at: level.at.max(now),
            };
            self.state = Some(State::Level(level));
            return;
        }
        match (&self.algorithm, &self.state) {
            (Algorithm::Interval(bucket), Some(State::Steps(steps))) => {
                let passed = i128::from(bucket.steps_between(steps.since, now))
                    * i128::from(bucket.quota().amount);
                let wide = (i128::from(steps.units) + passed).min(i128::from(self.beyond));
                let over = wide - i128::from(bucket.quota().burst);
                self.beyond -= u64::try_from(over).unwrap_or(0).min(self.beyond);
                if self.beyond <= bucket.quota().burst {
                    self.beyond = 0;
                }
                self.state = Some(State::Steps(bucket.current(Some(*steps), now)));
            }
            _ if self.beyond <= now.as_micros() => self.beyond = 0,
            _ => {}
        }
    }
}

impl Algorithm {
    /// Like [`Algorithm::expiry`], for a bucket that remembers `beyond` ([`Kept::beyond`]).
    pub fn expiry_beyond(&self, state: &State, beyond: u64) -> Option<Timestamp> {
        let own = self.expiry(state)?;
        if beyond == 0 {
            return Some(own);
        }
        if let Some((bucket, level)) = token_bucket(self, state) {
            let missing =
                i128::from(beyond) * i128::from(bucket.quota().p) - i128::from(level.level);
            return Some(own.max(level.at.after(micros(missing, bucket.quota().n))));
        }
        Some(match (self, state) {
            (Self::Interval(bucket), State::Steps(steps)) => {
                let missing = i128::from(beyond) - i128::from(steps.units);
                bucket.boundary(steps.since, micros(missing, bucket.quota().amount).0)
            }
            _ => own.max(Timestamp::from_micros(beyond)),
        })
    }

    /// An explicit full bucket; `None` for algorithms whose full bucket has no state.
    pub(super) fn full_state(&self, now: Timestamp) -> Option<State> {
        match self {
            Self::TokenBucket(bucket) => Some(State::Level(Level {
                level: bucket.full(),
                at: now,
            })),
            Self::Interval(bucket) | Self::FixedWindow(bucket) => {
                let units = i64::try_from(bucket.quota().burst).unwrap_or(i64::MAX);
                Some(State::Steps(Steps {
                    units,
                    since: bucket.start_of(now),
                }))
            }
            Self::SlidingWindow(window) => Some(State::Pair(window.current(None, now))),
            Self::SlidingLog(_) => Some(State::Log(Log::default())),
            Self::InFlight(_) => None,
        }
    }
}

/// The token bucket of an algorithm, and its level.
fn token_bucket<'a>(algorithm: &'a Algorithm, state: &State) -> Option<(&'a TokenBucket, Level)> {
    match (algorithm, state) {
        (Algorithm::TokenBucket(bucket), State::Level(level)) => Some((bucket, *level)),
        _ => None,
    }
}

/// The microseconds, or steps, that `missing` takes at `each`, rounded up.
fn micros(missing: i128, each: u64) -> Micros {
    let missing = u128::try_from(missing).unwrap_or(0);
    Micros(u64::try_from(missing.div_ceil(u128::from(each))).unwrap_or(u64::MAX))
}
