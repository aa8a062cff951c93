//! Buckets whose state does not fit in a word: small shards under locks, bounded, with a floor per
//! shard.
//!
//! A shard holds at most [`SHARD_ENTRIES`] buckets. A bucket that is full again is a free entry. If
//! none is free, the bucket that is full soonest is forgotten, and its debt is joined into the
//! shard's *floor*: from then on a key unknown to the shard starts at the floor. The join is
//! pessimistic in every component, so the floor owes at least as much as any bucket the shard ever
//! forgot, and a returning key never has more units than it left with. The cost is rare early
//! refusals while a shard overflows; they are counted.
//!
//! A bucket that a reload has clamped to a smaller burst or window remembers the larger one until
//! it would be full at that ([`tollgate_limit::Kept`]); only then is its entry free.
//!
//! A limit whose tiers have numbers of their own has one table for all of them, because a bucket is
//! identified by its limit's name and its caller. A bucket is kept in the numbers of its last draw.
//! A draw under other numbers converts it: no more units, clamped to their burst, the larger burst
//! remembered.

mod moving;
mod slot;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use tollgate_limit::sliding_log::Entry;
use tollgate_limit::{Algorithm, Claim, Conditions, Kept, Standing, Timestamp};

use super::bucket::Bucket;
use super::packed::place;
use super::table::{Counts, Numbers};
pub(crate) use slot::WideSlot;

/// Shards that are created together.
type Chunk = Box<[Mutex<Shard>]>;

/// The buckets of one limit.
#[derive(Debug)]
pub(crate) struct WideTable {
    /// The limit's own numbers first, then those of its tiers.
    numbers: Arc<[Numbers]>,
    /// Created when first touched, so that an idle limit uses almost no memory.
    chunks: Box<[OnceLock<Chunk>]>,
    /// Shards in each chunk.
    chunk: usize,
    /// The state of a key that was never seen (`cold_start = "empty"`).
    birth: OnceLock<Bucket>,
    pub(super) counts: Counts,
}

/// A few buckets under one lock.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    tags: Vec<u64>,
    buckets: Vec<Option<Bucket>>,
    floor: Option<Bucket>,
    moved: bool,
}

impl WideTable {
    /// A table of at most `memory` bytes for buckets drawn under any of `numbers`, which are all of
    /// rates, or all of places in flight.
    pub(crate) fn new(numbers: Arc<[Numbers]>, memory: usize) -> Self {
        let entry = numbers
            .iter()
            .map(|numbers| entry_size(&numbers.algorithm))
            .max()
            .unwrap_or(1);
        let shard = size_of::<Mutex<Shard>>().saturating_add(SHARD_ENTRIES.saturating_mul(entry));
        let shards = (memory / shard).max(1);
        let chunk = shards.min(CHUNK_SHARDS);
        Self {
            numbers,
            chunks: (0..shards / chunk).map(|_| OnceLock::new()).collect(),
            chunk,
            birth: OnceLock::new(),
            counts: Counts::default(),
        }
    }

    /// How many buckets it has room for.
    pub(crate) fn room(&self) -> u64 {
        (self.chunks.len() * self.chunk * SHARD_ENTRIES) as u64
    }

    /// The numbers at an index.
    pub(crate) fn algorithm(&self, by: u16) -> &Algorithm {
        &self.numbers[usize::from(by)].algorithm
    }

    /// `bucket` converted for a draw under the numbers at `by`; `None`: full.
    fn under(&self, bucket: &Bucket, by: u16, now: Timestamp) -> Option<Bucket> {
        let kept = self.kept(bucket).under(self.algorithm(by), now);
        Some(Bucket::new(kept.state()?.clone(), kept.beyond(), by))
    }

    /// The numbers a bucket is kept in.
    fn kept_in<'a>(&'a self, bucket: &'a Bucket) -> &'a Algorithm {
        bucket.own.as_deref().unwrap_or(self.algorithm(bucket.by))
    }

    fn kept(&self, bucket: &Bucket) -> Kept {
        Kept::from_parts(
            self.kept_in(bucket).clone(),
            Some(bucket.state.clone()),
            bucket.beyond,
        )
    }

    /// A bucket that owes and remembers at least as much as either, in the numbers of the first,
    /// which are the table's.
    fn join(&self, one: &Bucket, other: &Bucket, now: Timestamp) -> Bucket {
        let moved;
        let other = if one.by == other.by && other.own.is_none() {
            other
        } else {
            match self.under(other, one.by, now) {
                Some(bucket) => {
                    moved = bucket;
                    &moved
                }
                None => return one.clone(),
            }
        };
        let state = self.algorithm(one.by).join(&one.state, &other.state);
        Bucket::new(state, one.beyond.max(other.beyond), one.by)
    }

    /// Draws from a single bucket; `None`: it has moved.
    #[inline(never)]
    pub(crate) fn draw(
        &self,
        tag: u64,
        by: u16,
        claim: &Claim<'_>,
        now: Timestamp,
    ) -> Option<Standing> {
        let mut slot = self.lock(tag, by, claim.conditions)?;
        let verdict = slot.judge(claim.cost, now);
        slot.commit(now);
        Some(Standing::new(verdict, slot.report(now)))
    }

    /// The locked bucket of `tag`, for a draw under the numbers at `by`; `None` if it has moved to
    /// the successor.
    pub(crate) fn lock<'t>(
        &'t self,
        tag: u64,
        by: u16,
        conditions: Option<&'t Conditions>,
    ) -> Option<WideSlot<'t>> {
        let shard = self.shard(self.index(tag))?.lock();
        if shard.moved {
            return None;
        }
        let place = shard.tags.iter().position(|known| *known == tag);
        Some(WideSlot {
            table: self,
            tag,
            by,
            conditions,
            place,
            shard,
            next: None,
        })
    }

    /// The shard at `index`; `None` if it has moved.
    fn shard(&self, index: usize) -> Option<&Mutex<Shard>> {
        self.chunks[index / self.chunk]
            .get_or_init(|| new_chunk(self.chunk))
            .get(index % self.chunk)
    }

    fn shards(&self) -> usize {
        self.chunks.len() * self.chunk
    }

    fn index(&self, tag: u64) -> usize {
        place(tag, self.shards())
    }
}

impl Shard {
    /// The bucket that is full again soonest. A held place in a concurrency limit is never dropped,
    /// so there may be none: then the shard grows, by at most the number of requests in flight.
    fn soonest_full(&self, table: &WideTable) -> Option<(usize, Timestamp)> {
        let expiry = |bucket: &Option<Bucket>| match bucket {
            Some(bucket) => bucket.expiry(table.algorithm(bucket.by)),
            None => Some(Timestamp::default()),
        };
        let expiries = self.buckets.iter().map(expiry).enumerate();
        expiries
            .filter_map(|(place, expiry)| Some((place, expiry?)))
            .min_by_key(|(_, expiry)| *expiry)
    }

    fn lift_floor(&mut self, table: &WideTable, bucket: Bucket, now: Timestamp) {
        self.floor = Some(match self.floor.take() {
            Some(floor) => table.join(&floor, &bucket, now),
            None => bucket,
        });
    }
}

fn new_chunk(shards: usize) -> Box<[Mutex<Shard>]> {
    (0..shards).map(|_| Mutex::default()).collect()
}

/// The memory of one bucket: its tag, its state, and for a log the grants it can contain.
fn entry_size(algorithm: &Algorithm) -> usize {
    let log = match algorithm {
        // Its own quota, and with `max_wait` as much again for promised grants.
        Algorithm::SlidingLog(log) => {
            usize::try_from(log.quota().amount.saturating_mul(2)).unwrap_or(usize::MAX)
        }
        _ => 0,
    };
    (size_of::<u64>() + size_of::<Option<Bucket>>())
        .saturating_add(log.saturating_mul(size_of::<Entry>()))
}

/// Buckets under one lock: few enough to be searched in one or two cache lines, enough that a shard
/// overflows only long after the table is full on average.
const SHARD_ENTRIES: usize = 16;

/// The most shards created at once.
const CHUNK_SHARDS: usize = 64;
