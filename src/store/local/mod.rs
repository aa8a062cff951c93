//! The local store: buckets in the process, bounded, all or nothing over several limits.
//!
//! Each limit has a table of its own with a fixed budget of memory. A draw locks the buckets it needs in one global
//! order, judges them all, and writes all or none: there are no refunds to go wrong and no order of limits that
//! matters. A table that runs over never hands out a free reset; see [`wide`].

mod carry;
mod hash;
mod interim;
mod table;
mod wide;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::clock::Clock;
use crate::limit::{Claim, Draw, Limit, Settlement, Standing, Timestamp, Verdict};

use super::{Store, StoreError};
pub use carry::{Carried, Carry, CarryReport};
use hash::Seed;
use table::{Slot, Table};

/// Buckets in the process, for the limits of one compiled policy.
#[derive(Debug)]
pub struct LocalStore {
    limits: Box<[Arc<Limit>]>,
    tables: Box<[Arc<Table>]>,
    seed: Seed,
    clock: Clock,
}

/// What the buckets of a process without a memory hold: what `cold_start` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ColdStart {
    /// Every bucket is full: a crash gives each key at most one burst.
    #[default]
    Full,
    /// Every bucket is empty and fills at its rate: a crash gives nobody anything.
    Empty,
}

/// What a table had to do to stay within its memory, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Buckets forgotten while they still remembered a debt; the debt was kept.
    pub evictions: u64,
    /// Refusals of keys that stood at an inherited debt, which may be more than their own.
    pub inherited_refusals: u64,
}

impl LocalStore {
    /// A store for `limits`, where `limits[i].index == i`.
    pub fn new(limits: &[Arc<Limit>], clock: Clock, cold_start: ColdStart) -> Self {
        let now = clock.now();
        let tables = limits.iter().map(|limit| Arc::new(Table::new(limit, cold_start, now))).collect();
        Self { limits: limits.into(), tables, seed: Seed::random(), clock }
    }

    /// Draws every claim or none, at `now`.
    pub fn draw_at(&self, claims: &[Claim<'_>], now: Timestamp) -> Draw {
        let mut bound = self.bind(claims.iter().map(|claim| (claim.limit.index, claim.key)));
        let mut slots = lock_all(&mut bound);
        let mut granted = true;
        let mut standings: SmallVec<[Standing; 4]> = SmallVec::with_capacity(claims.len());
        for (claim, slot) in claims.iter().zip(&mut slots) {
            let Some(slot) = slot else { continue };
            let standing = slot.judge(claim.cost, now);
            granted &= !claim.enforced || matches!(standing.verdict, Verdict::Allow { .. });
            standings.push(standing);
        }
        if granted {
            for (standing, slot) in standings.iter().zip(&mut slots) {
                if let (Verdict::Allow { .. }, Some(slot)) = (standing.verdict, slot) {
                    slot.commit(now);
                }
            }
        } else {
            // What a bucket would have left had it been charged is not what it has.
            for ((claim, slot), standing) in claims.iter().zip(&mut slots).zip(&mut standings) {
                if let (Verdict::Allow { .. }, Some(slot), true) = (standing.verdict, slot, claim.cost > 0) {
                    let before = slot.judge(0, now);
                    (standing.remaining, standing.reset) = (before.remaining, before.reset);
                }
            }
        }
        Draw { granted, standings }
    }

    /// Corrects earlier grants, at `now`.
    pub fn settle_at(&self, settlements: &[Settlement<'_>], now: Timestamp) {
        for settlement in settlements {
            let mut bound = self.bind([(settlement.limit.index, settlement.key)].into_iter());
            for slot in lock_all(&mut bound).iter_mut().flatten() {
                slot.settle(settlement.change, now);
            }
        }
    }

    /// How the buckets stand at `now`, charging nothing.
    pub fn peek_at(&self, claims: &[Claim<'_>], now: Timestamp) -> Vec<Standing> {
        let mut bound = self.bind(claims.iter().map(|claim| (claim.limit.index, claim.key)));
        let mut slots = lock_all(&mut bound);
        claims.iter().zip(&mut slots).filter_map(|(claim, slot)| Some(slot.as_mut()?.judge(claim.cost, now))).collect()
    }

    /// What the table of the limit at `index` had to do to stay within its memory.
    pub fn tally(&self, index: usize) -> Tally {
        self.tables.get(index).map(|table| table.tally()).unwrap_or_default()
    }

    /// The clock that draws without a moment of their own are dated by.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    fn bind<'a>(&self, keys: impl Iterator<Item = (usize, &'a [u8])>) -> SmallVec<[Bound<'_>; 4]> {
        keys.map(|(index, key)| Bound { table: &self.tables[index], tag: self.seed.tag(key) }).collect()
    }
}

impl Store for LocalStore {
    async fn draw<'a>(&'a self, claims: &'a [Claim<'a>]) -> Result<Draw, StoreError> {
        Ok(self.draw_at(claims, self.clock.now()))
    }

    fn settle(&self, settlements: &[Settlement<'_>]) {
        self.settle_at(settlements, self.clock.now());
    }

    async fn peek<'a>(&'a self, claims: &'a [Claim<'a>]) -> Result<Vec<Standing>, StoreError> {
        Ok(self.peek_at(claims, self.clock.now()))
    }
}

/// A claim's place: its table, perhaps a predecessor's successor, and its tag there.
#[derive(Clone, Copy)]
struct Bound<'s> {
    table: &'s Table,
    tag: u64,
}

/// Locks every bucket in the order of the tables, following those that have moved; the answer is in the order given.
fn lock_all<'s>(bound: &mut [Bound<'s>]) -> SmallVec<[Option<Slot<'s>>; 4]> {
    'again: loop {
        let mut order: SmallVec<[usize; 8]> = (0..bound.len()).collect();
        order.sort_unstable_by_key(|place| bound[*place].table.order);
        let mut slots: SmallVec<[Option<Slot<'s>>; 4]> = bound.iter().map(|_| None).collect();
        for place in order {
            let Bound { table, tag } = bound[place];
            match (table.lock(tag), table.successor()) {
                (Some(slot), _) => slots[place] = Some(slot),
                (None, Some(successor)) => {
                    // The successor's place in the order is another one: let go of everything and begin again.
                    bound[place].table = successor;
                    continue 'again;
                }
                (None, None) => unreachable!("a table names its successor before it says that a bucket moved"),
            }
        }
        return slots;
    }
}
