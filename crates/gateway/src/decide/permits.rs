//! The permits of requests that other programs forward: open until a report, a return or their
//! expiry. Bounded; each is closed once.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::refusals::RefusalWriter;
use tollgate_admission::settle::Owed;
use tollgate_limit::Timestamp;
use tollgate_limiter::Permit;
use tollgate_store::clock::Clock;

#[derive(Debug, Default)]
pub struct Permits {
    table: Mutex<Table>,
    /// Open permits, and slots that are reserved for more.
    taken: AtomicUsize,
    expired: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    open: HashMap<PermitId, Open>,
    due: BTreeSet<(Timestamp, PermitId)>,
}

/// What a report can still correct.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) permit: Permit,
    pub(crate) owed: Owed,
    pub(crate) near: Option<NearCounter>,
    pub(crate) expires: Timestamp,
}

#[derive(Debug)]
pub(crate) struct NearCounter {
    pub(crate) writer: RefusalWriter,
    pub(crate) clock: Clock,
}

/// The name of a permit: random, so that only the program that was told it can close it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PermitId(u128);

impl PermitId {
    /// A new one; `None` if the system has no randomness.
    fn random() -> Option<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).ok()?;
        Some(Self(u128::from_be_bytes(bytes)))
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let id = Self(u128::from_str_radix(text, 16).ok()?);
        (id.to_string() == text).then_some(id)
    }
}

impl fmt::Display for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Permits {
    pub fn count(&self) -> usize {
        self.table.lock().open.len()
    }

    pub fn expired(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }

    /// Reserves a slot; `None`: there are `most` already.
    pub(crate) fn reserve(&self, most: usize) -> Option<Slot<'_>> {
        let slot = Slot { permits: self };
        let free = self.taken.fetch_add(1, Ordering::Relaxed) < most;
        free.then_some(slot)
    }

    /// Closes the permit with this id, if `accept` accepts it. `None`: it is not open.
    pub(crate) fn close<E>(
        &self,
        id: PermitId,
        accept: impl FnOnce(&Open) -> Result<(), E>,
    ) -> Option<Result<Open, E>> {
        let mut table = self.table.lock();
        if let Err(error) = accept(table.open.get(&id)?) {
            return Some(Err(error));
        }
        let open = table.remove(id)?;
        drop(table);
        self.taken.fetch_sub(1, Ordering::Relaxed);
        Some(Ok(open))
    }

    /// Closes a permit about which no report will come.
    pub(crate) fn give_back(&self, id: PermitId) {
        if let Some(Ok(open)) = self.close(id, |_| Ok::<_, ()>(())) {
            open.expire();
        }
    }

    pub fn expire(&self, now: Timestamp) {
        self.close_due(|due| due <= now);
    }

    /// Closes all permits, because the process ends.
    pub fn clear(&self) {
        self.close_due(|_| true);
    }

    fn close_due(&self, is_due: impl Fn(Timestamp) -> bool) {
        loop {
            let mut table = self.table.lock();
            let first = table.due.first().copied();
            let Some((_, id)) = first.filter(|(due, _)| is_due(*due)) else {
                return;
            };
            let open = table.remove(id);
            // Settled without the lock: a settlement may wait for a bucket's lock.
            drop(table);
            self.taken.fetch_sub(1, Ordering::Relaxed);
            self.expired.fetch_add(1, Ordering::Relaxed);
            if let Some(open) = open {
                open.expire();
            }
        }
    }
}

impl Table {
    fn remove(&mut self, id: PermitId) -> Option<Open> {
        let open = self.open.remove(&id)?;
        self.due.remove(&(open.expires, id));
        Some(open)
    }
}

/// A reserved slot; it is free again when dropped.
pub(crate) struct Slot<'p> {
    permits: &'p Permits,
}

impl Slot<'_> {
    /// Keeps a permit until it expires; `None` if the system has no randomness for its name, and then
    /// what it holds is given back.
    pub(crate) fn open(self, open: Open) -> Option<PermitId> {
        let Some(id) = PermitId::random() else {
            open.permit.revoke();
            return None;
        };
        let mut table = self.permits.table.lock();
        table.due.insert((open.expires, id));
        table.open.insert(id, open);
        // The slot is taken until the permit is closed.
        std::mem::forget(self);
        Some(id)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.permits.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Open {
    /// Settles by a report; returns what the limits are charged now.
    pub(crate) fn settle(
        self,
        status: Option<http::StatusCode>,
        cost: impl Fn(&str) -> Option<u64>,
    ) -> Vec<(String, u64)> {
        let Self {
            mut permit,
            owed,
            near,
            ..
        } = self;
        let first: Vec<u64> = permit.open_charges().map(|charge| charge.units).collect();
        owed.on_report(&mut permit, status, cost);
        let mut charged = Vec::with_capacity(first.len());
        for (charge, first) in permit.open_charges().zip(first) {
            if let Some(NearCounter { writer, clock }) = &near {
                writer.settled(&charge, first, clock.now());
            }
            charged.push((charge.limit.name.to_string(), charge.units));
        }
        charged
        // Dropping the permit frees its places.
    }

    /// No program reports the end of the request.
    fn expire(self) {
        self.settle(None, |_| None);
    }
}
