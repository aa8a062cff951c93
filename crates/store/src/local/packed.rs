//! Token buckets in one word each: sixteen bytes a key, one cache line a decision, fixed memory.
//!
//! A key belongs to one set of eight slots, in two lines, one of which is its home line
//! ([`super::set`]). A slot whose bucket is full again is free, so no sweeping and no list is
//! needed. When all eight slots are in debt, a new key takes the slot with the smallest debt **and
//! inherits that debt** (Space-Saving; Metwally, Agrawal, El Abbadi 2005).
//!
//! *No key gains by being forgotten.* Without refunds a slot's arrival time only grows: a draw
//! advances it, and a new key starts from it. So the smallest arrival time of a set never
//! decreases. A key forgotten with debt m had the smallest debt then. When it returns, it finds
//! either a free slot, so that m is past, or eight slots with a debt of at least m, of which it
//! inherits the smallest. (A full bucket that is forgotten need not be the smallest: it has no
//! debt.) This requires one set per key: with a choice of two sets it fails.
//!
//! *Time differs between threads*: a request is dated at its arrival, and its thread may have been
//! delayed since. So a full bucket counts as forgotten only [`LATE`] after it filled up; until then
//! its slot is given away like one in debt.
//!
//! *One step.* Because the arrival time only grows, a grant to a known key is one
//! compare-and-exchange, which is both the lock and the write ([`super::set`]).
//!
//! *A lowered burst* is remembered: until a bucket would be full at the widest burst its limit has
//! had ([`tollgate_limit::packed`] explains why), its slot is given away like one in debt. That
//! debt is in the past and refuses no request.
//!
//! *Refunds* decrease an arrival time. Tables with refunds keep a floor per set: the largest debt
//! ever forgotten there. An unknown key starts at the floor.

mod moving;
mod site;
mod slot;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tollgate_limit::bucket::{Granted, Judged, Refused};
use tollgate_limit::packed::Packed;
use tollgate_limit::{Micros, Standing, Timestamp, Verdict};

use super::Occupancy;
use super::memory::{Sets, zeroed};
use super::set::{LINES, Line, SLOTS, SlotView};
use super::table::Counts;
pub(crate) use site::Site;
pub(crate) use slot::PackedSlot;

/// The buckets of one limit.
#[derive(Debug)]
pub(crate) struct PackedTable {
    packed: Packed,
    sets: Sets,
    floors: Option<Box<[AtomicU64]>>,
    /// The arrival time of a key that was never seen (`cold_start = "empty"`).
    birth: AtomicU64,
    closing: AtomicBool,
    pub(super) counts: Counts,
}

impl PackedTable {
    /// A table of at most `memory` bytes for buckets in the form of `packed`.
    pub(crate) fn new(packed: Packed, memory: usize, floors: bool) -> Self {
        let set = size_of::<u64>() * 2 * SLOTS + if floors { size_of::<u64>() } else { 0 };
        let sets = Sets::new((memory / set).max(1));
        Self {
            floors: floors.then(|| zeroed(sets.len())),
            packed,
            sets,
            birth: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            counts: Counts::default(),
        }
    }

    /// Draws from one known bucket that no other thread is drawing from; `None`: nothing was drawn.
    #[inline(always)]
    pub(crate) fn draw_known(&self, tag: u64, cost: u64, now: Timestamp) -> Option<Standing> {
        let ticks = self.packed.ticks(now);
        let (line, seen) = self.peek(tag)?;
        match self.judge(seen.arrival(), cost, ticks) {
            Err(Refused { retry_after }) => {
                let report = self.packed.report(seen.arrival(), ticks);
                Some(Standing::new(Verdict::Deny { retry_after }, report))
            }
            // The common case: no other thread drew meanwhile, and the same step checks this and
            // writes the new word.
            Ok(Granted { wait, next }) if cost > 0 && self.advance(line, tag, seen, next) => Some(
                Standing::new(Verdict::Allow { wait }, self.packed.report(next, ticks)),
            ),
            _ => None,
        }
    }

    /// Advances a bucket if it is unchanged since it was read; returns whether it was.
    #[inline(always)]
    fn advance(&self, line: Line<'_, AtomicU64>, tag: u64, seen: SlotView, next: u64) -> bool {
        if self.floors.is_none() {
            return line.advance(seen, next);
        }
        let held = line.hold(tag, seen);
        if held {
            line.release(seen, next);
        }
        held
    }

    /// Where the table's keys are.
    pub(crate) fn occupancy(&self) -> Occupancy {
        let mut occupancy = Occupancy {
            slots: self.room(),
            ..Occupancy::default()
        };
        for line in 0..self.sets.lines() {
            for tag in self.sets.line(line).tenants() {
                occupancy.keys += 1;
                occupancy.beside += u64::from(self.line(tag) != line);
            }
        }
        occupancy
    }

    /// How many buckets it has room for.
    pub(crate) fn room(&self) -> u64 {
        (self.sets.len() * SLOTS) as u64
    }

    /// The position and the state of a known bucket, read without a lock.
    #[inline(always)]
    fn peek(&self, tag: u64) -> Option<(Line<'_, AtomicU64>, SlotView)> {
        let home = self.line(tag);
        let line = self.sets.line(home);
        if let Some(seen) = line.peek(tag) {
            return Some((line, seen));
        }
        let beyond = self.sets.line(beside(home));
        beyond.peek(tag).map(|seen| (beyond, seen))
    }

    /// A bucket's verdict, read without a lock. A refusal is final. `None`: the bucket has moved,
    /// or may be moving.
    pub(crate) fn view(&self, tag: u64, cost: u64, now: Timestamp) -> Option<View> {
        let start = self.start(self.line(tag))?;
        self.view_from(start, tag, cost, self.packed.ticks(now))
    }

    fn view_from(&self, start: u64, tag: u64, cost: u64, ticks: u64) -> Option<View> {
        let (word, known) = match self.peek(tag) {
            Some((_, seen)) => (seen.arrival(), true),
            // The bucket may have moved after `start` was read; it may then be known and owe less
            // than a floor.
            None if self.sets.of_line(self.line(tag)).has_moved() => return None,
            None => (start, false),
        };
        let verdict = Verdict::from(&self.judge(word, cost, ticks));
        Some(View {
            word,
            ticks,
            known,
            verdict,
        })
    }

    /// The minimum debt that an unknown key would inherit, read without a lock and before its tag
    /// is searched: at some moment in between, the key was absent and the debt was no smaller.
    /// `None`: the set has moved, or may be moving.
    fn start(&self, line: usize) -> Option<u64> {
        // An untouched set is marked as moved only when a thread comes to lock it.
        if self.closing.load(Ordering::SeqCst) {
            return None;
        }
        let least = self.sets.of_line(line).least()?;
        let floor = self
            .floors
            .as_ref()
            .map(|floors| floors[line / LINES].load(Ordering::Acquire));
        Some(
            floor
                .unwrap_or(least)
                .max(self.birth.load(Ordering::Relaxed)),
        )
    }

    /// The standing at the time of the view, for a refused request. A refusal for an inherited debt
    /// is counted.
    pub(crate) fn refuse(&self, view: &View) -> Standing {
        if !view.known && !view.verdict.is_allow() && view.word > view.ticks {
            let counter = &self.counts.inherited_refusals;
            counter.fetch_add(1, Ordering::Relaxed);
        }
        Standing::new(view.verdict, self.packed.report(view.word, view.ticks))
    }

    /// The refusal, if the result is a refusal and can be determined without a lock.
    #[inline]
    fn refused(&self, tag: u64, cost: u64, now: Timestamp) -> Option<Standing> {
        let (start, ticks) = (self.start(self.line(tag))?, self.packed.ticks(now));
        // A known key that cannot pay was refused above.
        if self.judge(start, cost, ticks).is_ok() {
            return None;
        }
        let view = self.view_from(start, tag, cost, ticks)?;
        (!view.verdict.is_allow()).then(|| self.refuse(&view))
    }

    /// Draws from one bucket; `None`: it has moved.
    pub(crate) fn draw(&self, tag: u64, cost: u64, now: Timestamp) -> Option<Standing> {
        if let Some(standing) = self.refused(tag, cost, now) {
            return Some(standing);
        }
        let mut slot = self.lock(tag, now)?;
        let verdict = slot.judge(cost);
        slot.commit();
        Some(slot.standing(verdict))
    }

    /// The site of `tag`.
    #[inline(always)]
    pub(crate) fn site(&self, tag: u64, elapsed: Micros) -> Site<'_> {
        Site {
            table: self,
            line: self.sets.line(self.line(tag)),
            tag,
            ticks: self.packed.ticks_after(elapsed),
        }
    }

    /// The table's time, see [`Packed::elapsed`].
    #[inline(always)]
    pub(crate) fn elapsed(&self, now: Timestamp) -> Micros {
        self.packed.elapsed(now)
    }

    /// The locked bucket of `tag`; `None`: it has moved.
    #[inline]
    pub(crate) fn lock(&self, tag: u64, now: Timestamp) -> Option<PackedSlot<'_>> {
        let line = self.line(tag);
        let index = line / LINES;
        let mut set = self
            .sets
            .of_line(line)
            .enter(|| self.closing.load(Ordering::SeqCst))?;
        let ticks = self.packed.ticks(now);
        let (place, known, word) = match set.find(tag) {
            Some(place) => (place, true, set.hold(place)),
            None => {
                let (place, debt) = set.hold_for_newcomer(self.long_since(ticks));
                let inherited = match &self.floors {
                    None => debt,
                    Some(floors) => floors[index].load(Ordering::Relaxed),
                };
                (
                    place,
                    false,
                    inherited.max(self.birth.load(Ordering::Relaxed)),
                )
            }
        };
        Some(PackedSlot {
            table: self,
            set,
            index,
            tag,
            place,
            known,
            word,
            ticks,
            next: None,
        })
    }

    #[inline(always)]
    fn judge(&self, word: u64, cost: u64, ticks: u64) -> Judged<u64> {
        match self.packed.price(cost) {
            Some(price) => self.packed.judge(word, price, ticks),
            None => Err(Refused::NEVER),
        }
    }

    /// A bucket that has been full since before this is full for every thread that may still draw,
    /// at every burst the limit has had.
    #[inline]
    fn long_since(&self, ticks: u64) -> u64 {
        ticks.saturating_sub(self.packed.ticks_after(LATE) + self.packed.beyond())
    }

    /// The number of sets, if their slots imply what they have forgotten.
    pub(crate) fn geometry(&self) -> Option<usize> {
        self.floors.is_none().then(|| self.sets.len())
    }

    /// The line that `tag` belongs to.
    #[inline(always)]
    fn line(&self, tag: u64) -> usize {
        place(tag, self.sets.lines())
    }
}

/// The largest age of a request at its draw, counted from its arrival.
pub(crate) const LATE: Micros = Micros::from_secs(1);

/// The other line of the set.
#[inline(always)]
fn beside(line: usize) -> usize {
    line ^ 1
}

/// The position of `tag` among `places`: the high bits, by multiplication.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "less than the number of places"
)]
pub(crate) fn place(tag: u64, places: usize) -> usize {
    ((u128::from(tag) * places as u128) >> 64) as usize
}

/// The first and last tag that [`place`] puts at `index`.
#[expect(
    clippy::cast_possible_truncation,
    reason = "below 2^64 for an index below the number of places"
)]
pub(crate) fn span(index: usize, places: usize) -> (u64, u64) {
    let (index, places) = (index as u128, places as u128);
    (
        (index << 64).div_ceil(places) as u64,
        (((index + 1) << 64).div_ceil(places) - 1) as u64,
    )
}

/// A bucket as read without a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) verdict: Verdict,
    word: u64,
    ticks: u64,
    known: bool,
}
