//! Two adjacent cache lines of a packed table: eight slots, their locks, and readers that need none.
//!
//! Words 0 to 3 of a line are its slots' tags, words 4 to 7 their arrival times ([`tollgate_limit::packed`]). An arrival time
//! takes 63 bits; the top bit of its word locks the slot, and that of slot 0 in the first line the set besides. All bits of a word
//! set: the set has moved to another table.
//!
//! **Home.** A key belongs to one of the two lines and is put into the other only when its own has no free slot. So one line is all
//! that a decision touches, but for the few keys beyond it; and what a key that comes new may have to inherit is the least debt of
//! eight slots, not of four.
//!
//! **Protocol.** A slot's tag is written only with the set and the slot locked, before its arrival time. Who holds the
//! set's lock alone keeps newcomers away; who holds a slot's keeps grants away. Every change of an arrival time is a
//! compare-and-exchange of its word, or made under the slot's lock.
//!
//! *Reading.* A reader finds its tag, reads the slot's word, and finds the tag again. The arrival time is that tag's, and if the
//! word is locked the one before the change that is being made: a newcomer puts what it inherits into the word, locked,
//! before its tag. So whoever must be refused by what he reads is refused rightly, as of a moment while he read, and waits for
//! nobody. (The tenant before may read what the newcomer inherits: it is being forgotten, and would inherit no less.)
//!
//! *Reading as a newcomer.* Who is not there would inherit the least debt of all eight slots, or the set's floor. Debts of which
//! none shrinks, and floors, only grow: the least that was read is no more than what would have to be inherited afterwards
//! ([`Set::least`]). Both are read before the tags: whoever is then not found was not there at some moment since.
//!
//! *Granting in one step.* Where arrival times only grow, [`Line::advance`] exchanges the word that was read, unlocked,
//! for the next. No newcomer can have come in between: it would have left more than was read, for it inherits and adds.
//! So the same word means the same tenant, and one exchange is both the lock and the write. Where an arrival time may
//! shrink (refunds), it may come back to what was read under another tenant: [`Line::hold`] locks, and looks
//! at the tag again.
//!
//! Tests explore every interleaving of these steps.

use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use crate::atomic::Word;

/// What a set needs of an atomic word besides.
pub(crate) trait LockWord: Word {
    /// Lets others run until `bits` may have been cleared.
    fn wait_while(&self, bits: u64);
}

impl LockWord for AtomicU64 {
    #[cold]
    fn wait_while(&self, bits: u64) {
        // A lock is held for some twenty nanoseconds, unless its holder was descheduled.
        for _ in 0..100 {
            if self.load(Ordering::Relaxed) & bits == 0 {
                return;
            }
            std::hint::spin_loop();
        }
        std::thread::yield_now();
    }
}

/// One line of a set: four slots, and what is done to them without the set's lock.
#[derive(Debug)]
pub(crate) struct Line<'t, W>(&'t [W; WORDS]);

impl<W> Clone for Line<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Line<'_, W> {}

/// Both lines.
pub(crate) type Lines<W> = [[W; WORDS]; LINES];

/// A set, as one of the keys sees it that belong to its line `home`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Set<'t, W> {
    lines: &'t Lines<W>,
    home: usize,
}

/// A slot as it was when nobody was kept from changing it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlotView {
    slot: usize,
    word: u64,
}

impl SlotView {
    /// The arrival time.
    #[inline(always)]
    pub(crate) fn arrival(self) -> u64 {
        self.word & ARRIVAL
    }

    /// Whether there is nothing here any more: it has moved.
    #[inline(always)]
    pub(crate) fn is_moved(self) -> bool {
        self.word == MOVED
    }

    /// Whether it may be changed without the set's lock: not in a set that a mover passes by ([`Set::is_untouched`]).
    #[inline(always)]
    fn is_open(self) -> bool {
        self.word & LOCK == 0 && self.word != 0
    }
}

impl<'t, W: LockWord> Line<'t, W> {
    #[inline(always)]
    pub(crate) fn new(words: &'t [W; WORDS]) -> Self {
        Self(words)
    }

    /// The tags of the slots that were ever written and have not moved.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = u64> {
        let (tags, words) = self.0.split_at(HERE);
        let is_there = |word: &W| !matches!(word.load(Ordering::Acquire), 0 | MOVED);
        tags.iter()
            .zip(words)
            .filter(move |(_, word)| is_there(word))
            .map(|(tag, _)| tag.load(Ordering::Relaxed))
    }

    /// Where it is in memory.
    #[cfg(test)]
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self.0).addr()
    }

    /// The slot of `tag`, read without a lock; `None`: not here, or moved.
    #[inline(always)]
    pub(crate) fn peek(&self, tag: u64) -> Option<SlotView> {
        let slot = find(self.0, tag)?;
        let word = self.0[HERE + slot].load(Ordering::Acquire);
        let same = self.0[slot].load(Ordering::Relaxed) == tag;
        (same && word != MOVED).then_some(SlotView { slot, word })
    }

    /// As [`Line::peek`], without a branch before the line is here: what follows does not depend on a guess that may turn
    /// out wrong, and neither does the line of the next set. Whether the slot is here, and as what it was seen: what has
    /// moved counts as here, and refuses whatever is asked of it.
    #[inline(always)]
    pub(crate) fn scan(&self, tag: u64) -> (bool, SlotView) {
        let is = |slot: usize| u32::from(self.0[slot].load(Ordering::Acquire) == tag) << slot;
        let found = is(0) | is(1) | is(2) | is(3);
        let slot = found.trailing_zeros() as usize % HERE;
        let seen = SlotView {
            slot,
            word: self.0[HERE + slot].load(Ordering::Acquire),
        };
        let same = self.0[slot].load(Ordering::Relaxed) == tag;
        // Who came only after the word was read is not who it tells of.
        (same & (found != 0), seen)
    }

    /// Moves the arrival time of the slot on to `next`, if nobody did since; whether that was so. Only in a table whose
    /// arrival times never shrink.
    #[inline(always)]
    pub(crate) fn advance(&self, seen: SlotView, next: u64) -> bool {
        debug_assert!(
            next > seen.arrival() && next & !ARRIVAL == 0,
            "a grant moves an arrival time on, within 63 bits"
        );
        seen.is_open() && self.0[HERE + seen.slot].swap_if(seen.word, next)
    }

    /// Locks the slot of `tag` if it is still as it was seen; whether it was. Never waits. Until it is
    /// [released](Line::release) nothing may happen that could keep it from being.
    #[inline(always)]
    pub(crate) fn hold(&self, tag: u64, seen: SlotView) -> bool {
        if !seen.is_open() || !self.0[HERE + seen.slot].swap_if(seen.word, seen.word | LOCK) {
            return false;
        }
        let same = self.0[seen.slot].load(Ordering::Relaxed) == tag;
        if !same {
            self.release(seen, seen.word);
        }
        same
    }

    /// Writes the arrival time of a slot that is [held](Line::hold), and unlocks it.
    #[inline(always)]
    pub(crate) fn release(&self, seen: SlotView, arrival: u64) {
        debug_assert!(arrival & !ARRIVAL == 0, "an arrival time takes 63 bits");
        self.0[HERE + seen.slot].store(arrival, Ordering::Release);
    }
}

impl<'t, W: LockWord> Set<'t, W> {
    #[inline(always)]
    pub(crate) fn new(lines: &'t Lines<W>, home: usize) -> Self {
        Self { lines, home }
    }

    /// Locks the set, and its slot 0; `None`: it has moved.
    #[inline]
    pub(crate) fn lock(&self) -> Option<Locked<'t, W>> {
        let guard = arrival_of(self.lines, 0);
        loop {
            let first = guard.load(Ordering::Acquire);
            if first == MOVED {
                return None;
            }
            if first & LOCK != 0 {
                guard.wait_while(LOCK);
            } else if guard.swap_if(first, first | LOCK) {
                return Some(Locked {
                    lines: self.lines,
                    home: self.home,
                    first,
                    held: 0,
                });
            }
        }
    }

    /// Locks the set, unless its table is closing and nothing was ever written here: such a set is not visited by the mover,
    /// but marked as moved by whoever comes to it. `None`: it has moved.
    ///
    /// The mover says that the table is closing before it looks whether a set [is untouched](Set::is_untouched), a newcomer
    /// locks the set before it looks whether the table `is_closing`, each in sequential consistency: at least
    /// one of them finds the other.
    #[inline]
    pub(crate) fn enter(&self, is_closing: impl FnOnce() -> bool) -> Option<Locked<'t, W>> {
        let mut set = self.lock()?;
        if is_closing() && (0..SLOTS).all(|slot| set.arrival(slot) == 0) {
            set.mark_moved();
            return None;
        }
        Some(set)
    }

    /// The smallest arrival time, read without a lock; `None`: it has moved.
    pub(crate) fn least(&self) -> Option<u64> {
        let word = |slot: usize| arrival_of(self.lines, slot).load(Ordering::Acquire);
        let others = [0, 2, 3, 4, 5, 6, 7]
            .into_iter()
            .map(|slot| word(slot) & ARRIVAL);
        let least = others.fold(ARRIVAL, u64::min);
        // The first that is marked as moved, and read last: if it is not, none of the others was.
        let first = word(1);
        (first != MOVED).then(|| least.min(first & ARRIVAL))
    }

    /// Whether it has moved: so it is, where any of its slots was seen to have.
    pub(crate) fn has_moved(&self) -> bool {
        arrival_of(self.lines, 1).load(Ordering::Acquire) == MOVED
    }

    /// Whether nothing was ever written here: read without the lock, slot 0 before the others because its word tells of a
    /// newcomer at work.
    pub(crate) fn is_untouched(&self) -> bool {
        (0..SLOTS).all(|slot| arrival_of(self.lines, slot).load(Ordering::SeqCst) == 0)
    }
}

/// A set whose lock is held; dropping it unlocks it and the slots held in it.
#[derive(Debug)]
pub(crate) struct Locked<'t, W: LockWord> {
    lines: &'t Lines<W>,
    home: usize,
    /// Slot 0's arrival time, kept here because its word holds the lock; written back by unlocking.
    first: u64,
    /// Of the other slots those that are held, a bit each.
    held: u8,
}

impl<W: LockWord> Locked<'_, W> {
    /// The slot of `tag`.
    #[inline]
    pub(crate) fn find(&self, tag: u64) -> Option<usize> {
        let within = |line: usize| find(&self.lines[line], tag).map(|slot| line * HERE + slot);
        within(self.home).or_else(|| within(1 - self.home))
    }

    /// The tag in `slot`.
    #[inline]
    pub(crate) fn tag(&self, slot: usize) -> u64 {
        tag_of(self.lines, slot).load(Ordering::Relaxed)
    }

    /// The arrival time in `slot`, which may change at any time unless the slot is held.
    #[inline]
    pub(crate) fn arrival(&self, slot: usize) -> u64 {
        if slot == 0 {
            self.first
        } else {
            arrival_of(self.lines, slot).load(Ordering::Acquire) & ARRIVAL
        }
    }

    /// Locks a slot; its arrival time.
    #[inline]
    pub(crate) fn hold(&mut self, slot: usize) -> u64 {
        loop {
            let arrival = self.arrival(slot);
            if self.try_hold(slot, arrival) {
                return arrival;
            }
            arrival_of(self.lines, slot).wait_while(LOCK);
        }
    }

    /// Locks the slot to give to a newcomer: of the free ones, whose arrival time is no later than `past`, one of its own line
    /// if there is one; with none free, the one with the smallest arrival time. The slot and its arrival time.
    #[inline]
    pub(crate) fn hold_for_newcomer(&mut self, past: u64) -> (usize, u64) {
        loop {
            let own = self.smallest_in(self.home);
            let (slot, arrival) = if own.1 <= past { own } else { self.lesser(own) };
            if self.try_hold(slot, arrival) {
                return (slot, arrival);
            }
            arrival_of(self.lines, slot).wait_while(LOCK);
        }
    }

    /// The smallest arrival time.
    pub(crate) fn smallest(&self) -> u64 {
        self.lesser(self.smallest_in(self.home)).1
    }

    /// The slot of `line` with the smallest arrival time.
    #[inline]
    fn smallest_in(&self, line: usize) -> (usize, u64) {
        let first = line * HERE;
        let mut smallest = (first, self.arrival(first));
        for slot in first + 1..first + HERE {
            let arrival = self.arrival(slot);
            if arrival < smallest.1 {
                smallest = (slot, arrival);
            }
        }
        smallest
    }

    /// Of `own` and the slots beyond home the one with the smallest arrival time.
    #[inline]
    fn lesser(&self, own: (usize, u64)) -> (usize, u64) {
        let other = self.smallest_in(1 - self.home);
        if other.1 < own.1 { other } else { own }
    }

    /// Locks a slot if it is unlocked and has this arrival time.
    #[inline]
    fn try_hold(&mut self, slot: usize, arrival: u64) -> bool {
        if slot == 0 || self.held & bit(slot) != 0 {
            return true;
        }
        let held = arrival_of(self.lines, slot).swap_if(arrival, arrival | LOCK);
        if held {
            self.held |= bit(slot);
        }
        held
    }

    /// Puts what a newcomer inherits into the slot that it holds, before its tag is [written](Locked::write) there: who finds the
    /// tag is to find no debt of the tenant before.
    #[inline]
    pub(crate) fn inherit(&mut self, slot: usize, arrival: u64) {
        if slot == 0 {
            self.first = arrival;
        }
        arrival_of(self.lines, slot).store(arrival | LOCK, Ordering::Release);
    }

    /// Writes a slot that is held, and holds it no longer.
    #[inline]
    pub(crate) fn write(&mut self, slot: usize, tag: u64, arrival: u64) {
        debug_assert!(arrival & !ARRIVAL == 0, "an arrival time takes 63 bits");
        if self.tag(slot) != tag {
            tag_of(self.lines, slot).store(tag, Ordering::Release);
        }
        if slot == 0 {
            self.first = arrival;
        } else {
            debug_assert!(
                self.held & bit(slot) != 0,
                "only a slot that is held is written"
            );
            self.held &= !bit(slot);
            arrival_of(self.lines, slot).store(arrival, Ordering::Release);
        }
    }

    /// Sends later readers and writers to the successor. Every slot is held, or has never been written.
    pub(crate) fn mark_moved(&mut self) {
        // In this order: see `Set::least`.
        for slot in 1..SLOTS {
            debug_assert!(
                self.held & bit(slot) != 0 || self.arrival(slot) == 0,
                "nobody draws from what moves"
            );
            arrival_of(self.lines, slot).store(MOVED, Ordering::Release);
        }
        self.held = 0;
        self.first = MOVED;
    }
}

impl<W: LockWord> Drop for Locked<'_, W> {
    #[inline]
    fn drop(&mut self) {
        if self.held != 0 {
            for slot in (1..SLOTS).filter(|slot| self.held & bit(*slot) != 0) {
                arrival_of(self.lines, slot).store(self.arrival(slot), Ordering::Release);
            }
        }
        arrival_of(self.lines, 0).store(self.first, Ordering::Release);
    }
}

#[inline]
fn bit(slot: usize) -> u8 {
    1 << slot
}

#[inline]
fn tag_of<W>(lines: &Lines<W>, slot: usize) -> &W {
    &lines[slot / HERE][slot % HERE]
}

#[inline]
fn arrival_of<W>(lines: &Lines<W>, slot: usize) -> &W {
    &lines[slot / HERE][HERE + slot % HERE]
}

/// The slot of `tag`. The first is where a key that is alone in its set lives, and so worth a guess: what follows need not
/// wait for the answer. Which of the others it is cannot be foretold, and a wrong guess would be found out only when the
/// line has come from memory: these are compared without a branch.
#[inline(always)]
fn find<W: LockWord>(words: &[W; WORDS], tag: u64) -> Option<usize> {
    if words[0].load(Ordering::Acquire) == tag {
        return Some(0);
    }
    let is = |slot: usize| u32::from(words[slot].load(Ordering::Acquire) == tag) << slot;
    let found = is(1) | is(2) | is(3);
    (found != 0).then(|| found.trailing_zeros() as usize % HERE)
}

/// Lines of a set.
pub(crate) const LINES: usize = 2;
/// Slots of a set.
pub(crate) const SLOTS: usize = LINES * HERE;
/// Slots of a line.
const HERE: usize = 4;
/// Words of a line: 64 bytes.
pub(crate) const WORDS: usize = 2 * HERE;
const LOCK: u64 = 1 << 63;
/// The word of a slot whose set has moved: locked for ever, at a time no bucket arrives.
const MOVED: u64 = u64::MAX;
/// The bits of an arrival time.
const ARRIVAL: u64 = LOCK - 1;
/// The latest arrival time a slot can say.
pub(crate) const LATEST: u64 = ARRIVAL - 1;

#[cfg(test)]
mod tests;
