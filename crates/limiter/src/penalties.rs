//! Which keys this gateway has refused of late, and which it blocks by penalties.
//!
//! The table has a fixed number of places, in sets of [`WAYS`]. A key's set follows from a keyed
//! hash, so no caller can choose it. Where a set is full, the key with the fewest refusals makes
//! room: a flood of keys with one refusal each does not displace a key with many. A block makes no
//! room before its end; a refusal that finds only blocks is not counted, and a metric says how many
//! were not. Nothing is allocated before the first refusal by a limit with a penalty.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use tollgate_limit::draw::longest_wait;
use tollgate_limit::{Claim, KeyBytes, Limit, Penalty, Placement, Timestamp};
use tollgate_store::HashKey;
use tollgate_store::clock::Clock;
use tollgate_store::local::Penalized;

use super::outcome::{Block, BlockCause, By, Outcomes};

/// The counts and blocks of all limits of a gateway, shared by the generations of its limiter.
#[derive(Debug)]
pub(super) struct Penalties {
    names: HashKey,
    sets: OnceLock<Box<[Mutex<Set>]>>,
    /// The last end of a block, in microseconds: from then on no key needs a look.
    last_end: AtomicU64,
    imposed: AtomicU64,
    uncounted: AtomicU64,
    news: Mutex<VecDeque<Imposed>>,
    untold: AtomicU64,
}

/// Each key under one limit.
type Set = [Penalized; WAYS];

/// A penalty that this gateway has imposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imposed {
    /// The name of the limit.
    pub limit: Arc<str>,
    /// Where the buckets of the limit are.
    pub placement: Placement,
    /// The key of the bucket.
    pub key: KeyBytes,
    /// The numbers of the penalty.
    pub penalty: Penalty,
    /// The moment at which the block began.
    pub since: Timestamp,
    /// The moment at which the block ends.
    pub until: Timestamp,
}

/// What the penalties of a gateway have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PenaltyCounts {
    /// Blocks that this gateway has imposed.
    pub imposed: u64,
    /// Refusals that found no room in the table and were not counted.
    pub uncounted: u64,
    /// Imposed blocks that [`Limiter::take_penalties`](super::Limiter::take_penalties) has lost, because too many waited.
    pub untold: u64,
}

impl Penalties {
    /// Keys are named by `names`.
    pub(super) fn new(names: HashKey) -> Self {
        Self {
            names,
            sets: OnceLock::new(),
            last_end: AtomicU64::new(0),
            imposed: AtomicU64::new(0),
            uncounted: AtomicU64::new(0),
            news: Mutex::default(),
            untold: AtomicU64::new(0),
        }
    }

    /// What is known of all keys, for a snapshot.
    pub(super) fn in_force(&self, now: Timestamp) -> Vec<Penalized> {
        let mut known = Vec::new();
        for set in self.sets.get().into_iter().flatten() {
            let set = set.lock();
            known.extend(set.iter().filter(|entry| entry.until > now));
        }
        known
    }

    /// Knows these keys again, if there is room.
    pub(super) fn restore(&self, known: &[Penalized], now: Timestamp) {
        for one in known.iter().filter(|one| one.until > now) {
            let mut set = self.set(one.bucket).lock();
            let Some(place) = room(&mut set, one.bucket, now) else {
                continue;
            };
            *place = *one;
            if one.admits.is_some() {
                self.last_end
                    .fetch_max(one.until.as_micros(), Ordering::Release);
            }
        }
    }

    /// Whether a key may be blocked.
    #[inline(always)]
    pub(super) fn may_block(&self, now: Timestamp) -> bool {
        self.last_end.load(Ordering::Acquire) > now.as_micros()
    }

    pub(super) fn block(&self, limit: &Limit, key: &[u8], now: Timestamp) -> Option<Block> {
        let sets = self.sets.get().filter(|_| self.may_block(now))?;
        let bucket = self.names.bucket(limit, key);
        let set = sets[place(bucket)].lock();
        let entry = set.iter().find(|entry| entry.bucket == bucket)?;
        block_of(entry, now)
    }

    /// Counts a request's refusals by its buckets, and blocks keys for them. It arrived at `at`.
    pub(super) fn count(
        &self,
        claims: &[Claim<'_>],
        outcomes: &mut Outcomes,
        clock: &Clock,
        at: Timestamp,
    ) {
        for (claim, outcome) in claims.iter().zip(&mut **outcomes) {
            // An outage of the store is not the caller's fault.
            let counts = outcome.refuses() && outcome.by == By::Bucket;
            let Some(penalty) = claim.limit.penalty.filter(|_| counts) else {
                continue;
            };
            let own = longest_wait([outcome.standing.verdict].into_iter());
            // The wait counts from the moment at which the store said it.
            let now = clock.now().max(at);
            let admits = now.after(own.unwrap_or_default());
            let block = self.refused(claim, penalty, admits, now);
            // A request that costs more than the limit can ever grant keeps that reason.
            let has_wait = own.is_some() || claim.limit.algorithm.holds_places();
            if let Some(block) = block.filter(|_| has_wait) {
                outcome.block_by(block, now);
            }
        }
    }

    /// Counts a refusal by the bucket of `claim`, which needs until `admits`; returns the block that
    /// is in force then. After it the key is counted from the beginning.
    pub(super) fn refused(
        &self,
        claim: &Claim<'_>,
        penalty: Penalty,
        admits: Timestamp,
        now: Timestamp,
    ) -> Option<Block> {
        let bucket = self.names.bucket(claim.limit, claim.key);
        let mut set = self.set(bucket).lock();
        let Some(entry) = room(&mut set, bucket, now) else {
            self.uncounted.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        if entry.bucket != bucket || entry.until <= now {
            *entry = Penalized {
                bucket,
                until: now.after(penalty.span),
                ..Penalized::default()
            };
        }
        if let Some(block) = block_of(entry, now) {
            // Another request was refused at the same time, and blocked the key.
            let admits = block.admits.max(admits);
            return Some(Block { admits, ..block });
        }
        entry.refusals = entry.refusals.saturating_add(1);
        if entry.refusals < penalty.refusals {
            return None;
        }
        let until = now.after(penalty.block);
        *entry = Penalized {
            bucket,
            until,
            refusals: 0,
            admits: Some(admits.max(until)),
        };
        let block = block_of(entry, now);
        drop(set);
        self.last_end
            .fetch_max(until.as_micros(), Ordering::Release);
        self.imposed.fetch_add(1, Ordering::Relaxed);
        let mut news = self.news.lock();
        if news.len() >= NEWS_MAX {
            self.untold.fetch_add(1, Ordering::Relaxed);
            return block;
        }
        news.push_back(Imposed {
            limit: Arc::clone(&claim.limit.name),
            placement: claim.limit.placement,
            key: KeyBytes::from_slice(claim.key),
            penalty,
            since: now,
            until,
        });
        block
    }

    pub(super) fn lift(&self, limit: &Limit, key: &[u8], now: Timestamp) -> bool {
        let bucket = self.names.bucket(limit, key);
        let Some(sets) = self.sets.get() else {
            return false;
        };
        let mut set = sets[place(bucket)].lock();
        let known = set.iter_mut().find(|entry| entry.bucket == bucket);
        let known = known.map(std::mem::take);
        known.is_some_and(|entry| block_of(&entry, now).is_some())
    }

    /// The blocks that were imposed since the last call.
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
        let make = || (0..SETS).map(|_| Mutex::default()).collect();
        let sets = self.sets.get_or_init(make);
        &sets[place(bucket)]
    }
}

/// The block that is in force.
fn block_of(entry: &Penalized, now: Timestamp) -> Option<Block> {
    let admits = entry.admits.filter(|_| entry.until > now)?;
    Some(Block {
        cause: BlockCause::Penalty,
        until: entry.until,
        admits,
    })
}

/// The entry of a key, or the one with the least to lose; `None`: all are blocks of other keys.
fn room(set: &mut Set, bucket: u128, now: Timestamp) -> Option<&mut Penalized> {
    if let Some(known) = set.iter().position(|entry| entry.bucket == bucket) {
        return set.get_mut(known);
    }
    let others = set.iter_mut();
    let others = others.filter(|entry| block_of(entry, now).is_none());
    others.min_by_key(|entry| {
        let is_counted = entry.until > now;
        (is_counted, entry.refusals, entry.until)
    })
}

/// The set of a key: the low bits of its hash.
fn place(bucket: u128) -> usize {
    bucket as usize % SETS
}

const WAYS: usize = 8;

/// Sets of the table: 65,536 keys.
const SETS: usize = 8_192;

/// The bytes of the table, which all limits with a penalty share.
pub const PENALTY_TABLE: usize = SETS * size_of::<Mutex<Set>>();

/// Imposed blocks that wait until they are reported.
const NEWS_MAX: usize = 1_024;

#[cfg(test)]
mod tests;
