//! One limit's buckets, in the form that its algorithm allows: packed or wide.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tollgate_limit::bucket::{Report, State};
use tollgate_limit::packed::Packed;
use tollgate_limit::{
    Algorithm, Change, Claim, Conditions, Kept, Limit, Standing, Timestamp, Verdict,
};

use super::bucket::Moving;
use super::packed::{PackedSlot, PackedTable};
use super::wide::{WideSlot, WideTable};
use super::{Occupancy, Tally};

/// The buckets of one limit.
#[derive(Debug)]
pub(crate) struct Table {
    /// Locks are taken in this order, so that draws cannot deadlock.
    pub(crate) order: u64,
    form: Form,
    /// The limit's own numbers first, then those of its tiers.
    numbers: Arc<[Numbers]>,
    floors: bool,
    /// The largest burst the limit has had; after a lower burst, buckets remember it.
    widest: u64,
    successor: OnceLock<Arc<Self>>,
}

/// One set of numbers that buckets are drawn under.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    /// The tier of these numbers; `None`: callers without a tier.
    pub(crate) tier: Option<Arc<str>>,
    pub(crate) algorithm: Algorithm,
}

impl Numbers {
    /// Those of `limit`.
    pub(crate) fn of(limit: &Limit) -> Self {
        Self {
            tier: limit.tier.clone(),
            algorithm: limit.algorithm.clone(),
        }
    }
}

#[derive(Debug)]
enum Form {
    Packed(PackedTable),
    Wide(WideTable),
}

/// Counts what a table does to stay within its memory.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) evictions: AtomicU64,
    pub(crate) inherited_refusals: AtomicU64,
}

impl Counts {
    pub(crate) fn tally(&self) -> Tally {
        Tally {
            evictions: self.evictions.load(Ordering::Relaxed),
            inherited_refusals: self.inherited_refusals.load(Ordering::Relaxed),
        }
    }
}

impl Table {
    /// A table in which every bucket is full. `limits`: the limit's variants, its own first, then
    /// its tiers'. `floors`: its charges may be refunded. `epoch`: the start of its packed time.
    pub(crate) fn new(limits: &[&Limit], floors: bool, epoch: Timestamp) -> Self {
        Self::remembering(limits, floors, epoch, 0)
    }

    /// The same for a limit that has had a burst of `widest`.
    pub(crate) fn remembering(
        limits: &[&Limit],
        floors: bool,
        epoch: Timestamp,
        widest: u64,
    ) -> Self {
        let packed = match limits {
            [limit] => match &limit.algorithm {
                Algorithm::TokenBucket(bucket) => {
                    Packed::new(bucket, epoch).map(|packed| packed.remembering(widest))
                }
                _ => None,
            },
            _ => None,
        };
        let memory = limits
            .iter()
            .map(|limit| limit.memory)
            .max()
            .unwrap_or_default();
        let numbers: Arc<[Numbers]> = limits.iter().map(|limit| Numbers::of(limit)).collect();
        let form = match packed {
            Some(packed) => Form::Packed(PackedTable::new(packed, memory, floors)),
            None => Form::Wide(WideTable::new(Arc::clone(&numbers), memory)),
        };
        let widest = limits
            .iter()
            .map(|limit| limit.algorithm.burst())
            .fold(widest, u64::max);
        Self {
            order: NEXT_ORDER.fetch_add(1, Ordering::Relaxed),
            form,
            numbers,
            floors,
            widest,
            successor: OnceLock::new(),
        }
    }

    /// The largest burst the limit has had.
    pub(crate) fn widest(&self) -> u64 {
        self.widest
    }

    /// The number of sets, if their slots imply what they have forgotten: a table with as many sets
    /// then needs no floors.
    pub(crate) fn geometry(&self) -> Option<usize> {
        self.packed().and_then(PackedTable::geometry)
    }

    /// The numbers at an index.
    pub(crate) fn algorithm(&self, by: u16) -> &Algorithm {
        &self.numbers[usize::from(by)].algorithm
    }

    /// Every set of numbers that its buckets are drawn under: all of rates, or all of places in
    /// flight.
    pub(crate) fn numbers(&self) -> &[Numbers] {
        &self.numbers
    }

    /// The index of a tier's numbers; the limit's own if it has none.
    pub(crate) fn place_of(&self, tier: Option<&str>) -> u16 {
        let place = match &*self.numbers {
            [_] => None,
            several => several
                .iter()
                .position(|numbers| numbers.tier.as_deref() == tier),
        };
        place
            .and_then(|place| u16::try_from(place).ok())
            .unwrap_or_default()
    }

    pub(crate) fn tally(&self) -> Tally {
        match &self.form {
            Form::Packed(packed) => packed.counts.tally(),
            Form::Wide(wide) => wide.counts.tally(),
        }
    }

    /// How many buckets it has room for.
    pub(crate) fn room(&self) -> u64 {
        match &self.form {
            Form::Packed(packed) => packed.room(),
            Form::Wide(wide) => wide.room(),
        }
    }

    /// Where its keys are; empty for a table whose buckets are larger than a word.
    pub(crate) fn occupancy(&self) -> Occupancy {
        let packed = self.packed().map(PackedTable::occupancy);
        packed.unwrap_or_default()
    }

    /// Whether charges can be refunded here.
    pub(crate) fn keeps_floors(&self) -> bool {
        self.floors || matches!(self.form, Form::Wide(_))
    }

    /// The table that took over, after buckets have moved.
    pub(crate) fn successor(&self) -> Option<&Arc<Self>> {
        self.successor.get()
    }

    /// The table that has the buckets now.
    pub(crate) fn latest(self: &Arc<Self>) -> &Arc<Self> {
        let mut table = self;
        while let Some(successor) = table.successor() {
            table = successor;
        }
        table
    }

    /// Draws from one known bucket that no other thread is drawing from; `None`: nothing was drawn,
    /// see [`Table::draw`].
    #[inline]
    pub(crate) fn draw_known(&self, tag: u64, cost: u64, now: Timestamp) -> Option<Standing> {
        match &self.form {
            Form::Packed(packed) => packed.draw_known(tag, cost, now),
            Form::Wide(_) => None,
        }
    }

    /// Draws from a single bucket; `None`: it has moved to the successor.
    pub(crate) fn draw(&self, tag: u64, claim: &Claim<'_>, now: Timestamp) -> Option<Standing> {
        match &self.form {
            Form::Packed(packed) => packed.draw(tag, claim.cost, now),
            Form::Wide(wide) => {
                let by = self.place_of(claim.limit.tier.as_deref());
                wide.draw(tag, by, claim, now)
            }
        }
    }

    /// The packed table, if its buckets are one word each.
    #[inline(always)]
    pub(crate) fn packed(&self) -> Option<&PackedTable> {
        match &self.form {
            Form::Packed(packed) => Some(packed),
            Form::Wide(_) => None,
        }
    }

    /// The locked bucket of `tag`, for a draw under a tier's numbers and an upstream's conditions;
    /// `None` if it has moved to the successor.
    pub(crate) fn lock<'t>(
        &'t self,
        tag: u64,
        tier: Option<&str>,
        conditions: Option<&'t Conditions>,
        now: Timestamp,
    ) -> Option<Slot<'t>> {
        match &self.form {
            Form::Packed(packed) => packed.lock(tag, now).map(Slot::Packed),
            Form::Wide(wide) => wide
                .lock(tag, self.place_of(tier), conditions)
                .map(Slot::Wide),
        }
    }

    /// A table for `limits` (changed numbers, or another algorithm) with every bucket of this one
    /// moved into it. Callers of a tier get its numbers, or the limit's own.
    pub(crate) fn succeeded_by(
        &self,
        limits: &[&Limit],
        floors: bool,
        epoch: Timestamp,
        now: Timestamp,
    ) -> Arc<Self> {
        let (plain, congruent) = Self::fitting(limits, floors, epoch, self.widest, self.geometry());
        let successor = Arc::new(plain);
        // Before the first bucket is marked as moved, so that a thread that sees the mark finds the
        // successor.
        let set = self.successor.set(Arc::clone(&successor));
        debug_assert!(set.is_ok(), "a table moves once, under the lock of moves");
        let kept_in: Vec<_> = self
            .numbers()
            .iter()
            .map(|numbers| Arc::new(numbers.algorithm.clone()))
            .collect();
        let adopt = |moving: Moving| {
            let place = usize::from(moving.bucket.by);
            let by = successor.place_of(self.numbers()[place].tier.as_deref());
            if let Some(moving) = moving.rescaled(&kept_in[place], successor.algorithm(by), by, now)
            {
                successor.adopt(moving, now);
            }
        };
        match &self.form {
            Form::Packed(packed) => packed.move_to(congruent, now, adopt),
            Form::Wide(wide) => wide.move_to(adopt),
        }
        successor
    }

    /// A table that takes over from one with this [geometry](Table::geometry), and whether it has
    /// the same geometry. If sets do not correspond, forgotten debts must be stored as floors.
    pub(crate) fn fitting(
        limits: &[&Limit],
        floors: bool,
        epoch: Timestamp,
        widest: u64,
        before: Option<usize>,
    ) -> (Self, bool) {
        let plain = Self::remembering(limits, floors, epoch, widest);
        let congruent = before.is_some() && plain.geometry() == before;
        let fits = congruent || floors;
        (
            if fits {
                plain
            } else {
                Self::remembering(limits, true, epoch, widest)
            },
            congruent,
        )
    }

    /// Passes every bucket to `visit`, under its lock.
    pub(crate) fn visit(&self, now: Timestamp, visit: &dyn Fn(Moving)) {
        match &self.form {
            Form::Packed(packed) => packed.visit(now, visit),
            Form::Wide(wide) => wide.visit(visit),
        }
    }

    /// Takes over an item from a predecessor or a snapshot.
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

    /// The bucket's numbers.
    #[inline]
    pub(crate) fn report(&self, now: Timestamp) -> Report {
        match self {
            Self::Packed(slot) => slot.report(),
            Self::Wide(slot) => slot.report(now),
        }
    }

    /// Writes the result of [`Slot::judge`].
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

    /// Takes the bucket out as of `since`, which has these numbers, and leaves an empty one.
    pub(crate) fn lift(&mut self, algorithm: &Algorithm, since: Timestamp, now: Timestamp) -> Kept {
        let found = match self {
            Self::Packed(slot) => slot
                .state(since)
                .map(|(level, beyond)| (State::Level(level), beyond)),
            Self::Wide(slot) => slot.state(since),
        };
        let more = self.report(now).remaining;
        self.settle(Change::Charge { more }, now);
        match found {
            Some((state, beyond)) => Kept::from_parts(algorithm.clone(), Some(state), beyond),
            None => Kept::full(algorithm.clone()),
        }
    }

    /// Whether the bucket is full.
    pub(crate) fn is_full(&self, now: Timestamp) -> bool {
        match self {
            Self::Packed(slot) => slot.state(now).is_none(),
            Self::Wide(slot) => slot.state(now).is_none(),
        }
    }
}

static NEXT_ORDER: AtomicU64 = AtomicU64::new(0);
