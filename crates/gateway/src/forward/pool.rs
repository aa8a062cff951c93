//! The connection pool of one server of an upstream, on one worker: keeps idle connections for
//! reuse and bounds those in use.
//!
//! No task runs a [`Connection`]; its owner polls it, first the exchange and then the response's
//! body. A connection whose exchange ends cleanly returns to the pool; any other is dropped, with
//! its socket.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Context;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::{ForwardError, RequestBody, Stream};
use tollgate_net::client::Client;
use tollgate_net::timers;

pub type Connection = Client<Stream, RequestBody>;

/// Idle HTTP/1 connections to one server, and the limit on those in use.
#[derive(Debug)]
pub struct Pool {
    bounds: Bounds,
    idle: RefCell<VecDeque<Idle>>,
    turn: Cell<u64>,
    free: Cell<usize>,
    /// Slots released while requests waited, assigned in the order of waiting.
    freed: Semaphore,
    pending: Cell<usize>,
    in_use: Cell<usize>,
}

#[derive(Debug)]
struct Idle {
    connection: Box<Connection>,
    since: u64,
    /// The greatest age, in calls of [`Pool::sweep`].
    age_max: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub idle: usize,
    /// The number of sweeps that an idle connection survives.
    pub idle_age: u64,
    pub in_use: usize,
    /// The number of requests that may wait for a slot.
    pub pending: usize,
    pub queue_timeout: Duration,
}

impl Pool {
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            idle: RefCell::default(),
            turn: Cell::new(0),
            free: Cell::new(bounds.in_use),
            freed: Semaphore::new(0),
            pending: Cell::new(0),
            in_use: Cell::new(0),
        }
    }

    /// Waits for a slot.
    ///
    /// # Errors
    /// [`ForwardError::Overloaded`] if too many requests already wait, or if the wait took too long.
    pub async fn slot(self: &Rc<Self>) -> Result<Slot, ForwardError> {
        if let Some(free) = self.free.get().checked_sub(1) {
            self.free.set(free);
        } else if let Ok(permit) = self.freed.try_acquire() {
            // The request that waited for it is gone.
            permit.forget();
        } else {
            if self.pending.get() >= self.bounds.pending {
                return Err(ForwardError::Overloaded);
            }
            self.pending.set(self.pending.get() + 1);
            let _waiting = Waiting(self);
            let permit = timers::within(self.bounds.queue_timeout, self.freed.acquire())
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

    pub fn has_room(&self) -> bool {
        self.free.get() > 0 || (self.pending.get() == 0 && self.freed.available_permits() > 0)
    }

    /// The number of requests in progress or waiting, which `least_requests` compares.
    pub fn load(&self) -> usize {
        self.in_use.get() + self.pending.get()
    }

    /// Takes the most recently used idle connection that is still usable. `cx` is woken when bytes
    /// arrive on it. A connection that received bytes while idle is dropped, because they would be
    /// taken for the next response.
    pub fn take(&self, cx: &mut Context<'_>) -> Option<Box<Connection>> {
        let mut idle = self.idle.borrow_mut();
        while let Some(Idle { mut connection, .. }) = idle.pop_back() {
            if connection.is_silent(cx) {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection for reuse, for less than its server says that it keeps it. If there are
    /// too many, the oldest is dropped.
    pub fn put(&self, mut connection: Box<Connection>) {
        let age_max = match connection.idle_timeout() {
            None => self.bounds.idle_age,
            // A second until the sweep that drops it, and one for a request on its way.
            Some(seconds) => match seconds.checked_sub(2) {
                Some(age) => age.min(self.bounds.idle_age),
                None => return,
            },
        };
        connection.reuse();
        let mut idle = self.idle.borrow_mut();
        if self.bounds.idle == 0 {
            return;
        }
        if idle.len() >= self.bounds.idle {
            idle.pop_front();
        }
        idle.push_back(Idle {
            connection,
            since: self.turn.get(),
            age_max,
        });
    }

    /// Drops connections that have been idle for too long or were closed by the server; the others
    /// free their buffers. Called once a second.
    pub fn sweep(&self, cx: &mut Context<'_>) {
        let turn = self.turn.get() + 1;
        self.turn.set(turn);
        self.idle.borrow_mut().retain_mut(|idle| {
            if turn - idle.since == RELEASED_AT {
                idle.connection.release();
            }
            turn - idle.since <= idle.age_max && idle.connection.poll_idle(cx).is_pending()
        });
    }
}

/// A slot of a server's concurrent requests; released on drop.
#[derive(Debug)]
pub struct Slot {
    pub(super) pool: Rc<Pool>,
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

/// The sweep at which an idle connection frees its buffers: it has been idle for at least a second.
const RELEASED_AT: u64 = 2;

struct Waiting<'p>(&'p Pool);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.pending.set(self.0.pending.get() - 1);
    }
}
