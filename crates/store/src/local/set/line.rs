//! One line of a set, read and granted from without the set's lock.

use std::sync::atomic::Ordering;

use super::{ARRIVAL, HERE, LOCK, LockWord, MOVED, WORDS, find};

/// One line of a set: four slots, and the operations that do not need the set's lock.
#[derive(Debug)]
pub(crate) struct Line<'t, W>(&'t [W; WORDS]);

impl<W> Clone for Line<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Line<'_, W> {}

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
    /// ([`is_untouched`](super::Set::is_untouched)).
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
