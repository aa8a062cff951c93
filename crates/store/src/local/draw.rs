//! Draws from the buckets of the tables. Several buckets are locked in one order for all threads, wherever
//! each of them has moved to.

use parking_lot::MutexGuard;
use smallvec::SmallVec;

use tollgate_limit::{Claim, Conditions, Draw, Limit, Standing, Timestamp, Verdict};

use super::LocalStore;
use super::table::{Shard, Slot, Table};

impl LocalStore {
    pub fn draw_at(&self, claims: &[Claim<'_>], now: Timestamp) -> Draw {
        match claims {
            [claim] => self.draw_one(claim, now),
            several => draw_locked(&mut self.bind(several), several, now),
        }
    }

    fn draw_one(&self, claim: &Claim<'_>, now: Timestamp) -> Draw {
        let tag = self.seed.tag(claim.key);
        let mut table = &self.tables[claim.limit.index];
        let standing = loop {
            match table.draw(tag, claim, now) {
                Some(standing) => break standing,
                None => table = table.successor(),
            }
        };
        Draw {
            granted: !claim.enforced || standing.verdict.is_allow(),
            standings: SmallVec::from_iter([standing]),
            at: now,
        }
    }
}

fn draw_locked(bound: &mut [Bound<'_>], claims: &[Claim<'_>], now: Timestamp) -> Draw {
    let mut locked = lock_all(bound);
    let mut granted = true;
    let mut verdicts: SmallVec<[Verdict; 4]> = SmallVec::with_capacity(claims.len());
    for (place, claim) in claims.iter().enumerate() {
        let (slot, shard) = locked.at(place);
        let verdict = slot.judge(shard, claim.cost, now);
        granted &= !claim.enforced || verdict.is_allow();
        verdicts.push(verdict);
    }
    let answer = |(place, verdict)| {
        let (slot, shard) = locked.at(place);
        if granted {
            slot.commit(shard, now);
        }
        Standing::new(verdict, slot.report(shard, now))
    };
    Draw {
        granted,
        standings: verdicts.into_iter().enumerate().map(answer).collect(),
        at: now,
    }
}

/// A claim's position: its table, or the successor of that table, and its tag there.
#[derive(Clone, Copy)]
pub(super) struct Bound<'s> {
    table: &'s Table,
    tag: u64,
    limit: &'s Limit,
    conditions: Option<&'s Conditions>,
}

pub(super) struct Locked<'s> {
    /// Each shard once: claims on different keys of one limit may share a shard.
    shards: SmallVec<[MutexGuard<'s, Shard>; 4]>,
    /// In the order of the claims, each with the position of its shard.
    slots: SmallVec<[(Slot<'s>, usize); 4]>,
}

impl<'s> Locked<'s> {
    /// The bucket of the claim at `place`, and its shard.
    pub(super) fn at(&mut self, place: usize) -> (&mut Slot<'s>, &mut Shard) {
        let (slot, shard) = &mut self.slots[place];
        (slot, &mut self.shards[*shard])
    }
}

impl LocalStore {
    pub(super) fn bind<'a>(&'a self, claims: &'a [Claim<'a>]) -> SmallVec<[Bound<'a>; 4]> {
        let bind = |claim: &'a Claim<'a>| self.bound(claim.limit, claim.key, claim.conditions);
        claims.iter().map(bind).collect()
    }

    pub(super) fn bound<'a>(
        &'a self,
        limit: &'a Limit,
        key: &[u8],
        conditions: Option<&'a Conditions>,
    ) -> Bound<'a> {
        self.bound_by_tag(limit, self.seed.tag(key), conditions)
    }

    pub(super) fn bound_by_tag<'a>(
        &'a self,
        limit: &'a Limit,
        tag: u64,
        conditions: Option<&'a Conditions>,
    ) -> Bound<'a> {
        Bound {
            table: &self.tables[limit.index],
            tag,
            limit,
            conditions,
        }
    }
}

pub(super) fn lock_all<'s>(bound: &mut [Bound<'s>]) -> Locked<'s> {
    loop {
        match try_lock_all(bound) {
            Ok(locked) => return locked,
            // The successor has another place in the order: all locks were released, so start again.
            Err(place) => bound[place].table = bound[place].table.successor(),
        }
    }
}

/// Fails with the place of a bucket that has moved.
fn try_lock_all<'s>(bound: &[Bound<'s>]) -> Result<Locked<'s>, usize> {
    let position = |(place, bound): (usize, &Bound<'s>)| {
        (bound.table.order, bound.table.index(bound.tag), place)
    };
    let mut order: SmallVec<[_; 4]> = bound.iter().enumerate().map(position).collect();
    // Every thread locks in this order, so that draws cannot deadlock.
    order.sort_unstable();
    let mut shards = SmallVec::<[_; 4]>::new();
    let mut shard_of: SmallVec<[usize; 4]> = SmallVec::from_elem(0, bound.len());
    let mut last = None;
    for (table, index, place) in order {
        if last != Some((table, index)) {
            shards.push(bound[place].table.lock(index).ok_or(place)?);
            last = Some((table, index));
        }
        shard_of[place] = shards.len() - 1;
    }
    let slot = |(bound, shard): (&Bound<'s>, usize)| {
        let Bound {
            table,
            tag,
            limit,
            conditions,
        } = *bound;
        (
            Slot::new(table, &shards[shard], tag, limit, conditions),
            shard,
        )
    };
    let slots = bound.iter().zip(shard_of).map(slot).collect();
    Ok(Locked { shards, slots })
}
