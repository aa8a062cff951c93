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

use tollgate_limit::{Change, Conditions, KeyBytes, Limit, Settlement};
use tollgate_store::local::{LocalStore, same_bucket};

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
    /// No other process has a copy.
    #[default]
    Here,
    /// The copy is being made; these corrections wait until it is.
    Copying(Vec<WaitingCorrection>),
    There(Arc<dyn Successor>),
}

/// A correction that arrived while the copy was being made.
struct WaitingCorrection {
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

impl Handover {
    /// Corrections wait from now on, and shares grant nothing.
    pub(super) fn begin(&self) {
        let mut state = self.state.lock();
        *state = State::Copying(Vec::new());
        self.has_begun.store(true, Ordering::SeqCst);
    }

    /// Ends the copying. `successor` serves by the copy from now on; `None`: there is none after all.
    /// `own`: the buckets of this process.
    pub(super) fn end(
        &self,
        successor: Option<Arc<dyn Successor>>,
        limits: &[Arc<Limit>],
        own: &LocalStore,
    ) {
        let mut state = self.state.lock();
        if let State::Copying(waiting) = std::mem::take(&mut *state) {
            for one in &waiting {
                if let Some(successor) = &successor
                    && concerns_copy(one.change, one.from)
                {
                    // The conditions are of this process; the successor has learnt its own.
                    successor.settle(&Settlement::new(&one.limit, &one.key, one.change));
                }
                one.settle(limits, own);
            }
        }
        match successor {
            Some(successor) => *state = State::There(successor),
            None => self.has_begun.store(false, Ordering::SeqCst),
        }
    }

    /// Corrects a charge on a bucket of this process, and in its copy.
    pub(super) fn settle(
        &self,
        settlement: Settlement<'_>,
        from: DrawnFrom,
        limits: &[Arc<Limit>],
        own: &LocalStore,
    ) {
        if self.has_begun() {
            match &mut *self.state.lock() {
                State::Here => {}
                State::Copying(waiting) => {
                    waiting.push(WaitingCorrection {
                        limit: Arc::clone(&limits[settlement.limit.index]),
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
        own.settle_at(&[settlement], own.clock().now());
    }

    /// Where a draw that is made now takes local units from.
    pub(super) fn draws_from(&self) -> DrawnFrom {
        match self.has_begun() {
            true => DrawnFrom::SinceHandover,
            false => DrawnFrom::Bucket,
        }
    }
}

impl WaitingCorrection {
    fn settle(&self, limits: &[Arc<Limit>], own: &LocalStore) {
        // By name, because a reload may have happened meanwhile.
        let mut limits = limits.iter();
        if let Some(limit) = limits.find(|one| same_bucket(one, &self.limit)) {
            let settlement = Settlement {
                conditions: self.conditions.as_ref(),
                ..Settlement::new(limit, &self.key, self.change)
            };
            own.settle_at(&[settlement], own.clock().now());
        }
    }
}

/// Whether a correction is one of the copy, too: it was charged, or is charged more.
fn concerns_copy(change: Change, from: DrawnFrom) -> bool {
    from == DrawnFrom::Bucket || matches!(change, Change::Charge { .. })
}

#[cfg(test)]
mod tests;
