//! One charge that can be corrected, and the settlement that corrects it.

use std::sync::Arc;

use tollgate_limit::{Change, KeyBytes, Limit, Micros, Placement, Settlement, Timestamp};

use crate::is_windowed;
use crate::two_stores::refund;

/// One charge that can be corrected.
pub(super) struct Charge {
    pub(super) place: usize,
    pub(super) limit: Arc<Limit>,
    pub(super) key: KeyBytes,
    pub(super) cost: u64,
    pub(super) from: DrawnFrom,
    /// The time until the bucket was due to be full, or its window over.
    pub(super) reset: Micros,
    /// When the window of the draw ends, by the clock of its store; zero: it is not known.
    pub(super) window_end: Timestamp,
}

impl Charge {
    /// Sends a settlement; a charge is never lowered by more than it was.
    pub(super) fn settle(&mut self, settler: &dyn Settle, drawn_at: Timestamp, change: Change) {
        let change = match change {
            // Never more than was taken, even if refunded repeatedly.
            Change::Refund { units }
            | Change::RefundWithin { units, .. }
            | Change::Withdraw { units, .. } => {
                let units = units.min(self.cost);
                self.cost -= units;
                let windowed = is_windowed(&self.limit);
                // Nothing is left of a finished window. (The store checks it again when the refund
                // arrives.)
                if windowed && settler.now().since(drawn_at) >= self.reset {
                    return;
                }
                match change {
                    _ if windowed => refund(&self.limit, units, self.window_end),
                    Change::Withdraw { full_at, .. }
                        if self.limit.placement == Placement::Local =>
                    {
                        Change::Withdraw { units, full_at }
                    }
                    _ => Change::Refund { units },
                }
            }
            Change::Release { units } => {
                let units = units.min(self.cost);
                self.cost -= units;
                Change::Release { units }
            }
            Change::Charge { more } => {
                self.cost = self.cost.saturating_add(more);
                Change::Charge { more }
            }
        };
        if !matches!(
            change,
            Change::Charge { more: 0 }
                | Change::Refund { units: 0 }
                | Change::RefundWithin { units: 0, .. }
                | Change::Withdraw { units: 0, .. }
                | Change::Release { units: 0 }
        ) {
            settler.settle(Settlement::new(&self.limit, &self.key, change), self.from);
        }
    }
}

/// Where the units of a charge were taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DrawnFrom {
    /// The bucket in its store, or in this process.
    Bucket,
    /// The local share of a shared limit.
    LocalShare,
    /// The bucket in this process, after another one got a copy of it.
    SinceHandover,
}

/// Receives settlements.
pub(crate) trait Settle: Send + Sync {
    /// Corrects one charge.
    fn settle(&self, settlement: Settlement<'_>, from: DrawnFrom);
    /// Counts a response that reported a cost of `units`.
    fn settled(&self, limit: &Limit, units: u64);
    /// Counts a charge that nothing corrected; returns whether to log it.
    fn unsettled(&self, limit: &Limit) -> bool;
    /// Counts `units` that a response cost above its reservation; returns whether to log it.
    fn over_reserved(&self, limit: &Limit, units: u64) -> bool;
    /// Records an upstream's response after `took`, or its absence (`lost`); the request had left
    /// `remaining` places.
    fn answered(&self, limit: &Limit, took: Micros, remaining: u64, lost: bool);
    /// The present moment.
    fn now(&self) -> Timestamp;
}
