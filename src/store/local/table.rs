//! One limit's buckets, in whichever form its algorithm allows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::limit::bucket::State;
use crate::limit::{Algorithm, Change, Limit, Standing, Timestamp};

use super::interim;
use super::wide::{Moving, WideSlot, WideTable};
use super::{ColdStart, Tally};

/// The buckets of one limit.
#[derive(Debug)]
pub(crate) struct Table {
    /// Locks are taken in the order of these, so that draws cannot wait for each other in a circle.
    pub(crate) order: u64,
    form: Form,
}

#[derive(Debug)]
enum Form {
    Wide(WideTable),
}

impl Table {
    pub(crate) fn new(limit: &Limit, cold_start: ColdStart, now: Timestamp) -> Self {
        let birth = match cold_start {
            ColdStart::Full => None,
            ColdStart::Empty => interim::drained(&limit.algorithm, now),
        };
        Self {
            order: NEXT_ORDER.fetch_add(1, Ordering::Relaxed),
            form: Form::Wide(WideTable::new(limit.algorithm.clone(), limit.memory, birth)),
        }
    }

    pub(crate) fn algorithm(&self) -> &Algorithm {
        match &self.form {
            Form::Wide(wide) => wide.algorithm(),
        }
    }

    pub(crate) fn tally(&self) -> Tally {
        match &self.form {
            Form::Wide(wide) => wide.tally(),
        }
    }

    /// The table that took over, once buckets have moved.
    pub(crate) fn successor(&self) -> Option<&Arc<Self>> {
        match &self.form {
            Form::Wide(wide) => wide.successor(),
        }
    }

    /// The table that has the buckets now.
    pub(crate) fn latest(self: &Arc<Self>) -> &Arc<Self> {
        let mut table = self;
        while let Some(successor) = table.successor() {
            table = successor;
        }
        table
    }

    /// The locked bucket of `tag`; `None` when it has moved to the successor.
    pub(crate) fn lock(&self, tag: u64) -> Option<Slot<'_>> {
        match &self.form {
            Form::Wide(wide) => wide.lock(tag).map(Slot::Wide),
        }
    }

    /// Moves every bucket to `successor`, which has other numbers of the same algorithm.
    pub(crate) fn move_to(&self, successor: &Arc<Self>, now: Timestamp) {
        let rescale = |state: State| interim::rescale(self.algorithm(), successor.algorithm(), &state, now);
        match &self.form {
            Form::Wide(wide) => wide.move_to(successor, |moving| match moving {
                Moving::Bucket { tag, state } => {
                    if let Some(state) = rescale(state) {
                        successor.adopt(Moving::Bucket { tag, state }, now);
                    }
                }
                Moving::Floor { first, last, state } => {
                    if let Some(state) = rescale(state) {
                        successor.adopt(Moving::Floor { first, last, state }, now);
                    }
                }
            }),
        }
    }

    fn adopt(&self, moving: Moving, now: Timestamp) {
        match &self.form {
            Form::Wide(wide) => wide.adopt(moving, now),
        }
    }
}

/// One locked bucket.
pub(crate) enum Slot<'t> {
    Wide(WideSlot<'t>),
}

impl Slot<'_> {
    /// The bucket's verdict; nothing is written before [`Slot::commit`].
    pub(crate) fn judge(&mut self, cost: u64, now: Timestamp) -> Standing {
        match self {
            Self::Wide(slot) => slot.judge(cost, now),
        }
    }

    /// Writes what [`Slot::judge`] worked out.
    pub(crate) fn commit(&mut self, now: Timestamp) {
        match self {
            Self::Wide(slot) => slot.commit(now),
        }
    }

    /// Corrects an earlier grant.
    pub(crate) fn settle(&mut self, change: Change, now: Timestamp) {
        match self {
            Self::Wide(slot) => slot.settle(change, now),
        }
    }
}

static NEXT_ORDER: AtomicU64 = AtomicU64::new(0);
