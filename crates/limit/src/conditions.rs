//! What a limit has learnt from its upstream by a moment: plain numbers that the limiter stores and
//! passes to each decision. This module keeps no state.
//!
//! The factor of a rate changes what a grant *takes*, never what it *needs*. At 512/1024 a request
//! is granted as soon as the bucket holds its written cost, and takes twice that cost, below zero
//! if necessary. The wait of a refusal is therefore exact even if the factor changes meanwhile: it
//! depends only on the level and on the written rate. The burst stays the same; only the pause
//! after it is longer.

use std::borrow::Cow;

use super::algorithm::Algorithm;
use super::bucket::Report;
use super::quota::{Quota, QuotaError, Rate};
use super::time::{Micros, Timestamp};

/// What a limit has learnt from its upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conditions {
    Rate(RateConditions),
    /// For an adaptive concurrency limit: the number of places.
    Places(u64),
}

/// How a rate that follows its upstream is lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateConditions {
    /// The share of the rate that is granted, in 1/1024.
    pub factor: u64,
    /// How a price that is not a whole number of ticks is rounded, in 1/65536 of a tick. The
    /// limiter steps through all values over many grants, so that the fractions add up.
    pub rounding: u16,
    /// Nothing is granted before this moment.
    pub opens: Timestamp,
}

impl RateConditions {
    pub const AS_WRITTEN: Self = Self {
        factor: WHOLE,
        rounding: 0,
        opens: Timestamp::from_micros(0),
    };

    /// What a grant that costs `ticks` takes: never less than `ticks`.
    pub(super) fn raised(self, ticks: u64) -> u64 {
        if self.factor >= WHOLE {
            return ticks;
        }
        let fine =
            ((u128::from(ticks) * u128::from(WHOLE)) << u16::BITS) / u128::from(self.factor.max(1));
        u64::try_from((fine + u128::from(self.rounding)) >> u16::BITS).unwrap_or(u64::MAX)
    }

    /// What a refund of a grant of `ticks` under these conditions gives back: at most what it took.
    pub(super) fn returned(self, ticks: u64) -> u64 {
        let returned = u128::from(ticks) * u128::from(WHOLE) / u128::from(self.factor.max(1));
        u64::try_from(returned).unwrap_or(u64::MAX)
    }

    /// The numbers of a bucket whose rate is lowered: as many requests of one unit as it reports
    /// pass at once, and later ones no faster than the lowered rate.
    pub(super) fn lowered(self, report: Report, quota: &Quota, now: Timestamp) -> Report {
        if self.opens > now {
            let wait = self.opens.since(now);
            return Report {
                remaining: 0,
                reset: report.reset.max(wait),
                effective: report.effective.max(wait),
                ..report
            };
        }
        if self.factor >= WHOLE || report.remaining == 0 {
            return report;
        }
        // The last of these requests needs only its written cost.
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

/// How far a rate may fall with its upstream's health, and whether it obeys the upstream's quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Following {
    /// The minimum share of the rate, in 1/1024.
    pub least: u64,
    pub least_written: Rate,
    /// Whether the limit obeys the quota that the upstream reports.
    pub obeys_quota: bool,
}

impl Following {
    /// Follows `quota`'s whole rate and never falls below `least_written`.
    ///
    /// # Errors
    /// When that minimum is above the rate, or zero.
    pub(super) fn new(least_written: Rate, quota: &Quota) -> Result<Self, QuotaError> {
        let Rate { amount, period } = least_written;
        let least = u128::from(amount) * u128::from(quota.period.0) * u128::from(WHOLE);
        let least = least.div_ceil((u128::from(period.0) * u128::from(quota.amount)).max(1));
        let message = match u64::try_from(least) {
            Ok(0) => "a least of nothing would stop the limit for good",
            Ok(least) if least <= WHOLE => {
                return Ok(Self {
                    least,
                    least_written,
                    obeys_quota: false,
                });
            }
            _ => "the least is above the rate it is to lower",
        };
        Err(QuotaError::new("follow_upstream", message))
    }
}

impl Algorithm {
    /// The algorithm under its upstream's conditions, within the file's numbers. Conditions for
    /// another kind of limit change nothing.
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
        let quota = Quota::new(Rate::new(100, minute), 20).expect("a quota");
        let least =
            |amount| Following::new(Rate::new(amount, minute), &quota).map(|made| made.least);
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
        let following = written
            .clone()
            .following(Rate::new(50, minute))
            .expect("half");
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
