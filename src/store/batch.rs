//! Coalescing: what arrived while the last call was out goes in the next one.
//!
//! A shared store is a thread of its own with a queue in front. Requests on any worker put their claims on the queue
//! and await an answer; a *lane* (one connection, one call in flight) takes whatever is there, merges equal requests,
//! sends one call and hands the answers back. There is no timer in the way of a request: alone, it leaves at once.
//!
//! **Exact.** Each request's moment is the call's, which lies between its arrival and its answer, so the promises of
//! one decision per call hold unchanged. The server decides and writes; it returns how each bucket stood *before* and
//! how many of each group of equal requests it granted. The answers are then worked out here by replaying the pure
//! core on those states, so that what a caller is told is worded by the specification and not by a translation of
//! it; a server that granted something else than the core would is counted, and believed only where it granted less.
//!
//! **Answered in time.** Every request carries a deadline; whatever the server does, it is answered by then. A lost
//! reply counts as charged: a charge is never sent twice.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::{Notify, oneshot};

use super::StoreError;
use super::bounds::Bounds;
use super::breaker::{Breaker, Circuit};
use super::shape::{Name, Names, Seen, Shape};
use crate::clock::Clock;
use crate::limit::{Change, Draw, Micros, Settlement, Standing, Timestamp, Verdict};

/// Requests taken into one call. A few times the largest useful vector; the rest wait for the next call.
pub(crate) const ASKS_MAX: usize = 1024;
/// Different requests (groups) in one call: bounds the time a script may hold the server.
pub(crate) const GROUPS_MAX: usize = 256;
/// Corrections in one call.
pub(crate) const CORRECTIONS_MAX: usize = 256;
/// Requests and corrections that may wait for a call; beyond, requests are told the store is not available.
pub(crate) const QUEUE_MAX: usize = 65_536;
/// How often a lane without a connection answers what is queued.
const DOWN_TICK: Duration = Duration::from_millis(5);

/// One bucket a queued request draws from.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) name: Name,
    pub(crate) shape: Arc<Shape>,
    pub(crate) cost: u64,
    pub(crate) enforced: bool,
}

/// The claims of one request.
pub(crate) type Wants = SmallVec<[Wanted; 2]>;

/// One queued request.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) wants: Wants,
    /// Whether it only looks.
    pub(crate) peek: bool,
    pub(crate) deadline: Timestamp,
    pub(crate) reply: Option<oneshot::Sender<Result<Draw, StoreError>>>,
}

/// A correction on its way to the store.
#[derive(Clone, Debug)]
pub(crate) struct Correction {
    pub(crate) name: Name,
    pub(crate) shape: Arc<Shape>,
    pub(crate) adjust: Adjust,
}

/// What a correction does to its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adjust {
    /// What the caller asked for.
    Change(Change),
    /// A heartbeat: this gateway holds so many places of a concurrency limit.
    Hold(u64),
}

impl Adjust {
    /// Its number in scripts and statements, and its units.
    pub(crate) fn numbers(self) -> (i64, u64) {
        match self {
            Self::Change(Change::Charge { more }) => (1, more),
            Self::Change(Change::Refund { units } | Change::Withdraw { units, .. }) => (2, units),
            Self::Change(Change::Release { units }) => (3, units),
            Self::Hold(units) => (4, units),
        }
    }
}

/// One call: distinct buckets, corrections to them, then requests, decided in this order.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) buckets: Vec<(Name, Arc<Shape>)>,
    pub(crate) corrections: Vec<(u32, Adjust)>,
    pub(crate) groups: Vec<Group>,
}

/// `count` equal requests.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) parts: SmallVec<[Part; 2]>,
    pub(crate) count: u32,
}

/// One claim of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) bucket: u32,
    pub(crate) cost: u64,
    pub(crate) enforced: bool,
}

/// What a server said of a batch.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Its clock when it decided.
    pub(crate) now: Timestamp,
    /// How each bucket stood before the batch; `None`: it had none, which is a full one.
    pub(crate) before: Vec<Option<Seen>>,
    /// How many requests of each group were granted.
    pub(crate) granted: Vec<u32>,
    /// Whether `before` already has the corrections in it.
    pub(crate) corrected: bool,
}

/// Why a call brought no answer.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The connection is gone or the server is not one to write to: connect anew.
    Lost(String),
    /// The server answered with an error; the connection stands.
    Refused(String),
    /// The server answered what cannot be.
    Corrupt(String),
}

/// A way to a server.
pub(crate) trait Link: 'static {
    /// A live connection.
    type Connection: 'static;

    /// Connects, greets and checks that the server may be written to.
    fn connect(&self) -> impl Future<Output = Result<Self::Connection, String>>;

    /// Sends one batch and reads its answer. Dropped when nobody waits for it any more.
    fn call(&self, connection: &Self::Connection, batch: &Batch) -> impl Future<Output = Result<Answer, Trouble>>;

    /// Buckets that must be in different calls (a cluster's slots). One number: one call.
    fn part(&self, _name: &Name) -> u32 {
        0
    }

    /// Requests that should be in different calls, as one kind is decided faster than the other.
    fn lane_of(&self, _wants: &Wants) -> u32 {
        0
    }

    /// What is to be done now and then with an idle connection: heartbeats, sweeping.
    fn housekeep(&self, connection: &Self::Connection) -> impl Future<Output = Result<(), Trouble>>;

    /// The span between two such turns.
    fn housekeep_every(&self) -> Duration;
}

/// Counters of one store, for metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Calls sent to the server.
    pub calls: AtomicU64,
    /// Requests that went to the server.
    pub asked: AtomicU64,
    /// Requests refused here, from a bound, without a call.
    pub refused_locally: AtomicU64,
    /// Requests answered with failure because no answer came in time.
    pub timeouts: AtomicU64,
    /// Requests answered with failure because the store could not be asked.
    pub unavailable: AtomicU64,
    /// Corrections dropped because too many waited.
    pub corrections_dropped: AtomicU64,
    /// Groups in which the server granted another number than the core would have.
    pub diverged: AtomicU64,
    /// Times a connection was made.
    pub connects: AtomicU64,
}

/// How a store does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Whether calls go out.
    pub up: bool,
    /// What went wrong last; empty: nothing yet.
    pub last_error: String,
}

/// What workers and the store's thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) clock: Clock,
    pub(crate) answer_within: Micros,
    pub(crate) bounds: Bounds,
    pub(crate) counters: Counters,
    /// Places of concurrency limits that requests of this gateway hold now.
    held: Mutex<HashMap<u128, Places, RandomState>>,
    /// Gateways that use the store, by their heartbeats; zero: not yet known.
    pub(crate) replicas: AtomicU32,
    queue: Mutex<Queue>,
    arrived: Notify,
    lanes_up: AtomicUsize,
    closed: AtomicBool,
    last_error: Mutex<String>,
    connected: Notify,
}

/// A concurrency limit's bucket and the places held in it.
type Places = (Name, Arc<Shape>, u64);

#[derive(Debug, Default)]
struct Queue {
    asks: VecDeque<Ask>,
    corrections: VecDeque<Correction>,
}

impl Counters {
    /// Each counter by its name in metrics, with what it counts.
    pub fn named(&self) -> [(&'static str, &'static str, u64); 8] {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("store_calls", "Calls sent to the shared store", read(&self.calls)),
            ("store_requests", "Requests that the shared store was asked about", read(&self.asked)),
            (
                "store_local_refusals",
                "Requests refused without asking the shared store, which would have refused them",
                read(&self.refused_locally),
            ),
            ("store_timeouts", "Requests that the shared store did not answer in time", read(&self.timeouts)),
            ("store_unavailable", "Requests that the shared store could not be asked about", read(&self.unavailable)),
            (
                "store_corrections_dropped",
                "Settlements, refunds and releases dropped as too many waited",
                read(&self.corrections_dropped),
            ),
            (
                "store_divergences",
                "Groups of requests in which the shared store granted another number than the core would have",
                read(&self.diverged),
            ),
            ("store_connects", "Connections made to the shared store", read(&self.connects)),
        ]
    }
}

impl Shared {
    pub(crate) fn new(clock: Clock, answer_within: Micros, local_refusals: bool) -> Self {
        Self {
            clock,
            answer_within,
            bounds: Bounds::new(local_refusals),
            counters: Counters::default(),
            held: Mutex::default(),
            replicas: AtomicU32::new(0),
            queue: Mutex::default(),
            arrived: Notify::new(),
            lanes_up: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            last_error: Mutex::default(),
            connected: Notify::new(),
        }
    }

    /// Asks for `wants` and waits for the answer, which comes within the deadline.
    pub(crate) async fn ask(&self, wants: Wants, peek: bool) -> Result<Draw, StoreError> {
        let now = self.clock.now();
        if !peek && let Some(draw) = self.bounds.refuse(&wants, now) {
            self.counters.refused_locally.fetch_add(1, Ordering::Relaxed);
            return Ok(draw);
        }
        if self.lanes_up.load(Ordering::Acquire) == 0 {
            return Err(self.unavailable());
        }
        let (reply, answer) = oneshot::channel();
        let deadline = now.after(self.answer_within);
        {
            let mut queue = self.queue.lock();
            if queue.asks.len() >= QUEUE_MAX {
                drop(queue);
                self.counters.unavailable.fetch_add(1, Ordering::Relaxed);
                return Err(StoreError::Unavailable("too many requests wait for the store".into()));
            }
            queue.asks.push_back(Ask { wants, peek, deadline, reply: Some(reply) });
            if queue.asks.len() == 1 {
                self.arrived.notify_one();
            }
        }
        answer.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the store is shut down".into())))
    }

    /// Queues a correction; drops and counts it when too many wait.
    pub(crate) fn correct(&self, correction: Correction) {
        let mut queue = self.queue.lock();
        if queue.corrections.len() >= QUEUE_MAX || self.closed.load(Ordering::Relaxed) {
            self.counters.corrections_dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        queue.corrections.push_back(correction);
        if queue.corrections.len() == 1 {
            self.arrived.notify_one();
        }
    }

    /// Frees places of a concurrency limit. The lock spans both steps: a heartbeat tells what the queue before it left.
    pub(crate) fn release(&self, name: Name, shape: Arc<Shape>, units: u64) {
        let mut held = self.held.lock();
        if let Some((_, _, count)) = held.get_mut(&name.hash) {
            *count = count.saturating_sub(units);
            if *count == 0 {
                held.remove(&name.hash);
            }
        }
        self.correct(Correction { name, shape, adjust: Adjust::Change(Change::Release { units }) });
    }

    /// Queues corrections of earlier grants.
    pub(crate) fn settle(&self, names: &Names, settlements: &[Settlement<'_>]) {
        for settlement in settlements {
            let (name, shape) = (names.name(settlement.limit, settlement.key), names.shape(settlement.limit));
            match settlement.change {
                Change::Release { units } if shape.holds() => self.release(name, shape, units),
                change => self.correct(Correction { name, shape, adjust: Adjust::Change(change) }),
            }
        }
    }

    /// Queues a heartbeat for every place held.
    pub(crate) fn heartbeat(&self) {
        let held = self.held.lock();
        for (name, shape, units) in held.values() {
            self.correct(Correction { name: *name, shape: shape.clone(), adjust: Adjust::Hold(*units) });
        }
    }

    /// A caller has been told that it holds the places `draw` gave it; one that has gone gives them back.
    fn hold(&self, wants: &Wants, draw: &Draw, told: bool) {
        for (wanted, standing) in wants.iter().zip(&draw.standings) {
            if !wanted.shape.holds() || !matches!(standing.verdict, Verdict::Allow { .. }) {
                continue;
            }
            if told {
                let mut held = self.held.lock();
                held.entry(wanted.name.hash).or_insert_with(|| (wanted.name, wanted.shape.clone(), 0)).2 += wanted.cost;
            } else {
                let adjust = Adjust::Change(Change::Release { units: wanted.cost });
                self.correct(Correction { name: wanted.name, shape: wanted.shape.clone(), adjust });
            }
        }
    }

    pub(crate) fn health(&self) -> Health {
        Health { up: self.lanes_up.load(Ordering::Acquire) > 0, last_error: self.last_error.lock().clone() }
    }

    /// Waits until a connection stands; the caller puts its own bound around it.
    pub(crate) async fn connected(&self) {
        let mut connected = pin!(self.connected.notified());
        loop {
            connected.as_mut().enable();
            if self.lanes_up.load(Ordering::Acquire) > 0 {
                return;
            }
            connected.as_mut().await;
            connected.set(self.connected.notified());
        }
    }

    /// Stops the lanes once what is queued is answered.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.arrived.notify_waiters();
        self.arrived.notify_one();
    }

    fn unavailable(&self) -> StoreError {
        self.counters.unavailable.fetch_add(1, Ordering::Relaxed);
        StoreError::Unavailable(self.last_error.lock().clone())
    }

    /// Answers everything queued with failure: nobody is there to send it. Corrections stay.
    fn fail_queued(&self) {
        let asks = std::mem::take(&mut self.queue.lock().asks);
        for ask in asks {
            answer(ask, Err(self.unavailable()));
        }
    }

    /// What goes in the next call. Requests whose caller has gone are dropped, those too late are told so.
    fn take(&self) -> Option<Work> {
        let mut queue = self.queue.lock();
        if queue.asks.is_empty() && queue.corrections.is_empty() {
            return None;
        }
        let corrections_taken = queue.corrections.len().min(CORRECTIONS_MAX);
        let asks_taken = queue.asks.len().min(ASKS_MAX);
        let work = Work {
            corrections: queue.corrections.drain(..corrections_taken).collect(),
            asks: queue.asks.drain(..asks_taken).collect(),
        };
        if !queue.asks.is_empty() || !queue.corrections.is_empty() {
            self.arrived.notify_one();
        }
        Some(work)
    }

    /// Puts back at the front what did not fit.
    fn put_back(&self, asks: Vec<Ask>) {
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

struct Work {
    asks: Vec<Ask>,
    corrections: Vec<Correction>,
}

/// A batch with the requests that wait for it: `members[g]` are those of group `g`, in order of arrival.
#[derive(Default)]
struct Flight {
    batch: Batch,
    members: Vec<Vec<Ask>>,
    peeks: Vec<(Ask, SmallVec<[u32; 2]>)>,
    buckets: HashTable<u32>,
    groups: HashTable<u32>,
}

/// Starts the store's thread with `lanes` connections made by `link`.
///
/// # Errors
/// When the thread or its runtime cannot be made.
pub(crate) fn start<L: Link + Send>(
    name: &str,
    lanes: usize,
    shared: Arc<Shared>,
    link: L,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let link = Rc::new(link);
        let local = tokio::task::LocalSet::new();
        for _ in 0..lanes {
            local.spawn_local(lane(shared.clone(), link.clone()));
        }
        runtime.block_on(local);
        shared.fail_queued();
    })
}

/// One connection with one call in flight: connects, works, connects again.
async fn lane<L: Link>(shared: Arc<Shared>, link: Rc<L>) {
    let mut breaker = Breaker::new(shared.clock.now());
    while !shared.closed.load(Ordering::Acquire) {
        let Some(connection) = connect(&shared, &*link, &mut breaker).await else { return };
        shared.lanes_up.fetch_add(1, Ordering::AcqRel);
        shared.counters.connects.fetch_add(1, Ordering::Relaxed);
        shared.connected.notify_waiters();
        tracing::info!("the shared store answers");
        let last_words = work(&shared, &link, connection, &mut breaker).await;
        if let Some(error) = last_words {
            tracing::warn!(%error, "the shared store does not answer: limits do what `when_down` says");
            *shared.last_error.lock() = error;
        }
        if shared.lanes_up.fetch_sub(1, Ordering::AcqRel) == 1 {
            shared.fail_queued();
        }
    }
}

/// Probes until a connection stands. Meanwhile, when no other lane works, queued requests are told so.
async fn connect<L: Link>(shared: &Shared, link: &L, breaker: &mut Breaker) -> Option<L::Connection> {
    loop {
        let wait = breaker.until_probe(shared.clock.now());
        let mut attempt = pin!(async {
            tokio::time::sleep(wait.into()).await;
            link.connect().await
        });
        let outcome = loop {
            tokio::select! {
                outcome = &mut attempt => break outcome,
                () = tokio::time::sleep(DOWN_TICK) => {
                    if shared.closed.load(Ordering::Acquire) {
                        return None;
                    }
                    if shared.lanes_up.load(Ordering::Acquire) == 0 {
                        shared.fail_queued();
                    }
                }
            }
        };
        match outcome {
            Ok(connection) => {
                breaker.probe_succeeded();
                return Some(connection);
            }
            Err(error) => {
                *shared.last_error.lock() = error;
                breaker.probe_failed(shared.clock.now(), fastrand::u8(..));
            }
        }
    }
}

/// Sends batch after batch until the circuit opens; returns why it did. Chores go on beside: no request waits for one.
async fn work<L: Link>(
    shared: &Arc<Shared>,
    link: &Rc<L>,
    connection: L::Connection,
    breaker: &mut Breaker,
) -> Option<String> {
    let connection = Rc::new(connection);
    let mut housekeeping = tokio::time::interval(link.housekeep_every());
    housekeeping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut chore = Chore(None);
    while breaker.circuit() == Circuit::Closed {
        let outcome = if let Some(work) = shared.take() {
            flush(shared, &**link, &connection, work).await
        } else if shared.closed.load(Ordering::Acquire) {
            return None;
        } else {
            tokio::select! {
                () = shared.arrived.notified() => continue,
                outcome = chore.done() => outcome,
                _ = housekeeping.tick() => {
                    shared.heartbeat();
                    let (link, connection) = (link.clone(), connection.clone());
                    chore.begin(async move { link.housekeep(&connection).await })
                }
            }
        };
        match outcome {
            Ok(()) => breaker.succeeded(),
            Err(Failure::Late) => {
                if breaker.failed(shared.clock.now()) {
                    return Some("no answer in time, several times in a row".into());
                }
            }
            Err(Failure::Trouble(Trouble::Lost(error))) => {
                breaker.trip(shared.clock.now());
                return Some(error);
            }
            Err(Failure::Trouble(Trouble::Refused(error) | Trouble::Corrupt(error))) => {
                shared.last_error.lock().clone_from(&error);
                if breaker.failed(shared.clock.now()) {
                    return Some(error);
                }
            }
        }
    }
    None
}

/// A chore that goes on beside the requests, at most one at a time; given up with its connection.
struct Chore(Option<tokio::task::JoinHandle<Result<(), Trouble>>>);

impl Chore {
    /// Begins one; when the last is not done yet the server is late.
    fn begin(&mut self, chore: impl Future<Output = Result<(), Trouble>> + 'static) -> Result<(), Failure> {
        if self.0.as_ref().is_some_and(|running| !running.is_finished()) {
            return Err(Failure::Late);
        }
        self.0 = Some(tokio::task::spawn_local(chore));
        Ok(())
    }

    /// Waits for the chore under way; for ever when there is none.
    async fn done(&mut self) -> Result<(), Failure> {
        let Some(running) = &mut self.0 else { return std::future::pending().await };
        let outcome = running.await;
        self.0 = None;
        match outcome {
            Ok(outcome) => outcome.map_err(Failure::Trouble),
            Err(_) => Err(Failure::Trouble(Trouble::Corrupt("a chore did not end well".into()))),
        }
    }
}

impl Drop for Chore {
    fn drop(&mut self) {
        if let Some(running) = &self.0 {
            running.abort();
        }
    }
}

/// Why a flush brought nothing.
enum Failure {
    /// Everybody's deadline passed.
    Late,
    Trouble(Trouble),
}

/// Sends `work` in as many calls as its parts need (one, outside a cluster), all at once, and hands the answers out.
async fn flush<L: Link>(shared: &Shared, link: &L, connection: &L::Connection, work: Work) -> Result<(), Failure> {
    let mut flights = assemble(shared, link, work);
    if flights.len() == 1 {
        return match flights.pop() {
            Some(flight) => fly(shared, link, connection, flight).await,
            None => Ok(()),
        };
    }
    let mut outcome = Ok(());
    let mut flying: Vec<_> =
        flights.into_iter().map(|flight| Box::pin(fly(shared, link, connection, flight))).collect();
    std::future::poll_fn(|context| {
        flying.retain_mut(|flight| match flight.as_mut().poll(context) {
            Poll::Ready(Err(failure)) => {
                outcome = Err(failure);
                false
            }
            Poll::Ready(Ok(())) => false,
            Poll::Pending => true,
        });
        if flying.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outcome
}

/// One call.
async fn fly<L: Link>(
    shared: &Shared,
    link: &L,
    connection: &L::Connection,
    mut flight: Flight,
) -> Result<(), Failure> {
    let sent = shared.clock.now();
    shared.counters.calls.fetch_add(1, Ordering::Relaxed);
    let batch = std::mem::take(&mut flight.batch);
    let answered = call_until_late(shared, &mut flight, link.call(connection, &batch)).await;
    flight.batch = batch;
    match answered {
        Ok(answer) => deliver(shared, flight, answer, sent).map_err(|error| Failure::Trouble(Trouble::Corrupt(error))),
        Err(failure) => {
            let told = match &failure {
                Failure::Late => StoreError::Timeout,
                Failure::Trouble(Trouble::Lost(error) | Trouble::Refused(error)) => {
                    StoreError::Unavailable(error.clone())
                }
                Failure::Trouble(Trouble::Corrupt(error)) => StoreError::Corrupt(error.clone()),
            };
            for ask in flight.members.into_iter().flatten().chain(flight.peeks.into_iter().map(|(ask, _)| ask)) {
                fail(shared, ask, told.clone());
            }
            Err(failure)
        }
    }
}

/// Waits for the call while anybody waits for it; those whose deadline passes are told, one after the other.
async fn call_until_late(
    shared: &Shared,
    flight: &mut Flight,
    call: impl Future<Output = Result<Answer, Trouble>>,
) -> Result<Answer, Failure> {
    let mut call = pin!(call);
    // Corrections alone have no caller: they get what a request would.
    let alone = shared.clock.now().after(shared.answer_within);
    loop {
        let now = shared.clock.now();
        let mut next: Option<Timestamp> = None;
        let asks = flight.members.iter_mut().flatten().chain(flight.peeks.iter_mut().map(|(ask, _)| ask));
        let mut anybody = false;
        for ask in asks {
            anybody = true;
            if ask.reply.is_none() {
                continue;
            }
            if ask.deadline <= now {
                shared.counters.timeouts.fetch_add(1, Ordering::Relaxed);
                if let Some(reply) = ask.reply.take() {
                    // A caller that has gone needs no answer.
                    let _ = reply.send(Err(StoreError::Timeout));
                }
            } else {
                next = Some(next.map_or(ask.deadline, |earliest| earliest.min(ask.deadline)));
            }
        }
        if !anybody && alone > now {
            next = Some(alone);
        }
        let Some(next) = next else { return Err(Failure::Late) };
        tokio::select! {
            biased;
            outcome = &mut call => return outcome.map_err(Failure::Trouble),
            () = tokio::time::sleep(next.since(now).into()) => {}
        }
    }
}

/// Sorts `work` into calls.
fn assemble<L: Link>(shared: &Shared, link: &L, work: Work) -> Vec<Flight> {
    let now = shared.clock.now();
    let mut flights: SmallVec<[((u32, u32), Flight); 1]> = SmallVec::new();
    let mut later = Vec::new();
    for correction in work.corrections {
        let flight = flight_for(&mut flights, (link.part(&correction.name), u32::MAX));
        if let Some(bucket) = flight.bucket(&correction.name, &correction.shape) {
            flight.batch.corrections.push((bucket, correction.adjust));
        } else {
            shared.counters.corrections_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
    for ask in work.asks {
        if ask.reply.as_ref().is_none_or(oneshot::Sender::is_closed) {
            continue;
        }
        if ask.deadline <= now {
            fail(shared, ask, StoreError::Timeout);
            continue;
        }
        let Some(first) = ask.wants.first() else {
            answer(ask, Ok(Draw { granted: true, ..Draw::default() }));
            continue;
        };
        let part = link.part(&first.name);
        if ask.wants.iter().any(|wanted| link.part(&wanted.name) != part) {
            let told = "the limits of this request lie in different cluster slots";
            fail(shared, ask, StoreError::Unavailable(told.into()));
            continue;
        }
        if let Err(ask) =
            flight_for(&mut flights, (part, if ask.peek { u32::MAX } else { link.lane_of(&ask.wants) })).add(ask)
        {
            later.push(ask);
        }
    }
    shared.put_back(later);
    let flights: Vec<Flight> = flights.into_iter().map(|(_, flight)| flight).collect();
    let asked: usize = flights.iter().map(|flight| flight.members.iter().map(Vec::len).sum::<usize>()).sum();
    shared.counters.asked.fetch_add(asked as u64, Ordering::Relaxed);
    flights
}

fn flight_for(flights: &mut SmallVec<[((u32, u32), Flight); 1]>, part: (u32, u32)) -> &mut Flight {
    let index = flights.iter().position(|(known, _)| *known == part).unwrap_or_else(|| {
        flights.push((part, Flight::default()));
        flights.len() - 1
    });
    &mut flights[index].1
}

impl Flight {
    /// The place of a bucket in this call; `None` when it is there under other numbers (a reload is passing): one
    /// call must not hold two opinions of one bucket.
    #[expect(clippy::cast_possible_truncation, reason = "a call has fewer than 2^32 buckets; a hash may be cut")]
    fn bucket(&mut self, name: &Name, shape: &Arc<Shape>) -> Option<u32> {
        let hash = name.hash as u64;
        let buckets = &mut self.batch.buckets;
        if let Some(&index) = self.buckets.find(hash, |&index| buckets[index as usize].0.hash == name.hash) {
            return Arc::ptr_eq(&buckets[index as usize].1, shape).then_some(index);
        }
        let index = buckets.len() as u32;
        buckets.push((*name, shape.clone()));
        self.buckets.insert_unique(hash, index, |&index| buckets[index as usize].0.hash as u64);
        Some(index)
    }

    /// Puts a request in this call, or hands it back for the next.
    #[expect(clippy::result_large_err, reason = "the request itself, handed back")]
    fn add(&mut self, ask: Ask) -> Result<(), Ask> {
        if self.batch.groups.len() >= GROUPS_MAX || self.peeks.len() >= GROUPS_MAX {
            return Err(ask);
        }
        let mut parts: SmallVec<[Part; 2]> = SmallVec::new();
        for wanted in &ask.wants {
            match self.bucket(&wanted.name, &wanted.shape) {
                Some(bucket) => parts.push(Part { bucket, cost: wanted.cost, enforced: wanted.enforced }),
                None => return Err(ask),
            }
        }
        if ask.peek {
            self.peeks.push((ask, parts.iter().map(|part| part.bucket).collect()));
            return Ok(());
        }
        let groups = &mut self.batch.groups;
        let hash = hash_of(&parts);
        if let Some(&index) = self.groups.find(hash, |&index| groups[index as usize].parts == parts) {
            groups[index as usize].count += 1;
            self.members[index as usize].push(ask);
            return Ok(());
        }
        let index = u32::try_from(groups.len()).expect("groups are bounded by GROUPS_MAX");
        groups.push(Group { parts, count: 1 });
        self.members.push(vec![ask]);
        self.groups.insert_unique(hash, index, |&index| hash_of(&groups[index as usize].parts));
        Ok(())
    }
}

/// A spread of a group's claims; its inputs are places and costs, which no caller can aim.
fn hash_of(parts: &[Part]) -> u64 {
    parts.iter().fold(0x9E37_79B9_7F4A_7C15, |hash: u64, part| {
        let word = u64::from(part.bucket) << 32 ^ part.cost << 1 ^ u64::from(part.enforced);
        (hash.rotate_left(23) ^ word).wrapping_mul(0x2545_F491_4F6C_DD1D)
    })
}

/// Replays the pure core on the states the server decided on and tells everybody.
fn deliver(shared: &Shared, flight: Flight, answer_: Answer, sent: Timestamp) -> Result<(), String> {
    let Flight { batch, members, peeks, .. } = flight;
    let Answer { now, before: mut states, granted, corrected } = answer_;
    if states.len() != batch.buckets.len() || granted.len() != batch.groups.len() {
        for ask in members.into_iter().flatten().chain(peeks.into_iter().map(|(ask, _)| ask)) {
            fail(shared, ask, StoreError::Corrupt("an answer of another length than the question".into()));
        }
        return Err("an answer of another length than the question".into());
    }
    for (bucket, adjust) in batch.corrections.iter().filter(|_| !corrected) {
        let bucket = *bucket as usize;
        batch.buckets[bucket].1.settle(&mut states[bucket], *adjust, now);
    }
    let received = shared.clock.now();
    let mut answers: Vec<(Ask, Result<Draw, StoreError>)> = Vec::with_capacity(members.len() + peeks.len());
    for ((group, asks), granted) in batch.groups.iter().zip(members).zip(granted) {
        let mut server_grants = granted;
        let mut core_grants = 0;
        for ask in asks {
            let draw = replay(&batch, group, &mut states, now);
            core_grants += u32::from(draw.granted);
            if draw.granted && server_grants == 0 {
                answers.push((ask, Err(StoreError::Corrupt("the server refused what it could grant".into()))));
                continue;
            }
            server_grants -= u32::from(draw.granted);
            answers.push((ask, Ok(draw)));
        }
        if core_grants != granted {
            shared.counters.diverged.fetch_add(1, Ordering::Relaxed);
        }
    }
    for (ask, buckets) in peeks {
        let standings = buckets
            .iter()
            .zip(&ask.wants)
            .map(|(&bucket, wanted)| wanted.shape.standing(states[bucket as usize].as_ref(), wanted.cost, now));
        let draw = Draw { granted: false, standings: standings.collect() };
        answers.push((ask, Ok(draw)));
    }
    // Before anybody is told: who asks again at once must find what this call has taught.
    shared.bounds.learn(&batch, &states, now, sent, received);
    for (ask, answer) in answers {
        match answer {
            Ok(draw) => grant(shared, ask, draw),
            Err(error) => fail(shared, ask, error),
        }
    }
    Ok(())
}

/// Decides all groups as the specification does, moving `states` on; how many of each were granted.
pub(crate) fn decide(batch: &Batch, states: &mut [Option<Seen>], now: Timestamp) -> Vec<u32> {
    let granted = |group: &Group| (0..group.count).map(|_| u32::from(replay(batch, group, states, now).granted)).sum();
    batch.groups.iter().map(granted).collect()
}

/// Decides one request of `group` as the specification does ([`crate::limit::draw`]) and moves `states` on.
fn replay(batch: &Batch, group: &Group, states: &mut [Option<Seen>], now: Timestamp) -> Draw {
    let mut granted = true;
    let mut judged: SmallVec<[_; 4]> = SmallVec::new();
    for part in &group.parts {
        let bucket = part.bucket as usize;
        let answer = batch.buckets[bucket].1.algorithm().judge(states[bucket].as_ref(), part.cost, now);
        granted &= answer.is_ok() || !part.enforced;
        judged.push((Verdict::from(&answer), answer.ok().map(|grant| grant.next)));
    }
    let mut standings = SmallVec::new();
    for (part, (verdict, next)) in group.parts.iter().zip(judged) {
        let bucket = part.bucket as usize;
        let algorithm = batch.buckets[bucket].1.algorithm();
        if let (true, Some(next)) = (granted, next) {
            algorithm.apply(&mut states[bucket], next);
        }
        standings.push(Standing::new(verdict, algorithm.report(states[bucket].as_ref(), now)));
    }
    Draw { granted, standings }
}

/// Tells a decision. The places a request holds are booked before it can give them back.
fn grant(shared: &Shared, ask: Ask, draw: Draw) {
    if !draw.granted || !ask.wants.iter().any(|wanted| wanted.shape.holds()) {
        answer(ask, Ok(draw));
        return;
    }
    let Ask { wants, reply, .. } = ask;
    let told = reply.as_ref().is_some_and(|reply| !reply.is_closed());
    shared.hold(&wants, &draw, told);
    if let Some(reply) = reply
        && let Err(Ok(draw)) = reply.send(Ok(draw))
        && told
    {
        // Gone between the two looks.
        for (wanted, standing) in wants.iter().zip(&draw.standings) {
            if wanted.shape.holds() && matches!(standing.verdict, Verdict::Allow { .. }) {
                shared.release(wanted.name, wanted.shape.clone(), wanted.cost);
            }
        }
    }
}

fn fail(shared: &Shared, ask: Ask, error: StoreError) {
    if ask.reply.is_some() {
        let counter = match &error {
            StoreError::Timeout => &shared.counters.timeouts,
            StoreError::Unavailable(_) | StoreError::Corrupt(_) => &shared.counters.unavailable,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
    answer(ask, Err(error));
}

fn answer(mut ask: Ask, outcome: Result<Draw, StoreError>) {
    if let Some(reply) = ask.reply.take() {
        // A caller that has gone needs no answer; what it was granted stays charged, which errs on the strict side.
        let _ = reply.send(outcome);
    }
}
