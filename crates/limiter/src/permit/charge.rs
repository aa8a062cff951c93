//! One charge that can be corrected, and where its corrections go.

use std::sync::Arc;

use tollgate_limit::{
    Change, Corrects, KeyBytes, Kind, Limit, Micros, Placement, Settlement, Timestamp,
};

use crate::counters::Counters;

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
    /// The moment of the draw by the same clock; zero: it is not known.
    pub(super) drawn_at: Timestamp,
}

impl Charge {
    pub(super) fn raise(&mut self, settler: &dyn Settle, more: u64) {
        self.cost = self.cost.saturating_add(more);
        if more > 0 {
            self.send(settler, Change::Charge { more });
        }
    }

    /// Gives back `units`, never more than are charged. `withdrawn`: the request was never forwarded.
    pub(super) fn give_back(
        &mut self,
        settler: &dyn Settle,
        drawn_at: Timestamp,
        units: u64,
        withdrawn: bool,
    ) {
        let units = units.min(self.cost);
        self.cost -= units;
        let windowed = is_windowed(&self.limit);
        // Nothing is left of a finished window. (The store checks it again when the refund arrives.)
        let ended = windowed && settler.now().since(drawn_at) >= self.reset;
        if units == 0 || ended {
            return;
        }
        let local = self.limit.placement == Placement::Local;
        let change = if withdrawn && local && !windowed {
            let full_at = drawn_at.after(self.reset);
            Change::Withdraw { units, full_at }
        } else {
            refund(&self.limit, units, self.window_end)
        };
        self.send(settler, change);
    }

    pub(super) fn release(&mut self, settler: &dyn Settle) {
        let units = std::mem::take(&mut self.cost);
        if units > 0 {
            self.send(settler, Change::Release { units });
        }
    }

    fn send(&self, settler: &dyn Settle, change: Change) {
        let settlement = Settlement {
            corrects: Corrects::draw_of(self.drawn_at),
            ..Settlement::new(&self.limit, &self.key, change)
        };
        settler.settle(settlement, self.from);
    }
}

/// The refund of units that a draw took from `limit`. Units come back only to the window that they
/// were taken from, which ends at `window_end`; zero: it is not known.
pub(crate) fn refund(limit: &Limit, units: u64, window_end: Timestamp) -> Change {
    if is_windowed(limit) && window_end != Timestamp::default() {
        Change::RefundWithin { units, window_end }
    } else {
        Change::Refund { units }
    }
}

/// Whether a limit's units belong to a window that ends: a later refund would land in another one.
pub(crate) fn is_windowed(limit: &Limit) -> bool {
    match limit.algorithm.kind() {
        Kind::TokenBucket | Kind::InFlight => false,
        Kind::Interval | Kind::FixedWindow | Kind::SlidingWindow | Kind::SlidingLog => true,
    }
}

/// Where the units of a charge were taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DrawnFrom {
    /// The bucket in its store, or in this process.
    Bucket,
    /// The local share of a shared limit, if it has one; `is_owed`: the store is to be charged for it.
    LocalShare { is_owed: bool },
    /// The bucket in this process, after another one got a copy of it.
    SinceHandover,
}

pub(crate) trait Settle: Send + Sync {
    /// Counts what was used of a bucket beside it; this is no correction of a charge.
    fn count_used(&self, limit: &Limit, key: &[u8], units: u64);
    fn settle(&self, settlement: Settlement<'_>, from: DrawnFrom);
    /// Where what responses cost is counted.
    fn counters(&self) -> &Counters;
    /// Records an upstream's response after `took`; the request had left `remaining` places.
    fn answered(&self, limit: &Limit, took: Micros, remaining: u64, lost: bool);
    fn now(&self) -> Timestamp;
}
