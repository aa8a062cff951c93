//! Connections to one server of an upstream, on one worker: idle ones kept for reuse, those in use bounded.
//!
//! A pooled HTTP/1 connection is a [`Pair`] of hyper's sender and the connection itself. No task runs it: whoever
//! holds the pair polls it, the exchange first and the response's body after that. A pair that ends its exchange
//! cleanly comes back; one that does not is dropped, and its socket with it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::forward::{ForwardError, RequestBody, Stream};
use super::timers;

/// An HTTP/1 connection and its sender.
#[derive(Debug)]
pub struct Pair {
    /// Hands requests to the connection.
    pub sender: http1::SendRequest<RequestBody>,
    /// The connection. Nothing moves unless it is polled.
    pub connection: http1::Connection<TokioIo<Stream>, RequestBody>,
    /// Whether it has served a request before.
    pub reused: bool,
    closed: bool,
    bell: Bell,
}

impl Pair {
    /// A pair fresh from its handshake.
    pub fn new(
        sender: http1::SendRequest<RequestBody>,
        connection: http1::Connection<TokioIo<Stream>, RequestBody>,
    ) -> Self {
        Self { sender, connection, reused: false, closed: false, bell: Bell::new() }
    }

    /// Drives the connection; ready when it has closed. May be called again after that.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        if self.closed {
            return Poll::Ready(Ok(()));
        }
        let outcome = self.connection.poll_without_shutdown(&mut self.bell.context(cx));
        self.closed = outcome.is_ready();
        outcome
    }

    /// Hands `request` to the connection. The answer's future is to be polled after every [`Pair::poll`], which alone
    /// can make it ready, and for that needs no waker.
    pub fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<RequestBody>>>> + use<> {
        self.mute();
        self.sender.try_send_request(request)
    }

    /// Until it is polled again nothing that happens to the connection wakes a task.
    pub fn mute(&self) {
        self.bell.rope.muted.store(true, Ordering::Relaxed);
    }

    /// Whether the connection has closed.
    pub const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether it can take a request now.
    pub fn is_ready(&self) -> bool {
        !self.closed && self.sender.is_ready()
    }
}

/// How a connection wakes the task that polls it.
///
/// The library's halves (sender and connection, body and connection) wake each other's task whenever one hands the
/// other something. Here one task polls both, one right after the other, so each such wake would only poll the whole
/// task once more for nothing; and a connection out of the pool would wake the task that used it last. Muted, the bell
/// keeps those wakes back; [`Pair::poll`] unmutes it for what comes from the socket, the timers and the client.
#[derive(Debug)]
struct Bell {
    rope: Arc<Rope>,
    waker: Waker,
    /// The task the rope leads to.
    task: Option<Waker>,
}

#[derive(Debug)]
struct Rope {
    task: Mutex<Option<Waker>>,
    muted: AtomicBool,
}

impl Bell {
    fn new() -> Self {
        let rope = Arc::new(Rope { task: Mutex::new(None), muted: AtomicBool::new(true) });
        Self { waker: Waker::from(Arc::clone(&rope)), rope, task: None }
    }

    /// Rings for the task of `cx` from now on.
    fn context(&mut self, cx: &Context<'_>) -> Context<'_> {
        if !self.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            self.task = Some(cx.waker().clone());
            *self.rope.task.lock() = Some(cx.waker().clone());
        }
        self.rope.muted.store(false, Ordering::Relaxed);
        Context::from_waker(&self.waker)
    }
}

impl Wake for Rope {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.muted.load(Ordering::Relaxed)
            && let Some(task) = &*self.task.lock()
        {
            task.wake_by_ref();
        }
    }
}

/// Idle HTTP/1 connections to one server, and the bound on those in use.
#[derive(Debug)]
pub struct Pool {
    idle: RefCell<VecDeque<Idle>>,
    idle_max: usize,
    /// Ages an idle connection may reach, in turns of [`Pool::sweep`].
    age_max: u64,
    turn: Cell<u64>,
    slots: Semaphore,
    pending: Cell<usize>,
    pending_max: usize,
    queue_timeout: Duration,
    in_use: Cell<usize>,
}

#[derive(Debug)]
struct Idle {
    pair: Box<Pair>,
    since: u64,
}

/// The bounds of a [`Pool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Idle connections kept.
    pub idle: usize,
    /// Sweeps an idle connection survives.
    pub idle_age: u64,
    /// Requests under way at once.
    pub in_use: usize,
    /// Requests that may wait for a place.
    pub pending: usize,
    /// How long each may wait.
    pub queue_timeout: Duration,
}

impl Pool {
    /// An empty pool.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            idle: RefCell::default(),
            idle_max: bounds.idle,
            age_max: bounds.idle_age,
            turn: Cell::new(0),
            slots: Semaphore::new(bounds.in_use.min(Semaphore::MAX_PERMITS)),
            pending: Cell::new(0),
            pending_max: bounds.pending,
            queue_timeout: bounds.queue_timeout,
            in_use: Cell::new(0),
        }
    }

    /// Waits for a place among the requests under way.
    ///
    /// # Errors
    /// [`ForwardError::Overloaded`] when too many wait already, or the wait took too long.
    pub async fn slot(self: &Rc<Self>) -> Result<Slot, ForwardError> {
        if let Ok(permit) = self.slots.try_acquire() {
            permit.forget();
        } else {
            if self.pending.get() >= self.pending_max {
                return Err(ForwardError::Overloaded);
            }
            self.pending.set(self.pending.get() + 1);
            let _waiting = Waiting(self);
            let permit = timers::within(self.queue_timeout, self.slots.acquire())
                .await
                .map_err(|_| ForwardError::Overloaded)?
                .expect("the semaphore is never closed");
            permit.forget();
        }
        self.in_use.set(self.in_use.get() + 1);
        Ok(Slot { pool: Rc::clone(self) })
    }

    /// Requests under way or waiting: what `least_requests` compares.
    pub fn load(&self) -> usize {
        self.in_use.get() + self.pending.get()
    }

    /// The connection used last, if one is idle. The flag says that it has been idle for long: look before reuse.
    pub fn take(&self) -> Option<(Box<Pair>, bool)> {
        let mut idle = self.idle.borrow_mut();
        while let Some(Idle { pair, since }) = idle.pop_back() {
            if pair.is_ready() {
                return Some((pair, since != self.turn.get()));
            }
        }
        None
    }

    /// Keeps a connection for reuse. The oldest goes when there are too many.
    pub fn put(&self, mut pair: Box<Pair>) {
        pair.reused = true;
        pair.mute();
        let mut idle = self.idle.borrow_mut();
        if self.idle_max == 0 {
            return;
        }
        if idle.len() >= self.idle_max {
            idle.pop_front();
        }
        idle.push_back(Idle { pair, since: self.turn.get() });
    }

    /// Drops what has been idle for too long, or was closed by the other side. Called once a second.
    pub fn sweep(&self, cx: &mut Context<'_>) {
        let turn = self.turn.get() + 1;
        self.turn.set(turn);
        self.idle.borrow_mut().retain_mut(|idle| turn - idle.since <= self.age_max && idle.pair.poll(cx).is_pending());
    }

    /// Idle connections at hand.
    pub fn idle(&self) -> usize {
        self.idle.borrow().len()
    }
}

/// A place among the requests under way to a server; freed on drop.
#[derive(Debug)]
pub struct Slot {
    pool: Rc<Pool>,
}

impl Slot {
    /// The pool this is a place in.
    pub const fn pool(&self) -> &Rc<Pool> {
        &self.pool
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.pool.in_use.set(self.pool.in_use.get() - 1);
        self.pool.slots.add_permits(1);
    }
}

struct Waiting<'p>(&'p Pool);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.pending.set(self.0.pending.get() - 1);
    }
}
