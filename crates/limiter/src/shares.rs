//! This gateway's share of shared limits, enforced in the process while their store does not answer.
//!
//! With R replicas each enforces the limit over R: the same burst and the same rate divided by R, so that all of them
//! together stay within the limit as long as R is right. A share is never below one unit at once.

use std::sync::Arc;

use arc_swap::ArcSwap;

use tollgate_limit::{Claim, Limit, Placement, Settlement, Timestamp, WhenDown};
use tollgate_store::clock::Clock;
use tollgate_store::local::{ColdStart, LocalStore};

use super::decision::Standings;

/// The local shares of one policy's limits.
#[derive(Debug)]
pub(super) struct Shares {
    limits: Box<[Arc<Limit>]>,
    divided: ArcSwap<Divided>,
}

/// By the index of the shared limit: its share, whose own index is its place in the store of shares.
type ByLimit = Box<[Option<Arc<Limit>>]>;

#[derive(Debug)]
struct Divided {
    replicas: u32,
    shares: ByLimit,
    store: LocalStore,
}

impl Shares {
    pub(super) fn new(limits: &[Arc<Limit>], replicas: u32, clock: Clock) -> Self {
        let (shares, dense) = divide(limits, replicas);
        let store = LocalStore::new(&dense, clock, ColdStart::Full);
        Self { limits: limits.into(), divided: ArcSwap::from_pointee(Divided { replicas, shares, store }) }
    }

    /// The shares of the next policy's limits, their buckets carried over.
    pub(super) fn next(&self, limits: &[Arc<Limit>], replicas: u32) -> Self {
        let divided = self.divided.load().redivided(limits, replicas);
        Self { limits: limits.into(), divided: ArcSwap::from_pointee(divided) }
    }

    /// Draws those of `claims` that are enforced by share; the standings are in their order.
    pub(super) fn draw(&self, claims: &[Claim<'_>], replicas: u32) -> (bool, Standings) {
        let divided = self.current(replicas);
        let own = claims.iter().filter(|claim| claim.limit.when_down == WhenDown::LocalShare);
        let own = own.filter_map(|claim| {
            let limit = divided.shares.get(claim.limit.index)?.as_deref()?;
            Some(Claim { limit, ..*claim })
        });
        let own: smallvec::SmallVec<[Claim<'_>; 4]> = own.collect();
        let draw = divided.store.draw_at(&own, divided.store.clock().now());
        (draw.granted, draw.standings)
    }

    pub(super) fn settle(&self, settlement: Settlement<'_>, now: Timestamp) {
        let divided = self.divided.load();
        if let Some(Some(limit)) = divided.shares.get(settlement.limit.index) {
            divided.store.settle_at(&[Settlement { limit, ..settlement }], now);
        }
    }

    /// The shares among `replicas`, divided anew when their number has changed.
    fn current(&self, replicas: u32) -> Arc<Divided> {
        let divided = self.divided.load_full();
        if divided.replicas == replicas {
            return divided;
        }
        let again = Arc::new(divided.redivided(&self.limits, replicas));
        // Whoever comes second finds the first one's division in place; the buckets of both forward to it.
        let previous = self.divided.compare_and_swap(&divided, Arc::clone(&again));
        if Arc::ptr_eq(&previous, &divided) { again } else { self.divided.load_full() }
    }
}

impl Divided {
    fn redivided(&self, limits: &[Arc<Limit>], replicas: u32) -> Self {
        let (shares, dense) = divide(limits, replicas);
        let (store, _) = self.store.next(&dense);
        Self { replicas, shares, store }
    }
}

/// The shares of the shared limits that are enforced by share, and the same ones densely.
fn divide(limits: &[Arc<Limit>], replicas: u32) -> (ByLimit, Vec<Arc<Limit>>) {
    let mut dense = Vec::new();
    let shares = limits.iter().map(|limit| {
        let wanted = limit.placement == Placement::Shared && limit.when_down == WhenDown::LocalShare;
        wanted.then(|| {
            let share = Limit {
                index: dense.len(),
                algorithm: limit.algorithm.share(replicas),
                placement: Placement::Local,
                ..Limit::clone(limit)
            };
            let share = Arc::new(share);
            dense.push(Arc::clone(&share));
            share
        })
    });
    let shares = shares.collect();
    (shares, dense)
}
