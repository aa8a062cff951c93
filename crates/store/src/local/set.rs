//! Two adjacent cache lines of a packed table: eight slots, their locks, and readers that need no
//! lock.
//!
//! Words 0 to 3 of a line are its slots' tags, words 4 to 7 their arrival times
//! ([`tollgate_limit::packed`]). An arrival time uses 63 bits. The top bit of its word locks the
//! slot; the top bit of slot 0 in the first line also locks the set. If all bits of a word are set,
//! the set has moved to another table.
//!
//! **Home.** A key belongs to one of the two lines and is stored in the other only if its own has
//! no free slot. So a decision touches one line, except for the few keys in the other. A new key
//! inherits the smallest debt of eight slots, not of four.
//!
//! **Protocol.** A slot's tag is written only with the set and the slot locked, before its arrival
//! time. The set's lock alone keeps out new keys; a slot's lock keeps out grants. Every change of
//! an arrival time is a compare-and-exchange of its word, or is made under the slot's lock.
//!
//! *Reading.* A reader finds its tag, reads the slot's word, and finds the tag again. The arrival
//! time then belongs to that tag; if the word is locked, it is the value before the change in
//! progress. This holds because a new key writes its inherited debt into the locked word before its
//! tag. So a refusal based on this read is correct for a moment during the read, and the reader
//! waits for no lock. (The previous key of the slot may read the debt that the new key inherits: it
//! is being forgotten and would inherit no less.)
//!
//! *Reading as a new key.* An absent key would inherit the smallest debt of all eight slots, or the
//! set's floor. Floors, and debts that never shrink, only grow, so the smallest value read is no
//! more than what the key would inherit later ([`Set::least`]). Both are read before the tags: a
//! key that is then not found was absent at some moment since.
//!
//! *Granting in one step.* Where arrival times only grow, [`Line::advance`] exchanges the unlocked
//! word that was read for the next one. No new key can have taken the slot in between: it would
//! have left a larger word, because it inherits and adds. So the same word means the same key, and
//! one exchange is both the lock and the write. Where an arrival time may shrink (refunds), it may
//! return to the value read while another key has the slot: [`Line::hold`] locks, and checks the
//! tag again.
//!
//! Tests explore every interleaving of these steps.

use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use crate::atomic::Word;

/// The additional operation that a set needs of an atomic word.
pub(crate) trait LockWord: Word {
    /// Lets other threads run until `bits` may have been cleared.
    fn wait_while(&self, bits: u64);
}

impl LockWord for AtomicU64 {
    #[cold]
    fn wait_while(&self, bits: u64) {
        // A lock is held for about twenty nanoseconds, unless its holder was descheduled.
        for _ in 0..100 {
            if self.load(Ordering::Relaxed) & bits == 0 {
                return;
            }
            std::hint::spin_loop();
        }
        std::thread::yield_now();
    }
}

/// One line of a set: four slots, and the operations that do not need the set's lock.
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

/// A set, as seen from its line `home`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Set<'t, W> {
    lines: &'t Lines<W>,
    home: usize,
}

/// A slot as read without a lock.
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

    /// Whether the slot has moved to another table.
    #[inline(always)]
    pub(crate) fn is_moved(self) -> bool {
        self.word == MOVED
    }

    /// Whether it may be changed without the set's lock: not in a set that a mover skips
    /// ([`Set::is_untouched`]).
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

    /// The tags of the slots that were written and have not moved.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = u64> {
        let (tags, words) = self.0.split_at(HERE);
        let is_there = |word: &W| !matches!(word.load(Ordering::Acquire), 0 | MOVED);
        tags.iter()
            .zip(words)
            .filter(move |(_, word)| is_there(word))
            .map(|(tag, _)| tag.load(Ordering::Relaxed))
    }

    /// Its address in memory.
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

    /// Like [`Line::peek`], without a branch before the line has been loaded: the following code
    /// does not depend on a prediction that may be wrong, and neither does the load of the next
    /// set's line. Returns whether the slot was found, and its view. A moved slot counts as found,
    /// and every operation on its view fails.
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
        // A key that was found only after the word was read is not the key that the word belongs
        // to.
        (same & (found != 0), seen)
    }

    /// Advances the arrival time of the slot to `next` if it is unchanged; returns whether it was.
    /// Only in a table whose arrival times never shrink.
    #[inline(always)]
    pub(crate) fn advance(&self, seen: SlotView, next: u64) -> bool {
        debug_assert!(
            next > seen.arrival() && next & !ARRIVAL == 0,
            "a grant moves an arrival time on, within 63 bits"
        );
        seen.is_open() && self.0[HERE + seen.slot].swap_if(seen.word, next)
    }

    /// Locks the slot of `tag` if it is unchanged; returns whether it was. Never waits. The caller
    /// must not do anything that could prevent the [release](Line::release).
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

    /// Writes the arrival time of a [held](Line::hold) slot, and unlocks it.
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

    /// Locks the set and its slot 0; `None`: it has moved.
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

    /// Locks the set, unless its table is closing and the set was never written. The mover skips
    /// such a set, and the first thread that comes to it marks it as moved. `None`: it has moved.
    ///
    /// The mover announces that the table is closing before it checks whether a set [is
    /// untouched](Set::is_untouched). A new key locks the set before it checks whether the table
    /// `is_closing`. Both are sequentially consistent, so at least one of them sees the other.
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
        // The first word that is marked as moved, read last: if it is not marked, no other was.
        let first = word(1);
        (first != MOVED).then(|| least.min(first & ARRIVAL))
    }

    /// Whether the set has moved. It has, if any of its slots was read as moved.
    pub(crate) fn has_moved(&self) -> bool {
        arrival_of(self.lines, 1).load(Ordering::Acquire) == MOVED
    }

    /// Whether the set was never written, read without the lock. Slot 0 is read first, because its
    /// word shows a new key being added.
    pub(crate) fn is_untouched(&self) -> bool {
        (0..SLOTS).all(|slot| arrival_of(self.lines, slot).load(Ordering::SeqCst) == 0)
    }
}

/// A locked set; dropping it unlocks it and the slots held in it.
#[derive(Debug)]
pub(crate) struct Locked<'t, W: LockWord> {
    lines: &'t Lines<W>,
    home: usize,
    /// Slot 0's arrival time, kept here because its word contains the lock; unlocking writes it
    /// back.
    first: u64,
    /// The other slots that are held, one bit each.
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

    /// Locks a slot; returns its arrival time.
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

    /// Locks a slot for a new key and returns it with its arrival time: a free slot, whose arrival
    /// time is at most `past`, preferably in the home line; if none is free, the slot with the
    /// smallest arrival time.
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

    /// Returns `own` or the slot of the other line, whichever has the smaller arrival time.
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

    /// Writes the inherited debt into the slot held for a new key, before its tag is
    /// [written](Locked::write): a reader that finds the tag must not read the debt of the previous
    /// key.
    #[inline]
    pub(crate) fn inherit(&mut self, slot: usize, arrival: u64) {
        if slot == 0 {
            self.first = arrival;
        }
        arrival_of(self.lines, slot).store(arrival | LOCK, Ordering::Release);
    }

    /// Writes a held slot and releases it.
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

    /// Redirects later readers and writers to the successor. Every slot is held, or was never
    /// written.
    pub(crate) fn mark_moved(&mut self) {
        // In this order: see `Set::least`.
        for slot in 1..SLOTS {
            debug_assert!(
                self.held & bit(slot) != 0 || self.arrival(slot) == 0,
                "no request draws from what moves"
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

/// The slot of `tag`. A key that is alone in its set is in the first slot, so a branch on that one
/// is usually predicted and the following code need not wait. The position among the others is
/// unpredictable, and a misprediction would be detected only when the line has been loaded: these
/// are compared without a branch.
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
/// The word of a slot whose set has moved: permanently locked, at an impossible arrival time.
const MOVED: u64 = u64::MAX;
/// The bits of an arrival time.
const ARRIVAL: u64 = LOCK - 1;
/// The latest arrival time a slot can store.
pub(crate) const LATEST: u64 = ARRIVAL - 1;

#[cfg(test)]
mod tests;
