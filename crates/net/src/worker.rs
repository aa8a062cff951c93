//! Workers: one thread and one current-thread runtime per core, each with its own sockets and its
//! own handler.
//!
//! Nothing on the request path crosses threads, so nothing there needs to be `Send`. Every task of
//! a worker that serves a client is counted; a drain notifies all of them, and waits for them.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use slab::Slab;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;

/// The state that a worker has to enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Serve the existing connections, accept none; the number increases with each hold.
    Hold(u32),
    Serve,
    /// Accept nothing new, finish the existing work.
    Drain(Drain),
    /// Drop everything.
    Stop,
}

/// The settings of a worker's shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// How long it may take; work left then is cut off.
    pub span: Duration,
    /// How long an idle connection is kept for one more request: a client may be sending it just
    /// now, and the response tells it that the connection closes.
    pub grace: Duration,
    /// Another process has the listening sockets and will accept the queued connections.
    pub handed_over: bool,
}

/// The running workers.
#[derive(Debug)]
pub struct Workers {
    phase: watch::Sender<Phase>,
    /// The last hold, and how many workers have acknowledged it.
    held: watch::Sender<(u32, usize)>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts `count` threads; each runs `serve` once inside its runtime, then runs the tasks that
    /// it spawned.
    ///
    /// # Errors
    /// If a thread or a runtime cannot be created; the threads already started are stopped again.
    pub fn start<S>(count: usize, serve: S) -> io::Result<Self>
    where
        S: Fn(&Rc<Worker>) -> io::Result<()> + Clone + Send + 'static,
    {
        let workers = Self::start_held(count, serve)?;
        workers.open();
        Ok(workers)
    }

    /// As [`Workers::start`], but they accept nothing before [`Workers::open`].
    ///
    /// # Errors
    /// As for [`Workers::start`].
    pub fn start_held<S>(count: usize, serve: S) -> io::Result<Self>
    where
        S: Fn(&Rc<Worker>) -> io::Result<()> + Clone + Send + 'static,
    {
        let mut workers = Self {
            phase: watch::Sender::new(Phase::Hold(0)),
            held: watch::Sender::new((0, 0)),
            threads: Vec::with_capacity(count),
        };
        for index in 0..count {
            let phase = workers.phase.subscribe();
            let held = workers.held.clone();
            let serve = serve.clone();
            let (started, start) = std::sync::mpsc::channel();
            let thread = std::thread::Builder::new()
                .name(format!("worker-{index}"))
                .spawn(move || run(index, phase, held, &serve, &started))?;
            workers.threads.push(thread);
            match start.recv() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(io::Error::other("a worker died at its start")),
            }
        }
        Ok(workers)
    }

    /// Lets every worker accept.
    pub fn open(&self) {
        self.phase.send_if_modified(|phase| {
            let held = matches!(phase, Phase::Hold(_));
            if held {
                *phase = Phase::Serve;
            }
            held
        });
    }

    /// Makes every worker accept nothing until [`Workers::open`], and waits until each has
    /// acknowledged: synchronous work that a worker was doing is finished then. Blocks the thread;
    /// returns whether all have acknowledged within `patience`.
    pub fn hold(&self, patience: Duration) -> bool {
        let round = self.held.borrow().0.wrapping_add(1);
        self.held.send_replace((round, 0));
        self.phase.send_replace(Phase::Hold(round));
        // A few checks: the workers acknowledge within one turn of their loops.
        let mut left = patience;
        while self.held.borrow().1 < self.threads.len() {
            if left.is_zero() {
                return false;
            }
            std::thread::sleep(LOOK_EVERY);
            left = left.saturating_sub(LOOK_EVERY);
        }
        true
    }

    /// Tells every worker to accept nothing new, to finish its work, and then to end.
    pub fn drain(&self, drain: Drain) {
        self.phase.send_if_modified(|phase| {
            let first = matches!(phase, Phase::Serve | Phase::Hold(_));
            if first {
                *phase = Phase::Drain(drain);
            }
            first
        });
    }

    /// Tells every worker to drop everything and end.
    pub fn stop(&self) {
        self.phase.send_replace(Phase::Stop);
    }

    /// Waits until every worker has ended. Blocks the thread.
    pub fn join(mut self) {
        self.join_threads();
    }

    /// Whether every worker has ended.
    pub fn ended(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    fn join_threads(&mut self) {
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a worker thread panicked");
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop();
        self.join_threads();
    }
}

fn run<S>(
    index: usize,
    mut phase: watch::Receiver<Phase>,
    held: watch::Sender<(u32, usize)>,
    serve: &S,
    started: &std::sync::mpsc::Sender<io::Result<()>>,
) where
    S: Fn(&Rc<Worker>) -> io::Result<()>,
{
    let runtime = match Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())
    {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    let worker = Rc::new(Worker {
        index,
        draining: Cell::new(false),
        drain: Cell::new(None),
        held: Cell::new(true),
        waiting: RefCell::default(),
        awake: Cell::new(0),
        tasks: RefCell::new(Slab::new()),
        idle: tokio::sync::Notify::new(),
    });
    CURRENT.set(Some(Rc::clone(&worker)));
    runtime.block_on(async {
        let result = serve(&worker);
        let failed = result.is_err();
        let _ = started.send(result);
        if failed {
            return;
        }
        let mut known = Phase::Hold(0);
        let drain = loop {
            match phase.wait_for(|phase| *phase != known).await.map(|phase| *phase) {
                Ok(Phase::Drain(drain)) => break drain,
                Ok(Phase::Hold(round)) => {
                    known = Phase::Hold(round);
                    worker.hold(true);
                    held.send_modify(|(last, heard)| {
                        if *last == round {
                            *heard += 1;
                        }
                    });
                }
                Ok(Phase::Serve) => {
                    known = Phase::Serve;
                    worker.hold(false);
                }
                Ok(Phase::Stop) | Err(_) => return,
            }
        };
        worker.drain(drain);
        let stop = async {
            let _ = phase.wait_for(|phase| *phase == Phase::Stop).await;
        };
        tokio::select! {
            () = worker.emptied() => {}
            () = tokio::time::sleep(drain.span) => {
                tracing::warn!(left = worker.tasks(), "the drain ran out of time: the rest is cut off");
            }
            () = stop => {}
        }
    });
    CURRENT.set(None);
    // Drops the remaining tasks. A name lookup that hangs blocks a thread of the runtime, and is
    // not awaited.
    runtime.shutdown_background();
}

/// One worker, as its own tasks see it.
#[derive(Debug)]
pub struct Worker {
    index: usize,
    draining: Cell<bool>,
    drain: Cell<Option<Drain>>,
    /// Whether it accepts nothing for now, and the tasks that wait for it to accept.
    held: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
    /// The number of idle connections that keep their buffers.
    awake: Cell<usize>,
    /// Tasks that serve clients, with the waker that notifies them of a drain.
    tasks: RefCell<Slab<Option<Waker>>>,
    idle: tokio::sync::Notify,
}

impl Worker {
    /// The worker of this thread, if it has one.
    pub fn current() -> Option<Rc<Self>> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Its number, from zero.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Whether it is draining.
    pub fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// The permission for an idle connection to keep its buffers; `None`: enough others have it.
    /// This bounds the memory of idle buffers, however many connections become idle at once.
    pub fn stay_awake(self: &Rc<Self>) -> Option<Awake> {
        let awake = self.awake.get();
        (awake < AWAKE_MAX).then(|| {
            self.awake.set(awake + 1);
            Awake(Rc::clone(self))
        })
    }

    /// The number of tasks that serve clients.
    pub fn tasks(&self) -> usize {
        self.tasks.borrow().len()
    }

    /// Counts a task while the result exists; polled, it is ready when the worker drains.
    pub fn task(self: &Rc<Self>) -> Task {
        let key = self.tasks.borrow_mut().insert(None);
        Task {
            key,
            worker: Rc::clone(self),
        }
    }

    /// How long an idle connection waits for one more request during a drain.
    pub fn grace(&self) -> Duration {
        self.drain.get().map_or(Duration::ZERO, |drain| drain.grace)
    }

    /// Whether another process has the listening sockets.
    pub fn has_handed_over(&self) -> bool {
        self.drain.get().is_some_and(|drain| drain.handed_over)
    }

    /// Ready while it accepts; otherwise the task is woken when it does again.
    pub fn poll_open(&self, context: &Context<'_>) -> Poll<()> {
        if !self.held.get() {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|known| known.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
        Poll::Pending
    }

    fn hold(&self, held: bool) {
        self.held.set(held);
        if !held {
            // Taken first, because a waker may run any code.
            self.waiting.take().into_iter().for_each(Waker::wake);
        }
    }

    fn drain(&self, drain: Drain) {
        self.drain.set(Some(drain));
        self.draining.set(true);
        // Collected first, because a waker may run any code.
        let wakers: Vec<Waker> = self
            .tasks
            .borrow_mut()
            .iter_mut()
            .filter_map(|(_, waker)| waker.take())
            .collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    async fn emptied(&self) {
        while self.tasks() > 0 {
            self.idle.notified().await;
        }
    }
}

/// A task that serves a client: the drain waits for it. As a future it is ready once the worker
/// drains.
#[derive(Debug)]
pub struct Task {
    key: usize,
    worker: Rc<Worker>,
}

impl Task {
    /// The worker it runs on.
    pub fn worker(&self) -> &Rc<Worker> {
        &self.worker
    }

    /// Ready once the worker drains; otherwise the task is woken when it does.
    pub fn poll_drain(&self, context: &Context<'_>) -> Poll<()> {
        if self.worker.draining.get() {
            return Poll::Ready(());
        }
        match &mut self.worker.tasks.borrow_mut()[self.key] {
            Some(known) => known.clone_from(context.waker()), // no-op for the same task
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl Future for Task {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.poll_drain(context)
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let mut tasks = self.worker.tasks.borrow_mut();
        tasks.remove(self.key);
        if tasks.is_empty() {
            // Free the memory that a burst of connections needed.
            if tasks.capacity() > KEPT_TASKS {
                tasks.shrink_to_fit();
            }
            if self.worker.draining.get() {
                self.worker.idle.notify_one();
            }
        }
    }
}

/// The permission of an idle connection to keep its buffers, until it is dropped.
#[derive(Debug)]
pub struct Awake(Rc<Worker>);

impl Drop for Awake {
    fn drop(&mut self) {
        self.0.awake.set(self.0.awake.get() - 1);
    }
}

/// The number of idle connections of one worker that may keep their buffers (about 20 KiB each, for a second at most). A
/// connection without them spends some 1,100 instructions on getting them again for its next request.
pub(crate) const AWAKE_MAX: usize = 128;
/// How often a hold checks for acknowledgements.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// The number of task slots that an idle worker keeps.
const KEPT_TASKS: usize = 1024;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Worker>>> = const { RefCell::new(None) };
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn worker_ends_while_a_name_lookup_hangs() {
        let (release, hangs) = channel::<()>();
        let (report, reports) = channel();
        let lookup = Arc::new(Mutex::new(Some((hangs, report))));
        let workers = Workers::start(1, move |_| {
            let (hangs, report) = lookup.lock().expect("no panic").take().expect("one worker");
            // As the system's resolver is called.
            tokio::task::spawn_blocking(move || {
                let _ = report.send(Err(RecvTimeoutError::Timeout));
                let _ = report.send(hangs.recv_timeout(Duration::from_secs(20)));
            });
            Ok(())
        });
        let workers = workers.expect("a worker");
        reports.recv().expect("it is called").expect_err("so far");
        workers.drain(Drain {
            span: Duration::from_secs(20),
            grace: Duration::ZERO,
            handed_over: false,
        });
        workers.join();
        drop(release);
        let outcome = reports.recv().expect("it ends when it is released");
        assert_eq!(outcome, Err(RecvTimeoutError::Disconnected));
    }
}
