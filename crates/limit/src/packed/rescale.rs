//! Reads a packed word under other bursts than its own: the burst that the limit had before a
//! reload, and the burst it gets.
//!
//! A word in the past tells since when the bucket has been full, and so the units that a bucket of
//! a larger burst would hold by now: `x = (full + now - word) / p`, more than the burst. A grant
//! discards the excess (it advances the word from now), as an overflowing bucket does. While a
//! limit's burst is smaller than an earlier one, its table [remembers](Packed::remembering) the
//! widest burst W so far. A bucket then counts as no bucket when x has reached W, not when it has
//! reached the burst. So a burst that is lowered and raised again clamps and forgets nothing,
//! unless units are drawn under it. A correction changes x and discards nothing.
//!
//! *Why no caller gains.* Let F be the largest burst and r the highest rate the limit ever has, and
//! V the level of a bucket of F and r that paid for every grant. Grants stay within `F + r x T` in
//! every span of T exactly while V does not fall below zero. Always `F - V <= W - x` (x counted up
//! to W), and so `V >= x`, because W is at most F:
//! - a grant of c takes c from V, and at least c from x (and also all of x above the capacity);
//! - time adds to x at the rate of these numbers, and to V at the highest rate, unless V is full;
//! - a refund adds no more to x than to V; a correction may take from x and never takes from V;
//! - a forgotten key had the smallest word of its set, and finds a word that is no smaller when it
//!   returns; or it finds a slot whose x has reached W: then its own x has reached W too, and V is
//!   full;
//! - a reload that keeps W passes on x, rounded down to the new scale. A reload that raises the burst
//!   above W passes on x where x is less than W, which is less than the difference allows. Where x
//!   has reached W the bucket is full, and so is V.

use super::Packed;
use crate::bucket::Level;
use crate::{Micros, Timestamp};

impl Packed {
    /// The same packed bucket for a limit that has had a burst of `widest`.
    #[must_use]
    pub fn remembering(self, widest: u64) -> Self {
        let widest = widest.max(self.widest);
        // A capped value is stricter: the bucket counts as full later than necessary.
        let beyond = self.ticks_beyond(widest).min(BEYOND_MAX);
        Self {
            widest,
            beyond,
            ..self
        }
    }

    /// Ticks in which a full bucket would gain the additional units of the burst `wide`.
    fn ticks_beyond(&self, wide: u64) -> u64 {
        wide.saturating_sub(self.burst).saturating_mul(self.p)
    }

    /// The ticks for which a bucket must have been full before it is forgotten, if no thread uses
    /// an older time.
    #[inline(always)]
    pub fn beyond(&self) -> u64 {
        self.beyond
    }

    /// The word of a bucket in `state` that remembers `wide` ([`crate::Kept::beyond`]). Never 0,
    /// which means no bucket: a moment before the epoch becomes the epoch's first tick.
    pub fn pack(&self, state: Level, wide: u64) -> u64 {
        let at = i128::from(state.at.as_micros()) - i128::from(self.epoch.as_micros());
        let missing = i128::from(self.full) - i128::from(state.level);
        let word = at * i128::from(self.n)
            + if missing != 0 {
                missing
            } else {
                i128::from(self.ticks_beyond(wide)) - i128::from(self.beyond)
            };
        u64::try_from(word.max(1)).unwrap_or(u64::MAX >> 1)
    }

    /// The state that `word` encodes at `now`, and the burst it remembers
    /// ([`crate::Kept::beyond`]). `None`: no bucket, or a bucket that has been full for longer than
    /// `late`.
    pub fn unpack(&self, word: u64, now: Timestamp, late: Micros) -> Option<(Level, u64)> {
        let ticks = self.ticks(now);
        let full = i64::try_from(self.full).unwrap_or(i64::MAX);
        if let Some(backlog) = word.checked_sub(ticks).filter(|backlog| *backlog > 0) {
            let level =
                i64::try_from(i128::from(self.full) - i128::from(backlog)).unwrap_or(i64::MIN);
            return Some((
                Level { level, at: now },
                if self.beyond > 0 { self.widest } else { 0 },
            ));
        }
        let wide_at = word.saturating_add(self.beyond);
        match wide_at.checked_sub(ticks).filter(|left| *left > 0) {
            _ if word == 0 => None,
            // Includes the units that a larger burst would hold.
            Some(_) => {
                let over = i64::try_from(ticks - word).unwrap_or(i64::MAX);
                Some((
                    Level {
                        level: full.saturating_add(over),
                        at: now,
                    },
                    self.widest,
                ))
            }
            None => {
                let remembered = ticks < wide_at.saturating_add(self.ticks_after(late));
                remembered.then(|| {
                    (
                        Level {
                            level: full,
                            at: self.expiry(wide_at),
                        },
                        0,
                    )
                })
            }
        }
    }
}

/// The longest a bucket is remembered for an earlier burst, in ticks.
const BEYOND_MAX: u64 = 1 << 62;
