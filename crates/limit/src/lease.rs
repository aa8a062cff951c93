//! Leases: units of a shared token bucket that a gateway holds for a moment and grants by itself.
//!
//! A unit taken early and granted late would come on top of the burst that has refilled meanwhile. So what is leased
//! **counts against the burst**: with `v` the level in the store and `L` the sum of the leases that the store still
//! counts, refilling stops at `burst - L`, and `v + L <= burst` always holds:
//!
//! - a lease moves units from `v` to `L`: the sum stays;
//! - refilling raises the sum at the limit's rate, and never above the burst;
//! - a grant by a gateway lowers what is left of its lease, which `L` only bounds from above;
//! - a lease that ends is taken off `L` and what was left of it is forfeited: the sum falls;
//! - a gateway that gives back `m` of `n` units takes `n` off `L` and adds `m` to `v`: the sum does not rise.
//!
//! What can be granted (`v` and what is left of the leases) is therefore never more than the burst and gains no more
//! than the rate: in every span of T at most `burst + rate x T` are granted, by all gateways together, as without
//! leases. A gateway stops using a lease before the store stops counting it ([`Terms::deadline`]).
//!
//! What leases cost instead is that units can lie idle: at most [`Terms::most`] of them, each for [`Terms::life`] and
//! [`GRACE`] at the longest.

use super::bucket::Level;
use super::claim::Change;
use super::time::{Micros, Timestamp};
use super::{Algorithm, TokenBucket};

/// All leases of a bucket together are at most one part in this many of its burst, and one lease of what is there.
pub const PARTS: u64 = 10;
/// The store counts a lease so much longer than a gateway may use it: what is left still comes back.
pub const GRACE: Micros = Micros(200_000);
/// The longest life of a lease.
pub const LIFE_MAX: Micros = Micros(100_000);
/// The shortest life that is worth a lease.
pub const LIFE_MIN: Micros = Micros(20_000);
/// Leases of one bucket at one time; beyond, gateways ask each time, and lease only what requests wait for.
pub const LEASES_MAX: usize = 64;
/// Leases of one bucket at one time, those that requests wait for included: what a bucket's row may grow to.
pub const LEASES_MOST: usize = 512;
/// Two clocks drift apart by no more than one part in this many.
pub const DRIFT_PER: u64 = 1000;

/// How a limit's units are leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The most units that are leased at one time, to all gateways together: a tenth of the burst.
    pub most: u64,
    /// How long a gateway may use a lease. Short enough that even a store that forgot its leases, and begins from
    /// nothing, cannot refill the bucket before they have died: `(burst - most) / rate`.
    pub life: Micros,
}

/// Why units of a limit cannot be leased. `field` names the key of the file it hangs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoLease {
    /// The key.
    pub field: &'static str,
    /// What is wrong and what would do, in a sentence.
    pub message: String,
}

impl Terms {
    /// How units of `algorithm` are leased.
    ///
    /// # Errors
    /// When they cannot be.
    pub fn of(algorithm: &Algorithm) -> Result<Self, NoLease> {
        let no = |field, message: String| Err(NoLease { field, message });
        let Algorithm::TokenBucket(bucket) = algorithm else {
            return no(
                "algorithm",
                "only a token bucket can be counted in parts by several gateways".to_owned(),
            );
        };
        if bucket.debt() > 0 {
            return no(
                "debt",
                "a gateway cannot tell from its part whether a debt is open".to_owned(),
            );
        }
        if bucket.max_wait() > Micros::ZERO {
            return no(
                "max_wait",
                "who waits has a place in one queue, which several gateways do not share"
                    .to_owned(),
            );
        }
        let quota = bucket.quota();
        let most = quota.burst / PARTS;
        if most < 2 {
            let least = 2 * PARTS;
            return no(
                "burst",
                format!(
                    "a tenth of the burst is what may be leased: it takes a burst of {least} at least"
                ),
            );
        }
        let life = quota.time_for(quota.burst - most).min(LIFE_MAX);
        if life < LIFE_MIN {
            return no(
                "burst",
                "the rate refills this burst within 20 ms, before a lease could be used: it takes a larger burst"
                    .to_owned(),
            );
        }
        Ok(Self { most, life })
    }

    /// How long the store counts a lease.
    pub fn counted(&self) -> Micros {
        Micros(self.life.0 + GRACE.0)
    }

    /// When a gateway stops using a lease that it asked for at `sent`, by its own clock: before the store stops counting
    /// it, however long the call was on its way and whichever clock is the faster one.
    pub fn deadline(&self, sent: Timestamp) -> Timestamp {
        sent.after(Micros(self.life.0 - self.life.0.div_ceil(DRIFT_PER)))
    }
}

/// Units that a gateway holds, as the store counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Chosen by the gateway, at random.
    pub id: u64,
    /// How many were leased; how many are left of them only the gateway knows.
    pub units: u64,
    /// The store counts them until then, by its own clock.
    pub until: Timestamp,
}

/// A wish for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The lease's identity, should there be one.
    pub id: u64,
    /// What the gateway would grant in a lease's life.
    pub units: u64,
    /// Of these, what requests wait for now: they get what is there, as if they had asked one by one.
    pub needed: u64,
}

/// A token bucket of which parts are leased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leased {
    /// The level in the store, leases not in it.
    pub level: Level,
    /// The leases, the first to end first.
    pub leases: Vec<Lease>,
}

impl Leased {
    /// A full bucket.
    pub fn full(bucket: &TokenBucket, now: Timestamp) -> Self {
        Self {
            level: Level {
                level: bucket.full(),
                at: now,
            },
            leases: Vec::new(),
        }
    }

    /// Units leased.
    pub fn out(&self) -> u64 {
        self.leases.iter().map(|lease| lease.units).sum()
    }

    /// Moves on to `now`. Each lease that has ended meanwhile held the refilling back until it did, and no longer.
    pub fn refill(&mut self, bucket: &TokenBucket, now: Timestamp) {
        let mut out = self.out();
        let ended = self
            .leases
            .iter()
            .take_while(|lease| lease.until <= now)
            .count();
        for lease in self.leases.drain(..ended) {
            self.level = grown(bucket, self.level, out, lease.until);
            out -= lease.units;
        }
        self.level = grown(bucket, self.level, out, now);
    }

    /// Draws `cost` units at `now` from what is not leased; whether they were there.
    pub fn draw(&mut self, bucket: &TokenBucket, cost: u64, now: Timestamp) -> bool {
        self.refill(bucket, now);
        let granted = cost <= self.whole_units(bucket);
        if granted {
            self.level.level -= scaled(bucket, cost);
        }
        granted
    }

    /// Leases units at `now`; how many. Zero: the gateway asks for each request.
    ///
    /// No more than is wished, than a tenth of what is there, or than is left of [`Terms::most`]; what requests wait
    /// for they get from all that is there.
    pub fn lease(
        &mut self,
        bucket: &TokenBucket,
        terms: &Terms,
        wish: Wish,
        now: Timestamp,
    ) -> u64 {
        self.refill(bucket, now);
        if self.leases.len() >= LEASES_MOST {
            return 0;
        }
        let whole = self.whole_units(bucket);
        let ahead = wish
            .units
            .min(whole / PARTS)
            .min(terms.most.saturating_sub(self.out()));
        // One is what a request would draw.
        let ahead = if ahead < 2 || self.leases.len() >= LEASES_MAX {
            0
        } else {
            ahead
        };
        let units = ahead.max(wish.needed.min(whole));
        if units > 0 {
            self.level.level -= scaled(bucket, units);
            let lease = Lease {
                id: wish.id,
                units,
                until: now.after(terms.counted()),
            };
            let place = self
                .leases
                .partition_point(|other| other.until <= lease.until);
            self.leases.insert(place, lease);
        }
        units
    }

    /// Takes back what is left of a lease; whether it still counted. A second time, or late, changes nothing.
    pub fn give_back(&mut self, bucket: &TokenBucket, id: u64, left: u64, now: Timestamp) -> bool {
        self.refill(bucket, now);
        let Some(place) = self.leases.iter().position(|lease| lease.id == id) else {
            return false;
        };
        let lease = self.leases.remove(place);
        let cap = cap(bucket, self.out()).max(self.level.level);
        self.level.level = (self.level.level + scaled(bucket, left.min(lease.units))).min(cap);
        true
    }

    /// Corrects an earlier grant, whichever units it was made of: a refund fills up to what the leases leave room for.
    pub fn settle(&mut self, bucket: &TokenBucket, change: Change, now: Timestamp) {
        self.refill(bucket, now);
        let level = self.level.level;
        self.level.level = match change {
            Change::Charge { more } => level
                .saturating_sub(scaled(bucket, more))
                .max(bucket.floor())
                .min(level),
            Change::Refund { units } | Change::Withdraw { units, .. } => level
                .saturating_add(scaled(bucket, units))
                .min(cap(bucket, self.out()).max(level)),
            Change::Release { .. } => level,
        };
    }

    fn whole_units(&self, bucket: &TokenBucket) -> u64 {
        u64::try_from(self.level.level).unwrap_or(0) / bucket.quota().p
    }
}

/// Where refilling stops while so many units are leased.
fn cap(bucket: &TokenBucket, out: u64) -> i64 {
    bucket.full().saturating_sub(scaled(bucket, out))
}

/// The level at `now`, up to what the leases leave room for. What is above that stays.
fn grown(bucket: &TokenBucket, Level { level, at }: Level, out: u64, now: Timestamp) -> Level {
    let (cap, n) = (cap(bucket, out), bucket.quota().n);
    let elapsed = now.since(at);
    let at = at.max(now);
    if level >= cap {
        return Level { level, at };
    }
    // Clamped before it is multiplied, as everywhere.
    let to_cap = (cap - level).unsigned_abs().div_ceil(n);
    let level = if elapsed.0 >= to_cap {
        cap
    } else {
        level + i64::try_from(elapsed.0 * n).unwrap_or(i64::MAX)
    };
    Level { level, at }
}

fn scaled(bucket: &TokenBucket, units: u64) -> i64 {
    i64::try_from(u128::from(units) * u128::from(bucket.quota().p)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
