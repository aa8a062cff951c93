//! Buckets that are drawn under other numbers than their table's: those of keys with an override.
//!
//! A table has one set of numbers, or one for each tier, and its words mean nothing under others. So
//! the bucket of a key with an override moves here before its first draw under it, as a [`Kept`],
//! which any numbers can draw from. The slot in the table is emptied: a thread that does not know of
//! the override yet can grant nothing from it twice. A bucket stays here after the override's end
//! and is drawn under the table's numbers, so that an end refills nothing. It goes back when the
//! table's slot has at least as many units, or when both are full.
//!
//! There are few: [`BESIDE_MAX`] at most. Without any, a draw pays one load.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use tollgate_limit::bucket::Next;
use tollgate_limit::{
    Algorithm, Change, Claim, Conditions, Draw, Kept, Limit, Role, Standing, Timestamp, Verdict,
};

use super::packed::LATE;
use super::table::Slot;
use super::{Bound, LocalStore, lock_all};

/// The buckets beside the tables, shared by all generations of a store.
#[derive(Debug, Default)]
pub(super) struct Beside {
    count: AtomicUsize,
    by_tag: ArcSwap<ByTag>,
    /// Locked while the map changes.
    changing: Mutex<()>,
}

type ByTag = HashMap<u64, SmallVec<[Arc<Entry>; 1]>, RandomState>;

/// The entry of each claim; `None`: its bucket is in a table.
type Entries = SmallVec<[Option<Arc<Entry>>; 4]>;

/// One bucket.
#[derive(Debug)]
pub(super) struct Entry {
    /// The name of its limit.
    name: Arc<str>,
    pub(super) tag: u64,
    /// Locks are taken in this order.
    order: u64,
    /// It stays at least until this moment.
    until: AtomicU64,
    /// `None`: it is not here yet, or has gone back; draw from the table.
    kept: Mutex<Option<Aside>>,
}

/// A bucket beside its table, and the numbers that follow its own at a moment: those of the limit at
/// the end of an override. It takes them on as of that moment, whenever it is drawn from next.
#[derive(Debug)]
struct Aside {
    kept: Kept,
    then: Option<(Timestamp, Algorithm)>,
}

impl Aside {
    /// The bucket at `now`, under the numbers that are due.
    fn at(&mut self, now: Timestamp) -> &mut Kept {
        if let Some((end, own)) = self.then.take_if(|(end, _)| *end <= now) {
            self.kept = self.kept.under_since(&own, end, now);
        }
        &mut self.kept
    }
}

/// A bucket beside the tables, locked for a draw and seen in the numbers of the claim.
struct Held<'e> {
    guard: MutexGuard<'e, Option<Aside>>,
    found: Kept,
    next: Option<Next>,
}

impl Beside {
    /// Whether there are none.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    fn entry(&self, limit: &Limit, tag: u64) -> Option<Arc<Entry>> {
        let map = self.by_tag.load();
        let mut same = map.get(&tag)?.iter();
        let is_of = |entry: &&Arc<Entry>| limit.role == Role::Live && entry.name == limit.name;
        same.find(is_of).cloned()
    }

    /// Every entry of a limit.
    pub(super) fn of_limit(&self, name: &str) -> Vec<Arc<Entry>> {
        if self.is_empty() {
            return Vec::new();
        }
        let map = self.by_tag.load();
        let all = map.values().flatten();
        all.filter(|entry| *entry.name == *name).cloned().collect()
    }

    fn replace(&self, map: ByTag) {
        let count = map.values().map(SmallVec::len).sum();
        self.by_tag.store(Arc::new(map));
        self.count.store(count, Ordering::Release);
    }
}

impl Entry {
    /// The bucket, unless it equals no bucket under any numbers.
    pub(super) fn kept(&self, now: Timestamp) -> Option<Kept> {
        let mut aside = self.kept.lock();
        let kept = aside.as_mut()?.at(now);
        (!is_full(kept, now)).then(|| kept.clone())
    }
}

impl LocalStore {
    /// Moves the bucket of `limit` for `key` beside its table, so that claims of other numbers can
    /// draw from it until `until`, those that are in force since `since`. Returns whether it is
    /// there: there is room for few.
    pub fn set_aside(&self, limit: &Limit, key: &[u8], since: Timestamp, until: Timestamp) -> bool {
        let tag = self.seed.tag(key);
        if let Some(entry) = self.beside.entry(limit, tag) {
            entry.until.fetch_max(until.as_micros(), Ordering::Relaxed);
            return true;
        }
        let is_full = || self.beside.count.load(Ordering::Relaxed) >= BESIDE_MAX;
        // Also before the lock: requests of a key without room ask again and again.
        if limit.role != Role::Live || is_full() {
            return false;
        }
        let _changing = self.beside.changing.lock();
        if self.beside.entry(limit, tag).is_some() {
            return true;
        }
        if is_full() {
            return false;
        }
        let mut map = ByTag::clone(&self.beside.by_tag.load());
        let entry = Arc::new(Entry {
            name: Arc::clone(&limit.name),
            tag,
            order: NEXT_ORDER.fetch_add(1, Ordering::Relaxed),
            until: AtomicU64::new(until.as_micros()),
            kept: Mutex::new(None),
        });
        let mut kept = entry.kept.lock();
        map.entry(tag).or_default().push(Arc::clone(&entry));
        self.beside.replace(map);
        let now = self.clock.now();
        // A word of a table does not tell what was before the table had it.
        let since = since.max(self.born).min(now);
        self.with_slot(limit, tag, now, |slot, algorithm| {
            *kept = Some(Aside {
                kept: slot.lift(algorithm, since, now),
                then: None,
            });
        });
        drop(kept);
        true
    }

    /// Has a bucket beside its table take on the numbers of `limit`, which are in force since
    /// `since`; `then`: the moment of their end, and the numbers that follow. A bucket in its table
    /// has the table's numbers.
    pub fn take_numbers(
        &self,
        limit: &Limit,
        key: &[u8],
        since: Timestamp,
        then: Option<(Timestamp, &Algorithm)>,
    ) {
        if self.beside.is_empty() {
            return;
        }
        let Some(entry) = self.beside.entry(limit, self.seed.tag(key)) else {
            return;
        };
        if let Some(aside) = &mut *entry.kept.lock() {
            let now = self.clock.now();
            let kept = aside.at(now);
            if *kept.algorithm() != limit.algorithm {
                *kept = kept.under_since(&limit.algorithm, since.max(self.born), now);
            }
            let is_known = match (&aside.then, then) {
                (Some((at, _)), Some((end, _))) => *at == end,
                (before, after) => before.is_none() && after.is_none(),
            };
            if !is_known {
                aside.then = then.map(|(end, own)| (end, own.clone()));
            }
        }
    }

    /// Whether there is room for one more bucket beside the tables.
    pub fn has_room_aside(&self) -> bool {
        self.beside.count.load(Ordering::Relaxed) < BESIDE_MAX
    }

    /// Whether a bucket is beside the tables.
    pub fn has_aside(&self) -> bool {
        !self.beside.is_empty()
    }

    /// Moves buckets back to their tables whose time here is over. An operator's change and a
    /// second's delay are no matter: a bucket is decided in the same way here and there.
    pub fn bring_back(&self) {
        if self.beside.is_empty() {
            return;
        }
        let now = self.clock.now();
        let _changing = self.beside.changing.lock();
        let mut map = ByTag::clone(&self.beside.by_tag.load());
        map.retain(|_, entries| {
            entries.retain(|entry| !self.went_back(entry, now));
            !entries.is_empty()
        });
        self.beside.replace(map);
    }

    /// Moves one bucket back, if it may go; returns whether it is in its table now.
    fn went_back(&self, entry: &Entry, now: Timestamp) -> bool {
        let until = Timestamp::from_micros(entry.until.load(Ordering::Relaxed));
        if until.after(LATE) > now {
            return false;
        }
        let mut guard = entry.kept.lock();
        let Some(aside) = guard.as_mut() else {
            return true;
        };
        if aside.then.as_ref().is_some_and(|(end, _)| *end > now) {
            return false;
        }
        let kept = &*aside.at(now);
        let is_of = |limit: &&Arc<Limit>| {
            limit.name == entry.name
                && limit.role == Role::Live
                && limit.algorithm.goes_on_as(kept.algorithm())
        };
        // The buckets of a limit that was removed go with it.
        let Some(limit) = self.limits.iter().find(is_of) else {
            return true;
        };
        let back = self.with_slot(limit, entry.tag, now, |slot, algorithm| {
            if is_full(kept, now) {
                return slot.is_full(now);
            }
            // Other algorithms remember when units were granted, which their number does not tell.
            let Algorithm::TokenBucket(_) = algorithm else {
                return false;
            };
            if kept.algorithm() != algorithm || kept.beyond() > 0 {
                return false;
            }
            let (here, there) = (
                algorithm.report(kept.state(), now).remaining,
                slot.report(now).remaining,
            );
            if here < 2 || there < here {
                return false;
            }
            // One more than the difference: both have a fraction of a unit besides.
            let more = there - here + 1;
            slot.settle(Change::Charge { more }, now);
            true
        });
        if back {
            *guard = None;
        }
        back
    }

    /// Passes the locked slot of a key, and its numbers there, to `change`.
    fn with_slot<T>(
        &self,
        limit: &Limit,
        tag: u64,
        now: Timestamp,
        change: impl FnOnce(&mut Slot<'_>, &Algorithm) -> T,
    ) -> T {
        let mut table = &self.tables[limit.index];
        loop {
            if let Some(mut slot) = table.lock(tag, limit.tier.as_deref(), None, now) {
                let by = table.place_of(limit.tier.as_deref());
                return change(&mut slot, table.algorithm(by));
            }
            table = table.latest();
        }
    }

    /// Draws from buckets of which some may be beside their tables.
    #[cold]
    pub(super) fn draw_beside(&self, claims: &[Claim<'_>], now: Timestamp) -> Draw {
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
        let mut slots = lock_all(&mut bound, now);
        let mut granted = true;
        let mut verdicts: SmallVec<[Verdict; 4]> = SmallVec::with_capacity(claims.len());
        let mut in_tables = slots.iter_mut();
        for (claim, held) in claims.iter().zip(&mut held) {
            let verdict = match held {
                Some(held) => held.judge(claim, now),
                None => in_tables.next().expect(IN_TABLE).judge(claim.cost, now),
            };
            granted &= !claim.enforced || verdict.is_allow();
            verdicts.push(verdict);
        }
        let mut in_tables = slots.iter_mut();
        let mut standings = SmallVec::with_capacity(claims.len());
        for ((claim, held), verdict) in claims.iter().zip(held).zip(verdicts) {
            let report = match held {
                Some(held) => held.report(claim, granted, now),
                None => {
                    let slot = in_tables.next().expect(IN_TABLE);
                    if granted {
                        slot.commit(now);
                    }
                    slot.report(now)
                }
            };
            standings.push(Standing::new(verdict, report));
        }
        Draw { granted, standings }
    }

    /// The standing of a bucket beside its table; `None`: it is in the table.
    pub(super) fn peek_beside(&self, claim: &Claim<'_>, now: Timestamp) -> Option<Standing> {
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
    pub(super) fn settle_beside(
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
    fn report(
        mut self,
        claim: &Claim<'_>,
        granted: bool,
        now: Timestamp,
    ) -> tollgate_limit::Report {
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

/// Whether a bucket has been full, under all numbers it has had, for every thread that may still
/// draw.
fn is_full(kept: &Kept, now: Timestamp) -> bool {
    kept.expiry()
        .is_some_and(|expiry| expiry.after(LATE) <= now)
}

/// The most buckets beside the tables: a thousand with overrides, and those whose overrides have
/// ended.
const BESIDE_MAX: usize = 4_000;

const IN_TABLE: &str = "a claim that is not beside its table has a slot in it";

static NEXT_ORDER: AtomicU64 = AtomicU64::new(0);
