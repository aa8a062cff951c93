//! One limit's buckets, in the form that its algorithm allows: packed or wide.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_limit::bucket::{Report, State};
use tollgate_limit::packed::Packed;
use tollgate_limit::{
    Algorithm, Change, Claim, Conditions, Kept, Limit, Standing, Timestamp, Verdict,
};

use super::packed::{LATE, PackedSlot, PackedTable, View};
use super::wide::{Numbers, WideSlot, WideTable};
use super::{Occupancy, Tally};

/// The buckets of one limit.
#[derive(Debug)]
pub(crate) struct Table {
    /// Locks are taken in this order, so that draws cannot deadlock.
    pub(crate) order: u64,
    form: Form,
    floors: bool,
    /// The largest burst the limit has had; after a lower burst, buckets remember it.
    widest: u64,
}

#[derive(Debug)]
enum Form {
    Packed(PackedTable),
    Wide(WideTable),
}

/// An item that a table passes to its successor, or to a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Moving {
    pub(crate) whose: Whose,
    /// The state.
    pub(crate) state: State,
    /// What it remembers of other numbers ([`Kept::beyond`]).
    pub(crate) beyond: u64,
    /// The numbers it is drawn under, as an index in the table that it comes from, or goes to.
    pub(crate) by: u16,
    /// The numbers it is kept in, if a reload has changed them.
    pub(crate) own: Option<Arc<Algorithm>>,
}

/// The owner of a moved item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// One key's bucket.
    Bucket {
        /// Its tag.
        tag: u64,
    },
    /// The possible debt of forgotten keys with tags from `first` to `last`.
    Floor {
        /// The lowest tag.
        first: u64,
        /// The highest tag.
        last: u64,
    },
    /// The possible debt of a key that was never seen.
    Birth,
}

impl Moving {
    /// The same for a table whose numbers at index `by` are `to`; `None`: full there.
    pub(crate) fn rescaled(
        self,
        from: &Arc<Algorithm>,
        to: &Algorithm,
        by: u16,
        now: Timestamp,
    ) -> Option<Self> {
        let from = self.own.as_ref().unwrap_or(from);
        // (Floors are joined, which requires one set of numbers.)
        let is_one = matches!(self.whose, Whose::Bucket { .. });
        if is_one
            && Kept::keeps_pace(from, to)
            && from.expiry_beyond(&self.state, self.beyond)? > now
        {
            let own = (**from != *to).then(|| Arc::clone(from));
            return Some(Self { own, by, ..self });
        }
        let kept = Kept::from_parts((**from).clone(), Some(self.state), self.beyond);
        let (state, beyond) = kept.handed_on(to, now, LATE)?;
        Some(Self {
            whose: self.whose,
            state,
            beyond,
            by,
            own: None,
        })
    }

    /// The moment from which it equals no bucket under any numbers; `None`: there is none.
    pub(crate) fn expiry(&self, algorithm: &Algorithm) -> Option<Timestamp> {
        self.own
            .as_deref()
            .unwrap_or(algorithm)
            .expiry_beyond(&self.state, self.beyond)
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
        let form = match (packed, limits) {
            (Some(packed), [limit, ..]) => {
                let numbers = Numbers::of(limit);
                Form::Packed(PackedTable::new(numbers, packed, memory, floors))
            }
            _ => Form::Wide(WideTable::new(
                limits.iter().map(|limit| Numbers::of(limit)).collect(),
                memory,
            )),
        };
        let widest = limits
            .iter()
            .map(|limit| limit.algorithm.burst())
            .fold(widest, u64::max);
        Self {
            order: NEXT_ORDER.fetch_add(1, Ordering::Relaxed),
            form,
            floors,
            widest,
        }
    }

    /// The largest burst the limit has had.
    pub(crate) fn widest(&self) -> u64 {
        self.widest
    }

    /// The number of sets, if their slots imply what they have forgotten: a table with as many sets
    /// then needs no floors.
    pub(crate) fn geometry(&self) -> Option<usize> {
        match &self.form {
            Form::Packed(packed) => packed.geometry(),
            Form::Wide(_) => None,
        }
    }

    /// The numbers at an index.
    pub(crate) fn algorithm(&self, by: u16) -> &Algorithm {
        match &self.form {
            Form::Packed(packed) => packed.algorithm(),
            Form::Wide(wide) => wide.algorithm(by),
        }
    }

    /// Every set of numbers that its buckets are drawn under: all of rates, or all of places in
    /// flight.
    pub(crate) fn numbers(&self) -> &[Numbers] {
        match &self.form {
            Form::Packed(packed) => packed.numbers(),
            Form::Wide(wide) => wide.numbers(),
        }
    }

    /// The index of a tier's numbers; the limit's own if it has none.
    pub(crate) fn place_of(&self, tier: Option<&str>) -> u16 {
        match &self.form {
            Form::Packed(_) => 0,
            Form::Wide(wide) => wide.place_of(tier),
        }
    }

    pub(crate) fn tally(&self) -> Tally {
        match &self.form {
            Form::Packed(packed) => packed.tally(),
            Form::Wide(wide) => wide.tally(),
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
        match &self.form {
            Form::Packed(packed) => packed.occupancy(),
            Form::Wide(_) => Occupancy::default(),
        }
    }

    /// Whether charges can be refunded here.
    pub(crate) fn keeps_floors(&self) -> bool {
        self.floors || matches!(self.form, Form::Wide(_))
    }

    /// The table that took over, after buckets have moved.
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

    /// Draws from one known bucket that no other thread is drawing from; `None`: nothing was drawn,
    /// see [`Table::draw`].
    #[inline]
    pub(crate) fn draw_known(&self, tag: u64, cost: u64, now: Timestamp) -> Option<Standing> {
        match &self.form {
            Form::Packed(packed) => packed.draw_known(tag, cost, now),
            Form::Wide(_) => None,
        }
    }

    /// A bucket's verdict, read without a lock, see [`PackedTable::view`]; `None`: a lock is
    /// required.
    pub(crate) fn view(&self, tag: u64, cost: u64, now: Timestamp) -> Option<View> {
        match &self.form {
            Form::Packed(packed) => packed.view(tag, cost, now),
            Form::Wide(_) => None,
        }
    }

    /// The standing of a bucket in a request that [`Table::view`] has refused.
    pub(crate) fn refuse(&self, view: &View) -> Option<Standing> {
        match &self.form {
            Form::Packed(packed) => Some(packed.refuse(view)),
            Form::Wide(_) => None,
        }
    }

    /// Draws from a single bucket; `None`: it has moved to the successor.
    pub(crate) fn draw(&self, tag: u64, claim: &Claim<'_>, now: Timestamp) -> Option<Standing> {
        match &self.form {
            Form::Packed(packed) => packed.draw(tag, claim.cost, now),
            Form::Wide(wide) => wide.draw(tag, claim, now),
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
                .lock(tag, wide.place_of(tier), conditions)
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
        let kept_in: Vec<_> = self
            .numbers()
            .iter()
            .map(|numbers| Arc::new(numbers.algorithm.clone()))
            .collect();
        let adopt = |moving: Moving| {
            let place = usize::from(moving.by);
            let by = successor.place_of(self.numbers()[place].tier.as_deref());
            if let Some(moving) = moving.rescaled(&kept_in[place], successor.algorithm(by), by, now)
            {
                successor.adopt(moving, now);
            }
        };
        match &self.form {
            Form::Packed(packed) => packed.move_to(&successor, congruent, now, adopt),
            Form::Wide(wide) => wide.move_to(&successor, adopt),
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
