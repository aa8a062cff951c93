//! What a word says of other bursts than its own: of one that the limit had before a reload, and of the one it gets.
//!
//! A word that lies in the past says since when the bucket has been full, and so what a bucket of a larger
//! burst would hold by now: `x = (full + now - word) / p` units, more than the burst. A grant forgets it (it moves the word on
//! from now), as an overflowing bucket does. While a limit's burst is smaller than one it had before, its table
//! [remembers](Packed::remembering) the widest burst W there was, and a bucket counts as no bucket when x has come to W,
//! not when it has come to the burst. So a burst that is lowered and raised again clamps and forgets nothing, unless something is drawn
//! under it. A correction changes x, and forgets nothing of it.
//!
//! *Why nobody gains.* Let F be the largest burst and r the highest rate the limit ever has, and V what a bucket of F and r would
//! hold that paid for every grant; what is granted is within `F + r x T` in every span of T exactly while V does not fall
//! below zero. Always `F - V <= W - x` (x counted up to W), and so `V >= x`, for W is at most F:
//! - a grant of c takes c from V, and c at least from x (all that lies beyond the brim besides);
//! - time adds to x at the rate of these numbers, to V at the highest, unless V is full;
//! - a refund adds no more to x than to V, a correction may take from x and never from V;
//! - a key that was forgotten had the smallest word of its set, and finds one no smaller; or a slot whose x has come to W,
//!   and then so has its own, and V is full;
//! - a reload that keeps W hands on x, in whole units rounded down; one that raises the burst beyond W hands on x where x is
//!   less than W, which is less than the difference allows; and where x has come to W the bucket is full, as V is.

use super::Packed;
use crate::bucket::Level;
use crate::{Micros, Timestamp};

impl Packed {
    /// The same, where the limit has had a burst of `widest`.
    #[must_use]
    pub fn remembering(self, widest: u64) -> Self {
        let widest = widest.max(self.widest);
        // Cut short, it would be a bucket that is full later than need be.
        let beyond = self.ticks_beyond(widest).min(BEYOND_MAX);
        Self {
            widest,
            beyond,
            ..self
        }
    }

    /// Ticks in which a full bucket would gain what a burst of `wide` has more.
    fn ticks_beyond(&self, wide: u64) -> u64 {
        wide.saturating_sub(self.burst).saturating_mul(self.p)
    }

    /// The ticks for which a bucket has to be full before it is forgotten, if nobody is late.
    #[inline(always)]
    pub fn beyond(&self) -> u64 {
        self.beyond
    }

    /// The word of a bucket in `state` that remembers `wide` ([`crate::Kept::beyond`]). Never 0, the word of no bucket at all: what
    /// would lie before the epoch is full since then.
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

    /// The state that `word` says at `now`, and what it remembers ([`crate::Kept::beyond`]); `None`: nothing for
    /// longer than `late`, or no bucket at all.
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
            // With what a larger burst would hold.
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

/// The longest a bucket is remembered for a burst it had before, in ticks.
const BEYOND_MAX: u64 = 1 << 62;
