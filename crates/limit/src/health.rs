//! The rate granted follows the upstream's health: additive increase, multiplicative decrease (Chiu and Jain,
//! "Analysis of the Increase and Decrease Algorithms for Congestion Avoidance in Computer Networks", 1989).
//!
//! While an upstream answers 429 or 503 it is given less: the factor of the rate falls by an eighth, once per `hold`
//! however many answers complain, and climbs back by 1/64 a second. It stays between the file's least and the whole
//! rate, so the number written is never exceeded.
//!
//! The factor acts on what a grant *takes*, never on what it *needs*: at 512/1024 a request is granted as soon as the
//! bucket holds its written cost, and leaves the bucket twice that cost poorer, below zero if need be. So the wait of a
//! refusal is exact whatever becomes of the factor meanwhile (it hangs on the level and on the written rate alone); a
//! burst is what it was, only followed by a longer pause; and over many grants the rate is the factor's: fractions
//! of a tick are carried from grant to grant.
//!
//! Where the upstream's own quota is obeyed ([`Health::obeys_quota`]), what it says of it bounds the rate from above: `r` units
//! left for `t` are a rate of `r / t` until then ([`Health::bounded`]), and nothing left, or a `Retry-After`, holds every grant
//! until the moment named ([`Health::held`]): to the bucket such a grant is one of that moment.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use super::bucket::Report;
use super::learnt::Share;
use super::quota::{Quota, QuotaError};
use super::time::{Micros, Timestamp};
use super::trouble::{HOLD_MAX, MOMENT_BITS, MOMENT_MAX, Trouble, climbed, until};

/// How far the rate of one limit may fall, and how far it has. One for all keys of the limit, shared by every thread.
#[derive(Debug)]
pub struct Health {
    /// The least share, in 1/1024.
    least: u64,
    /// The same as written: units, and the period.
    written: (u64, Micros),
    /// The rate as written: units, and the period.
    rate: (u64, Micros),
    /// Whether what the upstream says of its own quota is obeyed.
    obeys: bool,
    /// Made at first use, unless taken over from the configuration before.
    trouble: OnceLock<Arc<Trouble>>,
}

/// Two are equal only if one trouble moves both: a reload that keeps a bucket must not part it from what moves it.
impl PartialEq for Health {
    fn eq(&self, other: &Self) -> bool {
        self.least == other.least
            && self.obeys == other.obeys
            && Arc::ptr_eq(self.trouble(), other.trouble())
    }
}

impl Eq for Health {}

impl Health {
    /// All of `quota`'s rate, and never less than `amount` per `period` of it.
    ///
    /// # Errors
    /// When that is more than the rate itself, or nothing.
    pub fn new(amount: u64, period: Micros, quota: &Quota) -> Result<Self, QuotaError> {
        let least = u128::from(amount) * u128::from(quota.period.0) * u128::from(WHOLE);
        let least = least.div_ceil((u128::from(period.0) * u128::from(quota.amount)).max(1));
        let least = u64::try_from(least).unwrap_or(u64::MAX);
        if least > WHOLE {
            return Err(QuotaError::new(
                FIELD,
                "the least is above the rate it is to lower",
            ));
        }
        if least == 0 {
            return Err(QuotaError::new(
                FIELD,
                "a least of nothing would stop the limit for good",
            ));
        }
        let rate = (quota.amount, quota.period);
        Ok(Self {
            least,
            written: (amount, period),
            rate,
            obeys: false,
            trouble: OnceLock::new(),
        })
    }

    /// The same, obeying what the upstream says of its own quota.
    pub fn obeying(self) -> Self {
        Self {
            obeys: true,
            ..self
        }
    }

    /// Whether what the upstream says of its own quota is to be obeyed.
    pub fn obeys_quota(&self) -> bool {
        self.obeys
    }

    /// The least share of the rate, in 1/1024.
    pub fn least(&self) -> u64 {
        self.least
    }

    /// The least rate as written: units and period.
    pub fn least_written(&self) -> (u64, Micros) {
        self.written
    }

    /// Goes on from where the limit of the configuration before this one stood. Before first use, or it is too late.
    pub fn adopt(&self, before: &Self) {
        let _ = self.trouble.set(Arc::clone(before.trouble()));
    }

    /// What the upstream's answers have come to.
    pub fn learnt(&self) -> Share {
        let trouble = self.trouble();
        let (word, bound) = (
            trouble.word.load(Ordering::Relaxed),
            trouble.bound.load(Ordering::Relaxed),
        );
        Share {
            factor: (word >> MOMENT_BITS, until(word)),
            bound: (bound >> MOMENT_BITS, until(bound)),
            opens: Timestamp::from_micros(trouble.held.load(Ordering::Relaxed)),
        }
    }

    /// Goes on from there as of `now`. No moment is further off than one that is learnt now can be.
    pub fn relearn(&self, share: Share, now: Timestamp) {
        let trouble = self.trouble();
        let near =
            |moment: Timestamp, most: Micros| moment.min(now.after(most)).as_micros() & MOMENT_MAX;
        let word =
            share.factor.0.clamp(self.least, WHOLE) << MOMENT_BITS | near(share.factor.1, HOLD_MAX);
        let bound = share.bound.0.min(WHOLE) << MOMENT_BITS | near(share.bound.1, TOLD_MAX);
        // Nothing that this process granted is undone at another factor.
        trouble.before.store(WHOLE, Ordering::Relaxed);
        trouble.word.store(word, Ordering::Relaxed);
        trouble.bound.store(bound, Ordering::Relaxed);
        trouble
            .held
            .store(near(share.opens, TOLD_MAX), Ordering::Relaxed);
    }

    /// The share granted at `now`, in 1/1024.
    pub fn factor(&self, now: Timestamp) -> u64 {
        let trouble = self.trouble();
        let climbed = climbed(trouble.word.load(Ordering::Relaxed), now);
        let bound = trouble.bound.load(Ordering::Relaxed);
        let factor = if now < until(bound) {
            climbed.min(bound >> MOMENT_BITS)
        } else {
            climbed
        };
        factor.max(self.least)
    }

    /// The upstream's quota leaves `units` for `span`: the rate is no more than that, until then. The least stays
    /// what it is, and nothing is ever granted beyond the file's own number.
    pub fn bounded(&self, now: Timestamp, units: u64, span: Micros) {
        let span = span.min(TOLD_MAX);
        let share = u128::from(units) * u128::from(self.rate.1.0) * u128::from(WHOLE);
        let share = share / (u128::from(span.0) * u128::from(self.rate.0)).max(1);
        let share = u64::try_from(share).unwrap_or(WHOLE).min(WHOLE);
        let until = if share < WHOLE {
            now.after(span).as_micros() & MOMENT_MAX
        } else {
            0
        };
        self.trouble()
            .bound
            .store(share << MOMENT_BITS | until, Ordering::Relaxed);
    }

    /// The upstream takes nothing more for `span`: nothing is granted before that is over.
    pub fn held(&self, now: Timestamp, span: Micros) {
        self.trouble()
            .held
            .fetch_max(now.after(span.min(TOLD_MAX)).as_micros(), Ordering::Relaxed);
    }

    /// The moment before which nothing is granted, where that is yet to come.
    pub fn opens(&self, now: Timestamp) -> Option<Timestamp> {
        if !self.obeys {
            return None;
        }
        let held = Timestamp::from_micros(self.trouble().held.load(Ordering::Relaxed));
        (held > now).then_some(held)
    }

    /// The upstream asked for less, for `retry_after` if it said so. Counted once until then.
    pub fn troubled(&self, now: Timestamp, retry_after: Option<Micros>) {
        self.trouble().troubled(self.least, now, retry_after);
    }

    /// What a grant that costs `ticks` takes at `now`: never less than that.
    pub fn raised(&self, ticks: u64, now: Timestamp) -> u64 {
        match self.factor(now) {
            WHOLE.. => ticks,
            factor => self.trouble().raised(factor, ticks),
        }
    }

    /// What a grant of `ticks`, made not long before `now`, gets back when it is undone: at most what it took. (A
    /// complaint in between has lowered the factor since; then the one before it counts.)
    pub fn returned(&self, ticks: u64, now: Timestamp) -> u64 {
        self.trouble().returned(self.least, ticks, now)
    }

    /// How a bucket stands whose rate is lowered: as many requests of one unit pass at once as it says, and no faster
    /// than the lowered rate.
    #[cold]
    pub fn lowered(&self, report: Report, p: u64, n: u64, now: Timestamp) -> Report {
        if let Some(opens) = self.opens(now) {
            let wait = opens.since(now);
            return Report {
                remaining: 0,
                reset: report.reset.max(wait),
                effective: report.effective.max(wait),
            };
        }
        let factor = self.factor(now);
        if factor >= WHOLE || report.remaining == 0 {
            return report;
        }
        // The last of them needs its written cost only.
        let remaining =
            u128::from(report.remaining - 1) * u128::from(factor) / u128::from(WHOLE) + 1;
        let effective = (remaining * u128::from(p) * u128::from(WHOLE))
            .div_ceil(u128::from(n) * u128::from(factor));
        let whole = |value: u128| u64::try_from(value).unwrap_or(u64::MAX);
        Report {
            remaining: whole(remaining),
            effective: Micros(whole(effective)),
            ..report
        }
    }

    fn trouble(&self) -> &Arc<Trouble> {
        self.trouble.get_or_init(|| Arc::new(Trouble::new()))
    }
}

/// All of the rate.
pub const WHOLE: u64 = 1_024;

/// The key of the file that errors hang on.
const FIELD: &str = "follow_upstream";

/// The longest that what an upstream says of its quota is believed: a slip of it must not stop the limit for good, and if
/// it was none the next answer says so again.
const TOLD_MAX: Micros = Micros(3_600_000_000);

#[cfg(test)]
mod tests {
    use super::super::trouble::{HOLD, UNDO_MAX};
    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    fn health(least: u64) -> Health {
        let second = Micros::from_secs(1);
        Health::new(
            least,
            second,
            &Quota::new(1_024, second, 20).expect("a quota"),
        )
        .expect("below the rate")
    }

    #[test]
    fn trouble_lowers_the_rate_once_and_recovery_raises_it_again() {
        let health = health(128);
        for _ in 0..100 {
            health.troubled(START, None);
        }
        assert_eq!(
            health.factor(START),
            896,
            "a hundred complaints of one moment are one trouble"
        );
        health.troubled(START.after(HOLD), Some(Micros::from_secs(5)));
        assert_eq!(
            health.factor(START.after(Micros::from_secs(6))),
            784,
            "it holds as long as the upstream asked"
        );
        assert_eq!(health.factor(START.after(Micros::from_secs(8))), 784 + 32);
        assert_eq!(health.factor(START.after(Micros::from_secs(600))), 1_024);
        let mut now = START.after(Micros::from_secs(600));
        for _ in 0..100 {
            now = now.after(Micros(1_000_001));
            health.troubled(now, None);
        }
        assert_eq!(health.factor(now), 128, "the file's least");
    }

    #[test]
    fn over_many_grants_the_factor_is_exact_and_none_is_cheaper_than_written() {
        let troubled = health(1);
        assert_eq!(troubled.raised(7, START), 7, "healthy: as written");
        troubled.troubled(START, None);
        let taken: Vec<u64> = (0..8_960).map(|_| troubled.raised(1, START)).collect();
        assert!(taken.iter().all(|ticks| (1..=2).contains(ticks)));
        let sum: u64 = taken.iter().sum();
        assert!(sum.abs_diff(8_960 * 1_024 / 896) <= 1, "{sum}");
        assert_eq!(
            troubled.returned(896, START),
            896,
            "undone within a trouble: at the price before it, if that is lower"
        );
        let later = START.after(Micros(1_000_001)).after(UNDO_MAX);
        assert!(troubled.returned(896, later) <= 1_024);
    }

    #[test]
    fn a_quota_of_the_upstream_bounds_the_rate_and_holds_it() {
        let health = health(128).obeying();
        let second = Micros::from_secs(1);
        health.bounded(START, 5_120, Micros::from_secs(10));
        assert_eq!(health.factor(START), 512, "512 of 1024 a second");
        health.bounded(START, 1, Micros::from_secs(10));
        assert_eq!(health.factor(START), 128, "the file's least");
        assert_eq!(
            health.factor(START.after(Micros::from_secs(10))),
            WHOLE,
            "until then"
        );
        health.bounded(START, 1_000_000, second);
        assert_eq!(health.factor(START), WHOLE, "never above the file's number");
        assert_eq!(health.opens(START), None);
        health.held(START, Micros::from_secs(5));
        health.held(START, second);
        assert_eq!(
            health.opens(START),
            Some(START.after(Micros::from_secs(5))),
            "the longer of two"
        );
        assert_eq!(health.opens(START.after(Micros::from_secs(5))), None);
        health.held(START, Micros::from_secs(1 << 30));
        assert_eq!(
            health.opens(START),
            Some(START.after(TOLD_MAX)),
            "but not for ever"
        );
        let deaf = self::health(128);
        deaf.held(START, second);
        assert_eq!(deaf.opens(START), None, "only where it is obeyed");
    }

    #[test]
    fn the_least_is_within_the_rate_and_what_follows_goes_on_where_the_last_one_stood() {
        let minute = Micros::from_secs(60);
        let quota = Quota::new(100, minute, 20).expect("a quota");
        assert!(Health::new(101, minute, &quota).is_err());
        assert!(Health::new(0, minute, &quota).is_err());
        assert_eq!(
            Health::new(100, minute, &quota).expect("all of it").least(),
            WHOLE
        );
        assert_eq!(
            Health::new(10, minute, &quota).expect("a tenth").least(),
            103,
            "rounded up: never below the file's"
        );
        let (first, second) = (health(128), health(900));
        first.troubled(START, None);
        second.adopt(&first);
        assert_eq!(second.factor(START), 900, "its own least bounds it");
        assert_ne!(first, second);
        let third = health(128);
        third.adopt(&first);
        assert_eq!((third.factor(START), &third), (896, &first));
    }
}
