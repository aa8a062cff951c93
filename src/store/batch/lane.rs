//! A lane: one connection with one call in flight, and what it does when there is none.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

use super::flight::{Failure, Landed, flush};
use super::gather::Gathering;
use super::outages::Outages;
use super::shared::Work;
use super::{Link, Shared, Trouble};
use crate::store::breaker::{Breaker, Circuit};
use crate::store::lease::SWEEP;

/// How often a lane without a connection answers what is queued.
const DOWN_TICK: Duration = Duration::from_millis(5);

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
pub(super) async fn lane<L: Link>(shared: Arc<Shared>, link: Rc<L>) {
    let mut breaker = Breaker::new(shared.clock.now());
    let mut outages = Outages::default();
    while !shared.closed.load(Ordering::Acquire) {
        let Some(connection) = connect(&shared, &*link, &mut breaker, &mut outages).await else { return };
        shared.lanes_up.fetch_add(1, Ordering::AcqRel);
        shared.counters.connects.fetch_add(1, Ordering::Relaxed);
        shared.connected.notify_waiters();
        outages.up();
        let last_words = work(&shared, &link, connection, &mut breaker).await;
        if let Some(error) = last_words {
            outages.down(&error, shared.clock.now());
            *shared.last_error.lock() = error;
        }
        if shared.lanes_up.fetch_sub(1, Ordering::AcqRel) == 1 {
            shared.fail_queued();
        }
    }
}

/// Probes until a connection stands. Meanwhile, when no other lane works, queued requests are told so.
async fn connect<L: Link>(
    shared: &Shared,
    link: &L,
    breaker: &mut Breaker,
    outages: &mut Outages,
) -> Option<L::Connection> {
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
                outages.down(&error, shared.clock.now());
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
    let mut housekeeping = pin!(tokio::time::sleep(Duration::ZERO));
    let mut chore = Chore(None);
    let mut sweeping = tokio::time::interval(SWEEP.into());
    sweeping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut landed, mut gathering) = (Vec::new(), Gathering::default());
    while breaker.circuit() == Circuit::Closed {
        // Looked at in every turn: a lane that always has work never waits.
        let outcome = if housekeeping.deadline() <= Instant::now() {
            housekeeping.as_mut().reset(Instant::now() + link.housekeep_every());
            // A heartbeat tells of the places that are booked, and those of a call that has landed are booked by telling.
            let told = tell(shared, &mut landed);
            shared.heartbeat();
            let begun = {
                let (link, connection) = (link.clone(), connection.clone());
                chore.begin(async move { link.housekeep(&connection).await }).await
            };
            match told.and(begun) {
                // That it has begun says nothing of the server.
                Ok(()) => continue,
                failed => failed,
            }
        } else if !landed.is_empty() && shared.has_heartbeats() {
            tell(shared, &mut landed)
        } else if let Some(work) = shared.take() {
            shared.busy.store(true, Ordering::Release);
            let outcome = turn(shared, &**link, &connection, work, &mut landed, &mut gathering).await;
            shared.busy.store(false, Ordering::Release);
            outcome
        } else if !landed.is_empty() {
            tell(shared, &mut landed)
        } else if shared.closed.load(Ordering::Acquire) {
            return None;
        } else {
            tokio::select! {
                () = shared.arrived.notified() => continue,
                _ = sweeping.tick(), if shared.leases.as_ref().is_some_and(|leases| leases.any()) => continue,
                outcome = chore.done() => outcome,
                () = housekeeping.as_mut() => continue,
            }
        };
        match outcome {
            Ok(()) => {
                breaker.succeeded();
                shared.suspect.store(false, Ordering::Release);
            }
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

/// Sends `work`, tells those who wait for the answers that landed before, and waits for this one's: while the server works
/// on one batch, the callers of the last are told. Otherwise a call is answered the moment it lands, and the next one leaves
/// when those who were told are back.
async fn turn<L: Link>(
    shared: &Shared,
    link: &L,
    connection: &L::Connection,
    work: Work,
    landed: &mut Vec<Landed>,
    gathering: &mut Gathering,
) -> Result<(), Failure> {
    let asked = work.asks.len();
    let mut call = pin!(flush(shared, link, connection, work));
    let mut told = Ok(());
    let early = if landed.is_empty() {
        None
    } else {
        // What is asked leaves with the connection's own task.
        let early = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
        tokio::task::yield_now().await;
        told = tell(shared, landed);
        match early {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    };
    let (now_landed, outcome) = match early {
        Some(done) => done,
        None => call.await,
    };
    *landed = now_landed;
    if !link.overlaps() || outcome.is_err() || told.is_err() {
        let queued = shared.queued();
        told = told.and(tell(shared, landed));
        if outcome.is_ok() && told.is_ok() {
            gathering.wait(shared, asked, queued);
        }
    }
    outcome.and(told)
}

/// Tells everybody who waits for these answers.
fn tell(shared: &Shared, landed: &mut Vec<Landed>) -> Result<(), Failure> {
    let mut outcome = Ok(());
    for landed in landed.drain(..) {
        outcome = outcome.and(landed.deliver(shared));
    }
    outcome
}

/// A chore that goes on beside the requests, at most one at a time; given up with its connection.
struct Chore(Option<tokio::task::JoinHandle<Result<(), Trouble>>>);

impl Chore {
    /// Begins one; what came of the last, if nobody has asked yet. When that is not done the server is late.
    async fn begin(&mut self, chore: impl Future<Output = Result<(), Trouble>> + 'static) -> Result<(), Failure> {
        let last = match &self.0 {
            None => Ok(()),
            Some(running) if !running.is_finished() => return Err(Failure::Late),
            Some(_) => self.done().await,
        };
        self.0 = Some(tokio::task::spawn_local(chore));
        last
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
