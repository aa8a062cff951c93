//! Workers: one thread and current-thread runtime per core, with its own sockets and handler.
//!
//! Nothing on the request path crosses threads, so nothing there needs to be `Send`. Every task of
//! a worker that serves a client is counted; a drain notifies all of them, and waits for them.

mod threads;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;

pub use threads::Workers;

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

#[derive(Debug)]
pub struct Worker {
    index: usize,
    /// `None`: it does not drain.
    drain: Cell<Option<Drain>>,
    /// Whether it accepts nothing for now, and the tasks that wait for it to accept.
    held: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
    /// The number of idle connections that stay ready for their next request.
    awake: Cell<usize>,
    /// Tasks that serve clients, with the waker that notifies them of a drain.
    tasks: RefCell<Slab<Option<Waker>>>,
    idle: tokio::sync::Notify,
}

impl Worker {
    fn new(index: usize) -> Self {
        Self {
            index,
            drain: Cell::new(None),
            held: Cell::new(true),
            waiting: RefCell::default(),
            awake: Cell::new(0),
            tasks: RefCell::new(Slab::new()),
            idle: tokio::sync::Notify::new(),
        }
    }

    pub fn current() -> Option<Rc<Self>> {
        CURRENT.with_borrow(Clone::clone)
    }

    pub fn index(&self) -> usize {
        self.index
    }

    pub fn is_draining(&self) -> bool {
        self.drain.get().is_some()
    }

    /// The permission for an idle connection to stay ready for its next request; `None`: enough others
    /// have it. This bounds the memory of idle connections, however many become idle at once.
    pub fn stay_awake(self: &Rc<Self>) -> Option<Awake> {
        let awake = self.awake.get();
        (awake < AWAKE_MAX).then(|| {
            self.awake.set(awake + 1);
            Awake(Rc::clone(self))
        })
    }

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

/// A task that serves a client, for which a drain waits; ready once the worker drains.
#[derive(Debug)]
pub struct Task {
    key: usize,
    worker: Rc<Worker>,
}

impl Task {
    pub fn worker(&self) -> &Rc<Worker> {
        &self.worker
    }

    pub fn poll_drain(&self, context: &Context<'_>) -> Poll<()> {
        if self.worker.is_draining() {
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
            if self.worker.is_draining() {
                self.worker.idle.notify_one();
            }
        }
    }
}

/// The permission of an idle connection to stay ready for its next request, until it is dropped.
#[derive(Debug)]
pub struct Awake(Rc<Worker>);

impl Drop for Awake {
    fn drop(&mut self) {
        self.0.awake.set(self.0.awake.get() - 1);
    }
}

/// The number of idle connections of one worker that may stay ready for their next request, for a
/// second at most. Such a connection keeps the future of its work, and buffers that are larger than usual.
pub(crate) const AWAKE_MAX: usize = 128;
/// The number of task slots that an idle worker keeps.
const KEPT_TASKS: usize = 1024;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Worker>>> = const { RefCell::new(None) };
}
