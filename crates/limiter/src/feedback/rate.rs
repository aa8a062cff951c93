//! Lowers a rate while its upstream is overloaded: additive increase, multiplicative decrease (Chiu
//! and Jain, "Analysis of the Increase and Decrease Algorithms for Congestion Avoidance in Computer
//! Networks", 1989).
//!
//! While an upstream responds with 429 or 503, the factor of the rate falls by an eighth, once per
//! `hold` however many responses complain, and rises again by 1/64 a second. It stays between the
//! file's minimum and the whole rate, so the configured rate is never exceeded.
//!
//! If the limit obeys the upstream's own quota, that quota is an upper bound of the rate: `r` units
//! left for `t` mean a rate of `r / t` until then ([`RateFeedback::bounded`]). A quota of zero or a
//! `Retry-After` stops every grant until the given moment ([`RateFeedback::held`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use arc_swap::ArcSwap;

use tollgate_limit::conditions::WHOLE;
use tollgate_limit::{Following, Micros, Quota, RateConditions, Timestamp};
use tollgate_store::local::Share;

/// What one limit has learnt about its rate from the upstream. One value for all keys of the limit,
/// shared by every thread.
#[derive(Debug)]
pub struct RateFeedback {
    following: Following,
    /// The rate as written: units, and the period.
    rate: (u64, Micros),
    taught: Arc<Taught>,
}

/// The part that survives a reload.
#[derive(Debug)]
struct Taught {
    share: ArcSwap<Share>,
    rounding: AtomicU16,
}

impl RateFeedback {
    pub(super) fn new(following: Following, quota: &Quota) -> Self {
        let whole = Share {
            factor: (WHOLE, Timestamp::default()),
            bound: (WHOLE, Timestamp::default()),
            opens: Timestamp::default(),
        };
        let taught = Taught {
            share: ArcSwap::from_pointee(whole),
            rounding: AtomicU16::new(0),
        };
        Self {
            following,
            rate: (quota.amount, quota.period),
            taught: Arc::new(taught),
        }
    }

    /// The same feedback, continuing from the state of the limit in the previous configuration.
    pub(super) fn after(self, before: &Self) -> Self {
        Self {
            taught: Arc::clone(&before.taught),
            ..self
        }
    }

    /// The conditions under which a grant is judged at `now`.
    pub(super) fn conditions(&self, now: Timestamp) -> RateConditions {
        let factor = self.factor(now);
        let rounding = match factor {
            WHOLE.. => 0,
            _ => self.taught.rounding.fetch_add(GOLDEN, Ordering::Relaxed),
        };
        RateConditions {
            factor,
            rounding,
            opens: self.opens(now).unwrap_or_default(),
        }
    }

    /// The share of the rate granted at `now`, in 1/1024.
    pub(crate) fn factor(&self, now: Timestamp) -> u64 {
        let share = self.taught.share.load();
        let factor = match climbed(&share, now) {
            climbed if now < share.bound.1 => climbed.min(share.bound.0),
            climbed => climbed,
        };
        factor.max(self.following.least)
    }

    /// The moment before which nothing is granted, if it is in the future.
    pub(crate) fn opens(&self, now: Timestamp) -> Option<Timestamp> {
        let opens = self.taught.share.load().opens;
        (self.obeys_quota() && opens > now).then_some(opens)
    }

    /// Whether the limit obeys the quota that the upstream reports.
    pub fn obeys_quota(&self) -> bool {
        self.following.obeys_quota
    }

    /// The upstream asked for less, perhaps for `retry_after`: this counts once until then.
    pub fn troubled(&self, now: Timestamp, retry_after: Option<Micros>) {
        let hold = retry_after.unwrap_or(HOLD).min(HOLD_MAX).max(HOLD);
        self.change(|share| {
            if now >= share.factor.1 {
                let factor = climbed(share, now).max(self.following.least);
                let lowered = (factor - factor.div_ceil(8)).max(self.following.least);
                share.factor = (lowered, now.after(hold));
            }
        });
    }

    /// Records that the upstream's quota leaves `units` for `span`: until then the rate is at most
    /// that. The minimum still applies, and the file's own number is never exceeded.
    pub fn bounded(&self, now: Timestamp, units: u64, span: Micros) {
        let span = span.min(TOLD_MAX);
        let bound = u128::from(units) * u128::from(self.rate.1.0) * u128::from(WHOLE);
        let bound = bound / (u128::from(span.0) * u128::from(self.rate.0)).max(1);
        let bound = u64::try_from(bound).unwrap_or(WHOLE).min(WHOLE);
        self.change(|share| share.bound = (bound, now.after(span)));
    }

    /// Records that the upstream accepts nothing for `span`: nothing is granted until then.
    pub fn held(&self, now: Timestamp, span: Micros) {
        let opens = now.after(span.min(TOLD_MAX));
        self.change(|share| share.opens = share.opens.max(opens));
    }

    pub(super) fn learnt(&self) -> Share {
        **self.taught.share.load()
    }

    /// Continues from `share` as of `now`; no moment is later than could be learnt now.
    pub(super) fn relearn(&self, share: Share, now: Timestamp) {
        let near = |moment: Timestamp, most: Micros| moment.min(now.after(most));
        let factor = share.factor.0.clamp(self.following.least, WHOLE);
        self.taught.share.store(Arc::new(Share {
            factor: (factor, near(share.factor.1, HOLD_MAX)),
            bound: (share.bound.0.min(WHOLE), near(share.bound.1, TOLD_MAX)),
            opens: near(share.opens, TOLD_MAX),
        }));
    }

    /// Readers never wait: they see the state before or after the change.
    fn change(&self, change: impl Fn(&mut Share)) {
        self.taught.share.rcu(|share| {
            let mut share = **share;
            change(&mut share);
            share
        });
    }
}

/// The factor of `share`, as far as it has risen.
fn climbed(share: &Share, now: Timestamp) -> u64 {
    let steps = now.since(share.factor.1).0 / CLIMB.0;
    let climbed = steps.saturating_mul(STEP);
    share.factor.0.saturating_add(climbed).min(WHOLE)
}

/// An odd step near 65536 over the golden ratio visits all values, evenly spread.
const GOLDEN: u16 = 40_503;

/// The factor rises by this, each [`CLIMB`].
const STEP: u64 = 16;
const CLIMB: Micros = Micros(1_000_000);

/// Complaints within this time of the last one count as the same trouble. An upstream cannot extend
/// it beyond the larger value.
const HOLD: Micros = Micros(1_000_000);
const HOLD_MAX: Micros = Micros(60_000_000);

/// The longest that an upstream's quota is believed: an error of the upstream must not stop the
/// limit permanently, and if it was no error, the next response repeats it.
const TOLD_MAX: Micros = Micros(3_600_000_000);

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_limit::{Algorithm, Kind, Rate, Terms, fixtures};

    const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
    const SECOND: Micros = Micros::from_secs(1);

    fn feedback(least: u64, obey: bool) -> RateFeedback {
        let terms = Terms {
            burst: Some(20),
            ..fixtures::terms(Kind::TokenBucket, 1_024, SECOND)
        };
        let made = Algorithm::new(&terms)
            .and_then(|made| made.following(Rate::new(least, SECOND)))
            .expect("below the rate");
        let made = if obey { made.obeying_quota() } else { made };
        let (following, quota) = (made.follows().expect("it follows"), made.quota());
        RateFeedback::new(*following, quota.expect("a rate"))
    }

    #[test]
    fn rate_feedback_trouble_lowers_the_rate_once_and_recovery_raises_it_again() {
        let health = feedback(128, false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..25).for_each(|_| health.troubled(START, None)));
            }
        });
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
    fn rate_feedback_rounds_through_all_values_while_the_rate_is_lowered() {
        let health = feedback(1, false);
        assert_eq!(health.conditions(START), RateConditions::AS_WRITTEN);
        health.troubled(START, None);
        let mut roundings: Vec<u16> = (0..=u16::MAX)
            .map(|_| health.conditions(START).rounding)
            .collect();
        roundings.sort_unstable();
        assert!((0..=u16::MAX).eq(roundings), "each once");
    }

    #[test]
    fn rate_feedback_a_quota_of_the_upstream_bounds_the_rate_and_holds_it() {
        let health = feedback(128, true);
        health.bounded(START, 5_120, Micros::from_secs(10));
        assert_eq!(health.factor(START), 512, "512 of 1024 a second");
        health.bounded(START, 1, Micros::from_secs(10));
        assert_eq!(health.factor(START), 128, "the file's least");
        let later = START.after(Micros::from_secs(10));
        assert_eq!(health.factor(later), WHOLE, "until then");
        health.bounded(START, 1_000_000, SECOND);
        assert_eq!(health.factor(START), WHOLE, "never above the file's number");
        assert_eq!(health.opens(START), None);
        let five = START.after(Micros::from_secs(5));
        health.held(START, Micros::from_secs(5));
        health.held(START, SECOND);
        assert_eq!(health.opens(START), Some(five), "the longer of two");
        assert_eq!(health.opens(five), None);
        health.held(START, Micros::from_secs(1 << 30));
        let most = Some(START.after(TOLD_MAX));
        assert_eq!(health.opens(START), most, "but not for ever");
        let deaf = feedback(128, false);
        deaf.held(START, SECOND);
        assert_eq!(deaf.opens(START), None, "only where it is obeyed");
    }
}
