//! A bucket with its set locked.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::local::set::Locked;
use tollgate_limit::bucket::{Level, Report};
use tollgate_limit::{Change, Standing, Timestamp, Verdict};

use super::{LATE, PackedTable};

/// One bucket with its set locked.
#[derive(Debug)]
pub(crate) struct PackedSlot<'t> {
    pub(super) table: &'t PackedTable,
    pub(super) set: Locked<'t, AtomicU64>,
    pub(super) index: usize,
    pub(super) tag: u64,
    pub(super) place: usize,
    pub(super) known: bool,
    pub(super) word: u64,
    pub(super) ticks: u64,
    pub(super) next: Option<u64>,
}

impl PackedSlot<'_> {
    /// The bucket's verdict; nothing is written before [`PackedSlot::commit`].
    #[inline]
    pub(crate) fn judge(&mut self, cost: u64) -> Verdict {
        let judged = self.table.judge(self.word, cost, self.ticks);
        if !self.known && judged.is_err() && self.word > self.ticks {
            let counter = &self.table.counts.inherited_refusals;
            counter.fetch_add(1, Ordering::Relaxed);
        }
        let verdict = Verdict::from(&judged);
        self.next = judged.ok().map(|granted| granted.next).filter(|_| cost > 0);
        verdict
    }

    /// The bucket's numbers.
    #[inline]
    pub(crate) fn report(&self) -> Report {
        self.table.packed.report(self.word, self.ticks)
    }

    /// Its standing with that verdict.
    #[inline]
    pub(crate) fn standing(&self, verdict: Verdict) -> Standing {
        Standing::new(verdict, self.report())
    }

    /// Writes the result of [`PackedSlot::judge`].
    #[inline]
    pub(crate) fn commit(&mut self) {
        if let Some(next) = self.next.take() {
            self.write(next);
        }
    }

    /// Corrects an earlier grant. A refund to a table without floors is dropped, because arrival
    /// times must only grow there: the rule that no key gains by being forgotten, and grants in one
    /// step, depend on it.
    pub(crate) fn settle(&mut self, change: Change) {
        if !matches!(change, Change::Charge { .. }) && self.table.floors.is_none() {
            return;
        }
        let settled = self.table.packed.settle(self.word, change, self.ticks);
        // A full bucket keeps the moment since which it is full.
        if settled != self.table.packed.corrected(self.word, self.ticks) {
            self.write(settled);
        }
    }

    /// Its level, and the burst it remembers; `None`: it has been full for long.
    pub(crate) fn state(&self, now: Timestamp) -> Option<(Level, u64)> {
        self.table.packed.unpack(self.word, now, LATE)
    }

    /// Takes over a bucket of a predecessor: the larger debt wins.
    pub(super) fn adopt(&mut self, word: u64) {
        let Self {
            table, set, index, ..
        } = self;
        let smallest = set.arrival(self.place);
        if !self.known && smallest > table.long_since(self.ticks) && smallest >= word {
            // The moved bucket has the smallest debt, so it is the one to forget.
            if let Some(floors) = &table.floors {
                floors[*index].fetch_max(word, Ordering::Relaxed);
            }
            return;
        }
        let word = if self.known {
            word.max(self.word)
        } else {
            word
        };
        self.write(word);
    }

    #[inline]
    fn write(&mut self, word: u64) {
        if !self.known {
            let forgotten = self.set.arrival(self.place);
            if forgotten != self.word {
                self.set.inherit(self.place, self.word);
            }
            if forgotten > self.ticks {
                self.table.counts.evictions.fetch_add(1, Ordering::Relaxed);
            }
            if let Some(floors) = &self.table.floors
                && forgotten > self.table.long_since(self.ticks)
            {
                floors[self.index].fetch_max(forgotten, Ordering::Relaxed);
            }
            self.known = true;
        }
        self.set.write(self.place, self.tag, word);
        self.word = word;
    }
}
