//! One lease in the process: how many units are left, until when.
//!
//! The units left and the lease's turn are in one word, so that taking, putting back and emptying
//! cannot confuse two leases. The clock is read again after units were taken, so that none is used
//! after the deadline.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_limit::Timestamp;
use tollgate_limit::lease::Return;

/// An atomic word. The tests' memory model implements it too.
pub(super) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn swap(&self, value: u64, order: Ordering) -> u64;
    /// Replaces `old` by `new` with acquire and release ordering; it may fail spuriously. Returns
    /// the current value on failure.
    fn exchange(&self, old: u64, new: u64) -> Result<u64, u64>;
}

macro_rules! word {
    ($word:ty) => {
        impl Word for $word {
            #[inline(always)]
            fn load(&self, order: Ordering) -> u64 {
                self.load(order)
            }

            #[inline(always)]
            fn store(&self, value: u64, order: Ordering) {
                self.store(value, order);
            }

            #[inline(always)]
            fn swap(&self, value: u64, order: Ordering) -> u64 {
                self.swap(value, order)
            }

            #[inline(always)]
            fn exchange(&self, old: u64, new: u64) -> Result<u64, u64> {
                self.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Acquire)
            }
        }
    };
}

word!(AtomicU64);
#[cfg(test)]
word!(loom::sync::atomic::AtomicU64);

const LEFT_BITS: u32 = 40;
/// The most units of one lease.
pub(super) const LEFT_MAX: u64 = (1 << LEFT_BITS) - 1;

#[derive(Debug, Default)]
pub(super) struct Slot<W = AtomicU64> {
    /// The turn in the high bits, unique among the leases in this slot, and the units left in the
    /// low bits.
    word: W,
    /// By the clock that continues while a machine sleeps. Zero: no lease.
    deadline: W,
    /// How many units were leased, and until when the store counts them, by its clock. Zero: no lease.
    units: W,
    until: W,
}

/// Identifies the lease that units were taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn(u64);

impl<W: Word> Slot<W> {
    /// Takes `cost` units from a lease that has not ended, by a clock in microseconds.
    pub(super) fn take_at(&self, cost: u64, now: impl Fn() -> u64) -> Option<Turn> {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if word & LEFT_MAX < cost {
                return None;
            }
            let deadline = self.deadline.load(Ordering::Acquire);
            if now() >= deadline {
                return None;
            }
            match self.word.exchange(word, word - cost) {
                // The word did not change meanwhile, so the deadline belongs to this lease.
                Ok(_) => {
                    let turn = Turn(word >> LEFT_BITS);
                    if now() < deadline {
                        return Some(turn);
                    }
                    // The thread was delayed and the deadline has passed.
                    self.put_back(turn, cost);
                    return None;
                }
                Err(found) => word = found,
            }
        }
    }

    /// Puts units back. No effect after the lease has been emptied: the units were then counted as used.
    pub(super) fn put_back(&self, turn: Turn, cost: u64) {
        let mut word = self.word.load(Ordering::Acquire);
        while word >> LEFT_BITS == turn.0 {
            match self.word.exchange(word, word + cost) {
                Ok(_) => return,
                Err(found) => word = found,
            }
        }
    }

    /// Units left, even if the lease has ended.
    pub(super) fn left(&self) -> u64 {
        self.word.load(Ordering::Acquire) & LEFT_MAX
    }

    /// When the lease ends; the beginning of time if there is none.
    pub(super) fn deadline(&self) -> Timestamp {
        Timestamp::from_micros(self.deadline.load(Ordering::Acquire))
    }

    /// The turn of the current lease, and until when the store counts it. (No other thread may empty or
    /// fill the slot meanwhile.)
    pub(super) fn turn(&self) -> (Turn, Timestamp) {
        let turn = Turn(self.word.load(Ordering::Acquire) >> LEFT_BITS);
        let until = self.until.load(Ordering::Acquire);
        (turn, Timestamp::from_micros(until))
    }

    /// Whether there is a lease.
    pub(super) fn is_held(&self) -> bool {
        self.units.load(Ordering::Acquire) != 0
    }

    /// Stores a lease in an empty slot. One thread at a time, and not concurrently with [`Slot::empty`].
    pub(super) fn fill(&self, units: u64, until: Timestamp, deadline: Timestamp) {
        let turn = self.next_turn();
        self.word.store(turn, Ordering::Release);
        self.until.store(until.as_micros(), Ordering::Release);
        self.units.store(units, Ordering::Release);
        self.deadline.store(deadline.as_micros(), Ordering::Release);
        self.word
            .store(turn | units.min(LEFT_MAX), Ordering::Release);
    }

    /// Takes all units left; afterwards no unit of this lease can be taken or put back. Returns what
    /// is given back to the store; `None`: no lease. One thread at a time.
    pub(super) fn empty(&self) -> Option<Return> {
        let units = self.units.swap(0, Ordering::AcqRel);
        if units == 0 {
            return None;
        }
        let left = self.word.swap(self.next_turn(), Ordering::AcqRel) & LEFT_MAX;
        self.deadline.store(0, Ordering::Release);
        let until = Timestamp::from_micros(self.until.load(Ordering::Acquire));
        Some(Return { until, units, left })
    }

    fn next_turn(&self) -> u64 {
        ((self.word.load(Ordering::Acquire) >> LEFT_BITS) + 1) << LEFT_BITS
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64 as Modelled;
    use loom::thread::spawn;

    use super::*;

    /// A slot with a first lease of this many units that ends at 20; the time is 10.
    fn leased(units: u64) -> Arc<Slot<Modelled>> {
        let slot = Slot::default();
        slot.fill(
            units,
            Timestamp::from_micros(90),
            Timestamp::from_micros(20),
        );
        Arc::new(slot)
    }

    const fn now() -> u64 {
        10
    }

    #[test]
    fn two_that_take_at_once_take_no_unit_twice() {
        loom::model(|| {
            let slot = leased(3);
            let other = Arc::clone(&slot);
            let thread = spawn(move || other.take_at(2, now).is_some());
            let taken = slot.take_at(2, now).is_some();
            assert!(taken ^ thread.join().expect("no panic"), "one of the two");
            assert_eq!(slot.left(), 1);
        });
    }

    #[test]
    fn slot_emptied_and_taken_units_are_the_lease() {
        loom::model(|| {
            let slot = leased(2);
            let other = Arc::clone(&slot);
            let thread = spawn(move || u64::from(other.take_at(1, now).is_some()));
            let back = slot.empty().expect("a lease");
            let taken = thread.join().expect("no panic");
            assert_eq!((back.units, back.left + taken), (2, 2));
            assert_eq!((slot.empty(), slot.left()), (None, 0));
        });
    }

    #[test]
    fn slot_units_put_back_go_to_their_own_lease_or_nowhere() {
        loom::model(|| {
            let slot = leased(2);
            let turn = slot.take_at(1, now).expect("one of two");
            let other = Arc::clone(&slot);
            let thread = spawn(move || other.put_back(turn, 1));
            let Return { left, .. } = slot.empty().expect("a lease");
            slot.fill(5, Timestamp::from_micros(90), Timestamp::from_micros(30));
            thread.join().expect("no panic");
            assert!(matches!(left, 1 | 2), "{left}");
            assert_eq!(slot.left(), 5, "none of the first lease");
        });
    }

    /// The second lease has ended before it is stored: with the first one's deadline, units could
    /// be taken from it.
    #[test]
    fn nothing_is_taken_from_a_lease_by_the_deadline_of_another() {
        loom::model(|| {
            let slot = leased(1);
            let other = Arc::clone(&slot);
            let thread = spawn(move || other.take_at(1, now));
            let Return { left, .. } = slot.empty().expect("a lease");
            slot.fill(1, Timestamp::from_micros(90), Timestamp::from_micros(5));
            let taken = thread.join().expect("no panic");
            assert_eq!(
                u64::from(taken.is_some()) + left,
                1,
                "taken of the first lease or not at all"
            );
            assert_eq!(slot.left(), 1, "the second one is whole");
        });
    }

    #[test]
    fn slot_units_taken_while_a_lease_arrives_are_missing_from_it() {
        loom::model(|| {
            let slot = leased(1);
            let other = Arc::clone(&slot);
            let thread = spawn(move || other.take_at(1, now));
            let Return { left, .. } = slot.empty().expect("a lease");
            slot.fill(1, Timestamp::from_micros(90), Timestamp::from_micros(20));
            let taken = thread.join().expect("no panic");
            assert_eq!(
                u64::from(taken.is_some()) + left + slot.left(),
                2,
                "one unit of each lease"
            );
        });
    }
}
