//! The queue between the workers and the lanes of a server.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::deliver::fail;
use super::{
    ASKS_MAX, Adjust, Ask, Batch, CORRECTIONS_MAX, Correction, LaneState, QUEUE_MAX, Trouble,
    answer,
};
use crate::StoreError;
use crate::lease::Errand;
use crate::wire_form::{Name, WireForm};
use tollgate_limit::{Change, Corrects, Timestamp};

/// Why corrections are lost that the store was never sent.
const NO_ROOM: &str = "too many wait for the store, or it is closed";

#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) asks: VecDeque<Ask>,
    pub(super) corrections: VecDeque<Correction>,
    /// Charges for which there was no room, added up by bucket.
    added_up: BTreeMap<u128, Correction>,
    /// Buckets whose held places a heartbeat will report; their number is read when it leaves.
    pub(super) heartbeats: VecDeque<(Name, Arc<WireForm>)>,
    /// A call whose corrections the store may have made. Until that is known, no other correction is
    /// sent: a heartbeat does not know which places this call has freed.
    pub(super) unknown: Option<Batch>,
    /// Whether corrections wait for the next heartbeat, because the last ones came too late.
    pub(super) waits: bool,
    /// How often the most corrections of a call are halved.
    pub(super) halvings: u32,
}

impl Queue {
    /// Queues a request; the queue is ordered by deadline.
    pub(super) fn insert(&mut self, ask: Ask) {
        let earlier = |known: &Ask| known.deadline <= ask.deadline;
        let place = self.asks.partition_point(earlier);
        self.asks.insert(place, ask);
    }

    /// How many corrections the next call may have, beside `heartbeats`.
    fn correctable(&self, heartbeats: usize) -> usize {
        if self.waits || self.unknown.is_some() {
            return 0;
        }
        let most = (CORRECTIONS_MAX >> self.halvings).saturating_sub(heartbeats);
        self.corrections.len().min(most)
    }

    /// Whether work is left that can be sent now.
    fn has_more(&self) -> bool {
        self.has_heartbeats() || !self.asks.is_empty() || self.correctable(0) > 0
    }

    /// Whether heartbeats are due. All earlier grants of places must be delivered first.
    pub(super) fn has_heartbeats(&self) -> bool {
        self.unknown.is_none() && !self.heartbeats.is_empty()
    }

    /// Queues a correction; returns whether there was room. When the queue is full, refunds are lost
    /// before charges, and the charges of one bucket are added up: nobody gains by filling it.
    fn add(&mut self, correction: Correction, end: End) -> bool {
        if self.corrections.len() < QUEUE_MAX {
            match end {
                End::Front => self.corrections.push_front(correction),
                End::Back => self.corrections.push_back(correction),
            }
            return true;
        }
        let Adjust::Change(Change::Charge { more }, _) = correction.adjust else {
            return false;
        };
        let has_room = self.added_up.len() < QUEUE_MAX;
        match self.added_up.entry(correction.name.hash) {
            Entry::Occupied(mut known) => {
                if let Adjust::Change(Change::Charge { more: known }, _) =
                    &mut known.get_mut().adjust
                {
                    *known = known.saturating_add(more);
                }
                true
            }
            Entry::Vacant(place) if has_room => {
                place.insert(correction);
                true
            }
            Entry::Vacant(_) => false,
        }
    }

    /// Queues charges that were added up, as there is room now.
    fn take_added_up(&mut self) {
        while self.corrections.len() < QUEUE_MAX
            && let Some((_, charge)) = self.added_up.pop_first()
        {
            self.corrections.push_back(charge);
        }
    }
}

#[derive(Clone, Copy)]
enum End {
    Front,
    Back,
}

/// What becomes of corrections that a call has not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unmade {
    Again,
    /// They wait for the next heartbeat, or until their buckets are known to be on another server.
    Later,
    Lost,
}

impl From<&Trouble> for Unmade {
    fn from(trouble: &Trouble) -> Self {
        match trouble {
            Trouble::Unfit(_) | Trouble::Lost(_) | Trouble::Astray(_) => Self::Again,
            // Sent at once, they would be late or redirected again.
            Trouble::Late | Trouble::Moved(_) => Self::Later,
            Trouble::Refused(_) | Trouble::Corrupt(_) => Self::Lost,
        }
    }
}

#[derive(Default)]
pub(super) struct Work {
    pub(super) asks: Vec<Ask>,
    pub(super) corrections: Vec<Correction>,
    pub(super) tasks: Vec<Errand>,
}

impl LaneState {
    pub(super) fn enqueue(&self, ask: Ask) -> Result<(), StoreError> {
        let mut queue = self.queue.lock();
        // Checked under the lock: the queue of a closed store is not read again.
        let words = if self.closed.load(Ordering::Relaxed) {
            "the store is shut down"
        } else if queue.asks.len() >= QUEUE_MAX {
            "too many requests wait for the store"
        } else {
            queue.insert(ask);
            if queue.asks.len() == 1 {
                self.arrived.notify_one();
            }
            return Ok(());
        };
        Err(self.cannot_ask(words.into()))
    }

    pub(super) fn room_for_corrections(&self) -> usize {
        QUEUE_MAX.saturating_sub(self.queue.lock().corrections.len())
    }

    pub(crate) fn correct(&self, correction: Correction) {
        let mut queue = self.queue.lock();
        let is_queued = !self.closed.load(Ordering::Relaxed) && queue.add(correction, End::Back);
        if is_queued && queue.corrections.len() == 1 {
            self.arrived.notify_one();
        }
        drop(queue);
        self.lose_corrections(usize::from(!is_queued), NO_ROOM);
    }

    pub(crate) fn settle(
        &self,
        name: Name,
        shape: Arc<WireForm>,
        change: Change,
        corrects: Corrects,
    ) {
        match change {
            Change::Release { units } if shape.holds() => self.release(name, shape, units),
            change => {
                let adjust = Adjust::Change(change, corrects);
                self.correct(Correction::of(name, shape, adjust));
            }
        }
    }

    /// The queued requests and corrections for buckets that are now on another server.
    pub(super) fn take_moved(&self) -> (Vec<Ask>, Vec<Correction>) {
        let mut queue = self.queue.lock();
        let here = |ask: &Ask| {
            let first = ask.wants.first();
            first.is_none_or(|wanted| self.has(&wanted.name))
        };
        let (stay, asks) = std::mem::take(&mut queue.asks).into_iter().partition(here);
        queue.asks = stay;
        let here = |correction: &Correction| self.has(&correction.name);
        queue.take_added_up();
        queue.waits = false;
        let all = std::mem::take(&mut queue.corrections).into_iter();
        let (stay, corrections) = all.partition(here);
        queue.corrections = stay;
        (Vec::from(asks), Vec::from(corrections))
    }

    pub(super) fn take_over(&self, ask: Ask) {
        let mut queue = self.queue.lock();
        if queue.asks.len() >= QUEUE_MAX || self.closed.load(Ordering::Relaxed) {
            drop(queue);
            answer(ask, Err(self.unavailable()));
            return;
        }
        queue.insert(ask);
        self.arrived.notify_one();
    }

    /// Fails all queued requests, because no lane can send them. Corrections stay.
    pub(super) fn fail_queued(&self) {
        let asks = std::mem::take(&mut self.queue.lock().asks);
        for ask in asks {
            answer(ask, Err(self.unavailable()));
        }
    }

    /// The work of the next call. Requests whose caller is gone are dropped; late ones fail.
    pub(super) fn take(&self) -> Option<Work> {
        let tasks = self.leases.as_ref().map_or_else(Vec::new, |leases| {
            leases.tasks_of(CORRECTIONS_MAX, |name| self.has(name))
        });
        let mut corrections = self.take_heartbeats();
        let mut queue = self.queue.lock();
        if self.closed.load(Ordering::Relaxed) {
            queue.waits = false;
        }
        queue.take_added_up();
        let corrections_taken = queue.correctable(corrections.len());
        let no_others = corrections_taken == 0 && corrections.is_empty() && tasks.is_empty();
        if no_others && queue.asks.is_empty() {
            return None;
        }
        corrections.extend(queue.corrections.drain(..corrections_taken));
        let asks_taken = queue.asks.len().min(ASKS_MAX);
        let work = Work {
            corrections,
            asks: queue.asks.drain(..asks_taken).collect(),
            tasks,
        };
        if queue.has_more() {
            self.arrived.notify_one();
        }
        Some(work)
    }

    #[cfg(test)]
    pub(super) fn corrections_queued(&self) -> usize {
        let queue = self.queue.lock();
        queue.corrections.len() + queue.added_up.len()
    }

    /// Fails queued requests whose deadline has passed, the first in the queue; returns the next.
    pub(super) fn tell_late(&self, now: Timestamp) -> Option<Timestamp> {
        let mut late = Vec::new();
        let next = {
            let mut queue = self.queue.lock();
            while queue.asks.front().is_some_and(|ask| ask.deadline <= now) {
                late.extend(queue.asks.pop_front());
            }
            queue.asks.front().map(|ask| ask.deadline)
        };
        for ask in late {
            fail(self, ask, StoreError::Overdue);
        }
        next
    }

    pub(super) fn unmade(&self, corrections: Vec<Correction>, ends: Unmade) {
        if corrections.is_empty() {
            return;
        }
        if ends == Unmade::Lost {
            return self.lose_corrections(corrections.len(), "the store refused them");
        }
        let mut queue = self.queue.lock();
        let mut lost = 0;
        let mut add = |correction: Correction, end| {
            if let Adjust::Hold(_) = correction.adjust {
                // The number it reports is read again later.
                let beat = (correction.name, correction.shape);
                queue.heartbeats.push_front(beat);
            } else if self.closed.load(Ordering::Relaxed) || !queue.add(correction, end) {
                lost += 1;
            }
        };
        match ends {
            Unmade::Again => {
                let corrections = corrections.into_iter().rev();
                corrections.for_each(|correction| add(correction, End::Front));
            }
            // After the others, so that a bucket whose row is locked for long does not hold them up.
            Unmade::Later | Unmade::Lost => {
                let corrections = corrections.into_iter();
                corrections.for_each(|correction| add(correction, End::Back));
                queue.waits = true;
            }
        }
        drop(queue);
        self.arrived.notify_one();
        self.lose_corrections(lost, NO_ROOM);
    }

    /// Counts all corrections that wait as lost, because nothing is sent any more.
    pub(super) fn lose_queued_corrections(&self) {
        let (unknown, left) = {
            let mut queue = self.queue.lock();
            let left = queue.corrections.len() + queue.added_up.len();
            queue.corrections.clear();
            queue.added_up.clear();
            (queue.unknown.take(), left)
        };
        self.lose_corrections(left, "the store was closed before they were made");
        if let Some(unknown) = unknown {
            self.keep_unknown(unknown, false);
        }
    }

    /// Puts requests that did not fit back, before those with the same deadline.
    pub(super) fn put_back(&self, asks: Vec<Ask>) {
        if asks.is_empty() {
            return;
        }
        let mut queue = self.queue.lock();
        for ask in asks.into_iter().rev() {
            let earlier = |known: &Ask| known.deadline < ask.deadline;
            let place = queue.asks.partition_point(earlier);
            queue.asks.insert(place, ask);
        }
        self.arrived.notify_one();
    }
}
