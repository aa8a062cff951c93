//! The rate granted follows the upstream's health: additive increase, multiplicative decrease (Chiu and Jain,
//! "Analysis of the Increase and Decrease Algorithms for Congestion Avoidance in Computer Networks", 1989).
//!
//! An upstream that answers 429 or 503 is given less for a while: the factor of the rate falls by an eighth, once per
//! `hold` however many complain, and climbs back by 1/64 a second. It stays between the file's least and the whole
//! rate, so the number written is never exceeded.
//!
//! The factor acts on the cost: at 512/1024 a request costs two units. Fractions are carried from request to request, so that
//! over many of them the rate is the factor's to the last unit.

use super::time::{Micros, Timestamp};

/// The share of a rate that is granted, in 1/1024.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    least: u64,
    factor: u64,
    /// When it was last changed, or is to stay as it is until.
    since: Timestamp,
    /// Units owed to the next request by rounding, in 1/factor; below the factor.
    carry: u64,
}

impl Health {
    /// All of the rate, and never less than `least` of it in 1/1024.
    pub fn new(least: u64) -> Self {
        Self { least: least.clamp(1, WHOLE), factor: WHOLE, since: Timestamp::default(), carry: 0 }
    }

    /// The share granted at `now`, in 1/1024.
    pub fn factor(&mut self, now: Timestamp) -> u64 {
        let steps = now.since(self.since).0 / CLIMB.0;
        if steps > 0 {
            self.factor = self.factor.saturating_add(steps.saturating_mul(STEP)).min(WHOLE);
            self.since = self.since.after(Micros(steps.saturating_mul(CLIMB.0)));
        }
        self.factor
    }

    /// The upstream asked for less, for `retry_after` if it said so. Counted once until then.
    pub fn troubled(&mut self, now: Timestamp, retry_after: Option<Micros>) {
        if now < self.since {
            return;
        }
        self.factor(now);
        self.factor = (self.factor - self.factor / 8).max(self.least);
        self.since = now.after(retry_after.unwrap_or(HOLD).min(HOLD_MAX).max(HOLD));
    }

    /// What `cost` units cost at `now`: more, the less of the rate is granted; never above `most`, the greatest cost
    /// the limit can pay.
    pub fn cost(&mut self, cost: u64, most: u64, now: Timestamp) -> u64 {
        let factor = self.factor(now);
        let scaled = u128::from(cost) * u128::from(WHOLE) + u128::from(self.carry.min(factor - 1));
        let factor = u128::from(factor);
        self.carry = u64::try_from(scaled % factor).unwrap_or(0);
        u64::try_from(scaled / factor).unwrap_or(u64::MAX).min(most.max(cost))
    }
}

/// All of the rate.
pub const WHOLE: u64 = 1_024;

/// The factor climbs by this, each [`CLIMB`].
const STEP: u64 = 16;
const CLIMB: Micros = Micros(1_000_000);

/// Complaints within this of the last one are the same trouble; an upstream cannot stretch it beyond the greater.
const HOLD: Micros = Micros(1_000_000);
const HOLD_MAX: Micros = Micros(60_000_000);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_lowers_the_rate_once_and_recovery_raises_it_again() {
        let mut health = Health::new(128);
        let start = Timestamp::from_micros(1_000_000_000);
        for _ in 0..100 {
            health.troubled(start, None);
        }
        assert_eq!(health.factor(start), 896, "a hundred complaints of one moment are one trouble");
        health.troubled(start.after(HOLD), Some(Micros::from_secs(5)));
        assert_eq!(health.factor(start.after(Micros::from_secs(6))), 784, "it holds as long as the upstream asked");
        assert_eq!(health.factor(start.after(Micros::from_secs(8))), 784 + 32);
        assert_eq!(health.factor(start.after(Micros::from_secs(600))), 1_024);
        let mut now = start.after(Micros::from_secs(600));
        for _ in 0..100 {
            now = now.after(Micros(1_000_001));
            health.troubled(now, None);
        }
        assert_eq!(health.factor(now), 128, "the file's least");
    }

    #[test]
    fn over_many_requests_the_cost_is_exact() {
        let mut health = Health::new(1);
        let now = Timestamp::from_micros(1_000_000_000);
        health.troubled(now, None);
        let spent: u64 = (0..8_960).map(|_| health.cost(1, 20, now)).sum();
        assert_eq!(spent, 8_960 * 1_024 / 896);
        assert_eq!(Health::new(1).cost(7, 20, now), 7, "healthy: as written");
        let mut least = Health { factor: 1, ..Health::new(1) };
        least.since = now;
        assert_eq!(least.cost(1, 20, now), 20, "no more than the limit can pay");
    }
}
