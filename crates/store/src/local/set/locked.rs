//! A set under its lock: keys are found, held, written and moved.

use std::sync::atomic::Ordering;

use super::{ARRIVAL, HERE, LOCK, Lines, LockWord, MOVED, SLOTS, arrival_of, find, tag_of};

/// A locked set; dropping it unlocks it and the slots held in it.
#[derive(Debug)]
pub(crate) struct Locked<'t, W: LockWord> {
    pub(super) lines: &'t Lines<W>,
    pub(super) home: usize,
    /// Slot 0's arrival time, kept here because its word contains the lock; unlocking writes it
    /// back.
    pub(super) first: u64,
    /// The other slots that are held, one bit each.
    pub(super) held: u8,
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

    /// Returns the one of `own` and the slot of the other line that has the smaller arrival time.
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
