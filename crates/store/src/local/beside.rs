//! Buckets that are drawn under other numbers than their table's: those of keys with an override.
//!
//! A table has one set of numbers, or one for each tier, and its words mean nothing under others. So
//! the bucket of a key with an override moves here before its first draw under it, as a [`Kept`],
//! which any numbers can draw from. The slot in the table is emptied: a thread that does not know of
//! the override yet can grant nothing from it twice. A bucket stays here after the override's end
//! and is drawn under the table's numbers, so that an end refills nothing. It goes back when the
//! table's slot has at least as many units, or when both are full.
//!
//! There are few: [`moved::BESIDE_MAX`] at most. Without any, a draw pays one load.

mod drawn;
mod moved;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use parking_lot::Mutex;
use smallvec::SmallVec;

use tollgate_limit::{Algorithm, Kept, Limit, Role, Timestamp};

use super::table::LATE;

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

impl Beside {
    /// Whether there are none.
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

/// Whether a bucket has been full, under all numbers it has had, for every thread that may still
/// draw.
fn is_full(kept: &Kept, now: Timestamp) -> bool {
    kept.expiry()
        .is_some_and(|expiry| expiry.after(LATE) <= now)
}
