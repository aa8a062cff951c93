//! The local store: buckets in the process, in bounded memory, all or nothing over several limits.
//!
//! Each limit has its own table with a fixed memory budget. A draw locks the shards of the buckets
//! it needs in one global order, judges them all, and writes all or none. So it needs no refunds, and
//! the order of limits does not matter. A full table never gives a key a free reset; see [`table`].

mod bucket;
mod carry;
mod draw;
mod hash;
mod settle;
mod snapshot;
mod table;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::clock::Clock;
use tollgate_limit::{Claim, Draw, Limit, Settlement, Standing, Timestamp};

use super::{Deadline, Store, StoreError};
pub use carry::{Carried, Carry, CarryReport};
pub use carry::{place_of, same_bucket};
pub use snapshot::{
    HeldPlaces, Learnt, Penalized, Places, Remembered, Share, SnapshotError, Unpaid,
};

use bucket::{Bucket, Moving, Whose};
use draw::lock_all;
use hash::Seed;
use settle::Resets;
use table::{Table, family_of, family_tables};

/// Buckets in the process, for the limits of one compiled policy.
#[derive(Debug)]
pub struct LocalStore {
    limits: Box<[Arc<Limit>]>,
    tables: Box<[Arc<Table>]>,
    seed: Seed,
    clock: Clock,
    resets: Arc<Resets>,
}

/// The buckets of a process that starts without saved state: the `cold_start` setting.
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

impl LocalStore {
    /// A store for `limits`, where `limits[i].index == i`.
    pub fn new(limits: &[Arc<Limit>], clock: Clock, cold_start: ColdStart) -> Self {
        let now = clock.now();
        let tables = family_tables(limits, |variants| {
            let table = Table::new(variants);
            let variant = table.widest();
            if cold_start == ColdStart::Empty
                && let Some(state) = table.algorithm(variant).drained(now)
            {
                let (whose, bucket) = (Whose::Birth, Bucket::new(state, variant));
                table.adopt(Moving { whose, bucket }, now);
            }
            Arc::new(table)
        });
        Self {
            tables,
            limits: limits.into(),
            seed: Seed::random(),
            clock,
            resets: Arc::default(),
        }
    }

    /// A store of full buckets that can be saved together with this one.
    pub fn sibling(&self, limits: &[Arc<Limit>]) -> Self {
        Self {
            seed: self.seed.clone(),
            ..Self::new(limits, self.clock.clone(), ColdStart::Full)
        }
    }

    pub fn peek_at(&self, claims: &[Claim<'_>], now: Timestamp) -> Vec<Standing> {
        let mut bound = self.bind(claims);
        let mut locked = lock_all(&mut bound);
        let standing = |(place, claim): (usize, &Claim<'_>)| {
            let (slot, shard) = locked.at(place);
            let verdict = slot.judge(shard, claim.cost, now);
            Standing::new(verdict, slot.report(shard, now))
        };
        claims.iter().enumerate().map(standing).collect()
    }

    /// What the table of the limit at `index` did to stay within its memory.
    pub fn tally(&self, index: usize) -> Tally {
        // A table with several variants is counted once.
        let shared = self.tables.get(index).is_some_and(|table| {
            self.tables[..index]
                .iter()
                .any(|one| Arc::ptr_eq(one, table))
        });
        let table = self.tables.get(index).filter(|_| !shared);
        table.map(|table| table.tally()).unwrap_or_default()
    }

    pub fn clock(&self) -> &Clock {
        &self.clock
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

/// How many callers' buckets fit at once in the table of `limit`, which is one of `limits`.
pub fn room(limit: &Limit, limits: &[Arc<Limit>]) -> u64 {
    Table::new(&family_of(limit, limits)).room()
}
