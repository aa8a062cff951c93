//! The timer wheel: entries in a slab, linked into slots by doubly linked lists of indices.

use std::task::{Poll, Waker};

/// Deadlines, ordered by the tick at which they pass.
///
/// An entry is linked into the slot of its tick, or into an earlier one: moving a deadline later
/// only stores the new tick, and the visit of the slot relinks the entry. A typical deadline is
/// moved later again and again and never reached, so it costs two stores each time. A released
/// entry stays linked until its slot is visited or it is reused; most are reused by a similar
/// deadline, so that neighbours need not be touched.
pub(super) struct Wheel {
    /// The number of turns so far.
    now: u64,
    /// The first entry of each slot; empty until first use.
    slots: Vec<u32>,
    entries: Vec<Entry>,
    /// The head of the list of free entries.
    free: u32,
    /// The number of linked entries.
    hung: u32,
    /// The number of entries in use.
    live: u32,
    /// Whether a task turns the wheel.
    pub(super) turning: bool,
}

struct Entry {
    /// The tick at which it passes; [`NEVER`] if it is not set.
    at: u64,
    /// The tick of the slot that links it; [`NEVER`] if it is not linked.
    hung_at: u64,
    previous: u32,
    next: u32,
    /// The next free entry, if this one is free.
    next_free: u32,
    waker: Option<Waker>,
}

impl Wheel {
    pub(super) const fn new() -> Self {
        Self {
            now: 0,
            slots: Vec::new(),
            entries: Vec::new(),
            free: NONE,
            hung: 0,
            live: 0,
            turning: false,
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.hung == 0
    }

    /// Creates an entry that is not set.
    pub(super) fn insert(&mut self) -> u32 {
        self.live += 1;
        if self.free == NONE {
            let index = u32::try_from(self.entries.len())
                .expect("fewer deadlines than descriptors and streams");
            let (at, hung_at) = (NEVER, NEVER);
            self.entries.push(Entry {
                at,
                hung_at,
                previous: NONE,
                next: NONE,
                next_free: NONE,
                waker: None,
            });
            return index;
        }
        let index = self.free;
        self.free = self.entry(index).next_free;
        index
    }

    pub(super) fn remove(&mut self, index: u32) {
        let free = self.free;
        let entry = self.entry(index);
        entry.at = NEVER;
        entry.waker = None;
        entry.next_free = free;
        self.free = index;
        self.live -= 1;
        // Free the memory that a burst of connections needed.
        if self.live == 0 && self.entries.len() > SHRINK_ABOVE {
            self.entries = Vec::new();
            self.slots.fill(NONE);
            (self.free, self.hung) = (NONE, 0);
        }
    }

    /// Sets the entry to pass `ticks` turns from now.
    pub(super) fn set(&mut self, index: u32, ticks: u64) {
        let at = self.now.saturating_add(ticks).min(NEVER - 1);
        let entry = self.entry(index);
        entry.at = at;
        if entry.hung_at <= at {
            return; // visited before it passes, and hung on then
        }
        if entry.hung_at != NEVER {
            self.unhang(index);
        }
        self.hang(index);
    }

    pub(super) fn clear(&mut self, index: u32) {
        self.entry(index).at = NEVER;
    }

    pub(super) fn passed(&self, index: u32) -> bool {
        self.entries[index as usize].at <= self.now
    }

    /// The number of turns until the entry passes.
    pub(super) fn left(&self, index: u32) -> u64 {
        self.entries[index as usize].at.saturating_sub(self.now)
    }

    pub(super) fn poll(&mut self, index: u32, waker: &Waker) -> Poll<()> {
        let now = self.now;
        let entry = self.entry(index);
        if entry.at <= now {
            return Poll::Ready(());
        }
        match &mut entry.waker {
            Some(known) => known.clone_from(waker), // no-op for the same task
            none => *none = Some(waker.clone()),
        }
        Poll::Pending
    }

    /// Advances the wheel by one tick; the wakers of passed entries are added to `due`.
    pub(super) fn turn(&mut self, due: &mut Vec<Waker>) {
        self.now += 1;
        if self.slots.is_empty() {
            return;
        }
        let slot = slot_of(self.now);
        let mut index = std::mem::replace(&mut self.slots[slot], NONE);
        while index != NONE {
            let now = self.now;
            let entry = self.entry(index);
            let next = entry.next;
            entry.hung_at = NEVER;
            entry.previous = NONE;
            entry.next = NONE;
            let at = entry.at;
            if at <= now {
                due.extend(entry.waker.take());
            }
            self.hung -= 1;
            if at > now && at != NEVER {
                self.hang(index);
            }
            index = next;
        }
    }

    fn hang(&mut self, index: u32) {
        if self.slots.is_empty() {
            self.slots = vec![NONE; SLOTS];
        }
        // An entry beyond one revolution is visited and relinked once per revolution.
        let tick = self.entry(index).at.min(self.now + SLOTS as u64 - 1);
        let slot = slot_of(tick);
        let head = std::mem::replace(&mut self.slots[slot], index);
        if head != NONE {
            self.entry(head).previous = index;
        }
        let entry = self.entry(index);
        entry.hung_at = tick;
        entry.previous = NONE;
        entry.next = head;
        self.hung += 1;
    }

    fn unhang(&mut self, index: u32) {
        let entry = self.entry(index);
        let (previous, next, tick) = (entry.previous, entry.next, entry.hung_at);
        entry.hung_at = NEVER;
        entry.previous = NONE;
        entry.next = NONE;
        if previous == NONE {
            self.slots[slot_of(tick)] = next;
        } else {
            self.entry(previous).next = next;
        }
        if next != NONE {
            self.entry(next).previous = previous;
        }
        self.hung -= 1;
    }

    fn entry(&mut self, index: u32) -> &mut Entry {
        &mut self.entries[index as usize]
    }
}

fn slot_of(tick: u64) -> usize {
    usize::try_from(tick % SLOTS as u64).expect("a slot number fits")
}

/// One revolution: 20.48 s at [`super::TICK`].
const SLOTS: usize = 1024;
const NONE: u32 = u32::MAX;
const NEVER: u64 = u64::MAX;
const SHRINK_ABOVE: usize = 4096;
