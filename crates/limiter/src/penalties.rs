//! Which keys this gateway has refused of late, and which it knows to be blocked: the counts of
//! penalties.
//!
//! The table has a fixed number of places, in sets of [`WAYS`]. A key's set follows from a keyed
//! hash, so no caller can choose it. Where a set is full, the key with the fewest refusals makes
//! room: a flood of keys with one refusal each does not displace a key with many. A block that the
//! shared store has makes room before any count, and displaces none: each draw asks the store for
//! it. A block that only this process has makes no room before its end; a refusal that finds only
//! such blocks is not counted, and a metric says how many were not. Nothing is allocated before the
//! first refusal by a limit with a penalty.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use tollgate_limit::{KeyBytes, Limit, Micros, Penalty, Placement, Timestamp};
use tollgate_store::HashKey;
use tollgate_store::local::{Blocked, Penalized};

/// The counts of all limits of a gateway, shared by the generations of its limiter.
#[derive(Debug)]
pub(super) struct Penalties {
    /// Names the keys.
    names: HashKey,
    sets: OnceLock<Box<[Mutex<Set>]>>,
    imposed: AtomicU64,
    uncounted: AtomicU64,
    news: Mutex<VecDeque<Imposed>>,
    untold: AtomicU64,
}

type Set = [Entry; WAYS];

/// What is known of one key under one limit. It is meaningless from `until` on.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    bucket: u128,
    /// The end of the span in which refusals are counted, or of the block.
    until: Timestamp,
    refusals: u32,
    block: Option<Block>,
}

/// A block that is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Its end.
    pub(super) until: Timestamp,
    /// When a lone caller is admitted: its end, or later where the limit's own bucket needs longer.
    pub(super) admits: Timestamp,
    /// When the store is asked again whether it is still in force.
    pub(super) ask_again: Timestamp,
    /// Whether the block belongs into the shared store.
    pub(super) shared: bool,
    /// Whether the shared store has not confirmed yet that it has the block.
    pub(super) unstored: bool,
}

impl Block {
    /// Whether the shared store has it, so that it is only remembered here.
    fn is_stored(&self) -> bool {
        self.shared && !self.unstored
    }
}

/// A penalty that this gateway has imposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imposed {
    /// The limit.
    pub limit: Arc<str>,
    /// Where its buckets are.
    pub placement: Placement,
    /// The key of the bucket.
    pub key: KeyBytes,
    /// Its numbers.
    pub penalty: Penalty,
    /// When the block began.
    pub since: Timestamp,
    /// When it ends.
    pub until: Timestamp,
}

/// Counters of penalties.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PenaltyCounts {
    /// Blocks that this gateway has imposed.
    pub imposed: u64,
    /// Refusals that found no room in the table and were not counted.
    pub uncounted: u64,
    /// Imposed blocks that [`super::Limiter::take_penalties`] has lost, because too many waited.
    pub untold: u64,
}

impl Penalties {
    /// Keys are named by `names`.
    pub(super) fn new(names: HashKey) -> Self {
        Self {
            names,
            sets: OnceLock::new(),
            imposed: AtomicU64::new(0),
            uncounted: AtomicU64::new(0),
            news: Mutex::default(),
            untold: AtomicU64::new(0),
        }
    }

    /// The name of a bucket, also of one in the shared store.
    pub(super) fn name(&self, limit: &Limit, key: &[u8]) -> u128 {
        self.names.bucket(limit, key)
    }

    /// What is known of all keys, for a snapshot.
    pub(super) fn in_force(&self, now: Timestamp) -> Vec<Penalized> {
        let mut known = Vec::new();
        for set in self.sets.get().into_iter().flatten() {
            let set = set.lock();
            let entries = set.iter().filter(|entry| entry.until > now);
            known.extend(entries.map(|entry| Penalized {
                bucket: entry.bucket,
                until: entry.until,
                refusals: entry.refusals,
                block: entry.block.map(|block| Blocked {
                    admits: block.admits,
                    shared: block.shared,
                    unstored: block.unstored,
                }),
            }));
        }
        known
    }

    /// Knows these keys again, if there is room. The shared store is asked at once about its blocks.
    pub(super) fn restore(&self, known: &[Penalized], now: Timestamp) {
        for one in known.iter().filter(|one| one.until > now) {
            let block = one.block.map(|block| Block {
                until: one.until,
                admits: block.admits,
                ask_again: if block.shared {
                    Timestamp::default()
                } else {
                    one.until
                },
                shared: block.shared,
                unstored: block.unstored,
            });
            let entry = Entry {
                bucket: one.bucket,
                until: one.until,
                refusals: one.refusals,
                block,
            };
            let mut set = self.set(one.bucket).lock();
            if let Some(place) = room(&mut set, one.bucket, now, worth(&entry, now)) {
                *place = entry;
            }
        }
    }

    /// The block of this bucket that is known to be in force.
    pub(super) fn block(&self, bucket: u128, now: Timestamp) -> Option<Block> {
        let set = self.sets.get()?[place(bucket)].lock();
        let entry = set.iter().find(|entry| entry.bucket == bucket)?;
        entry.block.filter(|block| block.until > now)
    }

    /// The same if it is time to ask the shared store whether it is still in force. Only one
    /// request asks; the others are refused by the block until the next time.
    pub(super) fn due(&self, bucket: u128, now: Timestamp) -> Option<Block> {
        let mut set = self.sets.get()?[place(bucket)].lock();
        let entry = set.iter_mut().find(|entry| entry.bucket == bucket)?;
        let block = entry.block.as_mut()?;
        let is_due = block.shared && block.until > now && block.ask_again <= now;
        is_due.then(|| {
            block.ask_again = now.after(KNOWN_FOR);
            *block
        })
    }

    /// Remembers that the shared store has the block of this bucket.
    pub(super) fn is_stored(&self, bucket: u128) {
        if let Some(sets) = self.sets.get() {
            let mut set = sets[place(bucket)].lock();
            let known = set.iter_mut().find(|entry| entry.bucket == bucket);
            if let Some(block) = known.and_then(|entry| entry.block.as_mut()) {
                block.unstored = false;
            }
        }
    }

    /// Counts a refusal; returns whether the key is to be blocked now. It is then counted from the
    /// beginning.
    pub(super) fn refused(&self, bucket: u128, penalty: Penalty, now: Timestamp) -> bool {
        let mut set = self.set(bucket).lock();
        let Some(entry) = room(&mut set, bucket, now, ONLY_HERE) else {
            self.uncounted.fetch_add(1, Ordering::Relaxed);
            return false;
        };
        let is_known = entry.bucket == bucket && entry.until > now;
        if is_known && entry.block.is_some() {
            // Another request was refused at the same time, and blocked the key.
            return false;
        }
        if !is_known {
            *entry = Entry {
                bucket,
                until: now.after(penalty.span),
                refusals: 0,
                block: None,
            };
        }
        entry.refusals += 1;
        if entry.refusals < penalty.refusals {
            return false;
        }
        entry.refusals = 0;
        true
    }

    /// Remembers a block, if there is room.
    pub(super) fn put(&self, bucket: u128, block: Block, now: Timestamp) {
        let mut set = self.set(bucket).lock();
        let below = if block.is_stored() { COUNT } else { ONLY_HERE };
        if let Some(entry) = room(&mut set, bucket, now, below) {
            *entry = Entry {
                bucket,
                until: block.until,
                refusals: 0,
                block: Some(block),
            };
        }
    }

    /// Forgets what is known of a key.
    pub(super) fn forget(&self, bucket: u128) {
        if let Some(sets) = self.sets.get() {
            let mut set = sets[place(bucket)].lock();
            let known = set.iter_mut().find(|entry| entry.bucket == bucket);
            if let Some(entry) = known {
                *entry = Entry::default();
            }
        }
    }

    /// Has the store asked about every block that belongs there, because one was lifted. One that
    /// the store does not have then counts as lifted. Without the store they stay in force.
    pub(super) fn ask_again(&self) {
        for set in self.sets.get().into_iter().flatten() {
            for entry in set.lock().iter_mut() {
                if let Some(block) = entry.block.as_mut().filter(|block| block.shared) {
                    block.ask_again = Timestamp::default();
                    block.unstored = false;
                }
            }
        }
    }

    /// Records a block that this gateway imposes.
    pub(super) fn record(&self, limit: &Limit, key: &[u8], since: Timestamp, until: Timestamp) {
        let Some(penalty) = limit.penalty else { return };
        self.imposed.fetch_add(1, Ordering::Relaxed);
        let mut news = self.news.lock();
        if news.len() >= NEWS_MAX {
            self.untold.fetch_add(1, Ordering::Relaxed);
            return;
        }
        news.push_back(Imposed {
            limit: Arc::clone(&limit.name),
            placement: limit.placement,
            key: KeyBytes::from_slice(key),
            penalty,
            since,
            until,
        });
    }

    pub(super) fn take(&self) -> Vec<Imposed> {
        self.news.lock().drain(..).collect()
    }

    pub(super) fn counts(&self) -> PenaltyCounts {
        PenaltyCounts {
            imposed: self.imposed.load(Ordering::Relaxed),
            uncounted: self.uncounted.load(Ordering::Relaxed),
            untold: self.untold.load(Ordering::Relaxed),
        }
    }

    fn set(&self, bucket: u128) -> &Mutex<Set> {
        let sets = self
            .sets
            .get_or_init(|| (0..SETS).map(|_| Mutex::default()).collect());
        &sets[place(bucket)]
    }
}

/// The entry of a key, or the one of the least worth, which makes room for it; `None`: all others
/// are worth `below` or more.
fn room(set: &mut Set, bucket: u128, now: Timestamp, below: u64) -> Option<&mut Entry> {
    if let Some(known) = set.iter().position(|entry| entry.bucket == bucket) {
        return set.get_mut(known);
    }
    set.iter_mut()
        .filter(|entry| worth(entry, now) < below)
        .min_by_key(|entry| (worth(entry, now), entry.until))
}

/// What would be lost with an entry.
fn worth(entry: &Entry, now: Timestamp) -> u64 {
    match entry.block {
        _ if entry.until <= now => ENDED,
        Some(block) if block.is_stored() => STORED,
        Some(block) if block.shared => UNSTORED,
        Some(_) => ONLY_HERE,
        None => COUNT + u64::from(entry.refusals),
    }
}

/// The worth of an entry without a meaning, of a block that the shared store has, of a count of no
/// refusals, of a block that the shared store has not confirmed, and of one that no store has.
const ENDED: u64 = 0;
const STORED: u64 = 1;
const COUNT: u64 = 2;
const UNSTORED: u64 = u64::MAX - 1;
const ONLY_HERE: u64 = u64::MAX;

/// The set of a key: the low bits of its hash.
fn place(bucket: u128) -> usize {
    bucket as usize % SETS
}

/// Keys in a set.
const WAYS: usize = 8;

/// Sets of the table: 65,536 keys.
const SETS: usize = 8_192;

/// The bytes of the table, which all limits with a penalty share.
pub const PENALTY_TABLE: usize = SETS * size_of::<Mutex<Set>>();

/// Imposed blocks that wait to be told.
const NEWS_MAX: usize = 1_024;

/// How long a gateway refuses by a block that it knows to be in the shared store, without asking
/// again.
pub(super) const KNOWN_FOR: Micros = Micros::from_secs(1);

#[cfg(test)]
mod tests;
