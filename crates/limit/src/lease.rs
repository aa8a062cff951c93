//! Leases: units of a shared token bucket that a gateway holds for a short time and grants without
//! asking the store.
//!
//! A unit that is leased early and granted late would be granted in addition to the burst that has
//! refilled meanwhile. Therefore leased units **count against the burst**: with `v` the level in
//! the store and `L` the sum of the leases that the store still counts, refilling stops at
//! `burst - L`, and `v + L <= burst` always holds:
//!
//! - a new lease moves units from `v` to `L`: the sum stays the same;
//! - refilling raises the sum at the limit's rate, and never above the burst;
//! - a grant by a gateway lowers the rest of its lease; `L` is only an upper bound of that rest;
//! - an expired lease is subtracted from `L` and its rest is forfeited: the sum falls;
//! - a gateway that gives back `m` of `n` units subtracts `n` from `L` and adds `m` to `v`: the sum
//!   does not rise.
//!
//! The store keeps a **ledger**, not a list: the sums of the leased units by the moment until which
//! they count, rounded up to [`SLOT`]. So a bucket's row has at most [`SLOTS_MAX`] sums, whatever the
//! number of gateways. A gateway sends a return at most once, and the store takes it only if the slot
//! still holds as much; a return that is lost leaves its units unused until the slot ends.
//!
//! The units that can be granted (`v` and the rest of the leases) therefore never exceed the burst
//! and never grow faster than the rate: in every span of T all gateways together grant at most
//! `burst + rate x T`, as without leases. A gateway stops using a lease before the store stops
//! counting it ([`Terms::deadline`]).
//!
//! The cost of leases is that units can stay unused: at most [`Terms::most`] of them, each for at
//! most [`Terms::life`], [`GRACE`] and a [`SLOT`].

use super::bucket::Level;
use super::claim::Change;
use super::time::{Micros, Timestamp};
use super::{Algorithm, TokenBucket};

/// All leases of a bucket together hold at most one part in this many of its burst, and one lease
/// at most one part in this many of the current level.
pub const PARTS: u64 = 10;
/// The store counts a lease for this much longer than a gateway may use it, so that the rest can
/// still be returned.
pub const GRACE: Micros = Micros(200_000);
pub const LIFE_MAX: Micros = Micros(1_000_000);
/// The shortest life for which a lease is useful.
pub const LIFE_MIN: Micros = Micros(20_000);
/// The fewest units of a lease that is not waited for.
pub const UNITS_LEAST: u64 = 2;
/// A lease counts until the end of a slot: a tenth of the longest life.
pub const SLOT: Micros = Micros(LIFE_MAX.0 / 10);
/// The most slots of a ledger. Leases that are made at one moment end within `LIFE_MAX + GRACE + SLOT`,
/// which is 13 slots.
pub const SLOTS_MAX: usize = 16;
/// Two clocks drift apart by at most one part in this many.
pub const DRIFT_PER: u64 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The most units that are leased to all gateways together at one time: a tenth of the burst.
    pub most: u64,
    /// How long a gateway may use a lease: `(burst - most) / rate`. If a store loses its leases and
    /// starts empty, the bucket cannot refill before they have expired.
    pub life: Micros,
}

/// Why units of a limit cannot be leased. `field` names the key in the file that causes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoLease {
    pub field: &'static str,
    /// What is wrong and what would be accepted, in one sentence.
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
                "a waiting request has a place in one queue, which several gateways do not share"
                    .to_owned(),
            );
        }
        let quota = bucket.quota();
        let most = quota.burst / PARTS;
        if most < UNITS_LEAST {
            let least = UNITS_LEAST * PARTS;
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

    /// The most units of one lease: all of these gateways can have two, one that is used and the next,
    /// or else one of the fewest units.
    pub fn share(&self, gateways: u64) -> u64 {
        let each = self.most / gateways.max(1);
        (each / 2).max(each.min(UNITS_LEAST))
    }

    /// The most gateways that save calls: a lease of a single unit saves none.
    pub fn gateways_most(&self) -> u64 {
        self.most / UNITS_LEAST
    }

    /// How long the store counts a lease, at least.
    pub fn counted(&self) -> Micros {
        Micros(self.life.0 + GRACE.0)
    }

    /// Until when the store counts a lease that it makes at `at`, by its clock.
    pub fn until(&self, at: Timestamp) -> Timestamp {
        let end = at.after(self.counted()).as_micros();
        Timestamp::from_micros(end.div_ceil(SLOT.0).saturating_mul(SLOT.0))
    }

    /// When a gateway stops using a lease that it requested at `sent`, by the gateway's clock. This
    /// is before the store stops counting the lease, however long the call took and whichever clock
    /// is faster.
    pub fn deadline(&self, sent: Timestamp) -> Timestamp {
        sent.after(Micros(self.life.0 - self.life.0.div_ceil(DRIFT_PER)))
    }
}

/// Units that gateways hold, as the store counts them until a moment by its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub until: Timestamp,
    pub units: u64,
}

/// What a gateway asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The units the gateway would grant during the life of a lease.
    pub units: u64,
    /// The units that requests wait for now. They get what is available, as if they had asked one
    /// by one.
    pub needed: u64,
}

/// A lease that is given back: the slot that counts it, its units, and how many of them are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Return {
    pub until: Timestamp,
    pub units: u64,
    pub left: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leased {
    /// The level in the store, without the leased units.
    pub level: Level,
    /// The slots that hold units, the first to end first.
    pub ledger: Vec<Slot>,
}

impl Leased {
    pub fn full(bucket: &TokenBucket, now: Timestamp) -> Self {
        Self {
            level: Level {
                level: bucket.full(),
                at: now,
            },
            ledger: Vec::new(),
        }
    }

    pub fn out(&self) -> u64 {
        self.ledger.iter().map(|slot| slot.units).sum()
    }

    /// Advances the bucket to `now`. A slot that has ended meanwhile held back the refilling until
    /// its end, and no longer.
    pub fn refill(&mut self, bucket: &TokenBucket, now: Timestamp) {
        let mut out = self.out();
        let ended = self
            .ledger
            .iter()
            .take_while(|slot| slot.until <= now)
            .count();
        for slot in self.ledger.drain(..ended) {
            self.level = grown(bucket, self.level, out, slot.until);
            out -= slot.units;
        }
        self.level = grown(bucket, self.level, out, now);
    }

    /// Draws `cost` units at `now` from the units that are not leased; returns whether they were available.
    pub fn draw(&mut self, bucket: &TokenBucket, cost: u64, now: Timestamp) -> bool {
        self.refill(bucket, now);
        let granted = cost <= self.whole_units(bucket);
        if granted {
            self.level.level -= bucket.scaled(cost);
        }
        granted
    }

    /// Leases units at `now`; returns how many. They count until [`Terms::until`] the bucket's moment.
    /// Zero: the gateway must ask for each request.
    ///
    /// A lease gets at most the requested units, a tenth of the level, and what [`Terms::most`]
    /// leaves. The units that requests wait for come from the whole level.
    pub fn lease(
        &mut self,
        bucket: &TokenBucket,
        terms: &Terms,
        request: Request,
        now: Timestamp,
    ) -> u64 {
        self.refill(bucket, now);
        if self.ledger.len() >= SLOTS_MAX {
            return 0;
        }
        let whole = self.whole_units(bucket);
        let ahead = request
            .units
            .min(whole / PARTS)
            .min(terms.most.saturating_sub(self.out()));
        // A single unit is what a request would draw anyway.
        let ahead = if ahead < UNITS_LEAST { 0 } else { ahead };
        let units = ahead.max(request.needed.min(whole));
        if units > 0 {
            self.level.level -= bucket.scaled(units);
            self.count(terms.until(self.level.at), units);
        }
        units
    }

    /// Counts units until a moment.
    pub(crate) fn count(&mut self, until: Timestamp, units: u64) {
        let place = self.ledger.partition_point(|slot| slot.until < until);
        match self.ledger.get_mut(place) {
            Some(slot) if slot.until == until => slot.units += units,
            _ => self.ledger.insert(place, Slot { until, units }),
        }
    }

    /// Takes back the rest of a lease; returns whether its slot still counted as much. Otherwise
    /// nothing is changed.
    pub fn give_back(&mut self, bucket: &TokenBucket, back: Return, now: Timestamp) -> bool {
        self.refill(bucket, now);
        let holds = |slot: &Slot| slot.until == back.until && slot.units >= back.units;
        let Some(place) = self.ledger.iter().position(holds) else {
            return false;
        };
        self.ledger[place].units -= back.units;
        self.ledger.retain(|slot| slot.units > 0);
        let cap = cap(bucket, self.out()).max(self.level.level);
        self.level.level = (self.level.level + bucket.scaled(back.left.min(back.units))).min(cap);
        true
    }

    /// Corrects an earlier grant, leased or not: a refund fills the bucket up to the room that the
    /// leases leave.
    pub fn settle(&mut self, bucket: &TokenBucket, change: Change, now: Timestamp) {
        self.refill(bucket, now);
        let level = self.level.level;
        self.level.level = match change {
            Change::Charge { more } => level
                .saturating_sub(bucket.scaled(more))
                .max(bucket.floor())
                .min(level),
            Change::Refund { units } | Change::Withdraw { units, .. } => level
                .saturating_add(bucket.scaled(units))
                .min(cap(bucket, self.out()).max(level)),
            Change::RefundWithin { .. } | Change::Release { .. } => level,
        };
    }

    fn whole_units(&self, bucket: &TokenBucket) -> u64 {
        u64::try_from(self.level.level).unwrap_or(0) / bucket.quota().p
    }
}

/// The level at which refilling stops while this many units are leased.
fn cap(bucket: &TokenBucket, out: u64) -> i64 {
    bucket.full().saturating_sub(bucket.scaled(out))
}

/// The level at `now`, refilled up to the room that the leases leave. A level above that stays.
fn grown(bucket: &TokenBucket, Level { level, at }: Level, out: u64, now: Timestamp) -> Level {
    let (cap, n) = (cap(bucket, out), bucket.quota().n);
    let elapsed = now.since(at);
    let at = at.max(now);
    if level >= cap {
        return Level { level, at };
    }
    // Clamped before the multiplication, so that it cannot overflow.
    let to_cap = (cap - level).unsigned_abs().div_ceil(n);
    let level = if elapsed.0 >= to_cap {
        cap
    } else {
        level + i64::try_from(elapsed.0 * n).unwrap_or(i64::MAX)
    };
    Level { level, at }
}

#[cfg(test)]
mod tests;
