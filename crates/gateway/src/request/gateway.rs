//! The state of a gateway: what its workers share, and what each worker has of its own.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arc_swap::ArcSwap;
use arc_swap::cache::Cache;

use super::snapshot::Snapshot;
use crate::forward::{Forwarder, UpstreamHealth};
use crate::refusals::{RefusalWriter, Refusals};
use crate::untrusted_proxy::UntrustedProxy;
use crate::usage::Usage;
use tollgate_admission::UnderWay;
use tollgate_limit::Timestamp;
use tollgate_net::server::ConnInfo;
use tollgate_store::clock::{Clock, WallClock};
use tollgate_telemetry::access::{AccessLog, AccessWriter};
use tollgate_telemetry::metrics::{self, Metrics};
use tollgate_telemetry::spans::Spans;

#[derive(Clone, Debug)]
pub struct GatewayState {
    pub current: Arc<ArcSwap<Snapshot>>,
    pub clock: Clock,
    pub metrics: Metrics,
    /// The access log; `None` if there is none.
    pub access: Option<AccessLog>,
    /// The last refusals; `None` without an admin listener.
    pub refusals: Option<Refusals>,
    /// The number of requests in progress, counted where it is bounded.
    pub requests: Arc<AtomicUsize>,
    /// The number of requests that wait until their token is due (`max_wait`).
    pub held: Arc<AtomicUsize>,
    /// The bytes of bodies that are held for decisions.
    pub held_bodies: Arc<AtomicUsize>,
    pub under_way: Arc<UnderWay>,
    pub usage: Arc<Usage>,
    pub health: UpstreamHealth,
    pub untrusted_proxy: Arc<UntrustedProxy>,
    /// The spans of sampled requests; `None`: no collector takes them.
    pub spans: Option<Spans>,
}

/// Responds to the requests of one worker.
pub struct Gateway {
    pub(crate) side: Rc<Side>,
    current: RefCell<Current>,
    pub(super) forwarder: Forwarder,
}

/// State of a worker that its requests need until their responses have ended.
pub(crate) struct Side {
    pub(crate) shared: GatewayState,
    pub(crate) wall: WallClock,
    pub(crate) metrics: metrics::Worker,
    pub(crate) access: Option<AccessWriter>,
    pub(crate) refusals: Option<RefusalWriter>,
    /// The decision ids of this worker: a random start, then consecutive numbers.
    ids: Cell<u64>,
}

impl Side {
    pub(crate) fn next_id(&self) -> u64 {
        let id = self.ids.get();
        self.ids.set(id.wrapping_add(1));
        id
    }

    /// The moment `at` in seconds since the Unix epoch, by which the validity of a token is checked.
    pub(crate) fn seconds(&self, at: Timestamp) -> u64 {
        self.wall.show(at).as_micros() / 1_000_000
    }
}

/// A snapshot as the requests of one worker hold it. Counted per worker, because an atomic count
/// would be another cache line that all cores write.
pub(crate) type HeldSnapshot = Rc<Arc<Snapshot>>;

/// The snapshot in force, as this worker last loaded it.
struct Current {
    cache: Cache<Arc<ArcSwap<Snapshot>>, Arc<Snapshot>>,
    held: HeldSnapshot,
}

impl Gateway {
    /// Creates the gateway of one worker, on the worker's thread.
    pub fn new(shared: &GatewayState) -> Self {
        let mut cache = Cache::new(Arc::clone(&shared.current));
        let held = Rc::new(Arc::clone(cache.load()));
        let side = Side {
            wall: WallClock::of(shared.clock.clone()),
            metrics: shared.metrics.worker(),
            access: shared.access.as_ref().map(AccessLog::writer),
            refusals: shared.refusals.as_ref().map(Refusals::writer),
            ids: Cell::new(fastrand::u64(..)),
            shared: shared.clone(),
        };
        let forwarder = Forwarder::of(shared.health.clone());
        forwarder.watch(&held.policy.upstreams);
        Self {
            side: Rc::new(side),
            current: RefCell::new(Current { cache, held }),
            forwarder,
        }
    }

    /// Whether a peer may ask for decisions: by the address of the connection, whatever its headers
    /// say. A process that can connect to a Unix socket is trusted.
    pub fn trusts(&self, connection: &ConnInfo) -> bool {
        let snapshot = self.snapshot();
        let trusted = |peer: std::net::SocketAddr| snapshot.deciding.trusted.contains(peer.ip());
        connection.peer.is_none_or(trusted)
    }

    pub fn has_domain(&self, domain: &str) -> bool {
        self.snapshot().policy.domains.has(domain)
    }

    pub(crate) fn snapshot(&self) -> HeldSnapshot {
        let Current { cache, held } = &mut *self.current.borrow_mut();
        let latest = cache.load();
        if !Arc::ptr_eq(latest, held) {
            *held = Rc::new(Arc::clone(latest));
            self.forwarder.watch(&held.policy.upstreams);
        }
        Rc::clone(held)
    }
}
