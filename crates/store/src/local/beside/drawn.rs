//! Draws, looks and corrections of buckets of which some are beside their tables.

use parking_lot::MutexGuard;
use smallvec::SmallVec;

use tollgate_limit::bucket::Next;
use tollgate_limit::{
    Change, Claim, Conditions, Draw, Kept, Limit, Report, Standing, Timestamp, Verdict,
};

use super::{Aside, Entries};
use crate::local::LocalStore;
use crate::local::locks::{Bound, lock_all};

/// A bucket beside the tables, locked for a draw and seen in the numbers of the claim.
struct Held<'e> {
    guard: MutexGuard<'e, Option<Aside>>,
    found: Kept,
    next: Option<Next>,
}

impl LocalStore {
    /// Draws from buckets of which some may be beside their tables.
    #[cold]
    pub(in crate::local) fn draw_beside(&self, claims: &[Claim<'_>], now: Timestamp) -> Draw {
        let entries = self.entries(claims);
        if entries.iter().all(Option::is_none) {
            return self.draw_tables(claims, now);
        }
        let mut held = lock_entries(&entries, claims, now);
        let mut bound: SmallVec<[Bound<'_>; 4]> = claims
            .iter()
            .zip(&held)
            .filter(|(_, held)| held.is_none())
            .map(|(claim, _)| self.bound(claim.limit, claim.key, claim.conditions))
            .collect();
        let mut locked = lock_all(&mut bound);
        let mut granted = true;
        let mut verdicts: SmallVec<[Verdict; 4]> = SmallVec::with_capacity(claims.len());
        let mut in_tables = 0..;
        for (claim, held) in claims.iter().zip(&mut held) {
            let verdict = match held {
                Some(held) => held.judge(claim, now),
                None => {
                    let (slot, shard) = locked.at(in_tables.next().expect(IN_TABLE));
                    slot.judge(shard, claim.cost, now)
                }
            };
            granted &= !claim.enforced || verdict.is_allow();
            verdicts.push(verdict);
        }
        let mut in_tables = 0..;
        let mut standings = SmallVec::with_capacity(claims.len());
        for ((claim, held), verdict) in claims.iter().zip(held).zip(verdicts) {
            let report = match held {
                Some(held) => held.report(claim, granted, now),
                None => {
                    let (slot, shard) = locked.at(in_tables.next().expect(IN_TABLE));
                    if granted {
                        slot.commit(shard, now);
                    }
                    slot.report(shard, now)
                }
            };
            standings.push(Standing::new(verdict, report));
        }
        Draw { granted, standings }
    }

    /// The standing of a bucket beside its table; `None`: it is in the table.
    pub(in crate::local) fn peek_beside(
        &self,
        claim: &Claim<'_>,
        now: Timestamp,
    ) -> Option<Standing> {
        if self.beside.is_empty() {
            return None;
        }
        let entry = self.beside.entry(claim.limit, self.seed.tag(claim.key))?;
        let mut aside = entry.kept.lock();
        let found = aside.as_mut()?.at(now).under(&claim.limit.algorithm, now);
        drop(aside);
        let own = claim.limit.algorithm.under(claim.conditions);
        let verdict = Verdict::from(&own.judge(found.state(), claim.cost, now));
        Some(Standing::new(verdict, own.report(found.state(), now)))
    }

    /// Corrects a grant of a bucket beside its table; returns whether it is there.
    pub(in crate::local) fn settle_beside(
        &self,
        limit: &Limit,
        key: &[u8],
        change: Change,
        conditions: Option<&Conditions>,
        now: Timestamp,
    ) -> bool {
        if self.beside.is_empty() {
            return false;
        }
        let Some(entry) = self.beside.entry(limit, self.seed.tag(key)) else {
            return false;
        };
        match &mut *entry.kept.lock() {
            Some(aside) => {
                let own = limit.algorithm.under(conditions);
                aside.at(now).settle(&own, change, now);
                true
            }
            None => false,
        }
    }

    fn entries(&self, claims: &[Claim<'_>]) -> Entries {
        let entry = |claim: &Claim<'_>| self.beside.entry(claim.limit, self.seed.tag(claim.key));
        claims.iter().map(entry).collect()
    }
}

/// Locks the entries in their order; returns the buckets in the order of the claims.
fn lock_entries<'e>(
    entries: &'e Entries,
    claims: &[Claim<'_>],
    now: Timestamp,
) -> SmallVec<[Option<Held<'e>>; 4]> {
    let mut order: SmallVec<[(u64, usize); 4]> = entries
        .iter()
        .enumerate()
        .filter_map(|(place, entry)| Some((entry.as_ref()?.order, place)))
        .collect();
    order.sort_unstable();
    let mut held: SmallVec<[Option<Held<'e>>; 4]> = entries.iter().map(|_| None).collect();
    for (_, place) in order {
        let guard = entries[place].as_ref().map(|entry| entry.kept.lock());
        held[place] = guard.and_then(|mut guard| {
            let kept = guard.as_mut()?.at(now);
            let found = kept.under(&claims[place].limit.algorithm, now);
            Some(Held {
                guard,
                found,
                next: None,
            })
        });
    }
    held
}

impl Held<'_> {
    fn judge(&mut self, claim: &Claim<'_>, now: Timestamp) -> Verdict {
        let own = claim.limit.algorithm.under(claim.conditions);
        let judged = own.judge(self.found.state(), claim.cost, now);
        let verdict = Verdict::from(&judged);
        self.next = judged
            .ok()
            .map(|granted| granted.next)
            .filter(|_| claim.cost > 0);
        verdict
    }

    /// Its numbers after the draw, which is written if it was granted. Other numbers are taken on even
    /// if it was refused: they decide how fast the bucket refills.
    fn report(mut self, claim: &Claim<'_>, granted: bool, now: Timestamp) -> Report {
        let own = claim.limit.algorithm.under(claim.conditions);
        let drawn = self.next.take().filter(|_| granted);
        let is_other = || {
            let aside = self.guard.as_ref();
            aside.is_none_or(|aside| aside.kept.algorithm() != self.found.algorithm())
        };
        let changes = drawn.is_some() || is_other();
        if let Some(next) = drawn {
            self.found.grant(next);
        }
        let report = own.report(self.found.state(), now);
        if let Some(aside) = self.guard.as_mut().filter(|_| changes) {
            aside.kept = self.found;
        }
        report
    }
}

const IN_TABLE: &str = "a claim that is not beside its table has a slot in it";
