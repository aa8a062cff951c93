//! One limit's buckets, in whichever form its algorithm allows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::limit::bucket::{Report, State};
use crate::limit::packed::Packed;
use crate::limit::{Algorithm, Change, Limit, Standing, Timestamp, Verdict};

use super::Tally;
use super::packed::{PackedSlot, PackedTable, View};
use super::wide::{WideSlot, WideTable};

/// The buckets of one limit.
#[derive(Debug)]
pub(crate) struct Table {
    /// Locks are taken in the order of these, so that draws cannot wait for each other in a circle.
    pub(crate) order: u64,
    form: Form,
    floors: bool,
}

#[derive(Debug)]
enum Form {
    Packed(PackedTable),
    Wide(WideTable),
}

/// What a table hands to its successor, or to a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Moving {
    /// One bucket.
    Bucket {
        /// Its key's tag.
        tag: u64,
        /// How it stands.
        state: State,
    },
    /// What forgotten keys with tags from `first` to `last` may owe.
    Floor {
        /// The lowest tag.
        first: u64,
        /// The highest tag.
        last: u64,
        /// How the floor stands.
        state: State,
    },
    /// What a key nobody has seen may owe.
    Birth {
        /// How it stands.
        state: State,
    },
}

impl Moving {
    /// The state it carries.
    pub(crate) fn state(&self) -> &State {
        match self {
            Self::Bucket { state, .. } | Self::Floor { state, .. } | Self::Birth { state } => state,
        }
    }

    pub(crate) fn with(self, state: State) -> Self {
        match self {
            Self::Bucket { tag, .. } => Self::Bucket { tag, state },
            Self::Floor { first, last, .. } => Self::Floor { first, last, state },
            Self::Birth { .. } => Self::Birth { state },
        }
    }

    /// The same under changed numbers; `None`: full there.
    pub(crate) fn rescaled(self, from: &Algorithm, to: &Algorithm, now: Timestamp) -> Option<Self> {
        let state = from.rescale(self.state(), to, now)?;
        Some(self.with(state))
    }
}

impl Table {
    /// A table for `limit` in which every bucket is full. `floors`: its charges may be given back. `epoch` is where
    /// its packed time begins.
    pub(crate) fn new(limit: &Limit, floors: bool, epoch: Timestamp) -> Self {
        let packed = match &limit.algorithm {
            Algorithm::TokenBucket(bucket) => Packed::new(bucket, epoch),
            _ => None,
        };
        let algorithm = limit.algorithm.clone();
        let form = match packed {
            Some(packed) => Form::Packed(PackedTable::new(algorithm, packed, limit.memory, floors)),
            None => Form::Wide(WideTable::new(algorithm, limit.memory)),
        };
        Self { order: NEXT_ORDER.fetch_add(1, Ordering::Relaxed), form, floors }
    }

    pub(crate) fn algorithm(&self) -> &Algorithm {
        match &self.form {
            Form::Packed(packed) => packed.algorithm(),
            Form::Wide(wide) => wide.algorithm(),
        }
    }

    pub(crate) fn tally(&self) -> Tally {
        match &self.form {
            Form::Packed(packed) => packed.tally(),
            Form::Wide(wide) => wide.tally(),
        }
    }

    /// Whether charges can be given back here.
    pub(crate) fn keeps_floors(&self) -> bool {
        self.floors || matches!(self.form, Form::Wide(_))
    }

    /// The table that took over, once buckets have moved.
    pub(crate) fn successor(&self) -> Option<&Arc<Self>> {
        match &self.form {
            Form::Packed(packed) => packed.successor(),
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

    /// Draws from one bucket that is known and that nobody else is drawing from; `None`: nothing was drawn, see
    /// [`Table::draw`].
    #[inline]
    pub(crate) fn draw_known(&self, tag: u64, cost: u64, now: Timestamp) -> Option<Standing> {
        match &self.form {
            Form::Packed(packed) => packed.draw_known(tag, cost, now),
            Form::Wide(_) => None,
        }
    }

    /// How a bucket stands, read without a lock, see [`PackedTable::view`]; `None`: that takes a lock.
    pub(crate) fn view(&self, tag: u64, cost: u64, now: Timestamp) -> Option<View> {
        match &self.form {
            Form::Packed(packed) => packed.view(tag, cost, now),
            Form::Wide(_) => None,
        }
    }

    /// Counts a refusal by what [`Table::view`] showed.
    pub(crate) fn count(&self, refused: &View) {
        if let Form::Packed(packed) = &self.form {
            packed.count(refused);
        }
    }

    /// Draws from one bucket by itself; `None`: it has moved to the successor.
    pub(crate) fn draw(&self, tag: u64, cost: u64, now: Timestamp) -> Option<Standing> {
        match &self.form {
            Form::Packed(packed) => packed.draw(tag, cost, now),
            Form::Wide(wide) => wide.draw(tag, cost, now),
        }
    }

    /// The same, if its buckets are one word long each and nothing lowers their rate.
    #[inline(always)]
    pub(crate) fn plain(&self) -> Option<&PackedTable> {
        match &self.form {
            Form::Packed(packed) if packed.is_plain() => Some(packed),
            _ => None,
        }
    }

    /// The locked bucket of `tag`; `None` when it has moved to the successor.
    pub(crate) fn lock(&self, tag: u64, now: Timestamp) -> Option<Slot<'_>> {
        match &self.form {
            Form::Packed(packed) => packed.lock(tag, now).map(Slot::Packed),
            Form::Wide(wide) => wide.lock(tag).map(Slot::Wide),
        }
    }

    /// A table for `limit`, changed numbers of the same algorithm, with every bucket of this one moved into it.
    pub(crate) fn succeeded_by(&self, limit: &Limit, floors: bool, epoch: Timestamp, now: Timestamp) -> Arc<Self> {
        let plain = Self::new(limit, floors, epoch);
        let congruent = match (&self.form, &plain.form) {
            (Form::Packed(old), Form::Packed(new)) => old.is_congruent(new),
            _ => false,
        };
        // Where sets do not correspond, what they forgot must be kept in so many words.
        let successor = Arc::new(if congruent || floors { plain } else { Self::new(limit, true, epoch) });
        let adopt = |moving: Moving| {
            if let Some(moving) = moving.rescaled(self.algorithm(), successor.algorithm(), now) {
                successor.adopt(moving, now);
            }
        };
        match &self.form {
            Form::Packed(packed) => packed.move_to(&successor, congruent, now, adopt),
            Form::Wide(wide) => wide.move_to(&successor, adopt),
        }
        successor
    }

    /// Shows every bucket to `visit`, under its lock.
    pub(crate) fn visit(&self, now: Timestamp, visit: &dyn Fn(Moving)) {
        match &self.form {
            Form::Packed(packed) => packed.visit(now, visit),
            Form::Wide(wide) => wide.visit(visit),
        }
    }

    /// Takes over what `other`, a table of the same algorithm, remembers; `other` keeps it too.
    pub(crate) fn adopt_all(&self, other: &Self, now: Timestamp) {
        other.visit(now, &|moving| {
            if let Some(moving) = moving.rescaled(other.algorithm(), self.algorithm(), now) {
                self.adopt(moving, now);
            }
        });
    }

    /// Takes over what a predecessor or a snapshot remembered.
    pub(crate) fn adopt(&self, moving: Moving, now: Timestamp) {
        match &self.form {
            Form::Packed(packed) => packed.adopt(moving, now),
            Form::Wide(wide) => wide.adopt(moving, now),
        }
    }
}

/// One locked bucket.
pub(crate) enum Slot<'t> {
    Packed(PackedSlot<'t>),
    Wide(WideSlot<'t>),
}

impl Slot<'_> {
    /// The bucket's verdict; nothing is written before [`Slot::commit`].
    #[inline]
    pub(crate) fn judge(&mut self, cost: u64, now: Timestamp) -> Verdict {
        match self {
            Self::Packed(slot) => slot.judge(cost),
            Self::Wide(slot) => slot.judge(cost, now),
        }
    }

    /// How the bucket stands.
    #[inline]
    pub(crate) fn report(&self, now: Timestamp) -> Report {
        match self {
            Self::Packed(slot) => slot.report(),
            Self::Wide(slot) => slot.report(now),
        }
    }

    /// Writes what [`Slot::judge`] worked out.
    #[inline]
    pub(crate) fn commit(&mut self, now: Timestamp) {
        match self {
            Self::Packed(slot) => slot.commit(),
            Self::Wide(slot) => slot.commit(now),
        }
    }

    /// Corrects an earlier grant.
    pub(crate) fn settle(&mut self, change: Change, now: Timestamp) {
        match self {
            Self::Packed(slot) => slot.settle(change),
            Self::Wide(slot) => slot.settle(change, now),
        }
    }
}

static NEXT_ORDER: AtomicU64 = AtomicU64::new(0);
