//! One cache line of a packed table: four slots, a lock, and readers that need none.
//!
//! Words 0 to 3 are the slots' tags, words 4 to 7 their arrival times ([`crate::limit::packed`]). An arrival time takes
//! 63 bits; the top bit of slot 0's is the set's lock, that of slot 1's says that the set has moved to another table.
//!
//! **Protocol.** Only the holder of the lock writes. It writes a slot's tag before its arrival time, and the arrival
//! time with release; a reader without the lock reads tag, arrival time (with acquire), tag: if both reads find its
//! tag, the arrival time was written for that tag, or for the slot's tenant before, which owed no more than the
//! newcomer does (a newcomer inherits). So a refusal read without the lock is one the locked set would have given.
//! A test explores every interleaving of these steps.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a set needs of an atomic word; the tests' model of memory implements it too.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    /// Replaces `old` by `new`, sequentially consistent (for the sake of `PackedTable::lock`; on x86-64 it costs no
    /// more than acquire); whether it was `old`.
    fn swap_if(&self, old: u64, new: u64) -> bool;
    /// Lets others run until `bits` may have been cleared.
    fn wait_while(&self, bits: u64);
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn swap_if(&self, old: u64, new: u64) -> bool {
        self.compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

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

/// Four slots in one cache line.
#[derive(Debug)]
pub(crate) struct Set<'t, W>(&'t [W; WORDS]);

impl<'t, W: Word> Set<'t, W> {
    #[inline]
    pub(crate) fn new(words: &'t [W; WORDS]) -> Self {
        Self(words)
    }

    /// The slot and arrival time of `tag`, read without the lock; `None`: not here, or moved.
    #[inline]
    pub(crate) fn peek(&self, tag: u64) -> Option<(usize, u64)> {
        let slot = find(self.0, tag)?;
        let arrival = self.0[SLOTS + slot].load(Ordering::Acquire) & ARRIVAL;
        let same = self.0[slot].load(Ordering::Relaxed) == tag;
        (same && !self.has_moved()).then_some((slot, arrival))
    }

    /// Asks for the cache line and does not wait for it: the word it returns is to be looked at later, if at all.
    #[inline]
    pub(crate) fn touch(&self) -> u64 {
        self.0[0].load(Ordering::Relaxed)
    }

    /// Locks the set; `None`: it has moved.
    #[inline]
    pub(crate) fn lock(&self) -> Option<Locked<'t, W>> {
        let locked = self.lock_moved_too();
        (!self.has_moved()).then_some(locked)
    }

    /// Whether nothing was ever written here (or all that was is long past): read without the lock.
    pub(crate) fn is_untouched(&self) -> bool {
        (0..SLOTS).all(|slot| self.0[SLOTS + slot].load(Ordering::SeqCst) == 0)
    }

    #[inline]
    fn lock_moved_too(&self) -> Locked<'t, W> {
        loop {
            let first = self.0[SLOTS].load(Ordering::Relaxed);
            if first & LOCK != 0 {
                self.0[SLOTS].wait_while(LOCK);
            } else if self.0[SLOTS].swap_if(first, first | LOCK) {
                return Locked { words: self.0, first };
            }
        }
    }

    #[inline]
    fn has_moved(&self) -> bool {
        self.0[SLOTS + 1].load(Ordering::Acquire) & MOVED != 0
    }
}

/// A set whose lock is held; dropping it unlocks.
#[derive(Debug)]
pub(crate) struct Locked<'t, W: Word> {
    words: &'t [W; WORDS],
    /// Slot 0's arrival time, kept here because its word holds the lock; written back by unlocking.
    first: u64,
}

impl<W: Word> Locked<'_, W> {
    /// The slot of `tag`.
    #[inline]
    pub(crate) fn find(&self, tag: u64) -> Option<usize> {
        find(self.words, tag)
    }

    /// The tag in `slot`.
    #[inline]
    pub(crate) fn tag(&self, slot: usize) -> u64 {
        self.words[slot].load(Ordering::Relaxed)
    }

    /// The arrival time in `slot`.
    #[inline]
    pub(crate) fn arrival(&self, slot: usize) -> u64 {
        if slot == 0 { self.first } else { self.words[SLOTS + slot].load(Ordering::Relaxed) & ARRIVAL }
    }

    /// The slot with the smallest arrival time: the one to give to a newcomer.
    #[inline]
    pub(crate) fn smallest(&self) -> (usize, u64) {
        let mut smallest = (0, self.first);
        for slot in 1..SLOTS {
            let arrival = self.arrival(slot);
            if arrival < smallest.1 {
                smallest = (slot, arrival);
            }
        }
        smallest
    }

    /// Writes a slot. The set has not moved, so no flag is lost.
    #[inline]
    pub(crate) fn write(&mut self, slot: usize, tag: u64, arrival: u64) {
        debug_assert!(arrival & !ARRIVAL == 0, "an arrival time takes 63 bits");
        if self.words[slot].load(Ordering::Relaxed) != tag {
            self.words[slot].store(tag, Ordering::Relaxed);
        }
        if slot == 0 {
            self.first = arrival;
        } else {
            self.words[SLOTS + slot].store(arrival, Ordering::Release);
        }
    }

    /// Writes `new` and unlocks if the slot still [holds](Locked::holds) what [`Set::peek`] saw.
    #[inline]
    pub(crate) fn replace(mut self, slot: usize, tag: u64, old: u64, new: u64) -> bool {
        let same = self.holds(slot, tag, old);
        if same {
            self.write(slot, tag, new);
        }
        same
    }

    /// Whether the slot still holds `tag` with `arrival`: what [`Set::peek`] saw, and worth more than nothing, so that
    /// the set is not one that a mover passes by.
    #[inline]
    pub(crate) fn holds(&self, slot: usize, tag: u64, arrival: u64) -> bool {
        arrival != 0 && self.tag(slot) == tag && self.arrival(slot) == arrival
    }

    /// Sends later readers and writers to the successor. Nothing may be written afterwards.
    pub(crate) fn mark_moved(&self) {
        let second = self.words[SLOTS + 1].load(Ordering::Relaxed);
        self.words[SLOTS + 1].store(second | MOVED, Ordering::Release);
    }
}

impl<W: Word> Drop for Locked<'_, W> {
    #[inline]
    fn drop(&mut self) {
        self.words[SLOTS].store(self.first, Ordering::Release);
    }
}

/// The slot of `tag`. The first is where a key that is alone in its set lives, and so worth a guess: what follows need not
/// wait for the answer. Which of the others it is cannot be foretold, and a wrong guess would be found out only when the
/// line has come from memory: these are compared without a branch.
#[inline]
fn find<W: Word>(words: &[W; WORDS], tag: u64) -> Option<usize> {
    if words[0].load(Ordering::Relaxed) == tag {
        return Some(0);
    }
    let is = |slot: usize| u32::from(words[slot].load(Ordering::Relaxed) == tag) << slot;
    let found = is(1) | is(2) | is(3);
    (found != 0).then(|| found.trailing_zeros() as usize % SLOTS)
}

/// Slots of a set.
pub(crate) const SLOTS: usize = 4;
/// Words of a set: 64 bytes, the line that one decision touches.
pub(crate) const WORDS: usize = 2 * SLOTS;
const LOCK: u64 = 1 << 63;
const MOVED: u64 = 1 << 63;
/// The bits of an arrival time.
pub(crate) const ARRIVAL: u64 = (1 << 63) - 1;

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64 as Modelled;

    use super::*;

    impl Word for Modelled {
        fn load(&self, order: Ordering) -> u64 {
            self.load(order)
        }

        fn store(&self, value: u64, order: Ordering) {
            self.store(value, order);
        }

        fn swap_if(&self, old: u64, new: u64) -> bool {
            self.compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        }

        fn wait_while(&self, _bits: u64) {
            loom::thread::yield_now();
        }
    }

    fn empty() -> Arc<[Modelled; WORDS]> {
        Arc::new(std::array::from_fn(|_| Modelled::new(0)))
    }

    /// Takes one unit for `tag`, inheriting when it is new; the arrival time it left.
    fn take(words: &[Modelled; WORDS], tag: u64) -> Option<u64> {
        let mut set = Set::new(words).lock()?;
        let (slot, arrival) = match set.find(tag) {
            Some(slot) => (slot, set.arrival(slot)),
            None => set.smallest(),
        };
        set.write(slot, tag, arrival + 1);
        Some(arrival + 1)
    }

    /// A full set in which 1 owes least, and not in slot 0, whose word the lock guards anyway.
    fn full() -> Arc<[Modelled; WORDS]> {
        let words = empty();
        for tag in [2, 1, 3, 4, 2, 3, 4] {
            assert!(take(&words, tag).is_some());
        }
        words
    }

    fn seen(words: &[Modelled; WORDS], tag: u64) -> Option<u64> {
        Set::new(words).peek(tag).map(|(_, arrival)| arrival)
    }

    fn explore(model: impl Fn() + Sync + Send + 'static) {
        loom::model::Builder::new().check(model);
    }

    #[test]
    fn two_writers_of_one_key_lose_no_charge() {
        explore(|| {
            let words = empty();
            let other = Arc::clone(&words);
            let thread = loom::thread::spawn(move || take(&other, 7));
            take(&words, 7);
            thread.join().expect("no panic");
            assert_eq!(seen(&words, 7), Some(2));
        });
    }

    // In the two tests below the reader is the spawned thread: the explorer runs the first thread first and finds a race
    // at the later of two accesses, and the writer's own read of a word would hide the reader's before it.

    #[test]
    fn a_reader_without_the_lock_never_sees_more_debt_than_the_key_has() {
        explore(|| {
            let words = full();
            let other = Arc::clone(&words);
            let reader = loom::thread::spawn(move || (seen(&other, 1), seen(&other, 9)));
            // 9 takes the slot of 1, which owed least; then 1 comes back and inherits.
            take(&words, 9);
            take(&words, 1);
            let (own, newcomer) = reader.join().expect("no panic");
            // Its own 1 before; afterwards at least what it inherits, at most what it then owes.
            assert!(matches!(own, None | Some(1..=3)), "{own:?}");
            // The debt that 9 inherited is never missing.
            assert!(matches!(newcomer, None | Some(1..=3)), "{newcomer:?}");
            assert_eq!(seen(&words, 1), Some(3));
        });
    }

    #[test]
    fn a_reader_without_the_lock_never_takes_a_newcomers_debt_for_its_own() {
        explore(|| {
            let words = full();
            let other = Arc::clone(&words);
            let reader = loom::thread::spawn(move || seen(&other, 1));
            take(&words, 9);
            let own = reader.join().expect("no panic");
            assert!(matches!(own, None | Some(1)), "{own:?}");
        });
    }

    #[test]
    fn a_charge_during_a_move_is_made_before_it_or_at_the_successor() {
        explore(|| {
            let (old, new) = (empty(), empty());
            take(&old, 7);
            let (old_too, new_too) = (Arc::clone(&old), Arc::clone(&new));
            let mover = loom::thread::spawn(move || {
                let set = Set::new(&old_too).lock().expect("not moved yet");
                let arrival = set.arrival(set.find(7).expect("charged before"));
                let mut successor = Set::new(&new_too).lock().expect("never moves");
                successor.write(0, 7, arrival);
                drop(successor);
                set.mark_moved();
            });
            if take(&old, 7).is_none() {
                take(&new, 7);
            }
            mover.join().expect("no panic");
            assert_eq!(seen(&old, 7), None);
            assert_eq!(seen(&new, 7), Some(2));
        });
    }
}
