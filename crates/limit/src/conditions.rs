//! What an upstream has taught of one limit by a moment: plain numbers, handed to a decision by the caller that keeps them.
//!
//! The factor of a rate acts on what a grant *takes*, never on what it *needs*: at 512/1024 a request is granted as soon as
//! the bucket holds its written cost, and leaves the bucket twice that cost poorer, below zero if need be. So the wait of a
//! refusal is exact whatever becomes of the factor meanwhile: it depends on the level and on the written rate alone. A burst
//! is what it was, only followed by a longer pause.

use std::borrow::Cow;

use super::algorithm::Algorithm;
use super::bucket::Report;
use super::quota::{Quota, QuotaError};
use super::time::{Micros, Timestamp};

/// What an upstream has taught of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conditions {
    /// Of a rate that follows its upstream.
    Rate(RateConditions),
    /// Of an adaptive concurrency limit: the places there are.
    Places(u64),
}

/// How a rate that follows its upstream is lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateConditions {
    /// The share of the rate that is granted, in 1/1024.
    pub factor: u64,
    /// How a price that is no whole number of ticks is rounded, in 1/65536 of a tick. Over many grants the caller goes
    /// through all values, so that the fractions add up.
    pub rounding: u16,
    /// Nothing is granted before this moment.
    pub opens: Timestamp,
}

impl RateConditions {
    /// The rate as written.
    pub const AS_WRITTEN: Self = Self {
        factor: WHOLE,
        rounding: 0,
        opens: Timestamp::from_micros(0),
    };

    /// What a grant that costs `ticks` takes: never less than that.
    pub(super) fn raised(self, ticks: u64) -> u64 {
        if self.factor >= WHOLE {
            return ticks;
        }
        let fine =
            ((u128::from(ticks) * u128::from(WHOLE)) << u16::BITS) / u128::from(self.factor.max(1));
        u64::try_from((fine + u128::from(self.rounding)) >> u16::BITS).unwrap_or(u64::MAX)
    }

    /// What a grant of `ticks` that was made under these conditions gets back: at most what it took.
    pub(super) fn returned(self, ticks: u64) -> u64 {
        let returned = u128::from(ticks) * u128::from(WHOLE) / u128::from(self.factor.max(1));
        u64::try_from(returned).unwrap_or(u64::MAX)
    }

    /// How a bucket stands whose rate is lowered: as many requests of one unit pass at once as it says, and no faster
    /// than the lowered rate.
    pub(super) fn lowered(self, report: Report, quota: &Quota, now: Timestamp) -> Report {
        if self.opens > now {
            let wait = self.opens.since(now);
            return Report {
                remaining: 0,
                reset: report.reset.max(wait),
                effective: report.effective.max(wait),
            };
        }
        if self.factor >= WHOLE || report.remaining == 0 {
            return report;
        }
        // The last of them needs its written cost only.
        let remaining =
            u128::from(report.remaining - 1) * u128::from(self.factor) / u128::from(WHOLE) + 1;
        let effective = (remaining * u128::from(quota.p) * u128::from(WHOLE))
            .div_ceil(u128::from(quota.n) * u128::from(self.factor));
        let whole = |value: u128| u64::try_from(value).unwrap_or(u64::MAX);
        Report {
            remaining: whole(remaining),
            effective: Micros(whole(effective)),
            ..report
        }
    }
}

/// How far a rate may fall with its upstream's health, and what it obeys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Following {
    /// The least share of the rate, in 1/1024.
    pub least: u64,
    /// The same as written: units and period.
    pub least_written: (u64, Micros),
    /// Whether what the upstream says of its own quota is obeyed.
    pub obeys_quota: bool,
}

impl Following {
    /// All of `quota`'s rate, and never less than `amount` per `period` of it.
    ///
    /// # Errors
    /// When that is more than the rate itself, or nothing.
    pub(super) fn new(amount: u64, period: Micros, quota: &Quota) -> Result<Self, QuotaError> {
        let least = u128::from(amount) * u128::from(quota.period.0) * u128::from(WHOLE);
        let least = least.div_ceil((u128::from(period.0) * u128::from(quota.amount)).max(1));
        let message = match u64::try_from(least) {
            Ok(0) => "a least of nothing would stop the limit for good",
            Ok(least) if least <= WHOLE => {
                return Ok(Self {
                    least,
                    least_written: (amount, period),
                    obeys_quota: false,
                });
            }
            _ => "the least is above the rate it is to lower",
        };
        Err(QuotaError::new("follow_upstream", message))
    }
}

impl Algorithm {
    /// The same algorithm as its upstream's conditions have it, within the file's numbers. Conditions of another kind of
    /// limit change nothing.
    pub fn under(&self, conditions: Option<&Conditions>) -> Cow<'_, Self> {
        match (self, conditions) {
            (Self::TokenBucket(bucket), Some(Conditions::Rate(rate))) => {
                Cow::Owned(Self::TokenBucket(bucket.under(*rate)))
            }
            (Self::InFlight(limit), Some(Conditions::Places(places))) => {
                Cow::Owned(Self::InFlight(limit.with_places(*places)))
            }
            _ => Cow::Borrowed(self),
        }
    }
}

/// All of the rate.
pub const WHOLE: u64 = 1_024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_flight::InFlight;
    use crate::{TokenBucket, fixtures};

    #[test]
    fn conditions_over_many_grants_the_factor_is_exact_and_none_is_cheaper_than_written() {
        assert_eq!(RateConditions::AS_WRITTEN.raised(7), 7);
        let lowered = |rounding| RateConditions {
            factor: 896,
            rounding,
            ..RateConditions::AS_WRITTEN
        };
        let taken: Vec<u64> = (0..=u16::MAX).map(|r| lowered(r).raised(1)).collect();
        assert!(taken.iter().all(|ticks| (1..=2).contains(ticks)));
        let sum: u64 = taken.iter().sum();
        assert!(sum.abs_diff(65_536 * WHOLE / 896) <= 1, "{sum}");
        for rounding in [0, 1, 1 << 15, u16::MAX] {
            for ticks in 0..2_000 {
                assert!(lowered(rounding).returned(ticks) <= lowered(rounding).raised(ticks));
            }
        }
    }

    #[test]
    fn following_the_least_is_within_the_rate() {
        let minute = Micros::from_secs(60);
        let quota = Quota::new(100, minute, 20).expect("a quota");
        let least = |amount| Following::new(amount, minute, &quota).map(|made| made.least);
        assert!(least(101).is_err() && least(0).is_err());
        assert_eq!(least(100), Ok(WHOLE));
        assert_eq!(least(10), Ok(103), "rounded up: never below the file's");
    }

    #[test]
    fn conditions_stay_within_the_files_numbers_and_are_for_their_own_kind() {
        let limit = InFlight::adaptive(3, 12).expect("two numbers");
        let places = |places| {
            let adaptive = Algorithm::InFlight(limit.clone());
            match adaptive.under(Some(&Conditions::Places(places))).as_ref() {
                Algorithm::InFlight(limit) => limit.places(),
                _ => panic!("it is a concurrency limit"),
            }
        };
        assert_eq!((places(0), places(7), places(99)), (3, 7, 12));
        let Algorithm::TokenBucket(written) = fixtures::per_minute("it", 100, 20).algorithm else {
            panic!("it is a token bucket");
        };
        let minute = Micros::from_secs(60);
        let following = written.clone().following(50, minute).expect("half");
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        let strict = RateConditions {
            factor: 1,
            rounding: 0,
            opens: now.after(minute),
        };
        let left = |bucket: &TokenBucket| {
            let granted = bucket.under(strict).judge(None, 5, now);
            granted.expect("a hold is not obeyed here").next.level
        };
        let (full, unit) = (written.full(), 600_000);
        assert_eq!(left(&written), full - 5 * unit, "it follows nothing");
        assert_eq!(left(&following), full - 10 * unit, "its least is half");
        let held = following.obeying_quota().under(strict).judge(None, 5, now);
        assert_eq!(held.expect_err("held").retry_after, Some(minute));
        let other = Algorithm::TokenBucket(written);
        assert_eq!(*other.under(Some(&Conditions::Places(1))), other);
    }
}
