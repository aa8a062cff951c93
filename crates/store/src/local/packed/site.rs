//! The position of a bucket, found and judged without a lock.

use std::sync::atomic::AtomicU64;

use crate::local::set::{Line, SlotView};
use tollgate_limit::bucket::{Granted, Refused};
use tollgate_limit::{Standing, Verdict};

use super::{PackedTable, beside};

/// The position of a bucket, at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site<'t> {
    pub(super) table: &'t PackedTable,
    pub(super) line: Line<'t, AtomicU64>,
    pub(super) tag: u64,
    pub(super) ticks: u64,
}

impl Site<'_> {
    /// The bucket's state, read without a lock, and whether it is known. See [`Line::scan`].
    #[inline(always)]
    pub(crate) fn scan(&mut self) -> (bool, SlotView) {
        let (found, seen) = self.line.scan(self.tag);
        if found {
            return (found, seen);
        }
        self.line = self.table.sets.line(beside(self.table.line(self.tag)));
        self.line.scan(self.tag)
    }

    /// Its verdict, and its new arrival time (unchanged if nothing was taken).
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

    /// Locks it if it is unchanged, see [`Line::hold`].
    #[inline(always)]
    pub(crate) fn hold(&self, seen: SlotView) -> bool {
        self.line.hold(self.tag, seen)
    }

    /// Writes its arrival time and unlocks it.
    #[inline(always)]
    pub(crate) fn release(&self, seen: SlotView, arrival: u64) {
        self.line.release(seen, arrival);
    }

    /// Its standing with that verdict and that arrival time.
    #[inline(always)]
    pub(crate) fn standing(&self, verdict: Verdict, arrival: u64) -> Standing {
        Standing::new(verdict, self.table.packed.report(arrival, self.ticks))
    }
}
