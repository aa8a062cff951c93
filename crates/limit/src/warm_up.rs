//! The token bucket with warm-up: the slope of Guava's SmoothWarmingUp (the comment of
//! com.google.common.util.concurrent. SmoothRateLimiter draws it), in integers.
//!
//! ```text
//!  price of a unit
//!    3 p |            /|
//!        |          /  |   the trapezoid's area is warm_up / 2 x (p + 3 p) / 2:
//!    1 p |--------/    |   spending it takes warm_up
//!        +--------+----+-- coldness, in unit-microseconds
//!        0     half    warm_up x n
//! ```
//!
//! A full bucket grows cold, by `n` a microsecond, until it is completely cold. A unit taken from a
//! bucket of coldness y costs `p` in the warm half, and up to three times that at the cold end. It
//! is granted as soon as the bucket holds the plain price; the next caller waits for the surcharge,
//! as in Guava. With a burst of 1 this is Guava's limiter; with a larger burst a cold bucket gives
//! about a third of its burst at once.
//!
//! Rounding: the surcharge is rounded up to whole unit-microseconds and is never negative, so in
//! every span T the bucket grants at most `burst + rate x T`, warm or cold.

use super::bucket::{Granted, Judged, Level, Report, Warming};
use super::claim::Change;
use super::quota::{LOCAL_BOUND, Quota, QuotaError};
use super::time::{Micros, Timestamp};
use super::token_bucket::TokenBucket;

/// A warming bucket's checked parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmUp {
    bucket: TokenBucket,
    warm_up: Micros,
    coldest: u64,
}

impl WarmUp {
    /// Checks that every number this bucket can reach is exact.
    ///
    /// # Errors
    /// Each setting that makes it inexact.
    pub fn new(quota: Quota, max_wait: Micros, warm_up: Micros) -> Result<Self, Vec<QuotaError>> {
        let coldest = warm_up
            .0
            .checked_mul(quota.n)
            .filter(|coldest| *coldest < LOCAL_BOUND.unsigned_abs());
        let Some(coldest) = coldest else {
            return Err(vec![QuotaError::new(
                "warm_up",
                "too long to count exactly at this rate; choose less",
            )]);
        };
        let bucket = TokenBucket::new(quota, 0, max_wait, false)?;
        if bucket.full() > LOCAL_BOUND / 8
            || i128::from(max_wait.0) * i128::from(bucket.quota().n) > i128::from(LOCAL_BOUND / 8)
        {
            return Err(vec![QuotaError::new(
                "burst",
                "too much to count exactly while warming up; choose less",
            )]);
        }
        Ok(Self {
            bucket,
            warm_up,
            coldest,
        })
    }

    /// The same bucket; each grant may turn out to cost up to `more` units above what it drew.
    ///
    /// # Errors
    /// When a level that low is not exact.
    pub(super) fn settling(self, more: u64) -> Result<Self, Vec<QuotaError>> {
        // The largest surcharge of a cold unit, for the most expensive grant.
        let surcharge = 2 * self.bucket.full();
        Ok(Self {
            bucket: self.bucket.settling(more, surcharge, false)?,
            ..self
        })
    }

    /// The token bucket that applies when it is warm.
    pub fn bucket(&self) -> &TokenBucket {
        &self.bucket
    }

    /// The time a cold bucket takes to warm through.
    pub fn warm_up(&self) -> Micros {
        self.warm_up
    }

    /// The coldness at `now`; no bucket means a cold one.
    pub fn coldness(&self, state: Option<Warming>, now: Timestamp) -> u64 {
        let Some(Warming { level, cold }) = state else {
            return self.coldest;
        };
        let idle = now.since(self.bucket.expiry(level));
        cold.saturating_add(idle.0.saturating_mul(self.bucket.quota().n))
            .min(self.coldest)
    }

    /// An explicit state of a full and completely cold bucket.
    pub(super) fn full_state(&self, now: Timestamp) -> Warming {
        self.unwarmed(Level {
            level: self.bucket.full(),
            at: now,
        })
    }

    /// The state of a bucket of this `level` that did not warm up before. It counts as completely
    /// cold, as a new one does.
    pub(super) fn unwarmed(&self, level: Level) -> Warming {
        Warming {
            level,
            cold: self.coldest,
        }
    }

    /// Whether `cost` can be drawn at `now`.
    pub fn judge(&self, state: Option<Warming>, cost: u64, now: Timestamp) -> Judged<Warming> {
        let Granted { wait, next } = self.bucket.judge(state.map(|s| s.level), cost, now)?;
        let cold = self.coldness(state, now.after(wait));
        let spent = cold.min(cost.saturating_mul(self.bucket.quota().p));
        let level = next
            .level
            .saturating_sub(self.surcharge(cold, cold - spent));
        Ok(Granted {
            wait,
            next: Warming {
                level: Level { level, ..next },
                cold: cold - spent,
            },
        })
    }

    /// The bucket's numbers at `now`.
    pub fn report(&self, state: Option<Warming>, now: Timestamp) -> Report {
        self.bucket.report(state.map(|s| s.level), now)
    }

    /// Corrects an earlier grant, like [`TokenBucket::settle`]. A correction does not change the
    /// coldness.
    pub fn settle(
        &self,
        state: Option<Warming>,
        change: Change,
        now: Timestamp,
    ) -> Option<Warming> {
        let cold = self.coldness(state, now);
        let full = Level {
            level: self.bucket.full(),
            at: now,
        };
        let level = self
            .bucket
            .settle(state.map(|s| s.level), change, now)
            .unwrap_or(full);
        (cold < self.coldest || level.level < full.level).then_some(Warming { level, cold })
    }

    /// When the bucket equals no bucket: full, and completely cold.
    pub fn expiry(&self, state: Warming) -> Timestamp {
        let left = (self.coldest - state.cold.min(self.coldest)).div_ceil(self.bucket.quota().n);
        self.bucket.expiry(state.level).after(Micros(left))
    }

    /// The state under `new`: its units as [`TokenBucket::rescale`] keeps them, and the same share of coldness, rounded up.
    pub fn rescale(&self, state: Warming, new: &Self, now: Timestamp) -> Option<Warming> {
        let cold = (u128::from(self.coldness(Some(state), now)) * u128::from(new.coldest))
            .div_ceil(u128::from(self.coldest.max(1)));
        let cold = u64::try_from(cold).unwrap_or(u64::MAX).min(new.coldest);
        let full = Level {
            level: new.bucket.full(),
            at: now,
        };
        let level = self
            .bucket
            .rescale(state.level, &new.bucket, now)
            .unwrap_or(full);
        (cold < new.coldest || level.level < full.level).then_some(Warming { level, cold })
    }

    /// The surcharge of units taken between two coldnesses: twice the difference of their squares
    /// above the half, over `warm_up x n`, rounded up.
    fn surcharge(&self, from: u64, to: u64) -> i64 {
        let half = self.coldest / 2;
        let (from, to) = (
            u128::from(from.saturating_sub(half)),
            u128::from(to.saturating_sub(half)),
        );
        let surcharge = (2 * (from - to) * (from + to)).div_ceil(u128::from(self.coldest.max(1)));
        i64::try_from(surcharge).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::State;
    use crate::quota::Rate;

    fn warming(amount: u64, burst: u64, warm_up: u64) -> WarmUp {
        let quota = Quota::new(Rate::new(amount, Micros::from_secs(1)), burst).expect("a rate");
        WarmUp::new(quota, Micros::from_secs(3_600), Micros::from_secs(warm_up))
            .expect("representable")
    }

    /// Guava's RateLimiterTest.testWarmUp: 2 permits a second, warm-up 4 s, one permit at a time.
    #[test]
    fn it_waits_as_guava_does() {
        let limiter = warming(2, 1, 4);
        let (mut state, mut now, mut waits) =
            (None, Timestamp::from_micros(1_000_000_000), Vec::new());
        for _ in 0..8 {
            let granted = limiter.judge(state, 1, now).expect("held, not refused");
            (state, now) = (Some(granted.next), now.after(granted.wait));
            waits.push(granted.wait.0.div_ceil(10_000));
        }
        // Guava: R0.00, R1.38, R1.13, R0.88, R0.63, R0.50, R0.50, R0.50
        assert_eq!(waits, [0, 138, 113, 88, 63, 50, 50, 50]);
    }

    #[test]
    fn a_cold_bucket_takes_warm_up_to_warm_and_idling_cools_it_again() {
        let limiter = warming(1_000, 1, 10);
        let start = Timestamp::from_micros(5_000_000);
        let (mut state, mut now) = (None, start);
        while limiter.coldness(state, now) > limiter.coldest / 2 {
            let granted = limiter.judge(state, 1, now).expect("held, not refused");
            (state, now) = (Some(granted.next), now.after(granted.wait));
        }
        // The difference is rounding up by a microsecond per grant, over 5000 grants, and the
        // unpaid price of the last grant.
        let took = now.since(start).0;
        assert!((9_995_000..=10_006_000).contains(&took), "{took}");
        let last = state.expect("drawn from");
        assert_eq!(
            limiter.coldness(state, limiter.expiry(last)),
            limiter.coldest
        );
        assert!(
            limiter.coldness(
                state,
                Timestamp::from_micros(limiter.expiry(last).as_micros() - 1)
            ) < limiter.coldest
        );
    }

    #[test]
    fn warm_or_cold_it_never_grants_above_the_configured_rate() {
        for burst in [1, 7, 50] {
            let limiter = warming(100, burst, 2);
            let (mut state, mut granted) = (None, 0u64);
            for step in 0..20_000u64 {
                let now = Timestamp::from_micros(step * 997);
                while let Ok(grant) = limiter.judge(state, 1, now) {
                    if grant.wait > Micros::ZERO {
                        break;
                    }
                    (state, granted) = (Some(grant.next), granted + 1);
                }
                assert!(granted <= burst + step * 997 / 10_000, "at step {step}");
            }
        }
    }

    #[test]
    fn a_reload_and_a_full_table_leave_no_bucket_warmer_than_it_was() {
        let (long, short) = (warming(100, 10, 30), warming(100, 10, 10));
        let now = Timestamp::from_micros(5_000_000);
        let state = |cold| Warming {
            level: Level { level: 0, at: now },
            cold,
        };
        let moved = long.rescale(state(1), &short, now).expect("not full");
        assert_eq!(moved.cold, 1, "a third, rounded up");
        let plain = crate::Algorithm::TokenBucket(long.bucket.clone());
        let level = State::Level(Level { level: 0, at: now });
        let warm = crate::Algorithm::WarmUp(long.clone());
        let Some(State::Warming(moved)) = plain.rescale(&level, &warm, now) else {
            panic!("it warms up")
        };
        assert_eq!(moved, state(long.coldest));
        let [a, b] = [3, 7].map(|cold| State::Warming(state(cold)));
        assert_eq!(warm.join(&a, &b), State::Warming(state(7)));
        assert_eq!(warm.join(&b, &a), State::Warming(state(7)));
    }
}
