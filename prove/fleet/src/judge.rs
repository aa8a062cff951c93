//! Judges from outside what a fleet has granted: a caller knows when it asked and when the answer came, and
//! the grant was between the two.

use tollgate_limit::{Algorithm, Limit};

use crate::scene::Time;

/// A grant: when it was asked for and answered, by a clock that never goes back.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    pub asked: Time,
    pub answered: Time,
    pub cost: u64,
}

/// The numbers of a token bucket: in a microsecond it gains `n`, a unit is `p`, and `full` is its burst.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    pub n: i64,
    pub p: i64,
    pub full: i64,
}

impl Numbers {
    pub fn of(limit: &Limit) -> Self {
        Self::of_algorithm(&limit.algorithm)
    }

    pub fn of_algorithm(algorithm: &Algorithm) -> Self {
        let Algorithm::TokenBucket(bucket) = algorithm else {
            unreachable!("every limit is a token bucket")
        };
        let (n, p) = (bucket.quota().n as i64, bucket.quota().p as i64);
        Self {
            n,
            p,
            full: bucket.full(),
        }
    }

    /// The level at which the smallest bucket is full that could have granted all of `grants`: the grants
    /// that were asked for after a moment and answered before another are of that time.
    pub fn needed(&self, grants: &mut [Grant]) -> i64 {
        grants.sort_by_key(|grant| grant.answered);
        let mut most = 0;
        for first in grants.iter() {
            let mut units = 0;
            for last in grants.iter().filter(|last| last.asked >= first.asked) {
                units += last.cost as i64;
                let gained = (last.answered - first.asked) as i64 * self.n;
                most = most.max(units * self.p - gained);
            }
        }
        most
    }

    pub fn units(&self, level: i64) -> f64 {
        level as f64 / self.p as f64
    }
}

/// The lowest level that an exact bucket can have which pays for every grant when it is answered, and for
/// every request that is not answered yet.
#[derive(Clone, Debug)]
pub struct Reference {
    numbers: Numbers,
    level: i64,
    at: Time,
    open: i64,
}

impl Reference {
    pub fn new(numbers: Numbers) -> Self {
        Self {
            numbers,
            level: numbers.full,
            at: 0,
            open: 0,
        }
    }

    pub fn ask(&mut self, cost: u64) {
        self.open += cost as i64 * self.numbers.p;
    }

    /// A request was answered, and is open no more.
    pub fn close(&mut self, cost: u64, granted: bool, now: Time) {
        let price = cost as i64 * self.numbers.p;
        self.open -= price;
        self.level = self.level_at(now) - if granted { price } else { 0 };
        self.at = now;
    }

    pub fn level_at(&self, now: Time) -> i64 {
        let gained = (now - self.at) as i64 * self.numbers.n;
        (self.level + gained).min(self.numbers.full)
    }

    /// Whether the bucket had `cost` at every moment since `asked`.
    pub fn could_pay(&self, cost: u64, asked: Time, now: Time) -> bool {
        let since = (now - asked) as i64 * self.numbers.n;
        self.level_at(now) - self.open - since >= cost as i64 * self.numbers.p
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pair of moments, one after the other.
    fn slowly(numbers: &Numbers, grants: &[Grant]) -> i64 {
        let mut most = 0;
        for first in grants {
            for last in grants {
                let inside =
                    |grant: &&Grant| grant.asked >= first.asked && grant.answered <= last.answered;
                let units: u64 = grants.iter().filter(inside).map(|grant| grant.cost).sum();
                if last.answered >= first.asked && units > 0 {
                    let gained = (last.answered - first.asked) as i64 * numbers.n;
                    most = most.max(units as i64 * numbers.p - gained);
                }
            }
        }
        most
    }

    #[test]
    fn worst_span_is_that_of_all_pairs_of_moments() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..300 {
            let numbers = Numbers {
                n: random.i64(1..4),
                p: random.i64(1..50),
                full: 0,
            };
            let mut grants: Vec<Grant> = (0..random.usize(1..40))
                .map(|_| {
                    let asked = random.u64(..200);
                    let answered = asked + random.u64(..30);
                    Grant {
                        asked,
                        answered,
                        cost: random.u64(1..4),
                    }
                })
                .collect();
            let slowly = slowly(&numbers, &grants);
            assert_eq!(numbers.needed(&mut grants), slowly);
        }
    }
}
