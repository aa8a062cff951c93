//! Converts the buckets of a process at a reload.

use super::Kept;
use crate::bucket::{Level, State};
use crate::time::{Micros, Timestamp};
use crate::{Algorithm, TokenBucket};

impl Kept {
    /// Like [`Kept::under`] for a table of the process: returns the state and what it remembers. A
    /// thread may use a time up to `late` old, so a full bucket is full for all threads only `late`
    /// after it filled up; until then the result is a bucket that has been full since that moment.
    /// `None`: full for longer.
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
        if full_at.after(late) <= now || !self.algorithm.goes_on_as(limit) {
            return None;
        }
        let state = match (&self.algorithm, limit, &self.state) {
            // A log remembers only its entries.
            (Algorithm::SlidingLog(_), Algorithm::SlidingLog(_), Some(state)) => {
                let before = full_at.before(Micros(1));
                self.algorithm.renumber(state, limit, before)
            }
            // Before that moment it was not full.
            (Algorithm::TokenBucket(_), Algorithm::TokenBucket(new), _) => {
                Some(State::Level(Level {
                    level: new.full() - 1,
                    at: full_at.before(Micros(1)),
                }))
            }
            _ => limit.full_state(full_at),
        };
        Some((state?, 0))
    }

    /// A token bucket with all of its units, including those above the smaller burst of a reload.
    /// These are out of reach, refill like the rest, and are discarded by the next grant. So a
    /// bucket without draws loses nothing while the burst is lowered.
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
        // After a clock step back the bucket keeps the level it had.
        let held = (i128::from(level.level) + gained).min(brim.max(i128::from(level.level)));
        let held = old.rescaled(held, new);
        let (burst, full) = (new.quota().burst, i128::from(new.full()));
        let held = if wide > burst { held } else { held.min(full) }.max(i128::from(new.lowest()));
        let beyond = if wide > burst { wide } else { 0 };
        let level = Level {
            level: i64::try_from(held).unwrap_or(i64::MAX),
            at: level.at.max(now),
        };
        (held < full || beyond > 0).then_some((level, beyond))
    }

    /// Whether an unused bucket has the same state under both numbers, except for how much of it
    /// can be drawn. A table of the process then keeps it in its present numbers.
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
            _ => false,
        }
    }
}
