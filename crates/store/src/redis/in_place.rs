//! The call of a request that is alone, made where the request is.
//!
//! Handing a request over to the store's thread and back wakes two threads, which costs more than the call. So while no
//! call is under way and nothing waits for one, a request calls by itself, over a connection that belongs to the runtime
//! it runs on. Whatever comes meanwhile goes to the store's thread as always, which waits for nobody: coalescing begins
//! with the second request. A request whose places must be kept alive by heartbeats goes there in any case, as they rely on
//! the order of calls.
//!
//! The store's own connection says which server is the right one: when that is made anew, these are too. One that fails is
//! dropped, and requests go to the store's thread until another stands.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::runtime::{Handle, Id};

use super::link::{Connection, RedisLink};
use crate::batch::{Ask, InPlace, Link, Shared, fly_alone};

/// Idle connections are tried this often, so that one that was closed is not found out by a request.
const TRIED_EVERY: Duration = Duration::from_secs(1);
/// Runtimes that have connections; beyond, all are forgotten (a runtime that ended leaves its own behind).
const RUNTIMES_MAX: usize = 256;

/// The connections of the runtimes that requests run on.
pub(super) struct Connections(Arc<Inner>);

struct Inner {
    link: RedisLink,
    connections: RwLock<Vec<(Id, State)>>,
    /// Whether a request is calling by itself.
    flying: AtomicBool,
}

#[derive(Clone)]
enum State {
    /// On its way, or one that failed, which is tried again after a while.
    Coming,
    /// Of the store's connection of this number.
    Ready(Arc<Connection>, u64),
}

/// Ends a request's own call, however it ends.
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
                // What has become of it may have become of all.
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

/// Makes a runtime's connection and tries it now and then, as long as it is used.
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
