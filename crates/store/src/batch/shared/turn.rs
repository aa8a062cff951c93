//! Lets the requests that one turn of a worker's event loop reads go in one call.
//!
//! A worker reads requests one after the other, and a call to a near server is short: sent whenever
//! the one before it is done, a call would carry only the few requests of that time. So while calls
//! carry several requests, the first request of a worker's turn yields to the runtime once. Those
//! that the worker has read by then join the queue, and the call leaves with all of them. No timer is
//! involved: a worker that has nothing else to read goes on at once, and where calls carry few
//! requests none yields.

use std::sync::atomic::Ordering;
use std::thread::{self, ThreadId};

use super::Shared;
use crate::StoreError;
use crate::batch::Ask;

/// A call with as many requests has the next ones gather. With fewer, a turn costs more than the
/// calls that it saves.
const GATHER_FROM: usize = 8;
/// So many requests are enough: they leave before the end of the turn, and are decided while the
/// worker reads on.
const GATHER_MAX: usize = 16;
/// A call with no more requests than this shows that there is nothing to gather.
const FEW: usize = 2;
/// After so many of these calls, requests no longer gather.
const FEW_CALLS: u8 = 4;

/// How a request comes to the queue.
pub(super) enum Entry<'s> {
    /// Calls carry few requests: it goes on.
    Single(Ask),
    /// It is the first of its worker's turn: it yields before it goes on.
    First(Ask, Turn<'s>),
    /// It is in the queue and leaves with the first request of its worker's turn.
    Joined,
}

/// The turn of a worker's event loop in which requests gather. When it ends, however it does, those
/// in the queue may leave.
#[must_use = "the requests of the turn wait for its end"]
pub(super) struct Turn<'s> {
    shared: &'s Shared,
    thread: ThreadId,
}

impl Shared {
    /// Has `ask` join the turn of its worker, if calls carry many requests.
    ///
    /// # Errors
    /// When nothing more can be queued.
    pub(super) fn enter(&self, ask: Ask) -> Result<Entry<'_>, StoreError> {
        if self.gathers.load(Ordering::Relaxed) == 0 {
            return Ok(Entry::Single(ask));
        }
        let thread = thread::current().id();
        let mut queue = self.queue.lock();
        if queue.turns.contains(&thread) {
            self.check_room(&queue)?;
            queue.insert(ask);
            if queue.asks.len() >= GATHER_MAX && !std::mem::replace(&mut queue.may_leave, true) {
                self.arrived.notify_one();
            }
            return Ok(Entry::Joined);
        }
        queue.turns.push(thread);
        let turn = Turn {
            shared: self,
            thread,
        };
        Ok(Entry::First(ask, turn))
    }

    /// Notes how many requests a call of the lane carries.
    pub(in crate::batch) fn carried(&self, requests: usize) {
        let gathers = self.gathers.load(Ordering::Relaxed);
        let next = match requests {
            GATHER_FROM.. => FEW_CALLS,
            1..=FEW => gathers.saturating_sub(1),
            _ => gathers,
        };
        if next != gathers {
            self.gathers.store(next, Ordering::Relaxed);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.turns.retain(|known| *known != self.thread);
        if queue.asks.is_empty() {
            return;
        }
        queue.may_leave = true;
        drop(queue);
        self.shared.arrived.notify_one();
    }
}
