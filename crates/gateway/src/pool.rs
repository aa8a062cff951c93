//! Connections to one server of an upstream, on one worker: idle ones kept for reuse, those in use bounded.
//!
//! No task runs a [`Connection`]: whoever holds it polls it, the exchange first and the response's body after that. One
//! that ends its exchange cleanly comes back; one that does not is dropped, and its socket with it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Context;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::forward::{ForwardError, RequestBody, Stream};
use tollgate_net::client::Client;
use tollgate_net::timers;

/// An HTTP/1 connection to a server.
pub type Connection = Client<Stream, RequestBody>;

/// Idle HTTP/1 connections to one server, and the bound on those in use.
#[derive(Debug)]
pub struct Pool {
    idle: RefCell<VecDeque<Idle>>,
    idle_max: usize,
    /// Ages an idle connection may reach, in turns of [`Pool::sweep`].
    age_max: u64,
    turn: Cell<u64>,
    /// Places that nobody has.
    free: Cell<usize>,
    /// Places given back while somebody waited, in the order in which they are waited for.
    freed: Semaphore,
    pending: Cell<usize>,
    pending_max: usize,
    queue_timeout: Duration,
    in_use: Cell<usize>,
}

#[derive(Debug)]
struct Idle {
    connection: Box<Connection>,
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
            free: Cell::new(bounds.in_use),
            freed: Semaphore::new(0),
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
        if let Some(free) = self.free.get().checked_sub(1) {
            self.free.set(free);
        } else if let Ok(permit) = self.freed.try_acquire() {
            // Who waited for it has gone.
            permit.forget();
        } else {
            if self.pending.get() >= self.pending_max {
                return Err(ForwardError::Overloaded);
            }
            self.pending.set(self.pending.get() + 1);
            let _waiting = Waiting(self);
            let permit = timers::within(self.queue_timeout, self.freed.acquire())
                .await
                .map_err(|_| ForwardError::Overloaded)?
                .expect("the semaphore is never closed");
            permit.forget();
        }
        self.in_use.set(self.in_use.get() + 1);
        Ok(Slot {
            pool: Rc::clone(self),
        })
    }

    /// Whether a request would be under way at once.
    pub fn has_room(&self) -> bool {
        self.free.get() > 0 || (self.pending.get() == 0 && self.freed.available_permits() > 0)
    }

    /// Requests under way or waiting: what `least_requests` compares.
    pub fn load(&self) -> usize {
        self.in_use.get() + self.pending.get()
    }

    /// The connection used last that is idle and still of use, looked at by the task that asks: `cx` is woken when
    /// something comes on it. What came meanwhile nobody asked for, and would be taken for the next answer.
    pub fn take(&self, cx: &mut Context<'_>) -> Option<Box<Connection>> {
        let mut idle = self.idle.borrow_mut();
        while let Some(Idle { mut connection, .. }) = idle.pop_back() {
            if connection.is_silent(cx) {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection for reuse. The oldest goes when there are too many.
    pub fn put(&self, mut connection: Box<Connection>) {
        connection.reuse();
        let mut idle = self.idle.borrow_mut();
        if self.idle_max == 0 {
            return;
        }
        if idle.len() >= self.idle_max {
            idle.pop_front();
        }
        idle.push_back(Idle {
            connection,
            since: self.turn.get(),
        });
    }

    /// Drops what has been idle for too long, or was closed by the other side; what stays gives its memory back. Called
    /// once a second.
    pub fn sweep(&self, cx: &mut Context<'_>) {
        let turn = self.turn.get() + 1;
        self.turn.set(turn);
        self.idle.borrow_mut().retain_mut(|idle| {
            if turn - idle.since == RELEASED_AT {
                idle.connection.release();
            }
            turn - idle.since <= self.age_max && idle.connection.poll_idle(cx).is_pending()
        });
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
        if self.pool.pending.get() > 0 {
            self.pool.freed.add_permits(1);
        } else {
            self.pool.free.set(self.pool.free.get() + 1);
        }
    }
}

/// The sweep at which an idle connection gives its memory back: it has been idle for a second at least.
const RELEASED_AT: u64 = 2;

struct Waiting<'p>(&'p Pool);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.pending.set(self.0.pending.get() - 1);
    }
}
