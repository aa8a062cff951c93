//! Enforces this gateway's share of shared limits in the process while a store is silent.
//!
//! With R replicas each gateway enforces the limit divided by R: the same burst, and the rate
//! divided by R. All gateways together stay within the limit as long as R is right. A share is at
//! least one unit at once.
//!
//! A share starts with its part of the most units the store's bucket can have, if that is known
//! (the store has just refused), and otherwise full. Units that shares grant are owed to the store
//! and charged when it responds again: as many units as were granted, but no more than the share is
//! missing at that time, because units that the share has regained the store has regained too.
//!
//! The tables of shares are made before they are needed: with the limiter, and on a separate thread
//! when the number of gateways changes. No request makes one.

use std::borrow::Cow;
use std::io::{Read, Seek};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use smallvec::SmallVec;

use tollgate_limit::{Change, Claim, Draw, Limit, Placement, Settlement, Timestamp, WhenDown};
use tollgate_store::clock::Clock;
use tollgate_store::local::{LocalStore, SnapshotError, Unpaid, place_of, same_bucket};
use tollgate_store::{Owed, StandIn, Store};

use super::debts::Debts;

#[derive(Debug)]
pub(super) struct Shares {
    limits: Box<[Arc<Limit>]>,
    divided: ArcSwap<Divided>,
    /// The number of gateways to divide by.
    replicas: AtomicU32,
    /// Locked by the thread that divides the shares; true once the next policy's shares have the
    /// buckets. (No request waits for it.)
    retired: Mutex<bool>,
    /// Locked by the thread that lowers a share.
    holding: Mutex<()>,
    debts: Arc<Debts>,
    this: Weak<Self>,
}

/// By the index of the shared limit: its share, whose index is that in the store of shares.
type ByLimit = Box<[Option<Arc<Limit>>]>;

#[derive(Debug)]
struct Divided {
    replicas: u32,
    shares: ByLimit,
    store: LocalStore,
}

impl Shares {
    /// Full shares beside the buckets in `local`, with which they are saved.
    pub(super) fn new(limits: &[Arc<Limit>], replicas: u32, local: &LocalStore) -> Arc<Self> {
        let (shares, dense) = divide(limits, replicas, |_| false);
        let divided = Divided {
            replicas,
            shares,
            store: local.sibling(&dense),
        };
        Self::with(limits, divided, Arc::default())
    }

    /// The shares that were saved in `snapshot`, and what they owe.
    pub(super) fn restored(
        limits: &[Arc<Limit>],
        replicas: u32,
        clock: Clock,
        snapshot: impl Read + Seek,
        unpaid: &[Unpaid],
    ) -> Result<Arc<Self>, SnapshotError> {
        let owes = |limit: &Limit| {
            let mut limits = unpaid.iter().filter_map(|one| limits.get(one.limit));
            limits.any(|owing| same_bucket(owing, limit))
        };
        let (shares, dense) = divide(limits, replicas, owes);
        let (store, _) = LocalStore::restored(&dense, clock, snapshot)?;
        let divided = Divided {
            replicas,
            shares,
            store,
        };
        let debts = Debts::default();
        for Unpaid { limit, key, units } in unpaid {
            if let Some(limit) = limits.get(*limit) {
                // (There is room: no process owes more.)
                debts.add(limit, key, *units);
            }
        }
        Ok(Self::with(limits, divided, Arc::new(debts)))
    }

    /// The shares of the next policy's limits, with the buckets carried over. Debts are carried
    /// over too if the store is the same.
    pub(super) fn next(&self, limits: &[Arc<Limit>], replicas: u32, same_store: bool) -> Arc<Self> {
        let mut retired = self.retired.lock();
        *retired = true;
        let divided = self.divided.load().again(limits, replicas);
        Self::with(
            limits,
            divided,
            if same_store {
                Arc::clone(&self.debts)
            } else {
                Arc::default()
            },
        )
    }

    fn with(limits: &[Arc<Limit>], divided: Divided, debts: Arc<Debts>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            limits: limits.into(),
            replicas: AtomicU32::new(divided.replicas),
            divided: ArcSwap::from_pointee(divided),
            retired: Mutex::default(),
            holding: Mutex::default(),
            debts,
            this: this.clone(),
        })
    }

    /// Draws `claims`, whose limits are enforced by share. Grants are owed to `store` unless they
    /// `may_be_charged` there: a request that was sent and got no response may be.
    pub(super) fn draw(
        &self,
        claims: &[Claim<'_>],
        store: &impl Store,
        may_be_charged: bool,
    ) -> Draw {
        let divided = self.divided.load_full();
        let now = divided.store.clock().now();
        let shares = claims.iter().map(|claim| self.share_of(&divided, claim));
        let shares: SmallVec<[Cow<'_, Limit>; 4]> = shares.flatten().collect();
        debug_assert_eq!(shares.len(), claims.len(), "every one has a share");
        let own = claims.iter().zip(&shares);
        let own: SmallVec<[Claim<'_>; 4]> = own
            .map(|(claim, limit)| Claim { limit, ..*claim })
            .collect();
        for (claim, own) in claims.iter().zip(&own) {
            if let Some(most) = store.at_most(claim) {
                self.hold_down(&divided, *own, most / u64::from(divided.replicas), now);
            }
        }
        let draw = divided.store.draw_at(&own, now);
        if draw.granted && !may_be_charged {
            for (claim, standing) in claims.iter().zip(&draw.standings) {
                if standing.verdict.is_allow() {
                    self.owe(claim.limit, claim.key, claim.cost, store);
                }
            }
        }
        draw
    }

    /// The share of a claim's limit. A key with an override has a share of its own numbers.
    fn share_of<'d>(&self, divided: &'d Divided, claim: &Claim<'_>) -> Option<Cow<'d, Limit>> {
        let index = claim.limit.index;
        let share = divided.shares.get(index)?.as_deref()?;
        let algorithm = &claim.limit.algorithm;
        let is_own = self.limits[index].algorithm == *algorithm;
        if is_own {
            return Some(Cow::Borrowed(share));
        }
        Some(Cow::Owned(Limit {
            algorithm: algorithm.share(divided.replicas),
            ..share.clone()
        }))
    }

    /// Lowers a share to `most` units. (Until the store responds, it and the share gain at the same
    /// rate, so repeating this changes nothing.)
    fn hold_down(&self, divided: &Divided, claim: Claim<'_>, most: u64, now: Timestamp) {
        let above = || {
            let standings = divided.store.peek_at(&[Claim { cost: 0, ..claim }], now);
            let left = standings.first().map_or(0, |standing| standing.remaining());
            left.saturating_sub(most)
        };
        if claim.limit.algorithm.holds_places() || above() == 0 {
            return;
        }
        let _one_at_a_time = self.holding.lock();
        let more = above();
        if more > 0 {
            let charge = Settlement::new(claim.limit, claim.key, Change::Charge { more });
            divided.store.settle_at(&[charge], now);
        }
    }

    fn owe(&self, limit: &Limit, key: &[u8], units: u64, store: &impl Store) {
        if units == 0 || limit.algorithm.holds_places() {
            return;
        }
        if let Some(known) = self.limits.get(limit.index)
            && !self.debts.add(known, key, units)
        {
            // The store's own queue is bounded and counts what it drops.
            store.settle(&[Settlement::new(limit, key, Change::Charge { more: units })]);
        }
    }

    /// Corrects a draw; `is_owed`: its units are owed to `store`.
    pub(super) fn settle(&self, settlement: Settlement<'_>, store: &impl Store, is_owed: bool) {
        let Settlement {
            limit, key, change, ..
        } = settlement;
        let divided = self.divided.load();
        let Some(Some(share)) = divided.shares.get(limit.index) else {
            return;
        };
        let own = Settlement {
            limit: share,
            ..settlement
        };
        divided.store.settle_at(&[own], divided.store.clock().now());
        match change {
            Change::Charge { more } => self.owe(limit, key, more, store),
            Change::Refund { units }
            | Change::RefundWithin { units, .. }
            | Change::Withdraw { units, .. }
                if is_owed =>
            {
                self.debts.remove(limit, key, units);
            }
            _ => {}
        }
    }

    /// Where the shares are, to be saved with other buckets.
    pub(super) fn saved<T>(&self, save: impl FnOnce(&LocalStore) -> T) -> T {
        save(&self.divided.load().store)
    }

    /// What the shares owe, and the number of gateways that they are divided by.
    pub(super) fn unpaid(&self) -> (Vec<Unpaid>, u32) {
        (
            self.debts.unpaid(&self.limits),
            self.replicas.load(Ordering::Acquire),
        )
    }

    /// What the shares owe, which another process pays if it begins to serve. It is no longer owed here, so
    /// that a store that responds meanwhile is charged once.
    pub(super) fn leave(&self) -> Vec<Unpaid> {
        self.debts.leave(&self.limits)
    }

    /// The other process serves, and pays what it was left.
    pub(super) fn left(&self) {
        self.debts.left();
    }

    /// The other process does not serve: what it was left is owed here.
    pub(super) fn stay(&self) {
        self.debts.stay();
    }

    fn divide(&self) {
        let retired = self.retired.lock();
        if *retired {
            return;
        }
        loop {
            let (divided, replicas) = (
                self.divided.load_full(),
                self.replicas.load(Ordering::Acquire),
            );
            if divided.replicas == replicas {
                return;
            }
            let again = divided.again(&self.limits, replicas);
            self.divided.store(Arc::new(again));
        }
    }
}

impl StandIn for Shares {
    fn shared_by(&self, replicas: u32) {
        let replicas = replicas.max(1);
        if self.replicas.swap(replicas, Ordering::AcqRel) == replicas
            && self.divided.load().replicas == replicas
        {
            return;
        }
        let this = self.this.clone();
        let divide = move || {
            if let Some(shares) = this.upgrade() {
                shares.divide();
            }
        };
        if let Err(error) = std::thread::Builder::new()
            .name("shares".to_owned())
            .spawn(divide)
        {
            tracing::warn!(%error, replicas, "the local shares of shared limits cannot be divided anew");
        }
    }

    fn owed(&self) -> Vec<Owed> {
        let divided = self.divided.load();
        let now = divided.store.clock().now();
        let owed = self.debts.take().filter_map(|debt| {
            let known = &self.limits[place_of(&self.limits, &debt.limit)?];
            let share = divided.shares.get(known.index)?.as_deref()?;
            let claim = Claim {
                enforced: false,
                ..Claim::new(share, &debt.key, 0)
            };
            let standings = divided.store.peek_at(&[claim], now);
            let left = standings.first().map_or(0, |standing| standing.remaining());
            let units = debt.units.min(share.algorithm.burst().saturating_sub(left));
            let limit = Arc::clone(known);
            (units > 0).then_some(Owed {
                limit,
                units,
                ..debt
            })
        });
        owed.collect()
    }

    fn owe_again(&self, mut owed: Vec<Owed>) -> Vec<Owed> {
        owed.retain(|owed| !self.debts.add(&owed.limit, &owed.key, owed.units));
        owed
    }
}

impl Divided {
    /// The shares of `limits` among `replicas`, with these buckets. (A draw in progress follows its
    /// bucket.)
    ///
    /// A limit that is no longer enforced by share keeps its share: it may be again in the same outage,
    /// and what was granted is still to be charged.
    fn again(&self, limits: &[Arc<Limit>], replicas: u32) -> Self {
        let had = |limit: &Limit| {
            let mut shares = self.shares.iter().flatten();
            shares.any(|share| same_bucket(share, limit))
        };
        let (shares, dense) = divide(limits, replicas, had);
        let (store, _) = self.store.next(&dense);
        Self {
            replicas,
            shares,
            store,
        }
    }
}

/// The shares that are enforced, or that `had` one before: by index, and as a dense list.
fn divide(
    limits: &[Arc<Limit>],
    replicas: u32,
    had: impl Fn(&Limit) -> bool,
) -> (ByLimit, Vec<Arc<Limit>>) {
    let mut dense = Vec::new();
    let shares = limits.iter().map(|limit| {
        let wanted = limit.placement == Placement::Shared
            && (limit.when_down == WhenDown::LocalShare || had(limit));
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

#[cfg(test)]
mod tests;
