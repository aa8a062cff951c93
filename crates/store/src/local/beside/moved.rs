//! Moves a bucket beside its table, and back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use tollgate_limit::{Algorithm, Change, Limit, Role, Timestamp};

use super::{Aside, ByTag, Entry, is_full};
use crate::local::LocalStore;
use crate::local::locks::lock_all;
use crate::local::table::{LATE, Shard, Slot};

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
        // A bucket of a table does not tell what was before the table had it.
        let since = since.max(self.born).min(now);
        self.with_slot(limit, tag, |slot, shard| {
            *kept = Some(Aside {
                kept: slot.lift(shard, since, now),
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

    /// Whether a bucket is beside the tables.
    pub fn has_aside(&self) -> bool {
        !self.beside.is_empty()
    }

    /// Whether there is room for one more bucket beside the tables.
    pub fn has_room_aside(&self) -> bool {
        self.beside.count.load(Ordering::Relaxed) < BESIDE_MAX
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
        let back = self.with_slot(limit, entry.tag, |slot, shard| {
            let algorithm = slot.algorithm();
            if is_full(kept, now) {
                return slot.is_full(shard, now);
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
                slot.report(shard, now).remaining,
            );
            if here < 2 || there < here {
                return false;
            }
            // One more than the difference: both have a fraction of a unit besides.
            let more = there - here + 1;
            slot.settle(shard, Change::Charge { more }, now);
            true
        });
        if back {
            *guard = None;
        }
        back
    }

    /// Passes the slot of a key, and its locked shard, to `change`.
    fn with_slot<T>(
        &self,
        limit: &Limit,
        tag: u64,
        change: impl FnOnce(&mut Slot<'_>, &mut Shard) -> T,
    ) -> T {
        let mut bound = [self.bound_by_tag(limit, tag, None)];
        let mut locked = lock_all(&mut bound);
        let (slot, shard) = locked.at(0);
        change(slot, shard)
    }
}

/// The most buckets beside the tables: a thousand with overrides, and those whose overrides have
/// ended.
pub(super) const BESIDE_MAX: usize = 4_000;

static NEXT_ORDER: AtomicU64 = AtomicU64::new(0);
