//! The handover of the local buckets to another process, which gets a copy of them: this process
//! decides about its last requests by its own.
//!
//! What requests that drew before the copy turn out to cost, and the places they free, also goes to
//! the other process. So does what later requests cost above their estimate, because no caller may
//! gain by an upgrade; but not their refunds, because the other process was never charged. While the
//! copy is made, corrections wait, so that each is in the copy or is sent, never both.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use tollgate_limit::{Change, Conditions, KeyBytes, Limit, Settlement, Timestamp};
use tollgate_store::local::same_bucket;
use tollgate_store::{Backend, Store};

use super::Limiter;
use super::generation::Generation;
use super::permit::DrawnFrom;

/// The process that has a copy of the buckets.
pub trait Successor: Send + Sync + 'static {
    /// Corrects a charge there, if it knows the limit.
    fn settle(&self, settlement: &Settlement<'_>);
}

/// The state of a handover, shared by every generation of a limiter.
#[derive(Default)]
pub(super) struct Handover {
    /// Whether the state is another one than [`State::Here`]: so a correction costs one atomic load.
    has_begun: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
enum State {
    #[default]
    Here,
    /// The copy is made; these corrections wait.
    Copying(Vec<Kept>),
    There(Arc<dyn Successor>),
}

struct Kept {
    limit: Arc<Limit>,
    key: KeyBytes,
    change: Change,
    /// The conditions of the grant that is refunded.
    conditions: Option<Conditions>,
    from: DrawnFrom,
}

impl Handover {
    /// Whether buckets may be drawn from that are not in the copy, and shares are not this process's.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Acquire)
    }
}

impl std::fmt::Debug for Handover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handover")
            .field("has_begun", &self.has_begun())
            .finish_non_exhaustive()
    }
}

impl<S: Store + Send + Sync> Limiter<S> {
    /// Begins a handover: corrections wait from now on, and shares of shared limits grant nothing. A
    /// draw that has begun on another thread may still be writing when this returns; the code that
    /// saves the buckets must make sure that none is.
    pub fn begin_handover(&self) {
        let handover = &self.generation.handover;
        let mut state = handover.state.lock();
        *state = State::Copying(Vec::new());
        handover.has_begun.store(true, Ordering::SeqCst);
    }

    /// There is no successor after all.
    pub fn abandon_handover(&self) {
        let handover = &self.generation.handover;
        let mut state = handover.state.lock();
        if let State::Copying(kept) = std::mem::take(&mut *state) {
            kept.iter().for_each(|kept| self.settle_kept(kept));
        }
        self.generation.shares.stay();
        handover.has_begun.store(false, Ordering::SeqCst);
    }

    /// `successor` serves by the copy from now on.
    pub fn hand_to(&self, successor: Arc<dyn Successor>) {
        let mut state = self.generation.handover.state.lock();
        if let State::Copying(kept) = std::mem::take(&mut *state) {
            for kept in &kept {
                if concerns_copy(kept.change, kept.from) {
                    // The conditions are of this process; the successor has learnt its own.
                    successor.settle(&Settlement::new(&kept.limit, &kept.key, kept.change));
                }
                self.settle_kept(kept);
            }
        }
        self.generation.shares.left();
        *state = State::There(successor);
    }

    fn settle_kept(&self, kept: &Kept) {
        let generation = &self.generation;
        // By name, because a reload may have happened meanwhile.
        let mut limits = generation.limits.iter();
        if let Some(limit) = limits.find(|one| same_bucket(one, &kept.limit)) {
            let settlement = Settlement {
                conditions: kept.conditions.as_ref(),
                ..Settlement::new(limit, &kept.key, kept.change)
            };
            let now = generation.local.clock().now();
            generation.local.settle_at(&[settlement], now);
        }
    }
}

impl Limiter<Backend> {
    /// Corrects a charge for a process that has handed over its buckets.
    pub fn settle_for(&self, settlement: Settlement<'_>) {
        let now = self.generation.local.clock().now();
        let generation = &self.generation;
        generation.settle_local(settlement, DrawnFrom::Bucket, now);
    }
}

impl<S: Store + Send + Sync> Generation<S> {
    /// Corrects a charge on a local bucket, and in its copy.
    pub(crate) fn settle_local(&self, settlement: Settlement<'_>, from: DrawnFrom, now: Timestamp) {
        if self.handover.has_begun() {
            match &mut *self.handover.state.lock() {
                State::Here => {}
                State::Copying(kept) => {
                    kept.push(Kept {
                        limit: Arc::clone(&self.limits[settlement.limit.index]),
                        key: KeyBytes::from_slice(settlement.key),
                        change: settlement.change,
                        conditions: settlement.conditions.copied(),
                        from,
                    });
                    return;
                }
                State::There(successor) if concerns_copy(settlement.change, from) => {
                    successor.settle(&settlement);
                }
                State::There(_) => {}
            }
        }
        self.local.settle_at(&[settlement], now);
    }

    /// Where a draw that is made now takes local units from.
    pub(crate) fn draws_from(&self) -> DrawnFrom {
        match self.handover.has_begun() {
            true => DrawnFrom::SinceHandover,
            false => DrawnFrom::Bucket,
        }
    }
}

/// Whether a correction is one of the copy, too: it was charged, or is charged more.
fn concerns_copy(change: Change, from: DrawnFrom) -> bool {
    from == DrawnFrom::Bucket || matches!(change, Change::Charge { .. })
}

#[cfg(test)]
mod tests;
