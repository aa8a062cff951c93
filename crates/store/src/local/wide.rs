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

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};

use tollgate_limit::bucket::{Next, Report, State};
use tollgate_limit::sliding_log::Entry;
use tollgate_limit::{
    Algorithm, Change, Claim, Conditions, Kept, Limit, Standing, Timestamp, Verdict,
};

use super::Tally;
use super::packed::{LATE, place, span};
use super::table::{Moving, Table, Whose};

/// Shards that are created together.
type Chunk = Box<[Mutex<Shard>]>;

/// The buckets of one limit.
#[derive(Debug)]
pub(crate) struct WideTable {
    /// The limit's own numbers first, then those of its tiers.
    numbers: Box<[Numbers]>,
    /// Created when first touched, so that an idle limit uses almost no memory.
    chunks: Box<[OnceLock<Chunk>]>,
    /// Shards in each chunk.
    chunk: usize,
    /// The state of a key that was never seen (`cold_start = "empty"`).
    birth: OnceLock<Bucket>,
    successor: OnceLock<Arc<Table>>,
    evictions: AtomicU64,
    inherited_refusals: AtomicU64,
}

/// One set of numbers that buckets are drawn under.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    /// The tier of these numbers; `None`: callers without a tier.
    pub(crate) tier: Option<Arc<str>>,
    pub(crate) algorithm: Algorithm,
}

impl Numbers {
    /// Those of `limit`.
    pub(crate) fn of(limit: &Limit) -> Self {
        Self {
            tier: limit.tier.clone(),
            algorithm: limit.algorithm.clone(),
        }
    }
}

/// A few buckets under one lock.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    tags: Vec<u64>,
    buckets: Vec<Option<Bucket>>,
    floor: Option<Bucket>,
    moved: bool,
}

/// The state of a bucket, and what it remembers of other numbers ([`Kept::beyond`]).
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    state: State,
    beyond: u64,
    /// The numbers of its last draw, by index.
    by: u16,
    /// Those numbers, if a reload has changed them since. The bucket is kept in them, as in a
    /// shared store.
    own: Option<Arc<Algorithm>>,
}

impl Bucket {
    fn moving(self, whose: Whose) -> Moving {
        Moving {
            whose,
            state: self.state,
            beyond: self.beyond,
            by: self.by,
            own: self.own,
        }
    }
}

impl WideTable {
    /// A table of at most `memory` bytes for buckets drawn under any of `numbers`, which are all of
    /// rates, or all of places in flight.
    pub(crate) fn new(numbers: Box<[Numbers]>, memory: usize) -> Self {
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
            successor: OnceLock::new(),
            evictions: AtomicU64::new(0),
            inherited_refusals: AtomicU64::new(0),
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

    /// Every set of numbers.
    pub(crate) fn numbers(&self) -> &[Numbers] {
        &self.numbers
    }

    /// The index of a tier's numbers; the limit's own if it has none.
    pub(crate) fn place_of(&self, tier: Option<&str>) -> u16 {
        let place = match &*self.numbers {
            [_] => None,
            several => several
                .iter()
                .position(|numbers| numbers.tier.as_deref() == tier),
        };
        place
            .and_then(|place| u16::try_from(place).ok())
            .unwrap_or_default()
    }

    /// `bucket` converted for a draw under the numbers at `by`; `None`: full.
    fn under(&self, bucket: &Bucket, by: u16, now: Timestamp) -> Option<Bucket> {
        let kept = self.kept(bucket).under(self.algorithm(by), now);
        Some(Bucket {
            state: kept.state()?.clone(),
            beyond: kept.beyond(),
            by,
            own: None,
        })
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
        Bucket {
            state,
            beyond: one.beyond.max(other.beyond),
            by: one.by,
            own: None,
        }
    }

    pub(crate) fn successor(&self) -> Option<&Arc<Table>> {
        self.successor.get()
    }

    pub(crate) fn tally(&self) -> Tally {
        Tally {
            evictions: self.evictions.load(Ordering::Relaxed),
            inherited_refusals: self.inherited_refusals.load(Ordering::Relaxed),
        }
    }

    /// Draws from a single bucket; `None`: it has moved.
    #[inline(never)]
    pub(crate) fn draw(&self, tag: u64, claim: &Claim<'_>, now: Timestamp) -> Option<Standing> {
        let by = self.place_of(claim.limit.tier.as_deref());
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

    /// Passes every bucket to `adopt` and redirects later draws to `successor`, shard by shard
    /// under the shard's lock. Draws through this table count until their shard has moved;
    /// afterwards they find their buckets in the successor.
    pub(crate) fn move_to(&self, successor: &Arc<Table>, adopt: impl Fn(Moving)) {
        // Set before the first shard is marked as moved, so that a thread that sees the mark finds
        // the successor.
        let set = self.successor.set(Arc::clone(successor));
        debug_assert!(set.is_ok(), "a table moves once, under the lock of moves");
        // Before any draw is redirected, because its key may be new there.
        if let Some(bucket) = self.birth.get() {
            adopt(bucket.clone().moving(Whose::Birth));
        }
        for (index, chunk) in self.chunks.iter().enumerate() {
            // An untouched chunk becomes an empty one, which means moved, without its shards being
            // created.
            for (offset, shard) in chunk.get_or_init(Box::default).iter().enumerate() {
                let mut shard = shard.lock();
                let Shard {
                    tags,
                    buckets,
                    floor,
                    moved,
                } = &mut *shard;
                for (tag, bucket) in tags.drain(..).zip(buckets.drain(..)) {
                    if let Some(bucket) = bucket {
                        adopt(bucket.moving(Whose::Bucket { tag }));
                    }
                }
                if let Some(bucket) = floor.take() {
                    let (first, last) = span(index * self.chunk + offset, self.shards());
                    adopt(bucket.moving(Whose::Floor { first, last }));
                }
                *moved = true;
            }
        }
    }

    /// Passes every bucket to `visit`, under its lock.
    pub(crate) fn visit(&self, visit: impl Fn(Moving)) {
        for (index, shards) in self
            .chunks
            .iter()
            .enumerate()
            .filter_map(|(index, chunk)| Some((index, chunk.get()?)))
        {
            for (offset, shard) in shards.iter().enumerate() {
                let shard = shard.lock();
                for (tag, bucket) in shard.tags.iter().zip(&shard.buckets) {
                    if let Some(bucket) = bucket {
                        visit(bucket.clone().moving(Whose::Bucket { tag: *tag }));
                    }
                }
                if let Some(bucket) = &shard.floor {
                    let (first, last) = span(index * self.chunk + offset, self.shards());
                    visit(bucket.clone().moving(Whose::Floor { first, last }));
                }
            }
        }
        if let Some(bucket) = self.birth.get() {
            visit(bucket.clone().moving(Whose::Birth));
        }
    }

    /// Takes over an item from a predecessor.
    pub(crate) fn adopt(&self, moving: Moving, now: Timestamp) {
        let Moving {
            whose,
            state,
            beyond,
            by,
            own,
        } = moving;
        let bucket = Bucket {
            state,
            beyond,
            by,
            own,
        };
        match whose {
            Whose::Bucket { tag } => {
                if let Some(mut slot) = self.lock(tag, by, None) {
                    slot.adopt(&bucket, now);
                }
            }
            Whose::Floor { first, last } => {
                for index in self.index(first)..=self.index(last) {
                    if let Some(shard) = self.shard(index) {
                        shard.lock().lift_floor(self, bucket.clone(), now);
                    }
                }
            }
            Whose::Birth => {
                let _ = self.birth.set(bucket);
            }
        }
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
            Some(bucket) => table
                .kept_in(bucket)
                .expiry_beyond(&bucket.state, bucket.beyond),
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

/// One bucket with its shard locked.
pub(crate) struct WideSlot<'t> {
    table: &'t WideTable,
    tag: u64,
    /// The numbers of the draw.
    by: u16,
    conditions: Option<&'t Conditions>,
    place: Option<usize>,
    shard: MutexGuard<'t, Shard>,
    next: Option<Next>,
}

impl<'t> WideSlot<'t> {
    /// The bucket's verdict; nothing is written before [`WideSlot::commit`].
    pub(crate) fn judge(&mut self, cost: u64, now: Timestamp) -> Verdict {
        let judged = self.conditioned().judge(
            self.bucket(now).as_deref().map(|bucket| &bucket.state),
            cost,
            now,
        );
        if self.place.is_none() && self.shard.floor.is_some() && judged.is_err() {
            self.table
                .inherited_refusals
                .fetch_add(1, Ordering::Relaxed);
        }
        let verdict = Verdict::from(&judged);
        self.next = judged.ok().map(|granted| granted.next).filter(|_| cost > 0);
        verdict
    }

    /// The bucket's numbers.
    pub(crate) fn report(&self, now: Timestamp) -> Report {
        self.conditioned()
            .report(self.bucket(now).as_deref().map(|bucket| &bucket.state), now)
    }

    /// Writes the result of [`WideSlot::judge`].
    pub(crate) fn commit(&mut self, now: Timestamp) {
        let Some(next) = self.next.take() else { return };
        let (mut state, beyond) = self.take(now);
        self.algorithm().apply(&mut state, next);
        self.put(
            state.map(|state| Bucket {
                state,
                beyond,
                by: self.by,
                own: None,
            }),
            now,
        );
    }

    fn algorithm(&self) -> &'t Algorithm {
        self.table.algorithm(self.by)
    }

    /// The numbers of the draw, under the upstream's conditions.
    fn conditioned(&self) -> Cow<'t, Algorithm> {
        self.algorithm().under(self.conditions)
    }

    /// Corrects an earlier grant, in the numbers the bucket is kept in, without clamping.
    pub(crate) fn settle(&mut self, change: Change, now: Timestamp) {
        let drawn = self.by;
        if let Some(bucket) = self.found(None).filter(|bucket| bucket.own.is_some()) {
            let (mut kept, by, own) = (self.table.kept(bucket), bucket.by, bucket.own.clone());
            kept.settle(&self.conditioned(), change, now);
            // A bucket that is full again takes the numbers of its draw.
            let own = own.filter(|own| **own == *kept.algorithm());
            let by = if own.is_some() { by } else { drawn };
            let bucket = kept.state().map(|state| Bucket {
                state: state.clone(),
                beyond: kept.beyond(),
                by,
                own,
            });
            self.put(bucket, now);
            return;
        }
        if self.table.numbers.len() > 1 {
            // A bucket that is full again takes the numbers of its draw.
            let kept = self.found(self.table.birth.get());
            let kept = kept.filter(|bucket| self.table.under(bucket, bucket.by, now).is_some());
            self.by = kept.map_or(drawn, |bucket| bucket.by);
        }
        let (mut state, mut beyond) = self.take(now);
        if beyond == 0 && self.by == drawn {
            self.conditioned().settle(&mut state, change, now);
        } else {
            let mut kept = Kept::from_parts(self.algorithm().clone(), state, beyond);
            let drawn = self.table.algorithm(drawn).under(self.conditions);
            kept.settle(&drawn, change, now);
            (state, beyond) = (kept.state().cloned(), kept.beyond());
        }
        self.put(
            state.map(|state| Bucket {
                state,
                beyond,
                by: self.by,
                own: None,
            }),
            now,
        );
    }

    fn adopt(&mut self, adopted: &Bucket, now: Timestamp) {
        // A key with a moved bucket is known, so it does not get the debt of a key that was never
        // seen.
        let bucket = match self.bucket_or(None, now) {
            Some(bucket) => self.table.join(&bucket, adopted, now),
            None => adopted.clone(),
        };
        self.put(Some(bucket), now);
    }

    /// The bucket at `now`, unless it equals no bucket.
    fn bucket(&self, now: Timestamp) -> Option<Cow<'_, Bucket>> {
        self.bucket_or(self.table.birth.get(), now)
    }

    /// The stored bucket, or the debt of an unknown key: the floor or `birth`, whichever numbers it
    /// is in.
    fn found<'s>(&'s self, birth: Option<&'s Bucket>) -> Option<&'s Bucket> {
        match self.place {
            Some(place) => self.shard.buckets[place].as_ref(),
            None => self.shard.floor.as_ref().or(birth),
        }
    }

    /// The same, converted to the numbers of the draw.
    fn bucket_or<'s>(
        &'s self,
        birth: Option<&'s Bucket>,
        now: Timestamp,
    ) -> Option<Cow<'s, Bucket>> {
        let bucket = match (self.place, &self.shard.floor, birth) {
            (None, Some(floor), Some(birth)) => Cow::Owned(self.table.join(floor, birth, now)),
            _ => Cow::Borrowed(self.found(birth)?),
        };
        if bucket.beyond == 0 && bucket.by == self.by && bucket.own.is_none() {
            return Some(bucket);
        }
        self.table.under(&bucket, self.by, now).map(Cow::Owned)
    }

    /// Takes the state and the remembered number out, to be changed and [`WideSlot::put`] back.
    fn take(&mut self, now: Timestamp) -> (Option<State>, u64) {
        let by = self.by;
        let plain =
            |bucket: &mut Bucket| bucket.beyond == 0 && bucket.by == by && bucket.own.is_none();
        let bucket = match self
            .place
            .and_then(|place| self.shard.buckets[place].take_if(plain))
        {
            Some(bucket) => Some(bucket),
            None => self.bucket(now).map(Cow::into_owned),
        };
        bucket.map_or((None, 0), |Bucket { state, beyond, .. }| {
            (Some(state), beyond)
        })
    }

    fn put(&mut self, bucket: Option<Bucket>, now: Timestamp) {
        if let Some(place) = self.place {
            self.shard.buckets[place] = bucket;
            return;
        }
        if bucket.is_none() {
            return;
        }
        let table = self.table;
        let shard = &mut *self.shard;
        if shard.tags.len() >= SHARD_ENTRIES
            && let Some((victim, expiry)) = shard.soonest_full(table)
        {
            // Another thread may still draw as of a moment at which the bucket was not full.
            if expiry.after(LATE) > now
                && let Some(forgotten) = shard.buckets[victim].take()
            {
                let owes = table
                    .kept_in(&forgotten)
                    .expiry(&forgotten.state)
                    .is_some_and(|expiry| expiry > now);
                table
                    .evictions
                    .fetch_add(u64::from(owes), Ordering::Relaxed);
                // The floor is in the table's numbers.
                let owed = match forgotten.own {
                    Some(_) => table.under(&forgotten, forgotten.by, now),
                    None => Some(forgotten),
                };
                if let Some(owed) = owed {
                    shard.lift_floor(table, owed, now);
                }
            }
            shard.tags[victim] = self.tag;
            shard.buckets[victim] = bucket;
            self.place = Some(victim);
            return;
        }
        shard.tags.push(self.tag);
        shard.buckets.push(bucket);
        self.place = Some(shard.tags.len() - 1);
    }
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

#[cfg(test)]
mod tests;
