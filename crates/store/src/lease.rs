//! Leases of shared buckets, held by a gateway: a request that finds a leased unit here does not
//! ask the store.
//!
//! The arithmetic, and the proof that nothing is over-granted, is in [`tollgate_limit::lease`]. The
//! gateway's part: it uses a lease until its deadline and no longer ([`slot`]). It requests the
//! next lease before the last one is used up, as large as the grants during the last lease, so that
//! requests seldom wait. It returns the rest of a lease at its end, and all leases when it stops.
//! If a gateway dies, its leases die with it, and the store forgets them when they expire.
//!
//! A request on several limits first takes its leased units here, then asks the store for the rest,
//! and puts the units back unless it is granted: all or nothing, also in a cluster, where the
//! buckets may be on different servers. A lease that ends meanwhile is returned after the units are
//! back in it ([`units_out`]). If there is no unit here, the request asks the store for all of its
//! claims at once. A cluster cannot do that, so there the request waits for a lease of as many
//! units as requests wait for.

mod draw;
mod units_out;
mod held;
mod slot;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use parking_lot::{Mutex, RwLock};

pub(crate) use self::held::{Held, Wishing};
use self::units_out::Leaving;
pub use super::batch::LeaseCounters;
use super::batch::Wanted;
use super::wire_form::{Name, WireForm};
use crate::clock::Clock;
use tollgate_limit::{Micros, Timestamp};

/// The number of locks over which the table is spread.
const SHARDS: usize = 16;
/// Buckets in one shard. Above this number requests ask the store. 16 x 1024 x about 250 bytes: 4
/// MiB.
const SHARD_MAX: usize = 1024;
/// How often the leases are checked for expired ones.
pub(crate) const SWEEP: Micros = Micros(10_000);

type Shard = std::collections::HashMap<u128, Arc<Held>, RandomState>;

/// The leases of one gateway.
#[derive(Debug)]
pub(crate) struct Leases {
    clock: Clock,
    /// Whether buckets of one request may be on different servers.
    apart: bool,
    /// A bucket with less demand than this during the life of a lease is not leased.
    least: u64,
    shards: Vec<RwLock<Shard>>,
    live: Mutex<Live>,
    tasks: Mutex<Vec<Errand>>,
    /// Returns that the store may not have received; the next sweep sends them again.
    unheard: Mutex<Vec<Return>>,
    swept: AtomicU64,
    pub(crate) counters: LeaseCounters,
}

#[derive(Debug, Default)]
struct Live {
    held: Vec<Arc<Held>>,
    /// The gateway is stopping: a lease that arrives now is returned.
    closed: bool,
}

#[derive(Debug)]
pub(crate) enum Errand {
    Wish(Arc<Held>),
    Return(Return),
}

impl Errand {
    pub(crate) fn name(&self) -> &Name {
        match self {
            Self::Wish(held) => held.name(),
            Self::Return(returned) => &returned.name,
        }
    }
}

/// The return of a lease. A repeated return counts once.
#[derive(Clone, Debug)]
pub(crate) struct Return {
    pub(crate) name: Name,
    pub(crate) shape: Arc<WireForm>,
    pub(crate) id: u64,
    /// The units left in it; `None`: all of them, if the lease exists.
    pub(crate) left: Option<u64>,
    /// The store counts the lease until this moment, by the clock of leases.
    pub(crate) until: Timestamp,
}

impl Return {
    /// The units left, as sent to the store: no lease has more.
    pub(crate) fn units(&self) -> u64 {
        self.left.unwrap_or(slot::LEFT_MAX)
    }
}

impl Leases {
    pub(crate) fn new(clock: Clock, apart: bool) -> Self {
        Self {
            clock,
            apart,
            least: 2,
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            live: Mutex::default(),
            tasks: Mutex::default(),
            unheard: Mutex::default(),
            swept: AtomicU64::new(0),
            counters: LeaseCounters::default(),
        }
    }

    #[cfg(test)]
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Leases only buckets with at least this demand during the life of a lease; with less, a lease
    /// costs more than it saves.
    pub(crate) fn with_least(self, least: u64) -> Self {
        Self { least, ..self }
    }

    /// Whether leased units of the bucket that is `wanted` are held here.
    pub(crate) fn holds(&self, wanted: &Wanted) -> bool {
        let shard = self.shards[(wanted.name.hash as usize >> 7) % SHARDS].read();
        shard
            .get(&wanted.name.hash)
            .is_some_and(|held| held.leases() > 0)
    }

    /// The entry for leases of the bucket that is `wanted`; `None`: it is not leased, or the table
    /// is full.
    fn held(&self, wanted: &Wanted) -> Option<Arc<Held>> {
        let terms = *wanted.shape.lease()?;
        let shard = &self.shards[(wanted.name.hash as usize >> 7) % SHARDS];
        if let Some(held) = shard.read().get(&wanted.name.hash)
            && Arc::ptr_eq(held.shape(), &wanted.shape)
        {
            return Some(held.clone());
        }
        let now = self.clock.boot();
        let mut shard = shard.write();
        if let Some(held) = shard.get(&wanted.name.hash) {
            if Arc::ptr_eq(held.shape(), &wanted.shape) {
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
        let shard = &self.shards[(hash as usize >> 7) % SHARDS];
        if shard.read().contains_key(&hash)
            && let Some(held) = shard.write().remove(&hash)
        {
            self.retire(&held);
        }
    }

    /// Returns all leases of an entry.
    fn retire(&self, held: &Held) {
        for leaving in held.empty() {
            self.give_back(held, leaving);
        }
    }

    fn give_back(&self, held: &Held, leaving: Leaving) {
        if self.clock.boot() >= leaving.until {
            self.counters
                .forfeited
                .fetch_add(leaving.left, Ordering::Relaxed);
            return;
        }
        self.counters
            .given_back
            .fetch_add(leaving.left, Ordering::Relaxed);
        self.tasks
            .lock()
            .push(Errand::Return(held.returning(leaving)));
    }

    /// Queues returns again that the store may not have received.
    pub(crate) fn again(&self, returns: impl IntoIterator<Item = Return>) {
        self.unheard.lock().extend(returns);
    }

    /// The store has responded to a call with these returns. It may have ignored those whose time
    /// was over by then.
    pub(crate) fn returned(&self, returns: impl IntoIterator<Item = Return>) {
        let now = self.clock.boot();
        self.forfeit(returns.into_iter().filter(|one| now >= one.until));
    }

    /// Nothing more is sent to the store: unsent returns are too late.
    pub(crate) fn forfeit_untold(&self) {
        self.forfeit(std::mem::take(&mut *self.unheard.lock()));
        let tasks = std::mem::take(&mut *self.tasks.lock());
        self.forfeit(tasks.into_iter().filter_map(|errand| match errand {
            Errand::Wish(_) => None,
            Errand::Return(returned) => Some(returned),
        }));
    }

    /// Counts the units that are lost with these leases until the store forgets them.
    fn forfeit(&self, returns: impl IntoIterator<Item = Return>) {
        let lost = returns.into_iter().filter_map(|one| one.left).sum();
        self.counters.forfeited.fetch_add(lost, Ordering::Relaxed);
    }

    /// Moves returns that must be sent again to the errands, as long as they matter.
    fn tell_again(&self, now: Timestamp) {
        let unheard = std::mem::take(&mut *self.unheard.lock());
        let (in_time, late): (Vec<_>, Vec<_>) =
            unheard.into_iter().partition(|one| now < one.until);
        self.forfeit(late);
        self.tasks
            .lock()
            .extend(in_time.into_iter().map(Errand::Return));
    }

    /// Returns all leases: the gateway is stopping.
    pub(crate) fn give_all_back(&self) {
        let live = {
            let mut live = self.live.lock();
            live.closed = true;
            std::mem::take(&mut live.held)
        };
        for held in live {
            for leaving in held.empty_at_once() {
                self.give_back(&held, leaving);
            }
        }
        self.tell_again(self.clock.boot());
        self.counters.out.store(0, Ordering::Relaxed);
    }

    /// Whether there are leases to be managed, or returns to be sent again.
    pub(crate) fn any(&self) -> bool {
        self.counters.out.load(Ordering::Relaxed) > 0 || !self.unheard.lock().is_empty()
    }

    /// Checks for expired leases and returns their rest while the store still counts them. (A sweep
    /// at intervals is enough: no request takes units from a lease after its deadline.)
    fn sweep(&self) {
        let now = self.clock.boot();
        let due = self.swept.load(Ordering::Relaxed).saturating_add(SWEEP.0);
        if now.as_micros() < due || !self.any() {
            return;
        }
        self.swept.store(now.as_micros(), Ordering::Relaxed);
        self.tell_again(now);
        let (mut live, mut out) = (self.live.lock(), 0);
        live.held.retain(|held| {
            for leaving in held.empty_ended(now) {
                self.give_back(held, leaving);
            }
            let leases = held.count_or_unlist();
            out += leases;
            leases > 0
        });
        self.counters.out.store(out, Ordering::Relaxed);
    }

    /// Messages for the store, at most `most`.
    #[cfg(test)]
    pub(crate) fn tasks(&self, most: usize) -> Vec<Errand> {
        self.tasks_of(most, |_| true)
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

    /// A lease has arrived. If the gateway is stopping and no request waits for it, it is returned.
    fn installed(&self, held: &Arc<Held>, units: u64, first: bool, awaited: bool) {
        self.counters.leases.fetch_add(1, Ordering::Relaxed);
        self.counters.units.fetch_add(units, Ordering::Relaxed);
        self.counters.out.fetch_add(1, Ordering::Relaxed);
        let closed = {
            let mut live = self.live.lock();
            if first {
                live.held.push(held.clone());
            }
            live.closed
        };
        if closed && !awaited {
            self.retire(held);
        }
    }
}
