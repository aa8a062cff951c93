//! A token bucket that is drawn under several numbers.

use super::TokenBucket;
use crate::bucket::Level;
use crate::conditions::RateConditions;
use crate::quota::{Quota, Rate, SHARED_BOUND};
use crate::time::{Micros, Timestamp};

impl TokenBucket {
    /// The same rate with a burst of `largest`, or as much as leaves a shared store room for debts.
    #[must_use]
    pub fn widened(&self, largest: u64) -> Self {
        let most = (SHARED_BOUND / 2).unsigned_abs() / self.quota.p;
        let burst = largest.min(most).max(self.quota.burst);
        let full = i64::try_from(i128::from(burst) * i128::from(self.quota.p)).unwrap_or(i64::MAX);
        Self {
            quota: Quota {
                burst,
                ..self.quota.clone()
            },
            full,
            floor: self.floor.min(floor_of(full)),
            ..self.clone()
        }
    }

    /// The numbers of a bucket in a shared store: `n` and `p` of its last grant, and its full level.
    /// `None`: no limit has these.
    pub fn of_row(&self, n: u64, p: u64, full: u64) -> Option<Self> {
        let burst = full.checked_div(p)?;
        let quota = Quota::new(Rate::new(n, Micros(p)), burst).ok()?;
        let row = Self::new(quota, 0, Micros::ZERO, true).ok()?;
        Some(if self.is_scaled_as(&row) {
            row.settling_as(self)
        } else {
            row
        })
    }

    /// The level of a bucket of these numbers for a draw under `limit`, which is as wide: what has
    /// passed since its last grant counts at the higher of the two rates.
    pub(crate) fn level_under(&self, state: Level, limit: &Self, now: Timestamp) -> Level {
        if self.is_scaled_as(limit) {
            return state;
        }
        let by_own = self.converted(self.level(Some(state), now), limit);
        let converted = Level {
            level: self.converted(state.level, limit),
            ..state
        };
        Level {
            level: by_own.max(limit.level(Some(converted), now)),
            at: state.at.max(now),
        }
    }

    /// These numbers of a bucket, for a correction of a grant under `by`.
    pub fn settling_as(&self, by: &Self) -> Self {
        if self.is_scaled_as(by) {
            return Self {
                quota: self.quota.clone(),
                full: self.full,
                floor: by.floor.min(floor_of(self.full)),
                ..by.clone()
            };
        }
        let bound = SHARED_BOUND - 1 - self.full;
        let deepest = i128::from(by.floor).div_euclid(i128::from(by.quota.p));
        let deepest = deepest.saturating_mul(i128::from(self.quota.p));
        let deepest = deepest.max(i128::from(bound.saturating_neg().min(0)));
        let floor = floor_of(self.full).min(i64::try_from(deepest).unwrap_or(i64::MIN / 2));
        Self {
            debt: 0,
            owed: 0,
            max_wait: by.max_wait,
            floor,
            lowest: floor,
            settled: 0,
            following: None,
            conditions: RateConditions::AS_WRITTEN,
            ..self.clone()
        }
    }

    /// Whether a level means the same under both, and refills alike.
    fn is_scaled_as(&self, other: &Self) -> bool {
        (self.quota.n, self.quota.p) == (other.quota.n, other.quota.p)
    }

    /// A level of these numbers in those of `new`, rounded down.
    fn converted(&self, level: i64, new: &Self) -> i64 {
        let scaled =
            (i128::from(level) * i128::from(new.quota.p)).div_euclid(i128::from(self.quota.p));
        // No debt is forgiven but what cannot be counted.
        let lowest = new
            .lowest()
            .min((new.full + 1).saturating_sub(SHARED_BOUND));
        let within = scaled.clamp(i128::from(lowest), i128::from(new.full));
        i64::try_from(within).expect("between two levels that are i64")
    }
}

/// The lowest level of a bucket of which only the rate and the burst are known: one burst below
/// zero, or as much as a shared store counts exactly.
fn floor_of(full: i64) -> i64 {
    -full.min(SHARED_BOUND - 1 - full).max(0)
}
