//! The timer wheel: entries in a slab, linked into slots by doubly linked lists of indices.

use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::time::Instant;

/// Deadlines, ordered by the tick at which they pass.
///
/// An entry is linked into the slot of its tick, or into an earlier one: moving a deadline later
/// only stores the new tick, and the visit of the slot relinks the entry. A typical deadline is
/// moved later again and again and never reached, so it costs two stores each time. A released
/// entry stays linked until its slot is visited or it is reused; most are reused by a similar
/// deadline, so that neighbours need not be touched.
pub(super) struct Wheel {
    /// When the wheel was first used: ticks are counted from here.
    start: Option<Instant>,
    /// The last tick that the clock was seen to reach.
    now: u64,
    /// The last tick whose slot was visited.
    turned: u64,
    /// The first entry of each slot; empty until first use.
    slots: Vec<u32>,
    entries: Vec<Entry>,
    free: u32,
    hung: u32,
    live: u32,
    /// Whether a task turns the wheel.
    turning: bool,
    /// The tick at which that task turns it again, or an earlier one that was set since.
    next: u64,
    /// Whether a tick before the one the task sleeps for was set.
    earlier: bool,
    task: Option<Waker>,
}

/// The effect of a deadline that was set on the task that turns the wheel.
pub(super) enum Set {
    /// Nothing: the task turns the wheel in time.
    Covered,
    /// It sleeps too long, and has to be woken.
    Earliest(Waker),
    First,
}

struct Entry {
    /// The tick at which it passes; [`NEVER`] if it is not set.
    at: u64,
    /// The tick of the slot that links it; [`NEVER`] if it is not linked.
    hung_at: u64,
    previous: u32,
    next: u32,
    next_free: u32,
    waker: Option<Waker>,
}

impl Wheel {
    pub(super) const fn new() -> Self {
        Self {
            start: None,
            now: 0,
            turned: 0,
            slots: Vec::new(),
            entries: Vec::new(),
            free: NONE,
            hung: 0,
            live: 0,
            turning: false,
            next: NEVER,
            earlier: false,
            task: None,
        }
    }

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

    pub(super) fn set(&mut self, index: u32, after: Duration) -> Set {
        let passed = self.read_clock();
        if self.hung == 0 {
            // All slots are empty, so none needs a visit.
            self.turned = self.now;
        }
        let at = passed.saturating_add(nanos(after)).div_ceil(TICK_NANOS);
        let at = at.clamp(self.turned + 1, NEVER - 1);
        let entry = self.entry(index);
        entry.at = at;
        // Otherwise it is visited before it passes, and hung on then.
        if entry.hung_at > at {
            if entry.hung_at != NEVER {
                self.unhang(index);
            }
            self.hang(index);
        }
        if !std::mem::replace(&mut self.turning, true) {
            return Set::First;
        }
        let visited_at = self.entry(index).hung_at;
        if visited_at >= self.next {
            return Set::Covered;
        }
        self.next = visited_at;
        self.earlier = true;
        self.task.take().map_or(Set::Covered, Set::Earliest)
    }

    pub(super) fn clear(&mut self, index: u32) {
        self.entry(index).at = NEVER;
    }

    pub(super) fn passed(&self, index: u32) -> bool {
        self.entries[index as usize].at <= self.now
    }

    /// The whole ticks until the entry passes. An entry that is set to this time within the present tick
    /// passes at the same tick.
    pub(super) fn left(&mut self, index: u32) -> Duration {
        let begun = self.read_clock().div_ceil(TICK_NANOS);
        let ticks = self.entry(index).at.saturating_sub(begun);
        Duration::from_nanos(ticks.saturating_mul(TICK_NANOS))
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

    /// Advances the wheel to the current tick; the wakers of passed entries are added to `due`.
    ///
    /// Returns when to do so again: at the first tick at which an entry passes, or one that passes
    /// after this revolution is to be looked at. `None` if no entry is set: the task may end.
    pub(super) fn turn(&mut self, due: &mut Vec<Waker>) -> Option<Instant> {
        self.read_clock();
        // After more than a revolution, one visit of each slot is enough.
        let first = (self.turned + 1).max((self.now + 1).saturating_sub(SLOTS));
        self.turned = self.now;
        if self.hung > 0 {
            (first..=self.now).for_each(|tick| self.visit(tick, due));
        }
        let mut ahead = self.now + 1..self.now + SLOTS;
        let next = ahead.find(|&tick| self.hung > 0 && self.settle(tick));
        (self.next, self.earlier) = (next.unwrap_or(NEVER), false);
        let after = Duration::from_nanos(next?.saturating_mul(TICK_NANOS));
        self.start.map(|start| start + after)
    }

    /// Ready if an entry was set that passes before the moment that [`Wheel::turn`] returned;
    /// otherwise `task` is woken when one is.
    pub(super) fn poll_earlier(&mut self, task: &Waker) -> Poll<()> {
        if self.earlier {
            return Poll::Ready(());
        }
        self.task = Some(task.clone());
        Poll::Pending
    }

    /// Called when the task that turns the wheel has ended.
    pub(super) fn stop(&mut self) {
        (self.turning, self.next, self.task) = (false, NEVER, None);
    }

    /// The time since the start, in nanoseconds.
    fn read_clock(&mut self) -> u64 {
        let now = Instant::now();
        let passed = nanos(now.duration_since(*self.start.get_or_insert(now)));
        self.now = self.now.max(passed / TICK_NANOS);
        passed
    }

    /// Empties the slot of `tick`, which has begun.
    fn visit(&mut self, tick: u64, due: &mut Vec<Waker>) {
        let mut index = std::mem::replace(&mut self.slots[slot_of(tick)], NONE);
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

    /// Whether the slot of `tick`, which is to come, needs a visit then: an entry passes, or waits
    /// there for a later revolution. Until one is found, entries that were moved later are relinked,
    /// and those that were cleared unlinked.
    fn settle(&mut self, tick: u64) -> bool {
        loop {
            let head = self.slots[slot_of(tick)];
            if head == NONE {
                return false;
            }
            let at = self.entry(head).at;
            if at != NEVER && self.slot_tick(at) <= tick {
                return true;
            }
            self.unhang(head);
            if at != NEVER {
                self.hang(head);
            }
        }
    }

    fn hang(&mut self, index: u32) {
        if self.slots.is_empty() {
            self.slots = vec![NONE; slot_of(SLOTS - 1) + 1];
        }
        let tick = self.slot_tick(self.entries[index as usize].at);
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

    /// The tick of the slot for an entry that passes at `at`. One that passes after this revolution is
    /// put into one of four slots that collect such entries, so that a turn does not relink the
    /// deadlines of all idle connections.
    fn slot_tick(&self, at: u64) -> u64 {
        let last = self.turned + SLOTS - 1;
        if at <= last { at } else { last / FAR * FAR }
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
    usize::try_from(tick % SLOTS).expect("a slot number fits")
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// One revolution: 20.48 s at [`super::TICK`].
const SLOTS: u64 = 1024;
/// The ticks between two slots for entries that pass after the present revolution.
const FAR: u64 = SLOTS / 4;
pub(super) const TICK_NANOS: u64 = 20_000_000;
const NONE: u32 = u32::MAX;
const NEVER: u64 = u64::MAX;
const SHRINK_ABOVE: usize = 4096;
