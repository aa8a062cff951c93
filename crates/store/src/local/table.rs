//! One limit's buckets: small shards under locks, bounded, with a floor for each shard.
//!
//! A shard has [`SHARD_PLACES`] places. A bucket that is full again is a free place. If
//! none is free, the bucket that is full soonest is forgotten, and its debt is joined into the
//! shard's *floor*: from then on a key unknown to the shard starts at the floor. The join is
//! pessimistic in every component, so the floor owes at least as much as any bucket the shard ever
//! forgot, and a returning key never has more units than it left with. The cost is rare early
//! refusals while a shard overflows; they are counted.
//!
//! *Time differs between threads*: a request is dated at its arrival, and its thread may have been
//! delayed since. So a full bucket counts as forgotten only [`LATE`] after it filled up; until then
//! its place is given away like one in debt.
//!
//! A limit whose tiers have numbers of their own has one table for all of them, because a bucket is
//! identified by its limit's name and its caller. So have callers with an override. All of them draw
//! by the rule of [`tollgate_limit::kept`].

mod moving;
mod shard;
mod slot;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};

use tollgate_limit::sliding_log::Entry;
use tollgate_limit::{Algorithm, Claim, Limit, Micros, Mode, Standing, Timestamp};

use super::Tally;
use super::bucket::Bucket;
use shard::SHARD_PLACES;
pub(super) use shard::Shard;
pub(super) use slot::Slot;

type Chunk = Box<[Mutex<Shard>]>;

#[derive(Debug)]
pub(super) struct Table {
    /// Locks are taken in this order, so that draws cannot deadlock.
    pub(super) order: u64,
    /// The limit's own numbers first, then its tiers': all of rates, or all of places.
    numbers: Box<[Numbers]>,
    /// Those of token buckets that a reload has replaced, in which buckets are kept until their next
    /// grant. They have the indices after the others.
    replaced: Vec<Replaced>,
    /// Created when first touched, so that an idle limit uses almost no memory.
    chunks: Box<[OnceLock<Chunk>]>,
    chunk: usize,
    /// The state of a key that was never seen (`cold_start = "empty"`).
    birth: OnceLock<Bucket>,
    counts: Counts,
    successor: OnceLock<Arc<Self>>,
}

/// One set of numbers that buckets are drawn under.
#[derive(Clone, Debug)]
pub(super) struct Numbers {
    /// The tier of these numbers; `None`: callers without a tier.
    pub(super) tier: Option<Arc<str>>,
    pub(super) algorithm: Algorithm,
}

/// Numbers that the table has no longer.
#[derive(Debug)]
struct Replaced {
    /// The index of those that have taken their place.
    variant: u16,
    own: Arc<Algorithm>,
}

/// Counts what a table does to stay within its memory.
#[derive(Debug, Default)]
struct Counts {
    evictions: AtomicU64,
    inherited_refusals: AtomicU64,
}

impl Table {
    /// A table in which every bucket is full. `limits`: the limit first, then its tiers.
    pub(super) fn new(limits: &[&Limit]) -> Self {
        let memory = limits.iter().map(|limit| limit.memory).max();
        let logs = limits.iter().map(|limit| log_size(&limit.algorithm)).max();
        let logs = SHARD_PLACES.saturating_mul(logs.unwrap_or_default());
        let shard = size_of::<Mutex<Shard>>().saturating_add(logs);
        let shards = (memory.unwrap_or_default() / shard).max(1);
        let chunk = shards.min(CHUNK_SHARDS);
        let numbers = limits.iter().map(|limit| Numbers {
            tier: limit.tier.clone(),
            algorithm: limit.algorithm.clone(),
        });
        Self {
            order: NEXT_ORDER.fetch_add(1, Ordering::Relaxed),
            numbers: numbers.collect(),
            replaced: Vec::new(),
            chunks: (0..shards / chunk).map(|_| OnceLock::new()).collect(),
            chunk,
            birth: OnceLock::new(),
            counts: Counts::default(),
            successor: OnceLock::new(),
        }
    }

    /// Notes that buckets come into the table which are kept in `own`, before the first of them comes:
    /// then they need no boxes. `variant`: the index of the numbers that take their place.
    pub(super) fn replace(&mut self, variant: u16, own: &Arc<Algorithm>) {
        let is_kept =
            matches!(**own, Algorithm::TokenBucket(_)) && **own != *self.algorithm(variant);
        if is_kept && self.replaced.len() < REPLACED_MAX {
            let own = Arc::clone(own);
            self.replaced.push(Replaced { variant, own });
        }
    }

    pub(super) fn room(&self) -> u64 {
        (self.shards() * SHARD_PLACES) as u64
    }

    pub(super) fn algorithm(&self, variant: u16) -> &Algorithm {
        &self.numbers[usize::from(variant)].algorithm
    }

    pub(super) fn numbers(&self) -> &[Numbers] {
        &self.numbers
    }

    /// The index of a tier's numbers; the limit's own if it has none.
    pub(super) fn variant_of(&self, tier: Option<&str>) -> u16 {
        let mut variants = self.numbers.iter();
        let variant = variants.position(|numbers| numbers.tier.as_deref() == tier);
        variant
            .and_then(|variant| u16::try_from(variant).ok())
            .unwrap_or_default()
    }

    pub(super) fn tally(&self) -> Tally {
        Tally {
            evictions: self.counts.evictions.load(Ordering::Relaxed),
            inherited_refusals: self.counts.inherited_refusals.load(Ordering::Relaxed),
        }
    }

    /// The table that took over, after buckets have moved.
    pub(super) fn successor(&self) -> &Arc<Self> {
        let successor = self.successor.get();
        successor.expect("a table names its successor before a bucket moves")
    }

    pub(super) fn latest(self: &Arc<Self>) -> &Arc<Self> {
        let mut table = self;
        while let Some(successor) = table.successor.get() {
            table = successor;
        }
        table
    }

    /// Draws from a single bucket; `None`: it has moved to the successor.
    pub(super) fn draw(&self, tag: u64, claim: &Claim<'_>, now: Timestamp) -> Option<Standing> {
        let mut shard = self.lock(self.index(tag))?;
        let mut slot = Slot::new(self, &shard, tag, claim.limit, claim.conditions);
        let verdict = slot.judge(&shard, claim.cost, now);
        slot.commit(&mut shard, now);
        Some(Standing::new(verdict, slot.report(&shard, now)))
    }

    /// The shard at `index`; `None`: it has moved to the successor.
    pub(super) fn lock(&self, index: usize) -> Option<MutexGuard<'_, Shard>> {
        let shard = self.shard(index)?.lock();
        (!shard.is_moved()).then_some(shard)
    }

    /// The index of the shard that a tag belongs to: by its high bits.
    pub(super) fn index(&self, tag: u64) -> usize {
        place(tag, self.shards())
    }

    /// The index of the numbers with the largest burst.
    pub(super) fn widest(&self) -> u16 {
        let indices = 0..u16::try_from(self.numbers.len()).unwrap_or(u16::MAX);
        let widest = indices.max_by_key(|variant| self.algorithm(*variant).burst());
        widest.unwrap_or_default()
    }

    /// A bucket in the table's numbers at an index; `None`: full.
    fn in_its_numbers(&self, bucket: &Bucket, variant: u16, now: Timestamp) -> Option<Bucket> {
        if bucket.variant == variant && bucket.own.is_none() {
            return Some(bucket.clone());
        }
        let own = self.algorithm(variant);
        // What was used has no scale.
        let Algorithm::TokenBucket(_) = own else {
            return Some(Bucket::new(bucket.state.clone(), variant));
        };
        // As the latest thread sees it, for which it may not be full yet.
        let kept = bucket.kept(self.algorithm(bucket.variant));
        let kept = kept.under(own, now.before(LATE));
        let bucket = Bucket::new(kept.state()?.clone(), variant);
        Some(bucket.of_largest(kept.largest(), own))
    }

    /// A bucket that owes as much as either and is forgotten no earlier, in the table's numbers.
    fn join(&self, one: &Bucket, other: &Bucket, now: Timestamp) -> Bucket {
        let variant = one.variant;
        match [one, other].map(|bucket| self.in_its_numbers(bucket, variant, now)) {
            [Some(one), Some(other)] => Bucket {
                largest: one.largest.max(other.largest),
                ..Bucket::new(
                    self.algorithm(variant).join(&one.state, &other.state),
                    variant,
                )
            },
            [Some(owing), None] | [None, Some(owing)] => owing,
            [None, None] => one.clone(),
        }
    }

    /// The shard at `index`; `None`: its chunk has moved before it was touched.
    fn shard(&self, index: usize) -> Option<&Mutex<Shard>> {
        let shards = || (0..self.chunk).map(|_| Mutex::default()).collect();
        self.chunks[index / self.chunk]
            .get_or_init(shards)
            .get(index % self.chunk)
    }

    fn shards(&self) -> usize {
        self.chunks.len() * self.chunk
    }
}

/// The memory that a bucket needs beside its place: the grants that a log can contain.
fn log_size(algorithm: &Algorithm) -> usize {
    let Algorithm::SlidingLog(log) = algorithm else {
        return 0;
    };
    // Its own quota, and with `max_wait` as much again for promised grants.
    let entries = usize::try_from(log.quota().amount.saturating_mul(2)).unwrap_or(usize::MAX);
    (size_of::<Option<Box<Bucket>>>() + size_of::<Bucket>())
        .saturating_add(entries.saturating_mul(size_of::<Entry>()))
}

/// The position of `tag` among `places`: the high bits, by multiplication.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "less than the number of places"
)]
fn place(tag: u64, places: usize) -> usize {
    ((u128::from(tag) * places as u128) >> 64) as usize
}

/// The first and last tag that [`place`] puts at `index`.
#[expect(
    clippy::cast_possible_truncation,
    reason = "below 2^64 for an index below the number of places"
)]
fn span(index: usize, places: usize) -> (u64, u64) {
    let (index, places) = (index as u128, places as u128);
    (
        (index << 64).div_ceil(places) as u64,
        (((index + 1) << 64).div_ceil(places) - 1) as u64,
    )
}

/// The largest age of a request at its draw, counted from its arrival.
pub(super) const LATE: Micros = Micros::from_secs(1);

/// The most sets of numbers that have been replaced: more reloads than pass while a bucket fills.
pub(super) const REPLACED_MAX: usize = 64;

/// The most shards created at once.
const CHUNK_SHARDS: usize = 16;

static NEXT_ORDER: AtomicU64 = AtomicU64::new(0);

/// Whether two limits draw from the same buckets. An unlimited tier draws from none.
pub(super) fn share_table(a: &Limit, b: &Limit) -> bool {
    let drawn = a.mode == b.mode || (a.mode != Mode::Off && b.mode != Mode::Off);
    a.name == b.name && a.role == b.role && drawn && a.algorithm.has_buckets_of(&b.algorithm)
}

/// The limits that share a table with `limit`, in the order of `limits`; at least `limit`.
pub(super) fn family_of<'l>(limit: &'l Limit, limits: &'l [Arc<Limit>]) -> Vec<&'l Limit> {
    let shares = |other: &&Limit| share_table(limit, other);
    let family: Vec<&Limit> = limits.iter().map(|other| &**other).filter(shares).collect();
    if family.is_empty() {
        vec![limit]
    } else {
        family
    }
}

/// A table for each of `limits`, sorted by name; `make` creates one for each family.
pub(super) fn family_tables(
    limits: &[Arc<Limit>],
    mut make: impl FnMut(&[&Limit]) -> Arc<Table>,
) -> Box<[Arc<Table>]> {
    let mut tables: Vec<Arc<Table>> = Vec::with_capacity(limits.len());
    for named in limits.chunk_by(|one, next| one.name == next.name) {
        let first = tables.len();
        for (place, limit) in named.iter().enumerate() {
            let elder = named[..place]
                .iter()
                .position(|elder| share_table(elder, limit));
            let table = match elder {
                Some(elder) => Arc::clone(&tables[first + elder]),
                None => make(&family_of(limit, named)),
            };
            tables.push(table);
        }
    }
    tables.into()
}
