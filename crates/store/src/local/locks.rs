//! Several buckets locked at once: in one order for all threads, and where each has moved to.

use smallvec::SmallVec;

use tollgate_limit::{Claim, Conditions, Limit, Timestamp};

use super::LocalStore;
use super::table::{Slot, Table};

/// A claim's position: its table, or the successor of that table, and its tag there.
#[derive(Clone, Copy)]
pub(super) struct Bound<'s> {
    pub(super) table: &'s Table,
    pub(super) tag: u64,
    pub(super) tier: Option<&'s str>,
    pub(super) conditions: Option<&'s Conditions>,
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
        Bound {
            table: &self.tables[limit.index],
            tag: self.seed.tag(key),
            tier: limit.tier.as_deref(),
            conditions,
        }
    }
}

/// Locks every bucket in the order of the tables and follows those that have moved; returns the
/// slots in the claims' order.
pub(super) fn lock_all<'s>(bound: &mut [Bound<'s>], now: Timestamp) -> SmallVec<[Slot<'s>; 4]> {
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
