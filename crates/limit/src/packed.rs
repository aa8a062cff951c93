//! A token bucket in one word: the moment at which it will be full again, in ticks of 1/n
//! microsecond (n is the reduced amount) since the table's epoch. This is the theoretical arrival
//! time of GCRA (ITU-T I.371). It is exact because the tick divides both the microsecond (n ticks)
//! and the unit (p ticks).
//!
//! The word contains the same information as [`super::bucket::Level`]:
//! `word = n x at + (full - level)`. On a clock that does not step back the verdicts are identical
//! to [`TokenBucket`]'s, including waits, debts and settlements (a test compares them). On a clock
//! that steps back the word is the stricter of the two: it waits until the clock has caught up.

mod rescale;

use super::bucket::{Granted, Judged, Refused, Report};
use super::claim::Change;
use super::time::{Micros, Timestamp};
use super::token_bucket::TokenBucket;

/// A token bucket's parameters in ticks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    burst: u64,
    epoch: Timestamp,
    n: u64,
    p: u64,
    /// `2^64 / p`, rounded down (one less for powers of two): replaces a division.
    inverse: u64,
    full: u64,
    owed: u64,
    lowest: u64,
    max_wait: u64,
    most: u64,
    /// The widest earlier burst that is remembered.
    widest: u64,
    /// How long, in ticks, a bucket must have been full before it would be full at the widest
    /// burst.
    beyond: u64,
}

/// The price of a cost in ticks; the same for every request of a constant cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    /// Ticks by which the arrival time advances.
    pub ticks: u64,
    /// The furthest the arrival time may be ahead of now for the cost to be granted at once.
    pub room: u64,
}

impl Packed {
    /// The packed form of `bucket` in a table that counts time from `epoch`. `None` when it does
    /// not fit one word for 17 years, or follows its upstream.
    pub fn new(bucket: &TokenBucket, epoch: Timestamp) -> Option<Self> {
        let quota = bucket.quota();
        let full = u64::try_from(bucket.full()).ok()?;
        let owed = bucket.debt().checked_mul(quota.p)?;
        let lowest = bucket.floor().unsigned_abs();
        let reach = full.checked_add(bucket.lowest().unsigned_abs())?;
        let fits = quota.n <= N_MAX && reach <= REACH_MAX && bucket.follows().is_none();
        fits.then(|| Self {
            burst: quota.burst,
            epoch,
            n: quota.n,
            p: quota.p,
            inverse: u64::MAX / quota.p,
            full,
            owed,
            lowest,
            max_wait: bucket.max_wait().0,
            most: quota.burst.saturating_add(bucket.debt()),
            widest: quota.burst,
            beyond: 0,
        })
    }

    /// `now` in ticks since the epoch. A word at or below it is a full bucket.
    #[inline(always)]
    pub fn ticks(&self, now: Timestamp) -> u64 {
        self.ticks_after(self.elapsed(now))
    }

    /// Time since the epoch: the same for all packed buckets of one epoch.
    #[inline(always)]
    pub fn elapsed(&self, now: Timestamp) -> Micros {
        Micros(now.since(self.epoch).0.min(SPAN_MAX))
    }

    /// Converts [`Packed::elapsed`] to ticks.
    #[inline(always)]
    pub fn ticks_after(&self, elapsed: Micros) -> u64 {
        elapsed.0 * self.n
    }

    /// The price of `cost`; `None`: more than the bucket can ever pay.
    #[inline(always)]
    pub fn price(&self, cost: u64) -> Option<Price> {
        if cost > self.most {
            return None;
        }
        let ticks = cost * self.p;
        Some(Price {
            ticks,
            room: self.full.min(self.full + self.owed - ticks),
        })
    }

    /// Whether `price` can be drawn at `now` (in ticks) from the bucket that `word` encodes. The
    /// grant's `next` is the new word.
    #[inline(always)]
    pub fn judge(&self, word: u64, price: Price, now: u64) -> Judged<u64> {
        let arrival = word.max(now);
        let backlog = arrival - now;
        if backlog <= price.room {
            return Ok(Granted {
                wait: Micros::ZERO,
                next: arrival + price.ticks,
            });
        }
        let wait = self.micros(backlog - price.room);
        if wait > self.max_wait {
            return Err(Refused::after(Micros(wait - self.max_wait)));
        }
        Ok(Granted {
            wait: Micros(wait),
            next: arrival.max(now + wait * self.n) + price.ticks,
        })
    }

    /// The bucket's numbers. Inlined: a result returned through memory would be read back before
    /// its stores have completed.
    #[inline(always)]
    pub fn report(&self, word: u64, now: u64) -> Report {
        let backlog = word.saturating_sub(now);
        let level = self.full.saturating_sub(backlog);
        let remaining = self.units(level);
        let effective = if remaining > 0 {
            self.micros(remaining * self.p)
        } else {
            // Up to one unit: computed from the level, which may be below zero.
            self.micros((backlog + self.p).saturating_sub(self.full))
        };
        Report {
            remaining,
            reset: Micros(self.micros(backlog)),
            effective: Micros(effective),
            window_end: Timestamp::default(),
        }
    }

    /// Whole units in `level`: `level / p` without a division, which would take as long as the
    /// lock.
    ///
    /// The product is smaller than the quotient by less than one: `2^64 / p - inverse <= 1`, and so
    /// `level x (2^64 / p - inverse) / 2^64 < 1`. Rounded down it is the quotient or one less; the
    /// remainder decides which.
    #[inline(always)]
    fn units(&self, level: u64) -> u64 {
        let short = ((u128::from(level) * u128::from(self.inverse)) >> 64) as u64;
        short + u64::from(level - short * self.p >= self.p)
    }

    /// Ticks in whole microseconds, rounded up. Most rates reduce to one unit per some microseconds
    /// and need no division.
    #[inline(always)]
    fn micros(&self, ticks: u64) -> u64 {
        if self.n == 1 {
            ticks
        } else {
            ticks.div_ceil(self.n)
        }
    }

    /// The word of a bucket for a correction at `now`, with all of its units, including those out
    /// of reach under a lowered burst.
    #[inline]
    pub fn corrected(&self, word: u64, now: u64) -> u64 {
        word.max(now.saturating_sub(self.beyond))
    }

    /// Corrects an earlier grant, as [`TokenBucket::settle`] does.
    pub fn settle(&self, word: u64, change: Change, now: u64) -> u64 {
        let (arrival, earliest) = (self.corrected(word, now), now.saturating_sub(self.beyond));
        match change {
            Change::Charge { more } => {
                let lowest = now + self.full + self.lowest;
                arrival
                    .saturating_add(more.saturating_mul(self.p))
                    .min(lowest)
                    .max(arrival)
            }
            Change::Refund { units }
                if self.max_wait == 0 || arrival.saturating_sub(now) <= self.full =>
            {
                let ticks = units.saturating_mul(self.p);
                arrival.saturating_sub(ticks).max(earliest)
            }
            Change::Withdraw { units, full_at }
                if self.max_wait == 0
                    || arrival.saturating_sub(now) <= self.full
                    || (self.p >= self.n && self.expiry(arrival) == full_at) =>
            {
                arrival
                    .saturating_sub(units.saturating_mul(self.p))
                    .max(earliest)
            }
            Change::Refund { .. }
            | Change::RefundWithin { .. }
            | Change::Withdraw { .. }
            | Change::Release { .. } => arrival,
        }
    }

    /// When the bucket is full again.
    pub fn expiry(&self, word: u64) -> Timestamp {
        self.epoch.after(Micros(word.div_ceil(self.n)))
    }
}

/// The greatest reduced amount that can be packed: with [`SPAN_MAX`] it keeps the present below
/// 2^62 ticks.
pub const N_MAX: u64 = 1 << 13;

/// The microseconds a table can count. 17.8 years after its epoch the table's time stops and only
/// the remaining units are granted, so a process must restart before.
pub const SPAN_MAX: u64 = 1 << 49;

/// The furthest a word may be ahead of the present, in ticks. With the present below 2^62, words
/// stay below 2^63 and leave one bit to the table.
pub const REACH_MAX: u64 = 1 << 60;

#[cfg(test)]
mod tests;
