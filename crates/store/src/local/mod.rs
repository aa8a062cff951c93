//! The local store: buckets in the process, with bounded memory, all or nothing over several
//! limits.
//!
//! Each limit has its own table with a fixed memory budget. A draw locks the buckets it needs in
//! one global order, judges them all, and writes all or none. So it needs no refunds, and the order
//! of limits does not matter. A full table never gives a key a free reset; see [`wide`].

mod beside;
mod bucket;
mod carry;
mod family;
mod hash;
mod held_places;
mod learnt;
mod memory;
mod packed;
mod penalized;
mod set;
mod snapshot;
mod state_bytes;
mod table;
mod together;
mod wide;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::clock::Clock;
use tollgate_limit::{
    Claim, Conditions, Draw, Limit, Micros, Placement, Settlement, Standing, Timestamp, Verdict,
};

use super::{Deadline, Store, StoreError};
pub use carry::same_bucket;
pub use carry::{Carried, Carry, CarryReport};
pub use held_places::HeldPlaces;
pub use learnt::{Learnt, Places, Share};
pub use penalized::{Blocked, Penalized};
pub use snapshot::{Remembered, SnapshotError};

use beside::Beside;
use bucket::{Bucket, Moving, Whose};
use hash::Seed;
use packed::{PackedTable, View};
use table::{Slot, Table};

/// Buckets in the process, for the limits of one compiled policy.
#[derive(Debug)]
pub struct LocalStore {
    limits: Box<[Arc<Limit>]>,
    tables: Box<[Arc<Table>]>,
    seed: Seed,
    clock: Clock,
    /// The start of packed time.
    epoch: Timestamp,
    /// When these tables got their buckets.
    born: Timestamp,
    /// Buckets with overrides.
    beside: Arc<Beside>,
}

/// The content of the buckets of a process that starts without saved state: the `cold_start`
/// setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ColdStart {
    /// Every bucket is full: a crash gives each key at most one burst.
    #[default]
    Full,
    /// Every bucket is empty and fills at its rate: a crash gives no key any units.
    Empty,
}

/// Counters of what a table did to stay within its memory, since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Buckets forgotten while they were still in debt; the debt was kept.
    pub evictions: u64,
    /// Refusals of keys with an inherited debt, which may be larger than their own.
    pub inherited_refusals: u64,
}

/// Where the keys of a packed table are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Buckets the table has room for.
    pub slots: u64,
    /// Slots in use.
    pub keys: u64,
    /// Keys stored in the line next to their own, which had no room for them: a decision about them
    /// touches both lines.
    pub beside: u64,
}

impl LocalStore {
    /// A store for `limits`, where `limits[i].index == i`.
    pub fn new(limits: &[Arc<Limit>], clock: Clock, cold_start: ColdStart) -> Self {
        let now = clock.now();
        let epoch = epoch(now);
        let tables = family::tables(limits, |variants| {
            let table = Table::new(variants, keep_floors(variants, limits), epoch);
            if cold_start == ColdStart::Empty
                && let Some(state) = table.algorithm(0).drained(now)
            {
                let (whose, bucket) = (Whose::Birth, Bucket::new(state, 0, 0));
                table.adopt(Moving { whose, bucket }, now);
            }
            Arc::new(table)
        });
        Self {
            tables,
            limits: limits.into(),
            seed: Seed::random(),
            clock,
            epoch,
            born: now,
            beside: Arc::default(),
        }
    }

    /// Draws every claim or none, at `now`.
    // Each path is a separate function, so that the shortest can be inlined: a locked instruction
    // waits for everything a call writes to memory (claims, saved registers, a result to be
    // copied).
    #[inline(always)]
    pub fn draw_at(&self, claims: &[Claim<'_>], now: Timestamp) -> Draw {
        if !self.beside.is_empty() {
            return self.draw_beside(claims, now);
        }
        self.draw_tables(claims, now)
    }

    #[inline(always)]
    fn draw_tables(&self, claims: &[Claim<'_>], now: Timestamp) -> Draw {
        match claims {
            [claim] => self.draw_alone(claim, now),
            [] => self.draw_any(claims, now),
            [first, ..] => self.draw_several(self.seed.tag(first.key), claims, now),
        }
    }

    #[inline(always)]
    fn draw_alone(&self, claim: &Claim<'_>, now: Timestamp) -> Draw {
        let tag = self.seed.tag(claim.key);
        match self.tables[claim.limit.index].draw_known(tag, claim.cost, now) {
            Some(standing) => alone(claim.enforced, standing),
            None => self.draw_one(claim, now),
        }
    }

    #[inline(never)]
    fn draw_one(&self, claim: &Claim<'_>, now: Timestamp) -> Draw {
        match self.tables[claim.limit.index].draw(self.seed.tag(claim.key), claim, now) {
            Some(standing) => alone(claim.enforced, standing),
            None => self.draw_any(std::slice::from_ref(claim), now),
        }
    }

    /// Draws from several buckets; `tag` is that of the first one's key.
    #[inline(never)]
    fn draw_several(&self, tag: u64, claims: &[Claim<'_>], now: Timestamp) -> Draw {
        if let Ok(three) = <&[Claim<'_>; 3]>::try_from(claims) {
            self.draw_together(tag, three, now)
        } else if let Ok(two) = <&[Claim<'_>; 2]>::try_from(claims) {
            self.draw_together(tag, two, now)
        } else if let Ok(four) = <&[Claim<'_>; 4]>::try_from(claims) {
            self.draw_together(tag, four, now)
        } else {
            self.draw_any(claims, now)
        }
    }

    /// Draws from buckets without known state.
    #[inline(never)]
    fn draw_any(&self, claims: &[Claim<'_>], now: Timestamp) -> Draw {
        if let Some(refusal) = self.refused(claims, now) {
            return refusal;
        }
        let mut bound = self.bind(claims);
        draw_locked(&mut bound, claims, now)
    }

    /// The refusal, if the result is a refusal and can be determined without a lock: for packed
    /// buckets.
    fn refused(&self, claims: &[Claim<'_>], now: Timestamp) -> Option<Draw> {
        let mut views: SmallVec<[(&PackedTable, View); 4]> = SmallVec::with_capacity(claims.len());
        let mut granted = true;
        for claim in claims {
            let table = self.plain(claim)?;
            let view = table.view(self.seed.tag(claim.key), claim.cost, now)?;
            granted &= !claim.enforced || view.verdict.is_allow();
            views.push((table, view));
        }
        let refuse = |(table, view): &(&PackedTable, View)| table.refuse(view);
        (!granted).then(|| Draw {
            granted,
            standings: views.iter().map(refuse).collect(),
        })
    }

    /// Corrects earlier grants, at `now`.
    pub fn settle_at(&self, settlements: &[Settlement<'_>], now: Timestamp) {
        for settlement in settlements {
            let Settlement {
                limit,
                key,
                change,
                conditions,
            } = *settlement;
            if self.settle_beside(limit, key, change, conditions, now) {
                continue;
            }
            let mut bound = [self.bound(limit, key, conditions)];
            for slot in &mut lock_all(&mut bound, now) {
                slot.settle(change, now);
            }
        }
    }

    /// The standing of the buckets at `now`, without charging.
    pub fn peek_at(&self, claims: &[Claim<'_>], now: Timestamp) -> Vec<Standing> {
        // Before the slots are locked, as in a draw.
        let beside: SmallVec<[Option<Standing>; 4]> = claims
            .iter()
            .map(|claim| self.peek_beside(claim, now))
            .collect();
        let mut bound = self.bind(claims);
        let mut slots = lock_all(&mut bound, now);
        let standing =
            |((claim, slot), beside): ((&Claim<'_>, &mut Slot<'_>), Option<Standing>)| {
                let own = || Standing::new(slot.judge(claim.cost, now), slot.report(now));
                beside.unwrap_or_else(own)
            };
        let slots = claims.iter().zip(&mut slots);
        slots.zip(beside).map(standing).collect()
    }

    /// What the table of the limit at `index` did to stay within its memory.
    pub fn tally(&self, index: usize) -> Tally {
        // A table with several variants is counted once.
        let shared = self.tables.get(index).is_some_and(|table| {
            self.tables[..index]
                .iter()
                .any(|one| Arc::ptr_eq(one, table))
        });
        self.tables
            .get(index)
            .filter(|_| !shared)
            .map(|table| table.tally())
            .unwrap_or_default()
    }

    /// Where the keys of the limit at `index` are. Reads the whole table.
    pub fn occupancy(&self, index: usize) -> Occupancy {
        self.tables
            .get(index)
            .map(|table| table.latest().occupancy())
            .unwrap_or_default()
    }

    /// The clock for draws that are given no moment.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    fn bind<'a>(&'a self, claims: &'a [Claim<'a>]) -> SmallVec<[Bound<'a>; 4]> {
        let bind = |claim: &'a Claim<'a>| self.bound(claim.limit, claim.key, claim.conditions);
        claims.iter().map(bind).collect()
    }

    fn bound<'a>(
        &'a self,
        limit: &'a Limit,
        key: &[u8],
        conditions: Option<&'a Conditions>,
    ) -> Bound<'a> {
        Bound {
            table: &self.tables[limit.index],
            tag: self.seed.tag(key),
            tier: limit.tier.as_deref(),
            conditions,
        }
    }
}

impl Store for LocalStore {
    async fn draw_until<'a>(
        &'a self,
        claims: &'a [Claim<'a>],
        _: &'a Deadline,
    ) -> Result<Draw, StoreError> {
        Ok(self.draw_at(claims, self.clock.now()))
    }

    fn settle(&self, settlements: &[Settlement<'_>]) {
        self.settle_at(settlements, self.clock.now());
    }

    async fn peek_until<'a>(
        &'a self,
        claims: &'a [Claim<'a>],
        _: &'a Deadline,
    ) -> Result<Vec<Standing>, StoreError> {
        Ok(self.peek_at(claims, self.clock.now()))
    }
}

/// A claim's position: its table, or the successor of that table, and its tag there.
#[derive(Clone, Copy)]
struct Bound<'s> {
    table: &'s Table,
    tag: u64,
    tier: Option<&'s str>,
    conditions: Option<&'s Conditions>,
}

fn draw_locked(bound: &mut [Bound<'_>], claims: &[Claim<'_>], now: Timestamp) -> Draw {
    let mut slots = lock_all(bound, now);
    let mut granted = true;
    let mut verdicts: SmallVec<[Verdict; 4]> = SmallVec::with_capacity(claims.len());
    for (claim, slot) in claims.iter().zip(&mut slots) {
        let verdict = slot.judge(claim.cost, now);
        granted &= !claim.enforced || verdict.is_allow();
        verdicts.push(verdict);
    }
    let answer = |(slot, verdict): (&mut Slot<'_>, Verdict)| {
        if granted {
            slot.commit(now);
        }
        Standing::new(verdict, slot.report(now))
    };
    Draw {
        granted,
        standings: slots.iter_mut().zip(verdicts).map(answer).collect(),
    }
}

/// Locks every bucket in the order of the tables and follows those that have moved; returns the
/// slots in the claims' order.
fn lock_all<'s>(bound: &mut [Bound<'s>], now: Timestamp) -> SmallVec<[Slot<'s>; 4]> {
    loop {
        match try_lock_all(bound, now) {
            Ok(slots) => return slots,
            // The successor has another position in the lock order: all locks were released, so
            // start again.
            Err((place, successor)) => bound[place].table = successor,
        }
    }
}

fn try_lock_all<'s>(
    bound: &[Bound<'s>],
    now: Timestamp,
) -> Result<SmallVec<[Slot<'s>; 4]>, (usize, &'s Table)> {
    let lock = |place: usize| {
        let Bound {
            table,
            tag,
            tier,
            conditions,
        } = bound[place];
        let moved = || {
            (
                place,
                &**table
                    .successor()
                    .expect("a table names its successor before a bucket moves"),
            )
        };
        table.lock(tag, tier, conditions, now).ok_or_else(moved)
    };
    if bound.is_sorted_by_key(|bound| bound.table.order) {
        return (0..bound.len()).map(lock).collect();
    }
    let mut order: SmallVec<[usize; 8]> = (0..bound.len()).collect();
    order.sort_unstable_by_key(|place| bound[*place].table.order);
    let mut slots: SmallVec<[(usize, Slot<'s>); 4]> = SmallVec::with_capacity(bound.len());
    for place in order {
        slots.push((place, lock(place)?));
    }
    slots.sort_unstable_by_key(|(place, _)| *place);
    Ok(slots.into_iter().map(|(_, slot)| slot).collect())
}

/// The start of packed time: two years before the process, because a bucket may have been full
/// since then.
fn epoch(now: Timestamp) -> Timestamp {
    now.before(Micros(1 << 46))
}

/// How many callers' buckets fit at once in the table of `limit`, which is one of `limits`.
pub fn room(limit: &Limit, limits: &[Arc<Limit>]) -> u64 {
    // The memory is allocated and not touched.
    let variants = family::of(limit, limits);
    Table::new(
        &variants,
        keep_floors(&[limit], limits),
        Timestamp::default(),
    )
    .room()
}

/// Whether the table of these variants of a limit must support refunds: corrections, resets, or units
/// returned when a shared limit of the same request refuses.
fn keep_floors(variants: &[&Limit], limits: &[Arc<Limit>]) -> bool {
    let is_corrected = |limit: &&Limit| limit.refundable || limit.resettable;
    let is_shared = |other: &Arc<Limit>| other.placement == Placement::Shared;
    variants.iter().any(is_corrected) || limits.iter().any(is_shared)
}

/// The result of a single claim, written directly to its destination: a copy would read it before
/// the writes have completed.
#[inline(always)]
fn alone(enforced: bool, standing: Standing) -> Draw {
    let granted = !enforced || standing.verdict.is_allow();
    let mut standings = SmallVec::new();
    standings.push(standing);
    Draw { granted, standings }
}
