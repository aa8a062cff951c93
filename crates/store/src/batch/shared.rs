//! The state that workers and the store's thread share: the bounds, the held places, and in
//! [`queue`](super::queue) what waits for a call.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::counters::{Counters, Health};
use super::documents::Documents;
use super::owed::Substitute;
use super::places::Places;
use super::queue::Queue;
use super::replicas::Replicas;
use super::{Ask, Reply, Wants};
use crate::audit::Finding;
use crate::bounds::Bounds;
use crate::clock::Clock;
use crate::lease::Leases;
use crate::wire_form::Name;
use crate::{Deadline, StoreError};
use tollgate_limit::{Draw, Micros};

/// The state that workers and the lanes of one server share. Each server of a cluster has its own,
/// with common bounds, leases, counters and held places.
#[derive(Debug)]
pub(crate) struct LaneState {
    pub(crate) clock: Clock,
    pub(crate) answer_within: Micros,
    pub(crate) bounds: Arc<Bounds>,
    /// `None`: this store leases nothing.
    pub(crate) leases: Option<Arc<Leases>>,
    pub(crate) counters: Arc<Counters>,
    /// The document that all gateways of the store share.
    pub(crate) documents: Arc<Documents>,
    pub(super) held: Arc<Mutex<HashMap<u128, Places, RandomState>>>,
    /// One of several servers and its buckets; `None`: the only server, with all of them.
    part: Option<ServerPart>,
    /// Gateways that use the store, counted by heartbeats; zero: not known yet.
    pub(super) replicas: Arc<Replicas>,
    pub(super) queue: Mutex<Queue>,
    pub(super) arrived: Notify,
    /// Notified when a request has queued that has less time than those before it.
    pub(super) hurried: Notify,
    pub(super) lanes_up: AtomicUsize,
    pub(super) closed: AtomicBool,
    /// How many calls are waited for although all of their requests have their result.
    pub(super) stragglers: AtomicUsize,
    pub(super) last_error: Mutex<String>,
    /// The number of the last call with corrections.
    pub(super) receipts: AtomicU64,
    /// The second of the last warning about lost corrections.
    pub(super) warned: AtomicU64,
    pub(super) substitute: Arc<Mutex<Option<Substitute>>>,
    /// Locked while it is asked for debts: debts on another server are given back.
    pub(super) asking_owed: Arc<Mutex<()>>,
    /// Notified when a connection was established or has failed.
    pub(super) connected: Arc<Notify>,
    /// The product and version of the server, once it is known.
    engine: Mutex<String>,
    /// The findings of the last audit of the server.
    findings: Mutex<Vec<Finding>>,
    /// Whether the store has limits of a day or longer, which the audit takes into account.
    long_quotas: AtomicBool,
    /// Whether the next housekeeping is to audit the server again.
    audit_again: AtomicBool,
    audited: Notify,
}

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

/// Waits for the response to a request. Dropped with the request, whose client may leave at any time.
struct Waiting<'s> {
    shared: &'s LaneState,
    answer: oneshot::Receiver<Reply>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // From now on the call gives back what it draws.
        self.answer.close();
        if let Ok(reply) = self.answer.try_recv() {
            self.shared.untaken(&reply);
        }
    }
}

impl LaneState {
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
            replicas: Arc::default(),
            queue: Mutex::default(),
            arrived: Notify::new(),
            hurried: Notify::new(),
            lanes_up: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            stragglers: AtomicUsize::new(0),
            last_error: Mutex::default(),
            receipts: AtomicU64::new(0),
            warned: AtomicU64::new(0),
            substitute: Arc::default(),
            asking_owed: Arc::default(),
            connected: Arc::new(Notify::new()),
            engine: Mutex::default(),
            findings: Mutex::default(),
            long_quotas: AtomicBool::new(false),
            audit_again: AtomicBool::new(false),
            audited: Notify::new(),
        }
    }

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

    pub(crate) fn gateways(&self) -> u32 {
        self.replicas.most()
    }

    pub(crate) fn assume_gateways(&self, gateways: u32) {
        self.replicas.assume(gateways);
    }

    pub(crate) fn server(&self) -> Option<&str> {
        self.part.as_ref().map(|part| part.server.as_str())
    }

    pub(super) fn has(&self, name: &Name) -> bool {
        self.part.as_ref().is_none_or(|part| (part.has)(name))
    }

    /// Asks for `wants` as the only visit of a request.
    #[cfg(test)]
    pub(crate) async fn ask(&self, wants: Wants, peek: bool) -> Result<Draw, StoreError> {
        self.ask_by(wants, peek, &Deadline::default()).await
    }

    /// Asks for `wants` and waits for the response, which arrives by the deadline. If it is no longer
    /// waited for, what was drawn is given back.
    pub(crate) async fn ask_by(
        &self,
        wants: Wants,
        peek: bool,
        deadline: &Deadline,
    ) -> Result<Draw, StoreError> {
        let now = self.clock.now();
        if !peek
            && !deadline.always_asks()
            && let Some(draw) = self.bounds.refuse(&wants, now)
        {
            let counter = &self.counters.refused_locally;
            counter.fetch_add(1, Ordering::Relaxed);
            return Ok(draw);
        }
        self.check_up()?;
        let until = deadline.of_visit(now, self.answer_within);
        let left = until.since(now);
        if left == Micros::ZERO {
            // (The visit that has used the time up is counted.)
            return Err(StoreError::Overdue);
        }
        let (reply, answer) = oneshot::channel();
        let ask = Ask {
            wants,
            peek,
            deadline: until,
            reply: Some(reply),
            unanswered: None,
            repeats: 0,
        };
        let mut waiting = Waiting {
            shared: self,
            answer,
        };
        self.enqueue(ask)?;
        if left < self.answer_within {
            self.hurried.notify_waiters();
        }
        match (&mut waiting.answer).await {
            Ok(reply) => {
                deadline.keep_unanswered(reply.unanswered);
                reply.outcome
            }
            Err(_) => Err(StoreError::Unavailable("the store is shut down".into())),
        }
    }

    pub(crate) fn found(&self, engine: String) {
        *self.engine.lock() = engine;
    }

    pub(crate) fn engine(&self) -> String {
        self.engine.lock().clone()
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

    pub(crate) fn has_long_quotas(&self) -> bool {
        self.long_quotas.load(Ordering::Relaxed)
    }

    pub(crate) fn mind_long_quotas(&self, long: bool) {
        self.long_quotas.store(long, Ordering::Relaxed);
    }

    /// Has the next housekeeping audit the server, and waits for it; the caller adds a timeout.
    pub(crate) async fn audit_again(&self) {
        let mut audited = pin!(self.audited.notified());
        audited.as_mut().enable();
        self.audit_again.store(true, Ordering::Release);
        audited.await;
    }

    /// Whether this housekeeping is to audit the server; if that fails, so is the next one.
    pub(crate) fn is_audit_due(&self) -> bool {
        self.audit_again.load(Ordering::Acquire)
    }

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

    /// Waits for a connection, or its failure, until `done` is true; the caller adds a timeout.
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

    pub(crate) fn tell_tried(&self) {
        self.connected.notify_waiters();
    }

    pub(crate) fn failed(&self, error: String) {
        *self.last_error.lock() = error;
        self.tell_tried();
    }

    /// Stops the lane of a server without buckets after the queued requests have their results.
    pub(crate) fn retire(&self) {
        self.is_not_counted_on();
        {
            let _queue = self.queue.lock();
            self.closed.store(true, Ordering::Release);
        }
        self.arrived.notify_one();
    }

    pub(crate) fn call_for_errands(&self) {
        self.arrived.notify_one();
    }

    pub(crate) fn check_up(&self) -> Result<(), StoreError> {
        if self.lanes_up.load(Ordering::Acquire) == 0 {
            Err(self.unavailable())
        } else {
            Ok(())
        }
    }

    pub(super) fn unavailable(&self) -> StoreError {
        self.cannot_ask(self.last_error.lock().clone())
    }

    pub(super) fn cannot_ask(&self, why: String) -> StoreError {
        self.counters.unavailable.fetch_add(1, Ordering::Relaxed);
        StoreError::Unavailable(why)
    }
}
