//! Translates a bucket whose limit has got another algorithm: the units that are left stay, clamped
//! to the new burst and never increased, as under changed numbers of one algorithm.

use crate::bucket::{Pair, State};
use crate::claim::Change;
use crate::sliding_log::{Log, SlidingLog};
use crate::sliding_window::SlidingWindow;
use crate::time::Timestamp;
use crate::{Algorithm, TokenBucket};

impl Algorithm {
    /// Whether a bucket goes on under the `other` algorithm. Places in flight are no units: a rate
    /// that becomes a concurrency limit starts fresh, and so does a concurrency limit that becomes
    /// a rate.
    pub fn goes_on_as(&self, other: &Self) -> bool {
        matches!(self, Self::InFlight(_)) == matches!(other, Self::InFlight(_))
    }

    /// The bucket in `state` under another algorithm: a full one that has been charged what is
    /// missing here.
    pub(crate) fn translate(&self, state: &State, new: &Self, now: Timestamp) -> Option<State> {
        let burst = i64::try_from(new.quota()?.burst).unwrap_or(i64::MAX);
        let left = self.units_left(state, now)?.min(burst);
        let mut translated = None;
        let more = burst.abs_diff(left);
        new.settle(&mut translated, Change::Charge { more }, now);
        translated
    }

    /// Whole units left, rounded down; below zero where they are owed. `None` for places in flight.
    pub(super) fn units_left(&self, state: &State, now: Timestamp) -> Option<i64> {
        let level = |bucket: &TokenBucket, level| {
            let p = i64::try_from(bucket.quota().p).unwrap_or(i64::MAX);
            bucket.level(Some(level), now).div_euclid(p)
        };
        Some(match (self, state) {
            (Self::TokenBucket(bucket), State::Level(state)) => level(bucket, *state),
            (Self::Interval(bucket) | Self::FixedWindow(bucket), State::Steps(steps)) => {
                bucket.current(Some(*steps), now).units
            }
            (Self::SlidingWindow(window), State::Pair(pair)) => window.units_left(*pair, now),
            (Self::SlidingLog(own), State::Log(log)) => own.units_left(log, now),
            _ => return None,
        })
    }
}

impl SlidingWindow {
    /// The quota less what both windows count, and less a quota for each window until the counted
    /// one begins.
    fn units_left(&self, pair: Pair, now: Timestamp) -> i64 {
        let Pair {
            start,
            previous,
            current,
        } = self.current(Some(pair), now);
        let (amount, period) = (
            i128::from(self.quota().amount),
            i128::from(self.quota().period.0),
        );
        let weight = period - i128::from(now.since(start).0);
        let weighted = (i128::from(previous) * weight + period - 1) / period;
        let ahead = start.since(now).0.div_ceil(self.quota().period.0);
        least(amount - i128::from(current) - weighted - i128::from(ahead) * amount)
    }
}

impl SlidingLog {
    /// The quota less every grant that counts now or later.
    fn units_left(&self, log: &Log, now: Timestamp) -> i64 {
        let period = self.quota().period;
        let counted = log
            .entries()
            .filter(|entry| now.since(entry.at) < period)
            .map(|entry| i128::from(entry.units));
        least(i128::from(self.quota().amount) - counted.sum::<i128>())
    }
}

/// Within what every language of a shared store counts exactly.
fn least(units: i128) -> i64 {
    i64::try_from(units.max(-OWED_MAX)).unwrap_or(i64::MAX)
}

/// 2^52: no bucket owes as much.
const OWED_MAX: i128 = 1 << 52;

#[cfg(test)]
mod tests;
