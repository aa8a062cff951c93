//! Leases of shared buckets, held by a gateway: a request that finds a leased unit here does not
//! ask the store.
//!
//! The arithmetic, and the proof that nothing is over-granted, is in [`tollgate_limit::lease`]. The
//! gateway's part: it uses a lease until its deadline and no longer ([`slot`]). It requests the
//! next lease before the last one is used up, as large as the grants during the last lease, so that
//! requests seldom wait, and one call renews the leases of many buckets. It returns the rest of a
//! lease at its end, and all leases when it stops, each once: the units of a return that is lost,
//! of a lease whose reply never comes, and of a gateway that dies count as used.
//!
//! A request on several limits first takes its leased units here, then asks the store for the rest,
//! and puts the units back unless it is granted: all or nothing, also in a cluster, where the
//! buckets may be on different servers. A lease that is returned meanwhile is returned without them,
//! and they follow. If there is no unit here, the request asks the store for all of its claims at once.
//! A cluster cannot do that, so there the request waits for a lease of as many units as requests wait for.

mod draw;
mod held;
mod slot;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use foldhash::fast::FixedState;
use parking_lot::{Mutex, RwLock};

pub(crate) use self::held::{Held, Pending};
pub use super::batch::LeaseCounters;
use super::batch::Wanted;
use super::wire_form::{Name, WireForm};
use crate::clock::Clock;
use tollgate_limit::lease::{Return, Terms};
use tollgate_limit::{Micros, Timestamp};

/// The number of locks over which the table is spread.
const SHARDS: usize = 16;
/// Buckets in one shard. Above this number requests ask the store. 16 x 1024 x about 250 bytes: 4 MiB.
const SHARD_MAX: usize = 1024;
/// A bucket with less demand than this during the life of a lease is not leased: a lease costs a call,
/// and another one if the demand ends.
const LEAST: u64 = 16;
/// How often the leases are checked for expired ones.
pub(crate) const SWEEP: Micros = Micros(10_000);

/// Names are hashes under a secret, so that no caller can choose which of them collide; and a seed of
/// `prove/fleet` visits them in one order.
type Shard = std::collections::HashMap<u128, Arc<Held>, FixedState>;

/// The leases of one gateway.
#[derive(Debug)]
pub(crate) struct Leases {
    clock: Clock,
    /// Whether buckets of one request may be on different servers.
    apart: bool,
    /// A bucket with less demand than this during the life of a lease is not leased.
    least: u64,
    /// How many gateways use the store, as far as is known.
    gateways: AtomicU32,
    shards: Vec<RwLock<Shard>>,
    /// Whether the gateway is stopping: a lease that arrives now is returned.
    closed: AtomicBool,
    tasks: Mutex<Vec<Errand>>,
    swept: AtomicU64,
    pub(crate) counters: LeaseCounters,
}

#[derive(Debug)]
pub(crate) enum Errand {
    Renew(Arc<Held>),
    Return(Returned),
}

impl Errand {
    pub(crate) fn name(&self) -> &Name {
        match self {
            Self::Renew(held) => &held.name,
            Self::Return(returned) => &returned.name,
        }
    }
}

/// A lease that is given back. It is sent once.
#[derive(Clone, Debug)]
pub(crate) struct Returned {
    pub(crate) name: Name,
    pub(crate) shape: Arc<WireForm>,
    pub(crate) back: Return,
    /// The store counts the lease until this moment at least, by the clock of leases.
    pub(crate) in_time: Timestamp,
}

impl Leases {
    pub(crate) fn new(clock: Clock, apart: bool) -> Self {
        Self {
            clock,
            apart,
            least: LEAST,
            gateways: AtomicU32::new(1),
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            closed: AtomicBool::new(false),
            tasks: Mutex::default(),
            swept: AtomicU64::new(0),
            counters: LeaseCounters::default(),
        }
    }

    /// Leases only buckets with at least this demand during the life of a lease; with less, a lease
    /// costs more than it saves.
    pub(crate) fn with_least(self, least: u64) -> Self {
        Self { least, ..self }
    }

    /// Sets how many gateways use the store.
    pub(crate) fn shared_by(&self, gateways: u32) {
        self.gateways.store(gateways, Ordering::Relaxed);
    }

    pub(crate) fn gateways(&self) -> u32 {
        self.gateways.load(Ordering::Relaxed)
    }

    /// The most units of one lease.
    fn share(&self, terms: &Terms) -> u64 {
        terms.share(self.gateways().into())
    }

    /// Whether leased units of the bucket that is `wanted` are held here.
    pub(crate) fn holds(&self, wanted: &Wanted) -> bool {
        let shard = self.shard(wanted.name.hash).read();
        let held = shard.get(&wanted.name.hash);
        held.is_some_and(|held| held.leases() > 0)
    }

    /// The entry for leases of the bucket that is `wanted`; `None`: it is not leased, or the table
    /// is full.
    fn held(&self, wanted: &Wanted) -> Option<Arc<Held>> {
        let terms = *wanted.shape.lease()?;
        let shard = self.shard(wanted.name.hash);
        if let Some(held) = shard.read().get(&wanted.name.hash)
            && Arc::ptr_eq(&held.shape, &wanted.shape)
        {
            return Some(held.clone());
        }
        let now = self.clock.boot();
        let mut shard = shard.write();
        if let Some(held) = shard.get(&wanted.name.hash) {
            if Arc::ptr_eq(&held.shape, &wanted.shape) {
                return Some(held.clone());
            }
            // The limit's numbers have changed. Leases under the old numbers are returned.
            self.retire(held);
        } else if shard.len() >= SHARD_MAX {
            shard.retain(|_, held| !held.is_idle(now));
            if shard.len() >= SHARD_MAX {
                return None;
            }
        }
        let held = Arc::new(Held::new(wanted.name, wanted.shape.clone(), terms, now));
        shard.insert(wanted.name.hash, held.clone());
        Some(held)
    }

    /// Returns the leases of the bucket with this name, whose key has an override.
    pub(crate) fn let_go(&self, hash: u128) {
        let shard = self.shard(hash);
        if shard.read().contains_key(&hash)
            && let Some(held) = shard.write().remove(&hash)
        {
            self.retire(&held);
        }
    }

    /// Returns all leases of an entry.
    fn retire(&self, held: &Held) {
        for returned in held.empty() {
            self.give_back(returned);
        }
    }

    fn give_back(&self, returned: Returned) {
        if self.clock.boot() >= returned.in_time {
            self.forfeit(returned.back.left);
            return;
        }
        self.counters
            .given_back
            .fetch_add(returned.back.left, Ordering::Relaxed);
        self.queue(Errand::Return(returned));
    }

    /// Queues a message that has not been sent.
    pub(crate) fn queue(&self, errand: Errand) {
        self.tasks.lock().push(errand);
    }

    /// Counts units that are lost until the store forgets them: their return got no response, or may
    /// have come too late.
    pub(crate) fn forfeit(&self, left: u64) {
        self.counters.forfeited.fetch_add(left, Ordering::Relaxed);
    }

    /// The store has responded to a call with a return.
    pub(crate) fn returned(&self, left: u64, in_time: Timestamp) {
        if self.clock.boot() >= in_time {
            self.forfeit(left);
        }
    }

    /// Nothing more is sent to the store: unsent returns are too late.
    pub(crate) fn forfeit_unsent(&self) {
        for errand in std::mem::take(&mut *self.tasks.lock()) {
            if let Errand::Return(returned) = errand {
                self.forfeit(returned.back.left);
            }
        }
    }

    /// Returns all leases: the gateway is stopping.
    pub(crate) fn give_all_back(&self) {
        self.closed.store(true, Ordering::Release);
        self.each(|held| self.retire(held));
        self.counters.out.store(0, Ordering::Relaxed);
    }

    fn each(&self, mut visit: impl FnMut(&Arc<Held>)) {
        for shard in &self.shards {
            shard.read().values().for_each(&mut visit);
        }
    }

    /// Whether there are leases to be managed.
    pub(crate) fn any(&self) -> bool {
        self.counters.out.load(Ordering::Relaxed) > 0
    }

    /// Checks for expired leases and returns their rest while the store still counts them. (A sweep
    /// at intervals is enough: no request takes units from a lease after its deadline.) If a lease is
    /// to be renewed, those of other buckets that are half used are renewed by the same call.
    fn sweep(&self) {
        let now = self.clock.boot();
        let due = self.swept.load(Ordering::Relaxed).saturating_add(SWEEP.0);
        if now.as_micros() < due || !self.any() {
            return;
        }
        self.swept.store(now.as_micros(), Ordering::Relaxed);
        let is_renewal = |errand: &Errand| matches!(errand, Errand::Renew(_));
        let renews = self.tasks.lock().iter().any(is_renewal);
        let mut out = 0;
        self.each(|held| {
            if held.leases() == 0 {
                return;
            }
            for returned in held.empty_ended(now) {
                self.give_back(returned);
            }
            if renews && held.is_half_used(now, self.least, self.share(&held.terms)) {
                held.renew(self);
            }
            out += held.leases();
        });
        self.counters.out.store(out, Ordering::Relaxed);
    }

    /// Messages for the server that `has` these buckets, at most `most`.
    pub(crate) fn tasks_of(&self, most: usize, has: impl Fn(&Name) -> bool) -> Vec<Errand> {
        self.sweep();
        let mut tasks = self.tasks.lock();
        let mut left = most;
        let taken = tasks.extract_if(.., |errand| {
            let taken = left > 0 && has(errand.name());
            left -= usize::from(taken);
            taken
        });
        taken.collect()
    }

    /// A lease has arrived. If no request waits for it, and the gateway is stopping or the bucket has
    /// another entry by now, it is returned.
    fn installed(&self, held: &Arc<Held>, units: u64, awaited: bool) {
        self.counters.leases.fetch_add(1, Ordering::Relaxed);
        self.counters.units.fetch_add(units, Ordering::Relaxed);
        self.counters.out.fetch_add(1, Ordering::Relaxed);
        if !awaited && (!self.is_current(held) || self.closed.load(Ordering::Acquire)) {
            self.retire(held);
        }
    }

    /// Whether the table has this entry, so that a sweep returns its leases.
    fn is_current(&self, held: &Arc<Held>) -> bool {
        let hash = held.name.hash;
        let shard = self.shard(hash).read();
        shard
            .get(&hash)
            .is_some_and(|current| Arc::ptr_eq(current, held))
    }

    fn shard(&self, hash: u128) -> &RwLock<Shard> {
        &self.shards[(hash as usize >> 7) % SHARDS]
    }
}
