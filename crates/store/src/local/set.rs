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

mod line;
mod locked;

use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use self::line::{Line, SlotView};
pub(crate) use self::locked::Locked;
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

/// Both lines.
pub(crate) type Lines<W> = [[W; WORDS]; LINES];

/// A set, as seen from its line `home`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Set<'t, W> {
    lines: &'t Lines<W>,
    home: usize,
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
