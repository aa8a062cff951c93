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

use crate::limit::bucket::{Next, Report, State};
use crate::limit::sliding_log::Entry;
use crate::limit::{Algorithm, Change, Standing, Timestamp, Verdict};

use super::Tally;
use super::packed::{place, span};
use super::table::{Moving, Table};

/// Shards made together.
type Chunk = Box<[Mutex<Shard>]>;

/// The buckets of one limit.
#[derive(Debug)]
pub(crate) struct WideTable {
    algorithm: Algorithm,
    /// Made when first touched, so that an idle limit costs next to nothing.
    chunks: Box<[OnceLock<Chunk>]>,
    /// Shards in each.
    chunk: usize,
    /// What a key nobody has seen stands at (`cold_start = "empty"`).
    birth: OnceLock<State>,
    successor: OnceLock<Arc<Table>>,
    evictions: AtomicU64,
    inherited_refusals: AtomicU64,
}

/// A few buckets under one lock.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    tags: Vec<u64>,
    states: Vec<Option<State>>,
    floor: Option<State>,
    moved: bool,
}

impl WideTable {
    pub(crate) fn new(algorithm: Algorithm, memory: usize) -> Self {
        let shard = size_of::<Mutex<Shard>>().saturating_add(SHARD_ENTRIES.saturating_mul(entry_size(&algorithm)));
        let shards = (memory / shard).max(1);
        let chunk = shards.min(CHUNK_SHARDS);
        Self {
            algorithm,
            chunks: (0..shards / chunk).map(|_| OnceLock::new()).collect(),
            chunk,
            birth: OnceLock::new(),
            successor: OnceLock::new(),
            evictions: AtomicU64::new(0),
            inherited_refusals: AtomicU64::new(0),
        }
    }

    pub(crate) fn algorithm(&self) -> &Algorithm {
        &self.algorithm
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

    /// Draws from one bucket; `None`: it has moved.
    #[inline(never)]
    pub(crate) fn draw(&self, tag: u64, cost: u64, now: Timestamp) -> Option<Standing> {
        let mut slot = self.lock(tag)?;
        let verdict = slot.judge(cost, now);
        slot.commit(now);
        Some(Standing::new(verdict, slot.report(now)))
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
    pub(crate) fn move_to(&self, successor: &Arc<Table>, adopt: impl Fn(Moving)) {
        // Set before the first shard says "moved", so that whoever reads that finds the successor.
        let _ = self.successor.set(Arc::clone(successor));
        for (index, chunk) in self.chunks.iter().enumerate() {
            // An untouched chunk becomes an empty one: moved, without ever having been made.
            for (offset, shard) in chunk.get_or_init(Box::default).iter().enumerate() {
                let mut shard = shard.lock();
                let Shard { tags, states, floor, moved } = &mut *shard;
                for (tag, state) in tags.drain(..).zip(states.drain(..)) {
                    if let Some(state) = state {
                        adopt(Moving::Bucket { tag, state });
                    }
                }
                if let Some(state) = floor.take() {
                    let (first, last) = span(index * self.chunk + offset, self.shards());
                    adopt(Moving::Floor { first, last, state });
                }
                *moved = true;
            }
        }
        if let Some(state) = self.birth.get() {
            adopt(Moving::Birth { state: state.clone() });
        }
    }

    /// Shows every bucket to `visit`, under its lock.
    pub(crate) fn visit(&self, visit: impl Fn(Moving)) {
        for (index, shards) in self.chunks.iter().enumerate().filter_map(|(index, chunk)| Some((index, chunk.get()?))) {
            for (offset, shard) in shards.iter().enumerate() {
                let shard = shard.lock();
                for (tag, state) in shard.tags.iter().zip(&shard.states) {
                    if let Some(state) = state {
                        visit(Moving::Bucket { tag: *tag, state: state.clone() });
                    }
                }
                if let Some(state) = &shard.floor {
                    let (first, last) = span(index * self.chunk + offset, self.shards());
                    visit(Moving::Floor { first, last, state: state.clone() });
                }
            }
        }
        if let Some(state) = self.birth.get() {
            visit(Moving::Birth { state: state.clone() });
        }
    }

    /// Takes over what a predecessor remembered.
    pub(crate) fn adopt(&self, moving: Moving, now: Timestamp) {
        match moving {
            Moving::Bucket { tag, state } => {
                if let Some(mut slot) = self.lock(tag) {
                    slot.adopt(state, now);
                }
            }
            Moving::Floor { first, last, state } => {
                for index in self.index(first)..=self.index(last) {
                    if let Some(shard) = self.shard(index) {
                        shard.lock().lift_floor(&self.algorithm, state.clone());
                    }
                }
            }
            Moving::Birth { state } => {
                let _ = self.birth.set(state);
            }
        }
    }

    /// The shard at `index`; `None` when it has moved.
    fn shard(&self, index: usize) -> Option<&Mutex<Shard>> {
        self.chunks[index / self.chunk].get_or_init(|| new_chunk(self.chunk)).get(index % self.chunk)
    }

    fn shards(&self) -> usize {
        self.chunks.len() * self.chunk
    }

    fn index(&self, tag: u64) -> usize {
        place(tag, self.shards())
    }
}

impl Shard {
    /// The bucket that is full again soonest. A place held in a concurrency limit is never given up, so there may be
    /// none: then the shard grows, by no more than there are requests in flight.
    fn soonest_full(&self, algorithm: &Algorithm) -> Option<(usize, Timestamp)> {
        let expiry = |state: &Option<State>| match state {
            Some(state) => algorithm.expiry(state),
            None => Some(Timestamp::default()),
        };
        let expiries = self.states.iter().map(expiry).enumerate();
        expiries.filter_map(|(place, expiry)| Some((place, expiry?))).min_by_key(|(_, expiry)| *expiry)
    }

    fn lift_floor(&mut self, algorithm: &Algorithm, state: State) {
        self.floor = Some(match self.floor.take() {
            Some(floor) => algorithm.join(&floor, &state),
            None => state,
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
    place: Option<usize>,
    shard: MutexGuard<'t, Shard>,
    next: Option<Next>,
}

impl WideSlot<'_> {
    /// The bucket's verdict; nothing is written before [`WideSlot::commit`].
    pub(crate) fn judge(&mut self, cost: u64, now: Timestamp) -> Verdict {
        let judged = self.table.algorithm.judge(self.state().as_deref(), cost, now);
        if self.place.is_none() && self.shard.floor.is_some() && judged.is_err() {
            self.table.inherited_refusals.fetch_add(1, Ordering::Relaxed);
        }
        let verdict = Verdict::from(&judged);
        self.next = judged.ok().map(|granted| granted.next).filter(|_| cost > 0);
        verdict
    }

    /// How the bucket stands.
    pub(crate) fn report(&self, now: Timestamp) -> Report {
        self.table.algorithm.report(self.state().as_deref(), now)
    }

    /// Writes what [`WideSlot::judge`] worked out.
    pub(crate) fn commit(&mut self, now: Timestamp) {
        let Some(next) = self.next.take() else { return };
        let mut state = self.take();
        self.table.algorithm.apply(&mut state, next);
        self.put(state, now);
    }

    /// Corrects an earlier grant.
    pub(crate) fn settle(&mut self, change: Change, now: Timestamp) {
        let mut state = self.take();
        self.table.algorithm.settle(&mut state, change, now);
        self.put(state, now);
    }

    fn adopt(&mut self, adopted: State, now: Timestamp) {
        let state = match self.take() {
            Some(state) => self.table.algorithm.join(&state, &adopted),
            None => adopted,
        };
        self.put(Some(state), now);
    }

    fn state(&self) -> Option<Cow<'_, State>> {
        match self.place {
            Some(place) => self.shard.states[place].as_ref().map(Cow::Borrowed),
            None => match (&self.shard.floor, self.table.birth.get()) {
                (Some(a), Some(b)) => Some(Cow::Owned(self.table.algorithm.join(a, b))),
                (floor, birth) => floor.as_ref().or(birth).map(Cow::Borrowed),
            },
        }
    }

    /// The state, to be changed and [`WideSlot::put`] back.
    fn take(&mut self) -> Option<State> {
        match self.place {
            Some(place) => self.shard.states[place].take(),
            None => self.state().map(Cow::into_owned),
        }
    }

    fn put(&mut self, state: Option<State>, now: Timestamp) {
        if let Some(place) = self.place {
            self.shard.states[place] = state;
            return;
        }
        let Some(state) = state else { return };
        let table = self.table;
        let shard = &mut *self.shard;
        if shard.tags.len() >= SHARD_ENTRIES
            && let Some((victim, expiry)) = shard.soonest_full(&table.algorithm)
        {
            if expiry > now
                && let Some(forgotten) = shard.states[victim].take()
            {
                shard.lift_floor(&table.algorithm, forgotten);
                table.evictions.fetch_add(1, Ordering::Relaxed);
            }
            shard.tags[victim] = self.tag;
            shard.states[victim] = Some(state);
            self.place = Some(victim);
            return;
        }
        shard.tags.push(self.tag);
        shard.states.push(Some(state));
        self.place = Some(shard.tags.len() - 1);
    }
}

/// What one bucket may occupy: its tag, its state, and for a log the grants it can come to hold.
fn entry_size(algorithm: &Algorithm) -> usize {
    let log = match algorithm {
        // Its own quota, and with `max_wait` as much again that is promised.
        Algorithm::SlidingLog(log) => usize::try_from(log.quota().amount.saturating_mul(2)).unwrap_or(usize::MAX),
        _ => 0,
    };
    (size_of::<u64>() + size_of::<Option<State>>()).saturating_add(log.saturating_mul(size_of::<Entry>()))
}

/// Buckets under one lock: few enough to be searched in a line or two, enough that a shard overflows long after the
/// table is full on average.
const SHARD_ENTRIES: usize = 16;

/// The most shards made at once.
const CHUNK_SHARDS: usize = 64;
