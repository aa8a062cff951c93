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
        let mut begins: Vec<Time> = grants.iter().map(|grant| grant.asked).collect();
        begins.sort_unstable();
        begins.dedup();
        grants.sort_by_key(|grant| grant.answered);
        let mut tree = Tree::new(begins.iter().map(|at| *at as i64 * self.n));
        let mut most = 0;
        for grant in grants {
            let place = begins.partition_point(|at| *at <= grant.asked);
            tree.add(place, grant.cost as i64 * self.p);
            let until = begins.partition_point(|at| *at <= grant.answered);
            most = most.max(tree.max(until) - grant.answered as i64 * self.n);
        }
        most
    }

    pub fn units(&self, level: i64) -> f64 {
        level as f64 / self.p as f64
    }
}

/// The largest of the first numbers of a list, of which the first ones are raised.
struct Tree {
    size: usize,
    /// Of each node the largest number below it, with what was added there.
    most: Vec<i64>,
    added: Vec<i64>,
}

const NONE: i64 = i64::MIN / 4;

impl Tree {
    fn new(numbers: impl ExactSizeIterator<Item = i64>) -> Self {
        let size = numbers.len().next_power_of_two();
        let mut most = vec![NONE; 2 * size];
        for (place, number) in numbers.enumerate() {
            most[size + place] = number;
        }
        for node in (1..size).rev() {
            most[node] = most[2 * node].max(most[2 * node + 1]);
        }
        Self {
            size,
            most,
            added: vec![0; 2 * size],
        }
    }

    /// Adds to the first `count` numbers.
    fn add(&mut self, count: usize, number: i64) {
        let (mut node, mut width, mut left) = (1, self.size, count);
        let mut path = Vec::new();
        while left > 0 {
            if left == width {
                self.most[node] += number;
                self.added[node] += number;
                break;
            }
            path.push(node);
            width /= 2;
            node *= 2;
            if left >= width {
                self.most[node] += number;
                self.added[node] += number;
                left -= width;
                node += 1;
            }
        }
        for node in path.into_iter().rev() {
            let below = self.most[2 * node].max(self.most[2 * node + 1]);
            self.most[node] = below + self.added[node];
        }
    }

    /// The largest of the first `count` numbers.
    fn max(&self, count: usize) -> i64 {
        let (mut node, mut width, mut left) = (1, self.size, count);
        let (mut most, mut above) = (NONE, 0);
        while left > 0 {
            if left == width {
                most = most.max(self.most[node] + above);
                break;
            }
            above += self.added[node];
            width /= 2;
            node *= 2;
            if left >= width {
                most = most.max(self.most[node] + above);
                left -= width;
                node += 1;
            }
        }
        most
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

    /// A request is answered.
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
