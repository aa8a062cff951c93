//! A lane: one connection with its calls, and the handling of its loss.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::assemble::Flight;
use super::attempts::Attempts;
use super::documents;
use super::flight::{fly, next_calls};
use super::outages::Outages;
use super::{LaneState, Link, Obstacle, Trouble, owed};
use crate::breaker::Breaker;
use crate::lease::SWEEP;
use tollgate_limit::Micros;

/// How often a lane without a connection fails the queued requests.
const DOWN_TICK: Micros = Micros(5_000);

/// After so long without a response the server of a name is looked up again, although it responds: a
/// master that was frozen meanwhile may not know yet that another was promoted.
const SILENCE: Duration = Duration::from_millis(400);

/// How long connections have to close cleanly after the store is closed.
const FAREWELL: Duration = Duration::from_millis(200);

/// Starts the store's thread, on which `main` runs with the tasks it spawns there.
pub(crate) fn start<F: Future<Output = ()> + 'static>(
    name: &str,
    main: impl FnOnce() -> F + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            let local = tokio::task::LocalSet::new();
            runtime.block_on(local.run_until(main()));
            // Connections are closed cleanly; a server that does not respond is not waited for.
            let _ = runtime.block_on(async { tokio::time::timeout(FAREWELL, local).await });
            // A name lookup that hangs blocks a thread of the runtime, and is not awaited either.
            runtime.shutdown_background();
        })
}

/// Runs one connection: connects, works, reconnects. Requests that are queued when it ends get an
/// error. One call is in flight at a time; heartbeats of held places depend on the order of calls.
pub(crate) async fn lane<L: Link>(shared: Arc<LaneState>, link: Rc<L>) {
    keep_connected(&shared, link).await;
    shared.fail_queued();
    if shared.server().is_none() {
        // (Those of a cluster's server go to its successors.)
        shared.lose_queued_corrections();
    }
}

async fn keep_connected<L: Link>(shared: &Arc<LaneState>, link: Rc<L>) {
    let mut breaker = Breaker::new(shared.clock.now());
    let mut outages = Outages::of(shared.server());
    let mut attempts = Attempts::new(link.clone());
    let mut replacement = None;
    // Requests that are queued when the store closes can still use a replaced connection.
    while replacement.is_some() || !shared.closed.load(Ordering::Acquire) {
        let connection = match replacement.take() {
            Some(connection) => connection,
            None => {
                let connected = connect(shared, &mut attempts, &mut breaker, &mut outages);
                let Some(connection) = connected.await else {
                    return;
                };
                if let Err(failure) = owed::charge(shared, &*link, &connection).await {
                    let error = failure.into_words();
                    shared.failed(error.clone());
                    outages.down(&error, shared.clock.now());
                    breaker.trip(shared.clock.now());
                    continue;
                }
                shared.lanes_up.fetch_add(1, Ordering::AcqRel);
                // Requests were decided without the server until now.
                shared.charge_beside();
                connection
            }
        };
        shared.counters.connects.fetch_add(1, Ordering::Relaxed);
        shared.connected.notify_waiters();
        outages.up();
        match work(shared, &link, connection, &mut breaker, &mut attempts).await {
            Ended::Closed => {}
            Ended::Down(error) => {
                shared.last_error.lock().clone_from(&error);
                outages.down(&error, shared.clock.now());
            }
            Ended::Broken(error) => {
                shared.last_error.lock().clone_from(&error);
                // A connection that has worked is made again while requests wait: the server may have
                // closed it and nothing more.
                if breaker.is_proven()
                    && let Some(connection) = connect_in_time(shared, &mut attempts).await
                {
                    breaker.probe_succeeded();
                    replacement = Some(connection);
                    continue;
                }
                breaker.trip(shared.clock.now());
                outages.down(&error, shared.clock.now());
            }
            Ended::Replaced(connection) => {
                breaker.probe_succeeded();
                replacement = Some(connection);
                continue;
            }
        }
        if shared.lanes_up.fetch_sub(1, Ordering::AcqRel) == 1 {
            shared.is_not_counted_on();
            shared.fail_queued();
        }
    }
}

/// Probes until a connection is made. Without another lane, queued requests get an error.
async fn connect<L: Link>(
    shared: &LaneState,
    attempts: &mut Attempts<L>,
    breaker: &mut Breaker,
    outages: &mut Outages,
) -> Option<L::Connection> {
    loop {
        let wait = breaker.until_probe(shared.clock.now());
        let mut attempt = pin!(async {
            tokio::time::sleep(wait.into()).await;
            attempts.next().await
        });
        let outcome = loop {
            tokio::select! {
                outcome = &mut attempt => break outcome,
                () = tokio::time::sleep(DOWN_TICK.into()) => {
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
            Err(Obstacle { words, lasting }) => {
                shared.failed(words.clone());
                outages.down(&words, shared.clock.now());
                breaker.probe_failed(shared.clock.now(), fastrand::u8(..), lasting);
            }
        }
    }
}

/// Connects while requests wait, for as long as one of them may. `None`: it cannot be done.
async fn connect_in_time<L: Link>(
    shared: &LaneState,
    attempts: &mut Attempts<L>,
) -> Option<L::Connection> {
    let until = Instant::now() + shared.answer_within.into();
    let mut attempt = pin!(attempts.next());
    loop {
        let now = shared.clock.now();
        let first = shared.tell_late(now);
        let wait = first.map_or(DOWN_TICK, |first| DOWN_TICK.min(first.since(now)));
        tokio::select! {
            outcome = &mut attempt => return outcome.ok(),
            () = tokio::time::sleep(wait.into()) => {
                if Instant::now() >= until || shared.closed.load(Ordering::Acquire) {
                    return None;
                }
            }
        }
    }
}

enum Ended<C> {
    Closed,
    Down(String),
    /// The connection has ended, or is of no use, for this reason.
    Broken(String),
    /// Another connection responded first, while this one was suspected.
    Replaced(C),
}

/// Sends batch after batch until the circuit opens. Chores run in parallel: no request waits for
/// one.
///
/// If a call gets no response in time, its connection is suspected: it may be silently dead (the
/// network was down, a firewall dropped it), and data sent over it may wait seconds for TCP's
/// retransmission. So another connection is made in parallel and replaces it, unless the suspected
/// one responds first.
async fn work<L: Link>(
    shared: &Arc<LaneState>,
    link: &Rc<L>,
    connection: L::Connection,
    breaker: &mut Breaker,
    attempts: &mut Attempts<L>,
) -> Ended<L::Connection> {
    let (mut late, mut may_owe) = (None::<Instant>, false);
    let connection = Rc::new(connection);
    let _watching = documents::watch(shared, link, &connection);
    let mut housekeeping = pin!(tokio::time::sleep(Duration::ZERO));
    let mut chore = Chore(None);
    let mut sweeping = tokio::time::interval(SWEEP.into());
    sweeping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !breaker.is_open() {
        if late.is_some() {
            attempts.begin_beside();
            if let Some(replacement) = attempts.ready() {
                return Ended::Replaced(replacement);
            }
        }
        // Checked in every round, because a lane that always has work never waits.
        let outcome = if housekeeping.deadline() <= Instant::now() {
            let next = Instant::now() + link.housekeep_every();
            housekeeping.as_mut().reset(next);
            shared.heartbeat();
            may_owe = true;
            let (link, connection) = (link.clone(), connection.clone());
            let begun = chore.begin(async move { link.housekeep(&connection).await });
            match begun.await {
                // That a call has started shows nothing about the server.
                Ok(()) => continue,
                failed => failed,
            }
        } else if let Some(flights) = next_calls(shared, &**link) {
            depart(shared, link, &connection, flights).await
        } else if shared.closed.load(Ordering::Acquire) {
            return Ended::Closed;
        } else {
            tokio::select! {
                replacement = attempts.first(), if late.is_some() => return Ended::Replaced(replacement),
                () = shared.arrived.notified() => continue,
                _ = sweeping.tick(), if shared.leases.as_ref().is_some_and(|leases| leases.any()) => continue,
                outcome = chore.done() => outcome,
                () = link.ended(&connection) => {
                    Err(Trouble::Unfit("the server has closed the connection".into()))
                }
                () = housekeeping.as_mut() => continue,
            }
        };
        let last_words = match outcome {
            Ok(()) => {
                breaker.succeeded();
                if std::mem::take(&mut may_owe) {
                    // Single requests are also decided without a server that is up: it refused
                    // them, or its queue was full.
                    shared.charge_beside();
                }
                if let Some(since) = late.take() {
                    attempts.give_up();
                    if link.may_move() && since.elapsed() >= SILENCE {
                        let why = "the server was silent, and another may have its place";
                        return Ended::Broken(why.into());
                    }
                }
                continue;
            }
            Err(Trouble::Late) => {
                late.get_or_insert_with(Instant::now);
                breaker
                    .failed(shared.clock.now())
                    .then(|| "no response in time, several times in a row".into())
            }
            // (The server it concerns has its own lane.)
            Err(Trouble::Moved(_) | Trouble::Astray(_)) => None,
            Err(Trouble::Lost(error) | Trouble::Unfit(error)) => return Ended::Broken(error),
            Err(Trouble::Refused(error) | Trouble::Corrupt(error)) => {
                shared.last_error.lock().clone_from(&error);
                breaker.failed(shared.clock.now()).then_some(error)
            }
        };
        if let Some(error) = last_words {
            return Ended::Down(error);
        }
    }
    Ended::Closed
}

/// Makes calls and delivers their results. A late call goes on in a task of its own.
async fn depart<L: Link>(
    shared: &Arc<LaneState>,
    link: &Rc<L>,
    connection: &Rc<L::Connection>,
    flights: Vec<Flight>,
) -> Result<(), Trouble> {
    let late = Rc::new(Notify::new());
    let notify = late.clone();
    let (shared, link, connection) = (shared.clone(), link.clone(), connection.clone());
    let flying = tokio::task::spawn_local(async move {
        let flown = fly(&shared, &*link, &connection, flights, Some(&notify));
        flown.await.settle(&shared)
    });
    tokio::select! {
        biased;
        outcome = flying => {
            outcome.unwrap_or_else(|_| Err(Trouble::Corrupt("a call did not end well".into())))
        }
        () = late.notified() => Err(Trouble::Late),
    }
}

/// A chore that runs in parallel to requests, at most one at a time; cancelled with its connection.
struct Chore(Option<tokio::task::JoinHandle<Result<(), Trouble>>>);

impl Chore {
    /// Starts a chore; returns the result of the last one if it was not yet read. If the last one
    /// is not done, the server is late.
    async fn begin(
        &mut self,
        chore: impl Future<Output = Result<(), Trouble>> + 'static,
    ) -> Result<(), Trouble> {
        let last = match &self.0 {
            None => Ok(()),
            Some(running) if !running.is_finished() => return Err(Trouble::Late),
            Some(_) => self.done().await,
        };
        self.0 = Some(tokio::task::spawn_local(chore));
        last
    }

    /// Waits for the chore in progress; forever if there is none.
    async fn done(&mut self) -> Result<(), Trouble> {
        let Some(running) = &mut self.0 else {
            return std::future::pending().await;
        };
        let outcome = running.await;
        self.0 = None;
        outcome.unwrap_or_else(|_| Err(Trouble::Corrupt("a chore did not end well".into())))
    }
}

impl Drop for Chore {
    fn drop(&mut self) {
        if let Some(running) = &self.0 {
            running.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};

    use super::*;

    #[test]
    fn store_thread_ends_while_a_name_lookup_hangs() {
        let (release, hangs) = channel::<()>();
        let (report, outcome) = channel();
        let thread = start("test", move || async move {
            let (start, started) = tokio::sync::oneshot::channel();
            // As the system's resolver is called.
            tokio::task::spawn_blocking(move || {
                let _ = start.send(());
                let _ = report.send(hangs.recv_timeout(Duration::from_secs(20)));
            });
            let _ = started.await;
        });
        thread.expect("a thread").join().expect("no panic");
        drop(release);
        let outcome = outcome.recv().expect("it ends when it is released");
        assert_eq!(outcome, Err(RecvTimeoutError::Disconnected));
    }
}
