//! What a reload of a process makes of its buckets.

use std::mem::discriminant;

use super::Kept;
use crate::bucket::{Level, State};
use crate::time::{Micros, Timestamp};
use crate::{Algorithm, Quota, TokenBucket};

impl Kept {
    /// As [`Kept::under`] for a table of the process: the state, and what it remembers. A bucket that is full is so for
    /// everybody only `late` after it is (a thread may decide by an older reading of the clock): until then it is one
    /// that is full since. `None`: full for longer.
    pub fn handed_on(
        &self,
        limit: &Algorithm,
        now: Timestamp,
        late: Micros,
    ) -> Option<(State, u64)> {
        let Some(full_at) = self.expiry().filter(|expiry| *expiry <= now) else {
            return match (&self.algorithm, limit, &self.state) {
                (
                    Algorithm::TokenBucket(old),
                    Algorithm::TokenBucket(new),
                    Some(State::Level(level)),
                ) => self
                    .above_the_brim(old, new, *level, now)
                    .map(|(level, beyond)| (State::Level(level), beyond)),
                _ => {
                    let moved = self.renumbered(limit, now, u64::MAX);
                    Some((moved.state?, moved.beyond))
                }
            };
        };
        if full_at.after(late) <= now || discriminant(&self.algorithm) != discriminant(limit) {
            return None;
        }
        let state = match (&self.algorithm, &self.state) {
            // A log knows no more than its entries.
            (Algorithm::SlidingLog(_), Some(state)) => {
                let before = Timestamp::from_micros(full_at.as_micros().saturating_sub(1));
                self.algorithm.renumber(state, limit, before)
            }
            _ => limit.full_state(full_at),
        };
        Some((state?, 0))
    }

    /// A token bucket with all of its units, what lies above the smaller burst of a reload too: that is out of reach, refills as
    /// the rest does, and is forgotten by the next grant. So one that nobody draws from loses nothing while a burst is lowered.
    fn above_the_brim(
        &self,
        old: &TokenBucket,
        new: &TokenBucket,
        level: Level,
        now: Timestamp,
    ) -> Option<(Level, u64)> {
        let wide = self.beyond.max(old.quota().burst);
        let gained = i128::from(now.since(level.at).0) * i128::from(old.quota().n);
        let brim = i128::from(wide) * i128::from(old.quota().p);
        // One that a clock which went back finds as it was left.
        let held = (i128::from(level.level) + gained).min(brim.max(i128::from(level.level)));
        let held = if (old.quota().n, old.quota().p) == (new.quota().n, new.quota().p) {
            held
        } else {
            held.div_euclid(i128::from(old.quota().p)) * i128::from(new.quota().p)
        };
        let (burst, full) = (new.quota().burst, i128::from(new.full()));
        let held = if wide > burst { held } else { held.min(full) }.max(i128::from(new.lowest()));
        let beyond = if wide > burst { wide } else { 0 };
        let level = Level {
            level: i64::try_from(held).unwrap_or(i64::MAX),
            at: level.at.max(now),
        };
        (held < full || beyond > 0).then_some((level, beyond))
    }

    /// Whether one that is not drawn from stands the same under both numbers, but for how much of it can be drawn: a table of
    /// the process then keeps it in the numbers it has.
    pub fn keeps_pace(old: &Algorithm, new: &Algorithm) -> bool {
        match (old, new) {
            (Algorithm::Interval(old), Algorithm::Interval(new)) => {
                (old.quota().amount, old.quota().period) == (new.quota().amount, new.quota().period)
            }
            (Algorithm::FixedWindow(a), Algorithm::FixedWindow(b)) => {
                a.quota().period == b.quota().period && a.align() == b.align()
            }
            (Algorithm::SlidingWindow(a), Algorithm::SlidingWindow(b)) => {
                a.quota().period == b.quota().period
            }
            (Algorithm::SlidingLog(a), Algorithm::SlidingLog(b)) => {
                a.quota().period == b.quota().period
            }
            (Algorithm::WarmUp(a), Algorithm::WarmUp(b)) => {
                let rate = |quota: &Quota| (quota.n, quota.p);
                rate(a.bucket().quota()) == rate(b.bucket().quota()) && a.warm_up() == b.warm_up()
            }
            _ => false,
        }
    }
}
