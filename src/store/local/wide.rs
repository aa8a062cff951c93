//! Buckets whose state does not pack into a word: small shards under locks, bounded, with a floor per shard.
//!
//! A shard holds at most [`SHARD_ENTRIES`] buckets. A bucket that is full again is a free place. When none is free the
//! bucket soonest full is forgotten, and what it owed is joined into the shard's *floor*: from then on a key the shard
//! does not know is taken to stand at the floor. The join is pessimistic in every component, so the floor owes at
//! least as much as any bucket the shard ever forgot; a key that comes back never has more than it left with. The
//! price is rare early refusals while a shard overflows, and it is counted.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};

use crate::limit::bucket::State;
use crate::limit::{Algorithm, Change, Standing, Timestamp, Verdict};

use super::Tally;
use super::interim;

/// The buckets of one limit.
#[derive(Debug)]
pub(crate) struct WideTable {
    algorithm: Algorithm,
    /// Made when first touched, so that an idle limit costs next to nothing.
    chunks: Box<[OnceLock<Box<[Mutex<Shard>]>>]>,
    /// What a key nobody has seen stands at (`cold_start = "empty"`).
    birth: Option<State>,
    successor: OnceLock<Arc<super::table::Table>>,
    evictions: AtomicU64,
    inherited_refusals: AtomicU64,
}

/// A few buckets under one lock.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    tags: Vec<u64>,
    states: Vec<State>,
    floor: Option<State>,
    moved: bool,
}

impl WideTable {
    pub(crate) fn new(algorithm: Algorithm, memory: usize, birth: Option<State>) -> Self {
        let shard = size_of::<Mutex<Shard>>() + SHARD_ENTRIES * (size_of::<u64>() + size_of::<State>());
        let chunks = (memory / (shard * CHUNK_SHARDS)).max(1);
        Self {
            algorithm,
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            birth,
            successor: OnceLock::new(),
            evictions: AtomicU64::new(0),
            inherited_refusals: AtomicU64::new(0),
        }
    }

    pub(crate) fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    pub(crate) fn successor(&self) -> Option<&Arc<super::table::Table>> {
        self.successor.get()
    }

    pub(crate) fn tally(&self) -> Tally {
        Tally {
            evictions: self.evictions.load(Ordering::Relaxed),
            inherited_refusals: self.inherited_refusals.load(Ordering::Relaxed),
        }
    }

    /// The locked bucket of `tag`, or `None` when it has moved to the successor.
    pub(crate) fn lock(&self, tag: u64) -> Option<WideSlot<'_>> {
        let shard = self.shard(self.index(tag))?.lock();
        if shard.moved {
            return None;
        }
        let place = shard.tags.iter().position(|known| *known == tag);
        Some(WideSlot { table: self, tag, place, shard, next: None })
    }

    /// Hands every bucket to `adopt` and sends later draws to `successor`, shard by shard under the shard's lock. Until
    /// a shard has moved, draws through this table still count; afterwards they find their buckets at the successor.
    pub(crate) fn move_to(&self, successor: &Arc<super::table::Table>, mut adopt: impl FnMut(Moving)) {
        // Set before the first shard says "moved", so that whoever reads that finds the successor.
        let _ = self.successor.set(Arc::clone(successor));
        let shards = (self.chunks.len() * CHUNK_SHARDS) as u128;
        for (index, chunk) in self.chunks.iter().enumerate() {
            // An untouched chunk becomes an empty one: moved, without ever having been made.
            for (offset, shard) in chunk.get_or_init(Box::default).iter().enumerate() {
                let mut shard = shard.lock();
                let Shard { tags, states, floor, moved } = &mut *shard;
                for (tag, state) in tags.drain(..).zip(states.drain(..)) {
                    adopt(Moving::Bucket { tag, state });
                }
                if let Some(state) = floor.take() {
                    let index = (index * CHUNK_SHARDS + offset) as u128;
                    let first = (index << 64).div_ceil(shards);
                    let last = ((index + 1) << 64).div_ceil(shards) - 1;
                    #[expect(clippy::cast_possible_truncation, reason = "index + 1 <= shards")]
                    adopt(Moving::Floor { first: first as u64, last: last as u64, state });
                }
                *moved = true;
            }
        }
    }

    /// Takes over what a predecessor remembered.
    pub(crate) fn adopt(&self, moving: Moving, now: Timestamp) {
        match moving {
            Moving::Bucket { tag, state } => {
                if let Some(mut slot) = self.lock(tag) {
                    slot.write(state, now);
                }
            }
            Moving::Floor { first, last, state } => {
                for index in self.index(first)..=self.index(last) {
                    if let Some(shard) = self.shard(index) {
                        shard.lock().lift_floor(&self.algorithm, state.clone());
                    }
                }
            }
        }
    }

    /// The shard at `index`; `None` when it has moved.
    fn shard(&self, index: usize) -> Option<&Mutex<Shard>> {
        self.chunks[index / CHUNK_SHARDS].get_or_init(new_chunk).get(index % CHUNK_SHARDS)
    }

    fn index(&self, tag: u64) -> usize {
        // The high bits pick the shard (multiply-shift), so that the tags of one shard still differ in the low ones.
        let shards = (self.chunks.len() * CHUNK_SHARDS) as u128;
        #[expect(clippy::cast_possible_truncation, reason = "less than the number of shards")]
        let index = ((u128::from(tag) * shards) >> 64) as usize;
        index
    }
}

impl Shard {
    /// The bucket that is full again soonest. A place held in a concurrency limit is never given up, so there may be
    /// none: then the shard grows, by no more than there are requests in flight.
    fn soonest_full(&self, algorithm: &Algorithm) -> Option<(usize, Timestamp)> {
        let expiries = self.states.iter().map(|state| interim::expiry(algorithm, state)).enumerate();
        expiries.filter_map(|(place, expiry)| Some((place, expiry?))).min_by_key(|(_, expiry)| *expiry)
    }

    fn lift_floor(&mut self, algorithm: &Algorithm, state: State) {
        self.floor = Some(match self.floor.take() {
            Some(floor) => interim::join(algorithm, &floor, &state),
            None => state,
        });
    }
}

fn new_chunk() -> Box<[Mutex<Shard>]> {
    (0..CHUNK_SHARDS).map(|_| Mutex::default()).collect()
}

/// What a table hands to its successor.
pub(crate) enum Moving {
    /// One bucket.
    Bucket {
        /// Its key's tag.
        tag: u64,
        /// How it stands.
        state: State,
    },
    /// What forgotten keys with tags from `first` to `last` may owe.
    Floor {
        /// The lowest tag.
        first: u64,
        /// The highest tag.
        last: u64,
        /// How the floor stands.
        state: State,
    },
}

/// One bucket with its shard locked.
pub(crate) struct WideSlot<'t> {
    table: &'t WideTable,
    tag: u64,
    place: Option<usize>,
    shard: MutexGuard<'t, Shard>,
    next: Option<State>,
}

impl WideSlot<'_> {
    /// The bucket's verdict; nothing is written before [`WideSlot::commit`].
    pub(crate) fn judge(&mut self, cost: u64, now: Timestamp) -> Standing {
        let algorithm = &self.table.algorithm;
        let state = self.state();
        let judged = interim::judge(algorithm, state.as_deref(), cost, now);
        let verdict = Verdict::from(&judged);
        let next = judged.ok().map(|granted| granted.next);
        let report = interim::report(algorithm, next.as_ref().or(state.as_deref()), now);
        if self.place.is_none() && self.shard.floor.is_some() && next.is_none() {
            self.table.inherited_refusals.fetch_add(1, Ordering::Relaxed);
        }
        self.next = next;
        Standing::new(verdict, report)
    }

    /// Writes what [`WideSlot::judge`] worked out.
    pub(crate) fn commit(&mut self, now: Timestamp) {
        if let Some(next) = self.next.take() {
            self.write(next, now);
        }
    }

    /// Corrects an earlier grant.
    pub(crate) fn settle(&mut self, change: Change, now: Timestamp) {
        let settled = interim::settle(&self.table.algorithm, self.state().as_deref(), change, now);
        match (settled, self.place.take()) {
            (Some(state), place) => {
                self.place = place;
                self.write(state, now);
            }
            // Full: equal to no bucket, unless the floor would be read in its place.
            (None, Some(place)) => {
                self.shard.tags.swap_remove(place);
                self.shard.states.swap_remove(place);
            }
            (None, None) => {}
        }
    }

    fn state(&self) -> Option<Cow<'_, State>> {
        match self.place {
            Some(place) => Some(Cow::Borrowed(&self.shard.states[place])),
            None => match (&self.shard.floor, &self.table.birth) {
                (Some(a), Some(b)) => Some(Cow::Owned(interim::join(&self.table.algorithm, a, b))),
                (floor, birth) => floor.as_ref().or(birth.as_ref()).map(Cow::Borrowed),
            },
        }
    }

    fn write(&mut self, state: State, now: Timestamp) {
        if let Some(place) = self.place {
            self.shard.states[place] = state;
            return;
        }
        let table = self.table;
        let shard = &mut *self.shard;
        if shard.tags.len() >= SHARD_ENTRIES
            && let Some((victim, expiry)) = shard.soonest_full(&table.algorithm)
        {
            if expiry > now {
                let forgotten = shard.states[victim].clone();
                shard.lift_floor(&table.algorithm, forgotten);
                table.evictions.fetch_add(1, Ordering::Relaxed);
            }
            shard.tags[victim] = self.tag;
            shard.states[victim] = state;
            self.place = Some(victim);
            return;
        }
        shard.tags.push(self.tag);
        shard.states.push(state);
        self.place = Some(shard.tags.len() - 1);
    }
}

/// Buckets under one lock: few enough to be searched in a line or two, enough that a shard overflows long after the
/// table is full on average.
const SHARD_ENTRIES: usize = 16;

/// Shards made at once.
const CHUNK_SHARDS: usize = 64;
