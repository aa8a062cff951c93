//! Which keys this gateway has refused of late, and which it knows to be blocked: the counts of
//! penalties.
//!
//! The table has a fixed number of places, in sets of [`WAYS`]. A key's set follows from a keyed
//! hash, so no caller can choose it. Where a set is full, the key with the fewest refusals makes
//! room: a flood of keys with one refusal each does not displace a key with many. A block that is in
//! force never makes room; a refusal that finds only such keys is not counted, and that is counted.
//! Nothing is allocated before the first refusal by a limit with a penalty.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use tollgate_limit::{KeyBytes, Limit, Micros, Penalty, Placement, Timestamp};

/// The counts of all limits of a gateway, shared by the generations of its limiter.
#[derive(Debug, Default)]
pub(super) struct Penalties {
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
    /// Whether the block is in the shared store.
    pub(super) shared: bool,
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
    /// The block of this bucket that is known to be in force.
    pub(super) fn block(&self, bucket: u128, now: Timestamp) -> Option<Block> {
        let set = self.sets.get()?[place(bucket)].lock();
        let entry = set.iter().find(|entry| entry.bucket == bucket)?;
        entry.block.filter(|block| block.until > now)
    }

    /// Counts a refusal; returns whether the key is to be blocked now. It is then counted from the
    /// beginning.
    pub(super) fn refused(&self, bucket: u128, penalty: Penalty, now: Timestamp) -> bool {
        let mut set = self.set(bucket).lock();
        let Some(entry) = room(&mut set, bucket, now) else {
            self.uncounted.fetch_add(1, Ordering::Relaxed);
            return false;
        };
        if entry.bucket != bucket || entry.until <= now || entry.block.is_some() {
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

    /// Remembers a block.
    pub(super) fn put(&self, bucket: u128, block: Block, now: Timestamp) {
        let mut set = self.set(bucket).lock();
        if let Some(entry) = room(&mut set, bucket, now) {
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

    /// Has the store asked about every block that is kept there.
    pub(super) fn ask_again(&self) {
        for set in self.sets.get().into_iter().flatten() {
            for entry in set.lock().iter_mut() {
                if entry.block.is_some_and(|block| block.shared) {
                    *entry = Entry::default();
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

/// The entry of a key, or the one that makes room for it; `None`: there are only blocks in force.
fn room(set: &mut Set, bucket: u128, now: Timestamp) -> Option<&mut Entry> {
    if let Some(known) = set.iter().position(|entry| entry.bucket == bucket) {
        return set.get_mut(known);
    }
    let worth = |entry: &Entry| match entry.until <= now {
        true => (0, Timestamp::default()),
        false => (entry.refusals.max(1), entry.until),
    };
    set.iter_mut()
        .filter(|entry| entry.block.is_none() || entry.until <= now)
        .min_by_key(|entry| worth(entry))
}

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
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
    const PENALTY: Penalty = Penalty {
        refusals: 3,
        span: Micros::from_secs(60),
        block: Micros::from_secs(600),
    };

    fn at(seconds: u64) -> Timestamp {
        START.after(Micros::from_secs(seconds))
    }

    fn block(until: Timestamp, shared: bool) -> Block {
        Block {
            until,
            admits: until,
            ask_again: until,
            shared,
        }
    }

    /// A key of set 1.
    fn key(number: u128) -> u128 {
        1 + (number + 1) * SETS as u128
    }

    #[test]
    fn refusals_are_counted_within_a_span_from_the_first() {
        let penalties = Penalties::default();
        assert!(!penalties.refused(7, PENALTY, at(0)));
        assert!(!penalties.refused(7, PENALTY, at(59)));
        // The span is over: these are the first two of another one.
        assert!(!penalties.refused(7, PENALTY, at(60)));
        assert!(!penalties.refused(7, PENALTY, at(61)));
        assert!(!penalties.refused(8, PENALTY, at(62)), "another key");
        assert!(penalties.refused(7, PENALTY, at(119)));
        assert!(
            !penalties.refused(7, PENALTY, at(119)),
            "from the beginning"
        );
    }

    #[test]
    fn a_block_is_known_until_its_end_and_then_counted_from_the_beginning() {
        let penalties = Penalties::default();
        assert_eq!(penalties.block(7, at(0)), None);
        let known = block(at(600), false);
        penalties.put(7, known, at(0));
        assert_eq!(penalties.block(7, at(599)), Some(known));
        assert_eq!(penalties.block(7, at(600)), None);
        assert!(!penalties.refused(7, PENALTY, at(600)));
        penalties.put(7, known, at(0));
        penalties.forget(7);
        assert_eq!(penalties.block(7, at(0)), None);
        penalties.put(7, known, at(0));
        penalties.put(8, block(at(600), true), at(0));
        penalties.ask_again();
        assert_eq!(penalties.block(7, at(1)), Some(known), "only here");
        assert_eq!(penalties.block(8, at(1)), None);
    }

    #[test]
    fn a_flood_of_keys_displaces_no_key_with_more_refusals_and_no_block() {
        let penalties = Penalties::default();
        let known = block(at(600), false);
        penalties.put(key(0), known, at(0));
        penalties.refused(key(1), PENALTY, at(0));
        penalties.refused(key(1), PENALTY, at(0));
        for number in 2..1_000 {
            assert!(!penalties.refused(key(number), PENALTY, at(1)));
        }
        assert_eq!(penalties.block(key(0), at(1)), Some(known));
        assert!(penalties.refused(key(1), PENALTY, at(1)), "its third");
        assert_eq!(penalties.counts().uncounted, 0);
    }

    #[test]
    fn a_set_of_blocks_counts_no_further_key_and_says_so() {
        let penalties = Penalties::default();
        for number in 0..8 {
            penalties.put(key(number), block(at(600), false), at(0));
        }
        for _ in 0..5 {
            assert!(!penalties.refused(key(8), PENALTY, at(1)));
        }
        assert_eq!(penalties.counts().uncounted, 5);
        // When they have ended there is room again.
        assert!(!penalties.refused(key(8), PENALTY, at(600)));
        assert_eq!(penalties.counts().uncounted, 5);
    }

    #[test]
    fn imposed_blocks_wait_in_a_bounded_list() {
        let penalties = Penalties::default();
        let limit = Limit {
            penalty: Some(PENALTY),
            ..tollgate_limit::fixtures::per_minute("each", 1, 1)
        };
        for _ in 0..NEWS_MAX + 3 {
            penalties.record(&limit, b"k", at(0), at(600));
        }
        assert_eq!(penalties.take().len(), NEWS_MAX);
        let counts = penalties.counts();
        assert_eq!((counts.imposed, counts.untold), (NEWS_MAX as u64 + 3, 3));
        assert!(penalties.take().is_empty());
    }
}
