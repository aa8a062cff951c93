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
mod memory;
mod numbers;
mod past_end;
mod reloaded;
mod translated;

use numbers::same_numbers;

use super::Algorithm;
use super::bucket::{Next, State};
use super::claim::Change;
use super::time::Timestamp;

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
            Algorithm::TokenBucket(_) | Algorithm::Interval(_) => {
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
}

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

#[cfg(test)]
mod tests;
