//! A bucket that outlives its numbers: as a shared store keeps it, under those it was last drawn under, and as a table of the
//! process hands it to the table of a changed limit.
//!
//! In a rolling change, and while requests of the old configuration end, gateways with different numbers use one bucket.
//! Who draws sees it in his own numbers (whole units, clamped to his burst, never added to) and leaves it so. Who only
//! corrects a grant of the past settles in the numbers the bucket has: nothing of it is clamped.
//!
//! A full bucket equals none, and no bucket is a full one whatever the burst. So a bucket that a smaller burst has clamped
//! may not be forgotten when it is full: whoever comes with the larger burst would find all of that. It **remembers**
//! ([`Kept::beyond`]):
//!
//! - token and interval buckets the burst W that it has to fill before it is forgotten. Let F be the largest burst and r the
//!   highest rate in use, and V what a bucket of F and r would hold that paid for every grant; what is granted is within
//!   `F + r x T` in every span of T exactly while V does not fall below zero. W is kept so that V is never below the units that
//!   are there, nor its shortfall `F - V` above `W` less those units: a grant lowers both, a refund raises both, refilling
//!   raises V no less, what a smaller burst cuts off is taken off W too, and what refilling would bring beyond the brim
//!   lowers W. When W has come down to the burst, a full bucket means that V is full as well, and only then is it forgotten.
//! - windows and logs the moment until which the grants of before would have counted. What came after it counts by itself.

pub mod ahead;
mod reloaded;

use std::mem::discriminant;

use super::bucket::{Level, Next, State, Steps, Warming};
use super::claim::Change;
use super::limit_spec::Align;
use super::sliding_log::Log;
use super::time::{Micros, Timestamp};
use super::{Algorithm, TokenBucket};

/// A bucket with the numbers it is kept in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    algorithm: Algorithm,
    state: Option<State>,
    beyond: u64,
}

/// Beyond, `W x p` might not be exact in every language of a shared store; so long a memory is cut short there.
const SCALED_MAX: u64 = 1 << 52;

impl Kept {
    /// A full bucket of `algorithm`.
    pub fn full(algorithm: Algorithm) -> Self {
        Self {
            algorithm,
            state: None,
            beyond: 0,
        }
    }

    /// What a store has kept of a bucket of `algorithm`.
    pub fn from_parts(algorithm: Algorithm, state: Option<State>, beyond: u64) -> Self {
        Self {
            algorithm,
            state,
            beyond,
        }
    }

    /// The numbers it is kept in.
    pub fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    /// Its state, in these numbers.
    pub fn state(&self) -> Option<&State> {
        self.state.as_ref()
    }

    /// What it remembers of other numbers: the burst it has to fill, or the moment (in microseconds) it has to see, before
    /// it is forgotten. Zero: nothing.
    pub fn beyond(&self) -> u64 {
        self.beyond
    }

    /// The moment from which it equals no bucket, whatever its numbers; a place in flight has none (`None`).
    pub fn expiry(&self) -> Option<Timestamp> {
        match &self.state {
            None => Some(Timestamp::from_micros(self.beyond)),
            Some(state) => self.algorithm.expiry_beyond(state, self.beyond),
        }
    }

    /// The bucket at `now` as a draw under `limit` finds it. Another algorithm starts afresh.
    #[must_use]
    pub fn under(&self, limit: &Algorithm, now: Timestamp) -> Self {
        self.renumbered(limit, now, SCALED_MAX)
    }

    fn renumbered(&self, limit: &Algorithm, now: Timestamp, scaled_max: u64) -> Self {
        if discriminant(&self.algorithm) != discriminant(limit) || self.is_forgotten(now) {
            return Self::full(limit.clone());
        }
        let mut own = self.clone();
        own.move_on(now);
        if same_numbers(&own.algorithm, limit) {
            return Self {
                algorithm: limit.clone(),
                ..own
            };
        }
        let state = own.state.clone().or_else(|| own.algorithm.full_state(now));
        let Some(state) = state else {
            return Self::full(limit.clone());
        };
        let moved = own.algorithm.renumber(&state, limit, now);
        let beyond = match (&own.algorithm, limit) {
            (Algorithm::TokenBucket(_) | Algorithm::WarmUp(_), _) => {
                let (burst, p) = limit.quota().map_or((0, 1), |quota| (quota.burst, quota.p));
                let before = whole_units(&own.algorithm, Some(&state), now);
                let cut = before.saturating_sub(whole_units(limit, moved.as_ref(), now));
                let wide = own
                    .beyond
                    .max(own.algorithm.burst())
                    .saturating_sub(unsigned(cut))
                    .min(scaled_max / p);
                if wide > burst { wide } else { 0 }
            }
            (Algorithm::Interval(old), Algorithm::Interval(new)) => {
                let before = old.current(State::steps(Some(&state)), now).units;
                let cut =
                    before.saturating_sub(new.current(State::steps(moved.as_ref()), now).units);
                let wide = own
                    .beyond
                    .max(old.quota().burst)
                    .saturating_sub(unsigned(cut));
                if wide > new.quota().burst { wide } else { 0 }
            }
            (
                Algorithm::FixedWindow(_) | Algorithm::SlidingWindow(_) | Algorithm::SlidingLog(_),
                _,
            ) => {
                let until = own.expiry().unwrap_or_default();
                if until > now { until.as_micros() } else { 0 }
            }
            _ => 0,
        };
        let mut kept = Self {
            algorithm: limit.clone(),
            state: moved,
            beyond,
        };
        kept.stay_full(now);
        kept
    }

    /// Writes down a grant that was judged on this bucket's state under its numbers.
    pub fn grant(&mut self, next: Next) {
        self.algorithm.apply(&mut self.state, next);
    }

    /// Corrects an earlier grant, made under `by`, in the numbers the bucket has. Another algorithm's buckets know nothing
    /// of that grant.
    pub fn settle(&mut self, by: &Algorithm, change: Change, now: Timestamp) {
        if discriminant(&self.algorithm) != discriminant(by) {
            return;
        }
        if self.is_forgotten(now) {
            *self = Self::full(by.clone());
        }
        self.move_on(now);
        let own = if same_numbers(&self.algorithm, by) {
            by.clone()
        } else {
            self.algorithm.bare(by.max_wait())
        };
        own.settle(&mut self.state, change, now);
        self.stay_full(now);
    }

    /// Empties it as of `at`, never filling one that is below.
    pub fn drain(&mut self, at: Timestamp) {
        let more = self.algorithm.report(self.state.as_ref(), at).remaining;
        let own = self.algorithm.clone();
        self.settle(&own, Change::Charge { more }, at);
    }

    fn is_forgotten(&self, now: Timestamp) -> bool {
        match (&self.state, self.beyond) {
            (None, 0) => true,
            _ => self.expiry().is_some_and(|expiry| expiry <= now),
        }
    }

    /// A full bucket that remembers is not none.
    fn stay_full(&mut self, now: Timestamp) {
        if self.state.is_none() && self.beyond > 0 {
            self.state = self.algorithm.full_state(now);
        }
    }

    /// What time has brought beyond the brim is taken off what is remembered.
    fn move_on(&mut self, now: Timestamp) {
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
            self.state = Some(match (&self.algorithm, &self.state) {
                (Algorithm::WarmUp(warm_up), Some(State::Warming(warming))) => {
                    State::Warming(Warming {
                        level,
                        cold: warm_up.coldness(Some(*warming), now),
                    })
                }
                _ => State::Level(level),
            });
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

/// Whether a state means the same under both: debt and waiting aside, which are no part of it.
fn same_numbers(a: &Algorithm, b: &Algorithm) -> bool {
    let same_align = |a: &Align, b: &Align| discriminant(a) == discriminant(b);
    match (a, b) {
        (Algorithm::TokenBucket(a), Algorithm::TokenBucket(b)) => {
            let numbers =
                |bucket: &TokenBucket| (bucket.quota().n, bucket.quota().p, bucket.full());
            numbers(a) == numbers(b)
        }
        (Algorithm::Interval(a), Algorithm::Interval(b))
        | (Algorithm::FixedWindow(a), Algorithm::FixedWindow(b)) => {
            let (one, other) = (a.quota(), b.quota());
            (one.amount, one.burst, one.period) == (other.amount, other.burst, other.period)
                && same_align(a.align(), b.align())
        }
        (Algorithm::SlidingWindow(a), Algorithm::SlidingWindow(b)) => {
            (a.quota().amount, a.quota().period) == (b.quota().amount, b.quota().period)
        }
        (Algorithm::SlidingLog(a), Algorithm::SlidingLog(b)) => {
            (a.quota().amount, a.quota().period) == (b.quota().amount, b.quota().period)
        }
        (Algorithm::InFlight(_), Algorithm::InFlight(_)) => true,
        _ => a == b,
    }
}

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// The token bucket that it is, warming up or not, and its level.
fn token_bucket<'a>(algorithm: &'a Algorithm, state: &State) -> Option<(&'a TokenBucket, Level)> {
    match (algorithm, state) {
        (Algorithm::TokenBucket(bucket), State::Level(level)) => Some((bucket, *level)),
        (Algorithm::WarmUp(warm_up), State::Warming(warming)) => {
            Some((warm_up.bucket(), warming.level))
        }
        _ => None,
    }
}

fn whole_units(algorithm: &Algorithm, state: Option<&State>, now: Timestamp) -> i64 {
    match state.and_then(|state| token_bucket(algorithm, state)) {
        Some((bucket, level)) => {
            let p = i64::try_from(bucket.quota().p).unwrap_or(i64::MAX);
            bucket.level(Some(level), now).div_euclid(p)
        }
        None => i64::try_from(algorithm.burst()).unwrap_or(i64::MAX),
    }
}

/// So many microseconds, or steps, as `missing` takes at `each`, rounded up.
fn micros(missing: i128, each: u64) -> Micros {
    let missing = u128::try_from(missing).unwrap_or(0);
    Micros(u64::try_from(missing.div_ceil(u128::from(each))).unwrap_or(u64::MAX))
}

impl Algorithm {
    /// The most units at once; a concurrency limit has none.
    pub fn burst(&self) -> u64 {
        self.quota().map_or(0, |quota| quota.burst)
    }

    /// As [`Algorithm::expiry`], of a bucket that remembers as much as [`Kept::beyond`] says.
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

    /// The longest a request may wait.
    pub fn max_wait(&self) -> Micros {
        match self {
            Self::TokenBucket(bucket) => bucket.max_wait(),
            Self::WarmUp(warm_up) => warm_up.bucket().max_wait(),
            Self::Interval(bucket) | Self::FixedWindow(bucket) => bucket.max_wait(),
            Self::SlidingWindow(window) => window.max_wait(),
            Self::SlidingLog(log) => log.max_wait(),
            Self::InFlight(_) => Micros::ZERO,
        }
    }

    /// A full bucket in so many words; of those that have any when they are full.
    fn full_state(&self, now: Timestamp) -> Option<State> {
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
            Self::WarmUp(warm_up) => Some(State::Warming(warm_up.full_state(now))),
            Self::InFlight(_) => None,
        }
    }

    /// The same numbers without what a store does not keep beside them: no debt, no settlement, and the wait of who asks.
    fn bare(&self, max_wait: Micros) -> Self {
        match self {
            Self::TokenBucket(bucket) => Self::TokenBucket(bucket.bare(max_wait)),
            Self::Interval(bucket) => Self::Interval(bucket.bare(max_wait)),
            Self::FixedWindow(bucket) => Self::FixedWindow(bucket.bare(max_wait)),
            Self::SlidingWindow(window) => Self::SlidingWindow(window.bare()),
            Self::SlidingLog(log) => Self::SlidingLog(log.bare(max_wait)),
            other => other.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
