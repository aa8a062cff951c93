//! A bucket as a store keeps it, from one draw to the next, whatever numbers its limit has then.
//!
//! A limit's numbers change: by an edit of the file, for a while by an override, and with the tier
//! of a caller. Gateways with two files may use one bucket at a time. A bucket belongs to its
//! limit's name and its caller, so all these numbers draw from one bucket, by one rule:
//!
//! *A bucket keeps the largest burst it was drawn under, and is forgotten only when it is full under
//! that.* A draw takes at most its own burst. A correction is made in the bucket's numbers.
//!
//! - **Token bucket.** The level is kept in the scale of the last grant, and refills up to the
//!   largest burst W. Under another rate it is converted, rounded down. Until the next grant, what
//!   passes counts at the higher of two rates: that of the last grant, and that of the claim. So a
//!   raised rate helps at once, and a lowered one is in force from the next grant on.
//! - **Intervals and windows** keep what was used, not what is left. Numbers of one limit differ in
//!   the amount alone, never in the period ([`Algorithm::has_buckets_of`]), so nothing is converted.
//!   A bucket keeps the largest amount as it keeps the burst: a step frees as much.
//!
//! *Why no caller gains.* Let F be the largest burst and r the highest rate in use, and V the level
//! of a bucket of F and r that paid for every grant. Grants stay within `F + r x T` in every span of
//! T exactly while V does not fall below zero. Always `F - V <= W - x`, where x is the bucket's
//! level, and so `V >= x`, because W is at most F: a grant of c takes c from V and at least c from x,
//! a refund adds no more to x than to V, time adds no more to x than to V unless V is full, and a
//! larger W only makes the difference larger. A forgotten bucket has x = W, so V is full.

pub mod ahead;

use super::Algorithm;
use super::bucket::{Level, Next, State};
use super::claim::Change;
use super::time::Timestamp;

/// A bucket with the numbers of its last grant and the largest burst it was drawn under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBucket {
    algorithm: Algorithm,
    state: Option<State>,
}

impl StoredBucket {
    /// A full bucket of `algorithm`.
    pub fn full(algorithm: Algorithm) -> Self {
        Self {
            algorithm,
            state: None,
        }
    }

    /// A bucket of `algorithm` from the parts a store has kept. `largest`: the largest burst it was
    /// drawn under, where that is not `algorithm`'s.
    pub fn from_parts(algorithm: Algorithm, state: Option<State>, largest: u64) -> Self {
        Self {
            algorithm: algorithm.widened(largest),
            state,
        }
    }

    pub fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    pub fn state(&self) -> Option<&State> {
        self.state.as_ref()
    }

    /// The largest burst that it was drawn under.
    pub fn largest(&self) -> u64 {
        self.algorithm.burst()
    }

    /// The moment from which it equals no bucket; `None` for units in flight, which do not expire.
    pub fn expiry(&self) -> Option<Timestamp> {
        match &self.state {
            None => Some(Timestamp::default()),
            Some(state) => self.algorithm.expiry(state),
        }
    }

    /// The bucket at `now` for a draw under the numbers of `limit`, which judges its state. What is
    /// above their burst stays until something is granted.
    #[must_use]
    pub fn under(&self, limit: &Algorithm, now: Timestamp) -> Self {
        let is_forgotten = self.expiry().is_some_and(|expiry| expiry <= now);
        let state = match &self.state {
            Some(state) if !is_forgotten && self.algorithm.has_buckets_of(limit) => state,
            _ => return Self::full(limit.clone()),
        };
        let algorithm = limit.widened(self.largest());
        let state = match (&self.algorithm, &algorithm, state) {
            (Algorithm::TokenBucket(own), Algorithm::TokenBucket(limit), State::Level(level)) => {
                State::Level(own.level_under(*level, limit, now))
            }
            _ => state.clone(),
        };
        Self {
            algorithm,
            state: Some(state),
        }
    }

    /// Writes a grant that was judged on this bucket's state.
    pub fn grant(&mut self, next: Next) {
        self.algorithm.apply(&mut self.state, next);
    }

    /// Corrects an earlier grant, made under `by`. The bucket keeps its numbers, and its floor is the
    /// lower one of both. A bucket of another algorithm or period does not contain the grant.
    pub fn settle(&mut self, by: &Algorithm, change: Change, now: Timestamp) {
        if !self.algorithm.has_buckets_of(by) {
            return;
        }
        if self.expiry().is_some_and(|expiry| expiry <= now) {
            *self = Self::full(by.clone());
        }
        let own = self.algorithm.settling_as(by);
        own.settle(&mut self.state, change, now);
    }

    /// Empties the bucket as of `at`. A level below zero stays.
    pub fn drain(&mut self, at: Timestamp) {
        if let Algorithm::TokenBucket(bucket) = &self.algorithm {
            // To the last fraction of a unit, which a charge of whole units would leave.
            let known = match self.state {
                Some(State::Level(level)) => Some(level),
                _ => None,
            };
            let level = bucket.level(known, at).min(0);
            let at = known.map_or(at, |known| known.at.max(at));
            self.state = Some(State::Level(Level { level, at }));
            return;
        }
        let more = self.algorithm.report(self.state.as_ref(), at).remaining;
        let own = self.algorithm.clone();
        self.settle(&own, Change::Charge { more }, at);
    }
}

impl Algorithm {
    /// Whether both have the same buckets: the algorithm and, of windows, logs and intervals, the
    /// period and the boundaries are a part of a bucket's name.
    pub fn has_buckets_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::TokenBucket(_), Self::TokenBucket(_))
            | (Self::InFlight(_), Self::InFlight(_)) => true,
            (Self::Interval(a), Self::Interval(b))
            | (Self::FixedWindow(a), Self::FixedWindow(b)) => {
                a.quota().period == b.quota().period && a.align().is_as(b.align())
            }
            (Self::SlidingWindow(a), Self::SlidingWindow(b)) => {
                a.quota().period == b.quota().period
            }
            (Self::SlidingLog(a), Self::SlidingLog(b)) => a.quota().period == b.quota().period,
            _ => false,
        }
    }

    /// The same numbers for a bucket that was drawn under a burst of `largest`.
    #[must_use]
    pub fn widened(&self, largest: u64) -> Self {
        match self {
            Self::TokenBucket(bucket) if bucket.quota().burst < largest => {
                Self::TokenBucket(bucket.widened(largest))
            }
            other => other.clone(),
        }
    }

    /// These numbers of a bucket, for a correction of a grant under `by`.
    fn settling_as(&self, by: &Self) -> Self {
        match (self, by) {
            (Self::TokenBucket(own), Self::TokenBucket(by)) => {
                Self::TokenBucket(own.settling_as(by))
            }
            // What was used has no scale.
            _ => by.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
