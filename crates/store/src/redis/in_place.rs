//! Makes the call of a single request directly on the request's own thread.
//!
//! Passing a request to the store's thread and back wakes two threads, which costs more than the
//! call. So while no call is in flight and nothing waits for one, a request makes the call itself,
//! over a connection that belongs to its runtime. Requests that arrive meanwhile go to the store's
//! thread as usual, which does not wait: coalescing begins with the second request. A request whose
//! places need heartbeats always goes there, because heartbeats depend on the order of calls.
//!
//! The store's own connection determines the right server: when it is re-established, these
//! connections are too. A connection that fails is dropped, and requests go to the store's thread
//! until another is established.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::runtime::{Handle, Id};

use super::link::{Connection, RedisLink};
use crate::batch::{Ask, InPlace, Link, Shared, fly_alone};

/// How often idle connections are tested, so that a closed one is not discovered by a request.
const TRIED_EVERY: Duration = Duration::from_secs(1);
/// The most runtimes with connections; above it all are forgotten (a runtime that has ended leaves
/// its own behind).
const RUNTIMES_MAX: usize = 256;

/// The connections of the runtimes on which requests run.
pub(super) struct Connections(Arc<Inner>);

struct Inner {
    link: RedisLink,
    connections: RwLock<Vec<(Id, State)>>,
    /// Whether a request's own call is in flight.
    flying: AtomicBool,
}

#[derive(Clone)]
enum State {
    /// Being established, or failed and retried after a while.
    Coming,
    /// Belongs to the store's connection with this number.
    Ready(Arc<Connection>, u64),
}

/// Marks the end of a request's own call, however it ends.
struct Flying<'f>(&'f AtomicBool);

impl Drop for Flying<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}

impl Connections {
    pub(super) fn new(link: RedisLink) -> Self {
        Self(Arc::new(Inner {
            link,
            connections: RwLock::default(),
            flying: AtomicBool::new(false),
        }))
    }
}

impl InPlace for Connections {
    fn call<'c>(
        &'c self,
        shared: &'c Shared,
        ask: Ask,
    ) -> Result<Pin<Box<dyn Future<Output = ()> + Send + 'c>>, Ask> {
        let inner = &self.0;
        let Ok(runtime) = Handle::try_current() else {
            return Err(ask);
        };
        let generation = shared.generation.load(Ordering::Acquire);
        let known = inner
            .connections
            .read()
            .iter()
            .find(|(id, _)| *id == runtime.id())
            .map(|(_, state)| state.clone());
        let connection = match known {
            Some(State::Ready(connection, of)) if of == generation => connection,
            Some(State::Coming) => return Err(ask),
            Some(State::Ready(..)) | None => {
                inner.set(runtime.id(), Some(State::Coming));
                runtime.spawn(keep(Arc::downgrade(inner), runtime.id(), generation));
                return Err(ask);
            }
        };
        if inner.flying.swap(true, Ordering::AcqRel) {
            return Err(ask);
        }
        let flying = Flying(&inner.flying);
        Ok(Box::pin(async move {
            if !fly_alone(shared, &inner.link, &connection, ask).await {
                // The failure may affect all connections.
                inner.forget();
            }
            drop(flying);
        }))
    }
}

impl Inner {
    fn set(&self, id: Id, state: Option<State>) {
        let mut connections = self.connections.write();
        connections.retain(|(known, _)| *known != id);
        if connections.len() >= RUNTIMES_MAX {
            connections.clear();
        }
        connections.extend(state.map(|state| (id, state)));
    }

    fn forget(&self) {
        self.connections
            .write()
            .retain(|(_, state)| matches!(state, State::Coming));
    }

    fn has(&self, id: Id, connection: &Arc<Connection>) -> bool {
        let same = |state: &State| matches!(state, State::Ready(known, _) if Arc::ptr_eq(known, connection));
        self.connections
            .read()
            .iter()
            .any(|(known, state)| *known == id && same(state))
    }
}

/// Establishes a runtime's connection and tests it periodically, as long as it is used.
async fn keep(inner: Weak<Inner>, id: Id, generation: u64) {
    let Some(strong) = inner.upgrade() else {
        return;
    };
    let connection = match strong.link.connect().await {
        Ok(connection) => Arc::new(connection),
        Err(_) => {
            drop(strong);
            tokio::time::sleep(TRIED_EVERY).await;
            if let Some(strong) = inner.upgrade() {
                strong.set(id, None);
            }
            return;
        }
    };
    strong.set(id, Some(State::Ready(connection.clone(), generation)));
    drop(strong);
    loop {
        tokio::time::sleep(TRIED_EVERY).await;
        let Some(strong) = inner.upgrade().filter(|strong| strong.has(id, &connection)) else {
            return;
        };
        if strong.link.housekeep(&connection).await.is_err() {
            if strong.has(id, &connection) {
                strong.set(id, None);
            }
            return;
        }
    }
}
