//! A bucket's place, found and judged without a lock.

use std::sync::atomic::AtomicU64;

use crate::local::set::{Line, SlotView};
use tollgate_limit::bucket::{Granted, Refused};
use tollgate_limit::{Standing, Verdict};

use super::{PackedTable, beside};

/// Where a bucket belongs, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site<'t> {
    pub(super) table: &'t PackedTable,
    pub(super) line: Line<'t, AtomicU64>,
    pub(super) tag: u64,
    pub(super) ticks: u64,
}

impl Site<'_> {
    /// The bucket as it stands, read without a lock, if it is known; whether it is. See [`Line::scan`].
    #[inline(always)]
    pub(crate) fn scan(&mut self) -> (bool, SlotView) {
        let (found, seen) = self.line.scan(self.tag);
        if found {
            return (found, seen);
        }
        self.line = self.table.sets.line(beside(self.table.line(self.tag)));
        self.line.scan(self.tag)
    }

    /// What it would answer, and its arrival time then (the same, if nothing was taken).
    #[inline(always)]
    pub(crate) fn judge(&self, seen: SlotView, cost: u64) -> (Verdict, u64) {
        match self.table.judge(seen.arrival(), cost, self.ticks) {
            Ok(Granted { wait, next }) => (
                Verdict::Allow { wait },
                if cost > 0 { next } else { seen.arrival() },
            ),
            Err(Refused { retry_after }) => (Verdict::Deny { retry_after }, seen.arrival()),
        }
    }

    /// Locks it if it is still as it was seen, see [`Line::hold`].
    #[inline(always)]
    pub(crate) fn hold(&self, seen: SlotView) -> bool {
        self.line.hold(self.tag, seen)
    }

    /// Writes its arrival time and unlocks it.
    #[inline(always)]
    pub(crate) fn release(&self, seen: SlotView, arrival: u64) {
        self.line.release(seen, arrival);
    }

    /// How it stands with that verdict and that arrival time.
    #[inline(always)]
    pub(crate) fn standing(&self, verdict: Verdict, arrival: u64) -> Standing {
        Standing::new(verdict, self.table.packed.report(arrival, self.ticks))
    }
}
