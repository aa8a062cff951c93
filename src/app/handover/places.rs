//! Counts the places in flight that the requests of the old process hold in the new one.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_gateway::gateway::Snapshot;
use tollgate_limit::{Limit, Mode, Placement, Role};
use tollgate_store::local::HeldPlaces;

/// Places of concurrency limits that the other process holds here: those its requests held when the
/// buckets arrived, and those they took since. It may end without freeing them.
pub(super) struct Places(HashMap<Bucket, u64>);

/// The bucket of a concurrency limit: the limit's name, which its tiers share, and the key's tag.
type Bucket = (Arc<str>, Role, u64);

impl Places {
    /// Those of requests that run in the other process, before this one serves any.
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let limiter = &snapshot.limiter;
        let held = limiter.local().held_places().into_iter();
        let bucket = |held: HeldPlaces| {
            let limit = &limiter.limits()[held.limit];
            ((Arc::clone(&limit.name), limit.role, held.tag), held.units)
        };
        Self(held.map(bucket).collect())
    }

    pub(super) fn take(&mut self, limit: &Limit, tag: u64, units: u64) {
        let bucket = (Arc::clone(&limit.name), limit.role, tag);
        *self.0.entry(bucket).or_default() += units;
    }

    /// How many of these places the other process held, and holds no more.
    pub(super) fn free(&mut self, limit: &Limit, tag: u64, units: u64) -> u64 {
        let bucket = (Arc::clone(&limit.name), limit.role, tag);
        let Some(held) = self.0.get_mut(&bucket) else {
            return 0;
        };
        let units = units.min(*held);
        *held -= units;
        if *held == 0 {
            self.0.remove(&bucket);
        }
        units
    }

    /// Frees all, because the other process has ended.
    pub(super) fn release(self, snapshot: &Snapshot) {
        let limits = snapshot.limiter.limits();
        for ((name, role, tag), units) in self.0 {
            let has_bucket = |limit: &&Arc<Limit>| {
                limit.placement == Placement::Local
                    && limit.algorithm.holds_places()
                    && limit.mode != Mode::Off
                    && (&limit.name, limit.role) == (&name, role)
            };
            if let Some(limit) = limits.iter().find(has_bucket) {
                snapshot.limiter.local().release(limit, tag, units);
            }
        }
    }
}
