//! Keeps a bucket when its limit's numbers change: in a shared store, which keeps it under the
//! numbers of the last draw, and in a process, where a reload moves it to the table of the changed
//! limit.
//!
//! During a rolling change, and while requests of the old configuration end, gateways with
//! different numbers use one bucket. A gateway that draws converts the bucket to its own numbers
//! (its units and the earned part of the next one, clamped to its burst, rounded down, never
//! increased) and stores it so. A gateway that only
//! corrects an earlier grant settles in the bucket's numbers and clamps nothing.
//!
//! A full bucket equals no bucket, and no bucket means a full one under any burst. So a bucket that
//! a smaller burst has clamped must not be forgotten when it is full: a gateway with the larger
//! burst would find the whole larger burst. Such a bucket **remembers** ([`Kept::beyond`]):
//!
//! - Token and interval buckets remember the burst W that must be filled before the bucket is
//!   forgotten. Let F be the largest burst and r the highest rate in use, and V the level of a
//!   bucket of F and r that paid for every grant. Grants stay within `F + r x T` in every span of T
//!   exactly while V does not fall below zero. W is kept so that V is never below the bucket's
//!   units, and its shortfall `F - V` is never above `W` less those units. A grant lowers both; a
//!   refund raises both; refilling raises V by no less; units that a smaller burst cuts off are
//!   subtracted from W too; units that refilling would add above the capacity lower W. When W has
//!   come down to the burst, a full bucket means that V is also full, and only then is the bucket
//!   forgotten.
//! - Windows and logs remember the moment until which earlier grants would have counted. Later
//!   grants count on their own.
//!
//! Another algorithm is another set of numbers: the units left stay ([`Algorithm::rescale`]), and the
//! bucket remembers, in the new algorithm's way, what it would have missed under the old one.

pub mod ahead;
mod past_end;
mod reloaded;
mod translated;

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

/// Above this value `W x p` might not be exact in every language of a shared store, so the
/// remembered burst is capped here.
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

    /// A bucket of `algorithm` from the parts a store has kept.
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

    /// The bucket at `now` under the numbers of `limit`, for a draw.
    #[must_use]
    pub fn under(&self, limit: &Algorithm, now: Timestamp) -> Self {
        self.renumbered(limit, now, SCALED_MAX)
    }

    /// The bucket at `now` under the numbers of `limit`, which are in force since `since`: what
    /// refilled before is of the numbers it is kept in. Of the time before its last grant nothing
    /// is counted again.
    #[must_use]
    pub fn under_since(&self, limit: &Algorithm, since: Timestamp, now: Timestamp) -> Self {
        let last = match &self.state {
            Some(State::Level(level)) => level.at,
            Some(State::Warming(warming)) => warming.level.at,
            Some(State::Steps(steps)) => steps.since,
            Some(State::Pair(pair)) => pair.start,
            Some(State::Log(log)) => log.last().unwrap_or_default(),
            Some(State::Held(_)) | None => Timestamp::default(),
        };
        let changed = since.max(last).min(now);
        self.under(limit, changed).under(limit, now)
    }

    fn renumbered(&self, limit: &Algorithm, now: Timestamp, scaled_max: u64) -> Self {
        if !self.algorithm.goes_on_as(limit) || self.is_forgotten(now) {
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
        let beyond = match limit {
            Algorithm::TokenBucket(_) | Algorithm::WarmUp(_) | Algorithm::Interval(_) => {
                let burst = limit.burst();
                let left = |algorithm: &Algorithm, state: Option<&State>| {
                    let left = state.and_then(|state| algorithm.units_left(state, now));
                    left.unwrap_or(i64::try_from(algorithm.burst()).unwrap_or(i64::MAX))
                };
                let cut =
                    left(&own.algorithm, Some(&state)).saturating_sub(left(limit, moved.as_ref()));
                let most = match limit {
                    Algorithm::Interval(_) => u64::MAX,
                    _ => scaled_max / limit.quota().map_or(1, |quota| quota.p),
                };
                let wide = own
                    .remembered_burst()
                    .max(own.algorithm.burst())
                    .saturating_sub(unsigned(cut))
                    .min(most);
                if wide > burst { wide } else { 0 }
            }
            Algorithm::FixedWindow(_) | Algorithm::SlidingWindow(_) | Algorithm::SlidingLog(_) => {
                let until = own.expiry().unwrap_or_default();
                if until > now { until.as_micros() } else { 0 }
            }
            Algorithm::InFlight(_) => 0,
        };
        let mut kept = Self {
            algorithm: limit.clone(),
            state: moved,
            beyond,
        };
        kept.stay_full(now);
        kept
    }

    /// Writes a grant that was judged on this bucket's state under its numbers.
    pub fn grant(&mut self, next: Next) {
        self.algorithm.apply(&mut self.state, next);
    }

    /// Corrects an earlier grant, made under `by`, in the bucket's numbers. A bucket that does not
    /// [go on](Algorithm::goes_on_as) from that algorithm ignores the correction, because it does
    /// not contain the grant.
    pub fn settle(&mut self, by: &Algorithm, change: Change, now: Timestamp) {
        if !self.algorithm.goes_on_as(by) {
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

    /// Empties the bucket as of `at`. A level below zero stays.
    pub fn drain(&mut self, at: Timestamp) {
        let more = self.algorithm.report(self.state.as_ref(), at).remaining;
        let own = self.algorithm.clone();
        self.settle(&own, Change::Charge { more }, at);
    }

    /// The burst it remembers; windows and logs remember a moment instead.
    fn remembered_burst(&self) -> u64 {
        match self.algorithm {
            Algorithm::TokenBucket(_) | Algorithm::WarmUp(_) | Algorithm::Interval(_) => {
                self.beyond
            }
            _ => 0,
        }
    }

    fn is_forgotten(&self, now: Timestamp) -> bool {
        match (&self.state, self.beyond) {
            (None, 0) => true,
            _ => self.expiry().is_some_and(|expiry| expiry <= now),
        }
    }

    /// A full bucket that still remembers is kept as a full state.
    fn stay_full(&mut self, now: Timestamp) {
        if self.state.is_none() && self.beyond > 0 {
            self.state = self.algorithm.full_state(now);
        }
    }

    /// Subtracts the units that time has added above the capacity from the remembered burst.
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

/// Whether a state means the same under both algorithms. Debt and waiting do not matter, because
/// they are not part of the state.
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

/// The token bucket of an algorithm, with or without warm-up, and its level.
fn token_bucket<'a>(algorithm: &'a Algorithm, state: &State) -> Option<(&'a TokenBucket, Level)> {
    match (algorithm, state) {
        (Algorithm::TokenBucket(bucket), State::Level(level)) => Some((bucket, *level)),
        (Algorithm::WarmUp(warm_up), State::Warming(warming)) => {
            Some((warm_up.bucket(), warming.level))
        }
        _ => None,
    }
}

/// The microseconds, or steps, that `missing` takes at `each`, rounded up.
fn micros(missing: i128, each: u64) -> Micros {
    let missing = u128::try_from(missing).unwrap_or(0);
    Micros(u64::try_from(missing.div_ceil(u128::from(each))).unwrap_or(u64::MAX))
}

impl Algorithm {
    /// The most units at once; a concurrency limit has none.
    pub fn burst(&self) -> u64 {
        self.quota().map_or(0, |quota| quota.burst)
    }

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

    /// An explicit full bucket; `None` for algorithms whose full bucket has no state.
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

    /// The same numbers without those a store does not keep with a bucket: no debt, no settlement,
    /// and the `max_wait` of the current draw.
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
