//! Leases of shared buckets, as a gateway holds them: a request for which there is a unit here asks nobody.
//!
//! The arithmetic, and why nothing is ever granted too much, is in [`tollgate_limit::lease`]. Here is what that asks of a
//! gateway: a lease is used until its deadline and not a moment longer ([`slot`]); it is asked for before the last one
//! is used up, as large as what was granted in the last life of one, so that requests seldom wait for it; what is left
//! at its end goes back, and all of it when the gateway stops; a gateway that dies takes along what it held, and the
//! store forgets that in its time.
//!
//! A request on several limits takes its leased units here first, then asks the store for the rest, and puts them back
//! unless it is granted: all or nothing, in a cluster too, where the buckets may lie on different servers. A lease that
//! ends meanwhile goes back once they are in it again ([`hands`]). Where there
//! is no unit here the request asks the store for all its claims at once. In a cluster that cannot be done, and it
//! waits for a lease instead, of as many units as requests wait for.

mod counters;
mod demand;
mod draw;
mod hands;
mod held;
mod slot;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use parking_lot::{Mutex, RwLock};

pub use self::counters::LeaseCounters;
use self::hands::Leaving;
pub(crate) use self::held::{Held, Wishing};
use super::batch::Wanted;
use super::wire_form::{Name, WireForm};
use crate::clock::Clock;
use tollgate_limit::{Micros, Timestamp};

/// Locks the table is spread over.
const SHARDS: usize = 16;
/// Buckets a shard keeps; beyond, requests ask the store. 16 x 1024 x about 250 bytes: 4 MiB.
const SHARD_MAX: usize = 1024;
/// How often leases are looked through for those that have ended.
pub(crate) const SWEEP: Micros = Micros(10_000);

type Shard = std::collections::HashMap<u128, Arc<Held>, RandomState>;

/// The leases of one gateway.
#[derive(Debug)]
pub(crate) struct Leases {
    clock: Clock,
    /// Whether buckets of one request may lie on different servers.
    apart: bool,
    /// A bucket asked less often in the life of a lease is not leased.
    least: u64,
    shards: Vec<RwLock<Shard>>,
    /// Those that hold a lease.
    live: Mutex<Live>,
    errands: Mutex<Vec<Errand>>,
    /// What was told to the store, and perhaps not heard: told again with the next sweep.
    unheard: Mutex<Vec<Return>>,
    swept: AtomicU64,
    pub(crate) counters: LeaseCounters,
}

#[derive(Debug, Default)]
struct Live {
    held: Vec<Arc<Held>>,
    /// The gateway stops: a lease that comes now goes back.
    closed: bool,
}

/// What is to be told to the store.
#[derive(Debug)]
pub(crate) enum Errand {
    /// A lease is wished for.
    Wish(Arc<Held>),
    /// A lease is given back.
    Return(Return),
}

impl Errand {
    /// The bucket it is about.
    pub(crate) fn name(&self) -> &Name {
        match self {
            Self::Wish(held) => held.name(),
            Self::Return(returned) => &returned.name,
        }
    }
}

/// A lease that is given back. Told twice it counts once.
#[derive(Clone, Debug)]
pub(crate) struct Return {
    pub(crate) name: Name,
    pub(crate) shape: Arc<WireForm>,
    pub(crate) id: u64,
    /// What is left of it; `None`: all of it, if there is such a lease.
    pub(crate) left: Option<u64>,
    /// The store counts it until then, by the clock of leases.
    pub(crate) until: Timestamp,
}

impl Return {
    /// What is left of it, as the store is told: no lease has more.
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
            errands: Mutex::default(),
            unheard: Mutex::default(),
            swept: AtomicU64::new(0),
            counters: LeaseCounters::default(),
        }
    }

    /// The clock of their deadlines.
    #[cfg(test)]
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Leases only buckets that are asked so often in the life of a lease: below, a lease costs more than it saves.
    pub(crate) fn with_least(self, least: u64) -> Self {
        Self { least, ..self }
    }

    /// Whether parts of the bucket that is `wanted` are held here.
    pub(crate) fn holds(&self, wanted: &Wanted) -> bool {
        let shard = self.shards[(wanted.name.hash as usize >> 7) % SHARDS].read();
        shard
            .get(&wanted.name.hash)
            .is_some_and(|held| held.leases() > 0)
    }

    /// The place for leases of the bucket that is `wanted`; `None`: it is not leased, or too many are.
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
            // The limit has other numbers now. What is held under the old ones goes back.
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

    /// Gives back what a bucket's place holds.
    fn retire(&self, held: &Held) {
        for leaving in held.empty() {
            self.give_back(held, leaving);
        }
    }

    /// Gives a lease back, in time.
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
        self.errands
            .lock()
            .push(Errand::Return(held.returning(leaving)));
    }

    /// Has what the store may not have heard told again.
    pub(crate) fn again(&self, returns: impl IntoIterator<Item = Return>) {
        self.unheard.lock().extend(returns);
    }

    /// The store has answered a call that gave leases back. Of one whose time was over by then it may have counted nothing.
    pub(crate) fn returned(&self, returns: impl IntoIterator<Item = Return>) {
        let now = self.clock.boot();
        self.forfeit(returns.into_iter().filter(|one| now >= one.until));
    }

    /// Nothing is told to the store any more: what has not been told goes back too late.
    pub(crate) fn forfeit_untold(&self) {
        self.forfeit(std::mem::take(&mut *self.unheard.lock()));
        let errands = std::mem::take(&mut *self.errands.lock());
        self.forfeit(errands.into_iter().filter_map(|errand| match errand {
            Errand::Wish(_) => None,
            Errand::Return(returned) => Some(returned),
        }));
    }

    /// Counts what is lost with these leases until the store forgets them.
    fn forfeit(&self, returns: impl IntoIterator<Item = Return>) {
        let lost = returns.into_iter().filter_map(|one| one.left).sum();
        self.counters.forfeited.fetch_add(lost, Ordering::Relaxed);
    }

    /// Moves what is to be told again to the errands, as long as it matters.
    fn tell_again(&self, now: Timestamp) {
        let unheard = std::mem::take(&mut *self.unheard.lock());
        let (in_time, late): (Vec<_>, Vec<_>) =
            unheard.into_iter().partition(|one| now < one.until);
        self.forfeit(late);
        self.errands
            .lock()
            .extend(in_time.into_iter().map(Errand::Return));
    }

    /// Gives back everything: the gateway stops.
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

    /// Whether leases are out, which have to be looked after, or something is to be told again.
    pub(crate) fn any(&self) -> bool {
        self.counters.out.load(Ordering::Relaxed) > 0 || !self.unheard.lock().is_empty()
    }

    /// Looks leases through that have ended: what is left of them goes back while the store still counts them. (A
    /// sweep now and then is enough: nobody takes from a lease after its deadline.)
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

    /// Whether there is something to be told to the store.
    pub(crate) fn has_errands(&self) -> bool {
        self.sweep();
        !self.errands.lock().is_empty()
    }

    /// What is to be told to the store, at most so many errands.
    #[cfg(test)]
    pub(crate) fn errands(&self, most: usize) -> Vec<Errand> {
        self.errands_of(most, |_| true)
    }

    /// What is to be told to the server that `has` these buckets, at most so many errands.
    pub(crate) fn errands_of(&self, most: usize, has: impl Fn(&Name) -> bool) -> Vec<Errand> {
        self.sweep();
        let mut errands = self.errands.lock();
        let mut left = most;
        let taken = errands.extract_if(.., |errand| {
            let taken = left > 0 && has(errand.name());
            left -= usize::from(taken);
            taken
        });
        taken.collect()
    }

    /// A lease has come. One that nobody waits for goes back where the gateway stops.
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
