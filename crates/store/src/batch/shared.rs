//! The state that workers and the store's thread share: the queue between them, the bounds, the
//! held places.

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::counters::{Counters, Health};
use super::deliver::fail;
use super::documents::Documents;
use super::owed::Substitute;
use super::places::Places;
use super::replicas::Replicas;
use super::{
    ASKS_MAX, Adjust, Ask, CORRECTIONS_MAX, Correction, InPlace, QUEUE_MAX, Wants, answer,
};
use crate::StoreError;
use crate::audit::Finding;
use crate::bounds::Bounds;
use crate::clock::Clock;
use crate::lease::{Errand, Leases};
use crate::wire_form::{Name, WireForm};
use tollgate_limit::{Change, Draw, Micros, Timestamp};

/// The state that workers and the lanes of one server share. Each server of a cluster has its own,
/// with common bounds, leases, counters and held places.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) clock: Clock,
    pub(crate) answer_within: Micros,
    pub(crate) bounds: Arc<Bounds>,
    /// `None`: this store leases nothing.
    pub(crate) leases: Option<Arc<Leases>>,
    pub(crate) counters: Arc<Counters>,
    /// The document that all gateways of the store share.
    pub(super) documents: Arc<Documents>,
    /// Places of concurrency limits that requests of this gateway hold now.
    pub(super) held: Arc<Mutex<HashMap<u128, Places, RandomState>>>,
    /// One of several servers and its buckets; `None`: the only server, with all of them.
    part: Option<ServerPart>,
    /// Times a connection was made to this server.
    pub(crate) generation: AtomicU64,
    /// Gateways that use the store, counted by heartbeats; zero: not known yet.
    pub(super) replicas: Arc<Replicas>,
    pub(super) queue: Mutex<Queue>,
    pub(super) arrived: Notify,
    pub(super) lanes_up: AtomicUsize,
    pub(super) closed: AtomicBool,
    /// Whether a lane has a call in flight.
    pub(super) busy: AtomicBool,
    /// Whether a single request's call failed and the lane has had no response since.
    pub(super) suspect: AtomicBool,
    pub(super) last_error: Mutex<String>,
    /// Decides while no lane is up.
    pub(super) substitute: Arc<Mutex<Option<Substitute>>>,
    /// Locked while it is asked for debts: debts on another server are given back.
    pub(super) asking_owed: Arc<Mutex<()>>,
    /// Notified when a connection was established or has failed.
    pub(super) connected: Arc<Notify>,
    /// The findings of the last audit of the server.
    findings: Mutex<Vec<Finding>>,
    /// Whether the store has limits of a day or longer, which the audit takes into account.
    long_quotas: AtomicBool,
    /// Whether the next housekeeping is to audit the server again.
    audit_again: AtomicBool,
    audited: Notify,
}

/// One server of several.
pub(crate) struct ServerPart {
    pub(crate) server: String,
    /// Whether a bucket is there now.
    pub(crate) has: Box<dyn Fn(&Name) -> bool + Send + Sync>,
}

impl std::fmt::Debug for ServerPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerPart")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) asks: VecDeque<Ask>,
    pub(super) corrections: VecDeque<Correction>,
    /// Corrections that this server redirected. They wait until the servers of buckets have changed,
    /// or for the next heartbeat: sent at once, they would be redirected again.
    redirected: Vec<Correction>,
    /// Buckets whose held places a heartbeat will report. The number of places is read when it
    /// leaves.
    pub(super) heartbeats: VecDeque<(Name, Arc<WireForm>)>,
}

impl Queue {
    /// Queues redirected corrections again, before the others.
    pub(super) fn take_redirected(&mut self) {
        for correction in std::mem::take(&mut self.redirected).into_iter().rev() {
            self.corrections.push_front(correction);
        }
    }
}

impl Shared {
    pub(crate) fn new(clock: Clock, answer_within: Micros, local_refusals: bool) -> Self {
        Self {
            clock,
            answer_within,
            bounds: Arc::new(Bounds::new(local_refusals)),
            leases: None,
            counters: Arc::default(),
            documents: Arc::default(),
            held: Arc::default(),
            part: None,
            generation: AtomicU64::new(0),
            replicas: Arc::default(),
            queue: Mutex::default(),
            arrived: Notify::new(),
            lanes_up: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            suspect: AtomicBool::new(false),
            last_error: Mutex::default(),
            substitute: Arc::default(),
            asking_owed: Arc::default(),
            connected: Arc::new(Notify::new()),
            findings: Mutex::default(),
            long_quotas: AtomicBool::new(false),
            audit_again: AtomicBool::new(false),
            audited: Notify::new(),
        }
    }

    /// The state for another server of the same store.
    pub(crate) fn of_server(&self, part: ServerPart) -> Self {
        Self {
            bounds: self.bounds.clone(),
            leases: self.leases.clone(),
            counters: self.counters.clone(),
            documents: self.documents.clone(),
            held: self.held.clone(),
            connected: self.connected.clone(),
            replicas: self.replicas.clone(),
            substitute: self.substitute.clone(),
            asking_owed: self.asking_owed.clone(),
            part: Some(part),
            long_quotas: AtomicBool::new(self.has_long_quotas()),
            ..Self::new(self.clock.clone(), self.answer_within, false)
        }
    }

    /// The server's name, if it is one of several.
    pub(crate) fn server(&self) -> Option<&str> {
        self.part.as_ref().map(|part| part.server.as_str())
    }

    /// Whether a bucket is on this server.
    pub(super) fn has(&self, name: &Name) -> bool {
        self.part.as_ref().is_none_or(|part| (part.has)(name))
    }

    /// Asks for `wants` and waits for the response, which arrives within the deadline.
    pub(crate) async fn ask(&self, wants: Wants, peek: bool) -> Result<Draw, StoreError> {
        self.ask_by(None, wants, peek).await
    }

    /// Like [`Shared::ask`]; a single request uses a call of its own.
    pub(crate) async fn ask_by(
        &self,
        in_place: Option<&dyn InPlace>,
        wants: Wants,
        peek: bool,
    ) -> Result<Draw, StoreError> {
        let now = self.clock.now();
        if !peek && let Some(draw) = self.bounds.refuse(&wants, now) {
            self.counters
                .refused_locally
                .fetch_add(1, Ordering::Relaxed);
            return Ok(draw);
        }
        if self.lanes_up.load(Ordering::Acquire) == 0 {
            return Err(self.unavailable());
        }
        let (reply, answer) = oneshot::channel();
        let deadline = now.after(self.answer_within);
        let in_lane = || self.busy.load(Ordering::Acquire) || self.suspect.load(Ordering::Acquire);
        let own = in_place.filter(|_| !peek && !in_lane());
        let own =
            own.filter(|_| !wants.iter().any(|wanted| wanted.shape.holds()) && self.is_quiet());
        let mut ask = Ask {
            wants,
            peek,
            deadline,
            reply: Some(reply),
        };
        if let Some(own) = own {
            match own.call(self, ask) {
                Ok(call) => {
                    call.await;
                    return answer.await.unwrap_or_else(|_| Err(StoreError::Timeout));
                }
                Err(back) => ask = back,
            }
        }
        {
            let mut queue = self.queue.lock();
            // Under the lock, because the queue is not read again after the lane of a closed store.
            if self.closed.load(Ordering::Relaxed) {
                drop(queue);
                self.counters.unavailable.fetch_add(1, Ordering::Relaxed);
                return Err(StoreError::Unavailable("the store is shut down".into()));
            }
            if queue.asks.len() >= QUEUE_MAX {
                drop(queue);
                self.counters.unavailable.fetch_add(1, Ordering::Relaxed);
                return Err(StoreError::Unavailable(
                    "too many requests wait for the store".into(),
                ));
            }
            queue.asks.push_back(ask);
            if queue.asks.len() == 1 {
                self.arrived.notify_one();
            }
        }
        answer
            .await
            .unwrap_or_else(|_| Err(StoreError::Unavailable("the store is shut down".into())))
    }

    /// Whether nothing waits for a call.
    fn is_quiet(&self) -> bool {
        let queue = self.queue.lock();
        queue.asks.is_empty() && queue.corrections.is_empty()
    }

    /// How many corrections there is room for.
    pub(super) fn room_for_corrections(&self) -> usize {
        QUEUE_MAX.saturating_sub(self.queue.lock().corrections.len())
    }

    /// Queues a correction; if the queue is full, drops and counts it.
    pub(crate) fn correct(&self, correction: Correction) {
        let mut queue = self.queue.lock();
        if queue.corrections.len() >= QUEUE_MAX || self.closed.load(Ordering::Relaxed) {
            self.counters
                .corrections_dropped
                .fetch_add(1, Ordering::Relaxed);
            return;
        }
        queue.corrections.push_back(correction);
        if queue.corrections.len() == 1 {
            self.arrived.notify_one();
        }
    }

    /// Queues a correction of an earlier grant.
    pub(crate) fn settle(&self, name: Name, shape: Arc<WireForm>, change: Change) {
        match change {
            Change::Release { units } if shape.holds() => self.release(name, shape, units),
            change => self.correct(Correction {
                name,
                shape,
                adjust: Adjust::Change(change),
            }),
        }
    }

    /// The queued requests and corrections for buckets that are now on another server.
    pub(super) fn take_moved(&self) -> (Vec<Ask>, Vec<Correction>) {
        let mut queue = self.queue.lock();
        let here = |ask: &Ask| {
            ask.wants
                .first()
                .is_none_or(|wanted| self.has(&wanted.name))
        };
        let (stay, asks) = std::mem::take(&mut queue.asks).into_iter().partition(here);
        queue.asks = stay;
        let here = |correction: &Correction| self.has(&correction.name);
        queue.take_redirected();
        let (stay, corrections) = std::mem::take(&mut queue.corrections)
            .into_iter()
            .partition(here);
        queue.corrections = stay;
        (Vec::from(asks), Vec::from(corrections))
    }

    /// Takes over a request from another server's queue.
    pub(super) fn take_over(&self, ask: Ask) {
        let mut queue = self.queue.lock();
        if queue.asks.len() >= QUEUE_MAX || self.closed.load(Ordering::Relaxed) {
            drop(queue);
            answer(ask, Err(self.unavailable()));
            return;
        }
        // (Ordered by deadline.)
        let place = queue
            .asks
            .partition_point(|known| known.deadline <= ask.deadline);
        queue.asks.insert(place, ask);
        self.arrived.notify_one();
    }

    /// Stores the findings of an audit and logs the new ones.
    pub(crate) fn audited(&self, findings: Vec<Finding>) {
        let known = std::mem::replace(&mut *self.findings.lock(), findings.clone());
        for finding in findings.iter().filter(|finding| !known.contains(finding)) {
            tracing::warn!(weight = ?finding.weight, "the shared store: {}", finding.message);
        }
        self.audit_again.store(false, Ordering::Release);
        self.audited.notify_waiters();
    }

    /// Whether the store has limits of a day or longer.
    pub(crate) fn has_long_quotas(&self) -> bool {
        self.long_quotas.load(Ordering::Relaxed)
    }

    /// Sets whether the store has limits of a day or longer, as of the next audit.
    pub(crate) fn mind_long_quotas(&self, long: bool) {
        self.long_quotas.store(long, Ordering::Relaxed);
    }

    /// Has the next housekeeping audit the server again and waits for it; the caller adds a
    /// timeout.
    pub(crate) async fn audit_again(&self) {
        let mut audited = pin!(self.audited.notified());
        audited.as_mut().enable();
        self.audit_again.store(true, Ordering::Release);
        audited.await;
    }

    /// Whether this housekeeping is to audit the server. The next one does too, unless this one
    /// succeeds.
    pub(crate) fn is_audit_due(&self) -> bool {
        self.audit_again.load(Ordering::Acquire)
    }

    /// The findings of the last audit; empty before the first connection.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        self.findings.lock().clone()
    }

    pub(crate) fn health(&self) -> Health {
        let up = self.lanes_up.load(Ordering::Acquire) > 0;
        Health {
            up,
            servers: 1,
            down: usize::from(!up),
            last_error: self.last_error.lock().clone(),
        }
    }

    /// Waits until a connection is established; the caller adds a timeout.
    #[cfg(test)]
    pub(crate) async fn connected(&self) {
        self.connected_once(|| self.lanes_up.load(Ordering::Acquire) > 0)
            .await;
    }

    /// Waits until a connection was established or has failed, and `done` is true; the caller adds
    /// a timeout.
    pub(super) async fn connected_once(&self, done: impl Fn() -> bool) {
        let mut connected = pin!(self.connected.notified());
        loop {
            connected.as_mut().enable();
            if done() {
                return;
            }
            connected.as_mut().await;
            connected.set(self.connected.notified());
        }
    }

    /// Stops the lanes after the queued requests have their results.
    pub(crate) fn close(&self) {
        if let Some(leases) = &self.leases {
            leases.give_all_back();
        }
        self.closed.store(true, Ordering::Release);
        self.arrived.notify_waiters();
        self.arrived.notify_one();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Waits until something is queued, or the store is closed.
    pub(crate) async fn woken(&self) {
        self.arrived.notified().await;
    }

    /// Records that a connection was established or has failed.
    pub(crate) fn tell_tried(&self) {
        self.connected.notify_waiters();
    }

    /// Records why the server cannot be connected to.
    pub(crate) fn failed(&self, error: String) {
        *self.last_error.lock() = error;
        self.tell_tried();
    }

    /// Stops its lane after the queued requests have their results, because the server has no
    /// buckets any more.
    pub(crate) fn retire(&self) {
        self.is_not_counted_on();
        {
            let _no_one_asks = self.queue.lock();
            self.closed.store(true, Ordering::Release);
        }
        self.arrived.notify_one();
    }

    /// Schedules a call for messages about leases.
    pub(crate) fn call_for_errands(&self) {
        self.arrived.notify_one();
    }

    /// # Errors
    /// When no server is available.
    pub(crate) fn check_up(&self) -> Result<(), StoreError> {
        if self.lanes_up.load(Ordering::Acquire) == 0 {
            Err(self.unavailable())
        } else {
            Ok(())
        }
    }

    pub(super) fn unavailable(&self) -> StoreError {
        self.counters.unavailable.fetch_add(1, Ordering::Relaxed);
        StoreError::Unavailable(self.last_error.lock().clone())
    }

    /// Fails all queued requests, because no lane can send them. Corrections stay.
    pub(super) fn fail_queued(&self) {
        let asks = std::mem::take(&mut self.queue.lock().asks);
        for ask in asks {
            answer(ask, Err(self.unavailable()));
        }
    }

    /// The work of the next call. Requests whose caller is gone are dropped; late ones get an
    /// error.
    pub(super) fn take(&self) -> Option<Work> {
        let errands = self.leases.as_ref().map_or_else(Vec::new, |leases| {
            leases.errands_of(CORRECTIONS_MAX, |name| self.has(name))
        });
        let mut corrections = self.take_heartbeats();
        let mut queue = self.queue.lock();
        if queue.asks.is_empty()
            && queue.corrections.is_empty()
            && corrections.is_empty()
            && errands.is_empty()
        {
            return None;
        }
        let corrections_taken = queue
            .corrections
            .len()
            .min(CORRECTIONS_MAX - corrections.len());
        corrections.extend(queue.corrections.drain(..corrections_taken));
        let asks_taken = queue.asks.len().min(ASKS_MAX);
        let work = Work {
            corrections,
            asks: queue.asks.drain(..asks_taken).collect(),
            errands,
        };
        if !queue.asks.is_empty() || !queue.corrections.is_empty() || !queue.heartbeats.is_empty() {
            self.arrived.notify_one();
        }
        Some(work)
    }

    /// The number of queued corrections.
    #[cfg(test)]
    pub(super) fn corrections_queued(&self) -> usize {
        let queue = self.queue.lock();
        queue.corrections.len() + queue.redirected.len()
    }

    /// Fails queued requests whose deadline has passed; returns the next deadline. (The queue is
    /// ordered by deadline.)
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

    /// Puts corrections that did not fit back at the front.
    pub(super) fn put_corrections_back(&self, corrections: Vec<Correction>) {
        if corrections.is_empty() {
            return;
        }
        let mut queue = self.queue.lock();
        for correction in corrections.into_iter().rev() {
            match correction.adjust {
                // The number it reports is read again later.
                Adjust::Hold(_) => queue
                    .heartbeats
                    .push_front((correction.name, correction.shape)),
                Adjust::Change(_) | Adjust::TakeNumbers => {
                    queue.corrections.push_front(correction);
                }
            }
        }
        self.arrived.notify_one();
    }

    /// Puts corrections that were not made back at the front. Those for which there is no room are
    /// dropped and counted; once the store is closed, all are.
    pub(super) fn correct_again(&self, corrections: Vec<Correction>) {
        if corrections.is_empty() {
            return;
        }
        let mut queue = self.queue.lock();
        for correction in self.with_room(&queue, corrections).into_iter().rev() {
            queue.corrections.push_front(correction);
        }
        self.arrived.notify_one();
    }

    /// The same for corrections that the server redirected, as soon as their server may be known.
    pub(super) fn correct_elsewhere(&self, corrections: Vec<Correction>) {
        if corrections.is_empty() {
            return;
        }
        let mut queue = self.queue.lock();
        let redirected = self.with_room(&queue, corrections);
        queue.redirected.extend(redirected);
    }

    /// Those corrections for which there is room; the others are dropped and counted.
    fn with_room(&self, queue: &Queue, mut corrections: Vec<Correction>) -> Vec<Correction> {
        let room = if self.closed.load(Ordering::Relaxed) {
            0
        } else {
            QUEUE_MAX.saturating_sub(queue.corrections.len() + queue.redirected.len())
        };
        let dropped = corrections.len().saturating_sub(room);
        self.counters
            .corrections_dropped
            .fetch_add(dropped as u64, Ordering::Relaxed);
        corrections.truncate(room);
        corrections
    }

    /// Puts requests that did not fit back at the front.
    pub(super) fn put_back(&self, asks: Vec<Ask>) {
        if asks.is_empty() {
            return;
        }
        let mut queue = self.queue.lock();
        for ask in asks.into_iter().rev() {
            queue.asks.push_front(ask);
        }
        self.arrived.notify_one();
    }
}

pub(super) struct Work {
    pub(super) asks: Vec<Ask>,
    pub(super) corrections: Vec<Correction>,
    pub(super) errands: Vec<Errand>,
}
