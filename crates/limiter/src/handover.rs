//! Transfers local buckets to another process: they are frozen while they are sent, and the other
//! process decides about them from then on.
//!
//! While the buckets are frozen, draws wait and corrections are kept. Then both go to the successor
//! or, if there is none after all, to the local buckets. So every bucket has one owner at any time,
//! and the charges and refunds of this process's last requests are counted there. Only the end of
//! the successor's process makes this one the owner again: while the successor lives and does not say
//! whether it grants, a request is refused, unless its limits there only count.

mod draws;
mod received;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

use tollgate_limit::{Change, Claim, Conditions, Draw, KeyBytes, Limit, Settlement};
use tollgate_store::local::same_bucket;
use tollgate_store::{Backend, Store};

use super::Limiter;

pub(super) use draws::LocalDraw;

/// The process that owns the buckets now.
pub trait Successor: Send + Sync + 'static {
    /// Whether it has the buckets of `limit`. Buckets of limits it does not know stay here.
    fn has(&self, limit: &Limit) -> bool;
    /// Draws every claim or none there.
    ///
    /// # Errors
    /// Whether the process has ended, or may still grant from the buckets.
    fn draw<'a>(
        &'a self,
        claims: &'a [Claim<'a>],
    ) -> Pin<Box<dyn Future<Output = Result<Draw, Undrawn>> + Send + 'a>>;
    /// Corrects an earlier grant there.
    fn settle(&self, settlement: &Settlement<'_>);
}

/// Why a successor has not said what it drew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undrawn {
    /// Its process has ended, so no other process grants from the buckets.
    Ended,
    /// It has the buckets and may have charged the request, but gives no response that can be used.
    Silent,
}

/// The owner of the local buckets, shared by every generation of a limiter.
pub(super) struct Handover {
    /// True unless the owner is [`Owner::Here`]: a draw costs one atomic load.
    away: AtomicBool,
    /// Whether the shares of shared limits go with the buckets, because their store did not respond when
    /// the handover began.
    shares_too: AtomicBool,
    owner: watch::Sender<Owner>,
    /// Corrections that arrived while the buckets were frozen.
    kept: Mutex<Vec<Kept>>,
}

#[derive(Clone)]
enum Owner {
    Here,
    Frozen,
    There(Arc<dyn Successor>),
}

struct Kept {
    limit: Arc<Limit>,
    key: KeyBytes,
    change: Change,
    /// The conditions of the grant that is refunded.
    conditions: Option<Conditions>,
}

impl Default for Handover {
    fn default() -> Self {
        Self {
            away: AtomicBool::new(false),
            shares_too: AtomicBool::new(false),
            owner: watch::Sender::new(Owner::Here),
            kept: Mutex::default(),
        }
    }
}

impl std::fmt::Debug for Handover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handover")
            .field("away", &self.is_away())
            .finish_non_exhaustive()
    }
}

impl Handover {
    /// Whether a draw must first find out who owns the buckets.
    #[inline(always)]
    pub(super) fn is_away(&self) -> bool {
        self.away.load(Ordering::Acquire)
    }

    /// Whether the other process has the shares of shared limits, if it has the buckets.
    pub(super) fn takes_shares(&self) -> bool {
        self.shares_too.load(Ordering::Acquire)
    }

    /// Makes this process the owner again, because the process of `successor` has ended.
    fn reclaim(&self, successor: &Arc<dyn Successor>) {
        // Under the lock, so that corrections go where draws go.
        let _kept = self.kept.lock();
        let is_owner = match &*self.owner.borrow() {
            Owner::There(owner) => Arc::ptr_eq(owner, successor),
            Owner::Here | Owner::Frozen => false,
        };
        if is_owner {
            self.shares_too.store(false, Ordering::Release);
            self.away.store(false, Ordering::SeqCst);
            self.owner.send_replace(Owner::Here);
        }
    }

    /// The owner of the buckets, once it is known; `None`: they are here.
    async fn successor(&self) -> Option<Arc<dyn Successor>> {
        let mut owner = self.owner.subscribe();
        let known = owner
            .wait_for(|owner| !matches!(owner, Owner::Frozen))
            .await
            .map(|owner| owner.clone());
        match known {
            Ok(Owner::There(successor)) => Some(successor),
            _ => None,
        }
    }
}

impl Limiter<Backend> {
    /// Freezes the local buckets: draws wait from now on. A draw that has begun on another thread
    /// may still be writing when this returns; the code that saves the buckets must make sure that
    /// none is.
    pub fn freeze(&self) {
        let remote = self.generation.shared.remote();
        self.freeze_with_shares(remote.is_some_and(|store| !store.health().up));
    }
}

impl<S: Store + Send + Sync> Limiter<S> {
    /// Freezes the local buckets, and the shares of shared limits too if their store is down.
    pub(crate) fn freeze_with_shares(&self, is_down: bool) {
        let handover = &self.generation.handover;
        let _kept = handover.kept.lock();
        handover.shares_too.store(is_down, Ordering::Release);
        handover.owner.send_replace(Owner::Frozen);
        handover.away.store(true, Ordering::SeqCst);
    }

    /// The buckets stay here after all: waiting draws and corrections are processed here.
    pub fn thaw(&self) {
        let generation = &self.generation;
        let mut kept = generation.handover.kept.lock();
        for kept in kept.drain(..) {
            self.settle_kept(&kept);
        }
        generation.shares.stay();
        generation
            .handover
            .shares_too
            .store(false, Ordering::Release);
        generation.handover.away.store(false, Ordering::SeqCst);
        generation.handover.owner.send_replace(Owner::Here);
    }

    /// Makes `successor` the owner of the buckets.
    pub fn hand_to(&self, successor: Arc<dyn Successor>) {
        let handover = &self.generation.handover;
        let mut kept = handover.kept.lock();
        for one in kept.drain(..) {
            // The conditions are of this process; the successor has learnt its own.
            successor.settle(&Settlement::new(&one.limit, &one.key, one.change));
            // The buckets here were charged too: some stay here, and the successor may end.
            self.settle_kept(&one);
        }
        self.generation.shares.left();
        handover.owner.send_replace(Owner::There(successor));
    }

    fn settle_kept(&self, kept: &Kept) {
        let generation = &self.generation;
        let now = generation.local.clock().now();
        // By name, because a reload may have happened meanwhile.
        let mut limits = generation.limits.iter();
        if let Some(limit) = limits.find(|one| same_bucket(one, &kept.limit)) {
            let settlement = Settlement {
                conditions: kept.conditions.as_ref(),
                ..Settlement::new(limit, &kept.key, kept.change)
            };
            generation.local.settle_at(&[settlement], now);
        }
    }
}
