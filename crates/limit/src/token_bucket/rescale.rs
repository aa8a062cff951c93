//! Converts a token bucket's level to other numbers.

use super::TokenBucket;
use crate::bucket::Level;
use crate::conditions::RateConditions;
use crate::quota::SHARED_BOUND;
use crate::time::{Micros, Timestamp};

impl TokenBucket {
    /// The state under `new`, a changed quota of the same limit: the units at `now`, with the part
    /// of a unit that is earned already, clamped to the new burst and never increased: that part is
    /// rounded down to the new scale.
    pub fn rescale(&self, state: Level, new: &Self, now: Timestamp) -> Option<Level> {
        let level = self.rescaled(i128::from(self.level(Some(state), now)), new);
        let level = level.clamp(i128::from(new.lowest()), i128::from(new.full));
        let level = i64::try_from(level).expect("between a floor and a capacity that are i64");
        (level < new.full).then_some(Level {
            level,
            at: state.at.max(now),
        })
    }

    /// A level, in unit-microseconds of these numbers, in those of `new`, rounded down.
    pub(crate) fn rescaled(&self, level: i128, new: &Self) -> i128 {
        (level * i128::from(new.quota.p)).div_euclid(i128::from(self.quota.p))
    }

    /// The same rate and burst in a shared store, without debt.
    pub(crate) fn bare(&self, max_wait: Micros) -> Self {
        let floor = -self.full.min(SHARED_BOUND - 1 - self.full).max(0);
        Self {
            debt: 0,
            owed: 0,
            max_wait,
            floor,
            lowest: floor,
            settled: 0,
            following: None,
            conditions: RateConditions::AS_WRITTEN,
            ..self.clone()
        }
    }
}
