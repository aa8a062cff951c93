//! Token buckets in one word each: sixteen bytes a key, one cache line a decision, fixed memory.
//!
//! A key belongs to one set of eight slots, in two lines of which one is its own ([`super::set`]). A bucket that is full again
//! is a free slot, so nothing is swept and no list is kept. When all eight slots still owe something, a newcomer takes the
//! one that owes least **and inherits its debt** (Space-Saving; Metwally, Agrawal, El Abbadi 2005).
//!
//! *Nobody gains by being forgotten.* Without refunds a slot's arrival time only grows: a draw moves it on, and a
//! newcomer starts from it. So the smallest arrival time of a set never decreases. A key forgotten with debt m was
//! the smallest then; when it comes back it finds either a slot that is free, so that m is past, or eight that
//! owe at least m, of which it inherits the least. (A full bucket that is forgotten need not be the smallest: it owes
//! nothing.) This needs one set per key: with a choice of two it fails.
//!
//! *Time goes back between threads*: a request is drawn for at the moment it arrived, and its thread may have been held up
//! since. So a bucket counts as full for as good as forgotten only [`LATE`] after it is; until then it is given away as one
//! that owes.
//!
//! *One step.* Because it only grows, a grant to a known key is one compare-and-exchange of its arrival time, lock and
//! write in one ([`super::set`]).
//!
//! *Refunds* make an arrival time shrink. Tables that can see one keep a floor per set: the largest debt
//! ever forgotten there, at which an unknown key is taken to stand.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::limit::bucket::{Granted, Judged, Refused, Report, State};
use crate::limit::packed::Packed;
use crate::limit::{Algorithm, Change, Micros, Standing, Timestamp, Verdict};

use super::Tally;
use super::memory::{Sets, zeroed};
use super::set::{LATEST, LINES, Line, Locked, SLOTS, Seen};
use super::table::{Moving, Table};

/// The buckets of one limit.
#[derive(Debug)]
pub(crate) struct PackedTable {
    algorithm: Algorithm,
    packed: Packed,
    sets: Sets,
    floors: Option<Box<[AtomicU64]>>,
    /// At what arrival time a key nobody has seen stands (`cold_start = "empty"`).
    birth: AtomicU64,
    closing: AtomicBool,
    successor: OnceLock<Arc<Table>>,
    evictions: AtomicU64,
    inherited_refusals: AtomicU64,
}

impl PackedTable {
    /// A table of at most `memory` bytes for the buckets that `packed` counts.
    pub(crate) fn new(algorithm: Algorithm, packed: Packed, memory: usize, floors: bool) -> Self {
        let set = size_of::<u64>() * 2 * SLOTS + if floors { size_of::<u64>() } else { 0 };
        let sets = Sets::new((memory / set).max(1));
        Self {
            floors: floors.then(|| zeroed(sets.len())),
            algorithm,
            packed,
            sets,
            birth: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            successor: OnceLock::new(),
            evictions: AtomicU64::new(0),
            inherited_refusals: AtomicU64::new(0),
        }
    }

    pub(crate) fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    pub(crate) fn successor(&self) -> Option<&Arc<Table>> {
        self.successor.get()
    }

    /// Whether a set of one is a set of the other, and what that set forgot is implied by its slots.
    pub(crate) fn is_congruent(&self, other: &Self) -> bool {
        self.sets.len() == other.sets.len() && self.floors.is_none() && other.floors.is_none()
    }

    pub(crate) fn tally(&self) -> Tally {
        Tally {
            evictions: self.evictions.load(Ordering::Relaxed),
            inherited_refusals: self.inherited_refusals.load(Ordering::Relaxed),
        }
    }

    /// Draws from one bucket that is known, that nobody else is drawing from, and whose rate nothing lowers; `None`:
    /// nothing was drawn.
    #[inline(always)]
    pub(crate) fn draw_known(&self, tag: u64, cost: u64, now: Timestamp) -> Option<Standing> {
        if !self.packed.is_plain() {
            return None;
        }
        let ticks = self.packed.ticks(now);
        let (line, seen) = self.peek(tag)?;
        match self.judge_plain(seen.arrival(), cost, ticks) {
            Err(Refused { retry_after }) => {
                let report = self.packed.plain_report(seen.arrival(), ticks);
                Some(Standing::new(Verdict::Deny { retry_after }, report))
            }
            // The common case: nobody came in between, and what was worked out is written in the same step that finds it so.
            Ok(Granted { wait, next }) if cost > 0 && self.advance(line, tag, seen, next) => {
                Some(Standing::new(Verdict::Allow { wait }, self.packed.plain_report(next, ticks)))
            }
            _ => None,
        }
    }

    /// Moves a bucket on if it is still as it was seen; whether it was.
    #[inline(always)]
    fn advance(&self, line: Line<'_, AtomicU64>, tag: u64, seen: Seen, next: u64) -> bool {
        if self.floors.is_none() {
            return line.advance(seen, next);
        }
        let held = line.hold(tag, seen);
        if held {
            line.release(seen, next);
        }
        held
    }

    /// Where a known bucket is, and how it stands, read without a lock.
    #[inline(always)]
    fn peek(&self, tag: u64) -> Option<(Line<'_, AtomicU64>, Seen)> {
        let home = self.line(tag);
        let line = self.sets.line(home);
        if let Some(seen) = line.peek(tag) {
            return Some((line, seen));
        }
        let beyond = self.sets.line(beside(home));
        beyond.peek(tag).map(|seen| (beyond, seen))
    }

    /// How a bucket stands and what it would answer, read without a lock: if that is a refusal, it is one. `None`: it has moved,
    /// or may do so.
    pub(crate) fn view(&self, tag: u64, cost: u64, now: Timestamp) -> Option<View> {
        // A set that was never touched is not marked as moved before somebody comes who locks it.
        if self.closing.load(Ordering::SeqCst) {
            return None;
        }
        let line = self.line(tag);
        // Before the tags: at some moment between, the key was not there and the floor no lower.
        let floor = self.floors.as_ref().map(|floors| floors[line / LINES].load(Ordering::Acquire));
        let (word, known) = match self.peek(tag) {
            Some((_, seen)) => (seen.arrival(), true),
            None => {
                let least = self.sets.of_line(line).least()?;
                (floor.unwrap_or(least).max(self.birth.load(Ordering::Relaxed)), false)
            }
        };
        let ticks = self.packed.ticks(now);
        let judged = self.judge(word, cost, ticks);
        Some(View {
            standing: Standing::new(Verdict::from(&judged), self.packed.report(word, ticks)),
            inherits: !known && judged.is_err() && word > ticks,
        })
    }

    /// Counts a refusal by what [`PackedTable::view`] showed.
    pub(crate) fn count(&self, refused: &View) {
        if refused.inherits {
            self.inherited_refusals.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Draws from one bucket; `None`: it has moved.
    pub(crate) fn draw(&self, tag: u64, cost: u64, now: Timestamp) -> Option<Standing> {
        if let Some(view) = self.view(tag, cost, now).filter(|view| !view.standing.verdict.is_allow()) {
            self.count(&view);
            return Some(view.standing);
        }
        let mut slot = self.lock(tag, now)?;
        let verdict = slot.judge(cost);
        slot.commit();
        Some(slot.standing(verdict))
    }

    /// Whether nothing ever lowers the rate of its buckets.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.packed.is_plain()
    }

    /// Where `tag` belongs.
    #[inline(always)]
    pub(crate) fn site(&self, tag: u64, elapsed: Micros) -> Site<'_> {
        Site { table: self, line: self.sets.line(self.line(tag)), tag, ticks: self.packed.ticks_after(elapsed) }
    }

    /// How long its time has run, see [`Packed::elapsed`].
    #[inline(always)]
    pub(crate) fn elapsed(&self, now: Timestamp) -> Micros {
        self.packed.elapsed(now)
    }

    /// The locked bucket of `tag`; `None`: it has moved.
    #[inline]
    pub(crate) fn lock(&self, tag: u64, now: Timestamp) -> Option<PackedSlot<'_>> {
        let line = self.line(tag);
        let index = line / LINES;
        let mut set = self.sets.of_line(line).enter(|| self.closing.load(Ordering::SeqCst))?;
        let ticks = self.packed.ticks(now);
        let (place, known, word) = match set.find(tag) {
            Some(place) => (place, true, set.hold(place)),
            None => {
                let (place, debt) = set.hold_for_newcomer(self.long_since(ticks));
                let inherited = match &self.floors {
                    None => debt,
                    Some(floors) => floors[index].load(Ordering::Relaxed),
                };
                (place, false, inherited.max(self.birth.load(Ordering::Relaxed)))
            }
        };
        Some(PackedSlot { table: self, set, index, tag, place, known, word, ticks, next: None })
    }

    /// Hands every bucket to `adopt` and sends later draws to `successor`, set by set under the set's lock.
    pub(crate) fn move_to(&self, successor: &Arc<Table>, congruent: bool, now: Timestamp, adopt: impl Fn(Moving)) {
        let _ = self.successor.set(Arc::clone(successor));
        self.closing.store(true, Ordering::SeqCst);
        for index in 0..self.sets.len() {
            let set = self.sets.of_line(index * LINES);
            // Untouched memory is left so: nobody is there, and whoever comes sees that the table is closing.
            if set.is_untouched() {
                continue;
            }
            let Some(mut set) = set.lock() else { continue };
            for slot in 0..SLOTS {
                set.hold(slot);
            }
            self.hand_over(index, &set, congruent, now, &adopt);
            set.mark_moved();
        }
        self.hand_over_birth(now, adopt);
    }

    /// Shows every bucket to `visit`, set by set under the set's lock.
    pub(crate) fn visit(&self, now: Timestamp, visit: impl Fn(Moving)) {
        for index in 0..self.sets.len() {
            let set = self.sets.of_line(index * LINES);
            if !set.is_untouched()
                && let Some(set) = set.lock()
            {
                self.hand_over(index, &set, false, now, &visit);
            }
        }
        self.hand_over_birth(now, visit);
    }

    fn hand_over(
        &self,
        index: usize,
        set: &Locked<'_, AtomicU64>,
        congruent: bool,
        now: Timestamp,
        to: &impl Fn(Moving),
    ) {
        for slot in 0..SLOTS {
            if let Some(level) = self.packed.unpack(set.arrival(slot), now) {
                to(Moving::Bucket { tag: set.tag(slot), state: State::Level(level) });
            }
        }
        let floor = match &self.floors {
            Some(floors) => floors[index].load(Ordering::Relaxed),
            None => set.smallest(),
        };
        if !congruent && let Some(level) = self.packed.unpack(floor, now) {
            let line = index * LINES;
            let (first, _) = span(line, self.sets.lines());
            let (_, last) = span(line + LINES - 1, self.sets.lines());
            to(Moving::Floor { first, last, state: State::Level(level) });
        }
    }

    fn hand_over_birth(&self, now: Timestamp, to: impl Fn(Moving)) {
        if let Some(level) = self.packed.unpack(self.birth.load(Ordering::Relaxed), now) {
            to(Moving::Birth { state: State::Level(level) });
        }
    }

    /// Takes over what a predecessor remembered.
    pub(crate) fn adopt(&self, moving: Moving, now: Timestamp) {
        match moving {
            Moving::Bucket { tag, state: State::Level(level) } => {
                if let Some(mut slot) = self.lock(tag, now) {
                    // In another geometry a set may be given more than it holds: then the least debts become floor.
                    slot.adopt(self.packed.pack(level).min(LATEST));
                }
            }
            Moving::Floor { first, last, state: State::Level(level) } => {
                debug_assert!(self.floors.is_some(), "a successor of another geometry keeps floors");
                let word = self.packed.pack(level).min(LATEST);
                for index in self.line(first) / LINES..=self.line(last) / LINES {
                    if let Some(floors) = &self.floors {
                        floors[index].fetch_max(word, Ordering::Relaxed);
                    }
                }
            }
            Moving::Birth { state: State::Level(level) } => {
                self.birth.fetch_max(self.packed.pack(level).min(LATEST), Ordering::Relaxed);
            }
            // States of other algorithms are not handed to a token bucket.
            _ => {}
        }
    }

    #[inline(always)]
    fn judge_plain(&self, word: u64, cost: u64, ticks: u64) -> Judged<u64> {
        match self.packed.price(cost) {
            Some(price) => self.packed.judge_plain(word, price, ticks),
            None => Err(Refused::NEVER),
        }
    }

    #[inline]
    fn judge(&self, word: u64, cost: u64, ticks: u64) -> Judged<u64> {
        match self.packed.price(cost) {
            Some(price) => self.packed.judge(word, price, ticks),
            None => Err(Refused::NEVER),
        }
    }

    /// What is full since then is so for everybody who still draws.
    #[inline]
    fn long_since(&self, ticks: u64) -> u64 {
        ticks.saturating_sub(self.packed.ticks_after(LATE))
    }

    /// The line that `tag` belongs to.
    #[inline(always)]
    fn line(&self, tag: u64) -> usize {
        place(tag, self.sets.lines())
    }
}

/// How late a request may be drawn for, counted from its arrival.
const LATE: Micros = Micros::from_secs(1);

/// The other line of the set.
#[inline(always)]
fn beside(line: usize) -> usize {
    line ^ 1
}

/// The place of `tag` among `places`: the high bits, by multiplication.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "less than the number of places")]
pub(crate) fn place(tag: u64, places: usize) -> usize {
    ((u128::from(tag) * places as u128) >> 64) as usize
}

/// The first and last tag that [`place`] puts at `index`.
#[expect(clippy::cast_possible_truncation, reason = "below 2^64 for an index below the number of places")]
pub(crate) fn span(index: usize, places: usize) -> (u64, u64) {
    let (index, places) = (index as u128, places as u128);
    ((index << 64).div_ceil(places) as u64, (((index + 1) << 64).div_ceil(places) - 1) as u64)
}

/// A bucket as it was seen without a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) standing: Standing,
    /// Whether it is refused for a debt that it would have to inherit.
    inherits: bool,
}

/// Where a bucket of a table that [is plain](PackedTable::is_plain) belongs, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site<'t> {
    table: &'t PackedTable,
    line: Line<'t, AtomicU64>,
    tag: u64,
    ticks: u64,
}

impl Site<'_> {
    /// The bucket as it stands, read without a lock, if it is known; whether it is. See [`Line::scan`].
    #[inline(always)]
    pub(crate) fn scan(&mut self) -> (bool, Seen) {
        let (found, seen) = self.line.scan(self.tag);
        if found {
            return (found, seen);
        }
        self.line = self.table.sets.line(beside(self.table.line(self.tag)));
        self.line.scan(self.tag)
    }

    /// What it would answer, and its arrival time then (the same, if nothing was taken).
    #[inline(always)]
    pub(crate) fn judge(&self, seen: Seen, cost: u64) -> (Verdict, u64) {
        match self.table.judge_plain(seen.arrival(), cost, self.ticks) {
            Ok(Granted { wait, next }) => (Verdict::Allow { wait }, if cost > 0 { next } else { seen.arrival() }),
            Err(Refused { retry_after }) => (Verdict::Deny { retry_after }, seen.arrival()),
        }
    }

    /// Locks it if it is still as it was seen, see [`Line::hold`].
    #[inline(always)]
    pub(crate) fn hold(&self, seen: Seen) -> bool {
        self.line.hold(self.tag, seen)
    }

    /// Writes its arrival time and unlocks it.
    #[inline(always)]
    pub(crate) fn release(&self, seen: Seen, arrival: u64) {
        self.line.release(seen, arrival);
    }

    /// How it stands with that verdict and that arrival time.
    #[inline(always)]
    pub(crate) fn standing(&self, verdict: Verdict, arrival: u64) -> Standing {
        Standing::new(verdict, self.table.packed.plain_report(arrival, self.ticks))
    }
}

/// One bucket with its set locked.
#[derive(Debug)]
pub(crate) struct PackedSlot<'t> {
    table: &'t PackedTable,
    set: Locked<'t, AtomicU64>,
    index: usize,
    tag: u64,
    place: usize,
    known: bool,
    word: u64,
    ticks: u64,
    next: Option<u64>,
}

impl PackedSlot<'_> {
    /// The bucket's verdict; nothing is written before [`PackedSlot::commit`].
    #[inline]
    pub(crate) fn judge(&mut self, cost: u64) -> Verdict {
        let judged = self.table.judge(self.word, cost, self.ticks);
        if !self.known && judged.is_err() && self.word > self.ticks {
            self.table.inherited_refusals.fetch_add(1, Ordering::Relaxed);
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
        if settled != self.word {
            self.write(settled);
        }
    }

    /// Takes over a bucket of a predecessor: whichever owes more stays.
    fn adopt(&mut self, word: u64) {
        let Self { table, set, index, .. } = self;
        let smallest = set.arrival(self.place);
        if !self.known && smallest > table.long_since(self.ticks) && smallest >= word {
            // The newcomer owes least: it is the one to be forgotten.
            if let Some(floors) = &table.floors {
                floors[*index].fetch_max(word, Ordering::Relaxed);
            }
            return;
        }
        let word = if self.known { word.max(self.word) } else { word };
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
