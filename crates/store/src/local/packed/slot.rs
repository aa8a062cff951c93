//! A bucket with its set locked.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::local::set::Locked;
use tollgate_limit::bucket::Report;
use tollgate_limit::{Change, Standing, Verdict};

use super::PackedTable;

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
            self.table
                .inherited_refusals
                .fetch_add(1, Ordering::Relaxed);
        }
        let verdict = Verdict::from(&judged);
        self.next = judged.ok().map(|granted| granted.next).filter(|_| cost > 0);
        verdict
    }

    /// How the bucket stands.
    #[inline]
    pub(crate) fn report(&self) -> Report {
        self.table.packed.report(self.word, self.ticks)
    }

    /// How it stands, with that verdict.
    #[inline]
    pub(crate) fn standing(&self, verdict: Verdict) -> Standing {
        Standing::new(verdict, self.report())
    }

    /// Writes what [`PackedSlot::judge`] worked out.
    #[inline]
    pub(crate) fn commit(&mut self) {
        if let Some(next) = self.next.take() {
            self.write(next);
        }
    }

    /// Corrects an earlier grant. What gives back to a table without floors is dropped: it would break the rule that nobody
    /// gains by being forgotten, and what makes a grant in one step sound: that arrival times only grow there.
    pub(crate) fn settle(&mut self, change: Change) {
        if !matches!(change, Change::Charge { .. }) && self.table.floors.is_none() {
            return;
        }
        let settled = self.table.packed.settle(self.word, change, self.ticks);
        // One that is full stays full since then.
        if settled != self.table.packed.corrected(self.word, self.ticks) {
            self.write(settled);
        }
    }

    /// Takes over a bucket of a predecessor: whichever owes more stays.
    pub(super) fn adopt(&mut self, word: u64) {
        let Self {
            table, set, index, ..
        } = self;
        let smallest = set.arrival(self.place);
        if !self.known && smallest > table.long_since(self.ticks) && smallest >= word {
            // The newcomer owes least: it is the one to be forgotten.
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
                self.table.evictions.fetch_add(1, Ordering::Relaxed);
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
