//! One lease in the process: how many units are left, until when.
//!
//! Units left and the lease's turn stand in one word, so that taking, putting back and emptying cannot mix up two
//! leases; the clock is read again after units were taken, so that none is taken after the deadline.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Clock;
use crate::limit::Timestamp;

const LEFT_BITS: u32 = 40;
/// The most units of one lease.
pub(super) const LEFT_MAX: u64 = (1 << LEFT_BITS) - 1;

/// A place for a lease.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// The turn in the high bits, which no two leases here share, and the units left in the low ones.
    word: AtomicU64,
    /// By the clock that counts the time a machine sleeps. Zero: there is none.
    deadline: AtomicU64,
    /// Zero: there is none.
    id: AtomicU64,
}

/// Which lease units were taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn(u64);

impl Slot {
    /// Takes `cost` units of a lease that has not ended.
    pub(super) fn take(&self, cost: u64, clock: &Clock) -> Option<Turn> {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if word & LEFT_MAX < cost {
                return None;
            }
            let deadline = self.deadline.load(Ordering::Acquire);
            if clock.boot().as_micros() >= deadline {
                return None;
            }
            match self.word.compare_exchange_weak(word, word - cost, Ordering::AcqRel, Ordering::Acquire) {
                // The word was the same all the while, so the deadline was this lease's.
                Ok(_) => {
                    let turn = Turn(word >> LEFT_BITS);
                    if clock.boot().as_micros() < deadline {
                        return Some(turn);
                    }
                    // This thread was held up on the way.
                    self.put_back(turn, cost);
                    return None;
                }
                Err(now) => word = now,
            }
        }
    }

    /// Puts units back; without effect once the lease has been emptied, as they have been counted as used then.
    pub(super) fn put_back(&self, turn: Turn, cost: u64) {
        let mut word = self.word.load(Ordering::Acquire);
        while word >> LEFT_BITS == turn.0 {
            match self.word.compare_exchange_weak(word, word + cost, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    /// Units left, whether or not they may still be taken.
    pub(super) fn left(&self) -> u64 {
        self.word.load(Ordering::Acquire) & LEFT_MAX
    }

    /// When it ends; the beginning of time when there is none.
    pub(super) fn deadline(&self) -> Timestamp {
        Timestamp::from_micros(self.deadline.load(Ordering::Acquire))
    }

    /// Whether there is a lease.
    pub(super) fn is_held(&self) -> bool {
        self.id.load(Ordering::Acquire) != 0
    }

    /// Puts a lease here, where there is none. One caller at a time, and not beside [`Slot::empty`].
    pub(super) fn fill(&self, id: u64, units: u64, deadline: Timestamp) {
        let turn = self.next_turn();
        self.word.store(turn, Ordering::Release);
        self.id.store(id, Ordering::Release);
        self.deadline.store(deadline.as_micros(), Ordering::Release);
        self.word.store(turn | units.min(LEFT_MAX), Ordering::Release);
    }

    /// Takes all that is left; from then on nothing of this lease can be taken or put back. Its id and the units; `None`:
    /// there is none. One caller at a time.
    pub(super) fn empty(&self) -> Option<(u64, u64)> {
        let id = self.id.swap(0, Ordering::AcqRel);
        if id == 0 {
            return None;
        }
        let left = self.word.swap(self.next_turn(), Ordering::AcqRel) & LEFT_MAX;
        self.deadline.store(0, Ordering::Release);
        Some((id, left))
    }

    fn next_turn(&self) -> u64 {
        ((self.word.load(Ordering::Acquire) >> LEFT_BITS) + 1) << LEFT_BITS
    }
}
