//! The request path: matches the route, identifies the caller, checks the limits, forwards or
//! refuses the request, and records the result.
//!
//! One [`Gateway`] serves one worker and never leaves its thread. The workers share [`Shared`],
//! which holds the snapshot in force; a reload replaces the whole snapshot. A request keeps the
//! snapshot it started with until it ends.

mod admit;
mod admitted;
mod checks;
mod decide;
mod descriptors;
mod own;
mod read_body;
mod request_context;
mod respond;
mod snapshot;

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arc_swap::ArcSwap;
use arc_swap::cache::Cache;
use http::{HeaderMap, Request, Response};
use hyper::service::Service;

use super::body::{Guarded, ResponseBody};
use super::forward::{Forwarded, Forwarder, UpstreamHealth};
use super::headers::{HeaderSet, RequestHeaders};
use super::refusals::{RefusalWriter, Refusals};
use super::untrusted_proxy::UntrustedProxy;
use admit::Arrived;
use admitted::Next;
pub(crate) use decide::RecordedDraw;
pub use descriptors::{DescriptorAsked, DescriptorStatus, DescriptorsDecided, StatusOfLimit};
pub use request_context::Closing;
use request_context::RequestContext;
pub(crate) use request_context::{CLIENT_LEFT, PANIC};
pub(crate) use snapshot::brings_near;
pub use snapshot::{Snapshot, near};
use tollgate_admission::UnderWay;
use tollgate_limit::Timestamp;
use tollgate_net::server::{ConnInfo, Event, Handler, Inbound};
use tollgate_policy::FilledEdits;
use tollgate_response::{Asked, quota_headers};
use tollgate_store::clock::{Clock, WallClock};
use tollgate_telemetry::access::{AccessLog, AccessWriter};
use tollgate_telemetry::metrics::{self, Metrics};

/// State that all workers of a gateway share.
#[derive(Clone, Debug)]
pub struct Shared {
    pub current: Arc<ArcSwap<Snapshot>>,
    /// The clock that every worker reads.
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
    pub health: UpstreamHealth,
    /// A proxy whose forwarding headers are not believed.
    pub untrusted_proxy: Arc<UntrustedProxy>,
    /// The queue of spans, where traces are exported.
    #[cfg(feature = "otlp")]
    pub spans: Option<tollgate_telemetry::spans::Spans>,
}

/// Responds to the requests of one worker.
pub struct Gateway {
    side: Rc<Side>,
    current: RefCell<Current>,
    forwarder: Forwarder,
}

/// State of a worker that its requests need until their responses have ended.
struct Side {
    shared: Shared,
    wall: WallClock,
    metrics: metrics::Worker,
    access: Option<AccessWriter>,
    refusals: Option<RefusalWriter>,
    /// The decision ids of this worker: a random start, then consecutive numbers.
    ids: Cell<u64>,
    /// The buffer in which quota headers are written before they are copied into a response.
    quota: RefCell<quota_headers::Writer>,
}

impl Side {
    fn next_id(&self) -> u64 {
        let id = self.ids.get();
        self.ids.set(id.wrapping_add(1));
        id
    }

    /// The moment `at` in seconds since the Unix epoch, by which the validity of a token is checked.
    fn seconds(&self, at: Timestamp) -> u64 {
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

impl Handler for Gateway {
    type Body = Guarded<ResponseBody, Closing>;

    async fn handle(
        &self,
        connection: &Rc<ConnInfo>,
        request: Request<Inbound>,
    ) -> Response<Self::Body> {
        let snapshot = self.snapshot();
        // Apart, because the head decides while the body is read.
        let (parts, mut body) = request.into_parts();
        let mut head = Request::from_parts(parts, ());
        let mut headers = RequestHeaders::of(head.headers());
        let takes_lines = body.takes_lines();
        let asked = Asked::of(&head, headers.present.decides_form(), takes_lines);
        // Until the headers of a trusted proxy have been read.
        let client = connection.peer.map(|peer| peer.ip());
        if headers.present.has(HeaderSet::NAMES_CLIENT) {
            let proxy = &self.side.shared.untrusted_proxy;
            proxy.note(client, &snapshot.policy.address);
        }
        let mut context = RequestContext::open(&self.side, &snapshot, &head, &mut headers, client);
        let mut edits = FilledEdits::default();
        let arrived = Arrived {
            head: &mut head,
            body: Some(&mut body),
            headers: &headers,
        };
        let admitted = self
            .admit(&snapshot, connection, arrived, &mut context, &mut edits)
            .await;
        let (target, admitted) = match admitted {
            Ok(admitted) => admitted,
            Err(rejection) => {
                context.keep_refusal(&rejection, &head);
                let spare = std::mem::take(head.headers_mut());
                return respond::refuse(context, &rejection, &asked, edits, spare);
            }
        };
        let outcome = match admitted.next {
            Next::Respond(response, cause) => {
                let response = own::head_alone(response, asked.is_head());
                Ok(Forwarded::own(response, cause))
            }
            Next::Echo => Ok(admitted.echo(&snapshot, head.map(|()| body), &mut context)),
            Next::Forward(upstream) => {
                let verbatim = takes_lines && edits.is_empty() && context.reads_nothing();
                let forwarding = admitted.forward_context(&snapshot, connection, target, verbatim);
                self.forward(
                    &snapshot,
                    upstream,
                    forwarding,
                    head.map(|()| body),
                    &mut context,
                )
                .await
            }
        };
        match outcome {
            Ok(forwarded) => respond::pass_on(context, forwarded, &asked, edits),
            Err(rejection) => respond::refuse(context, &rejection, &asked, edits, HeaderMap::new()),
        }
    }

    fn observe(&self, event: Event<'_>) {
        let metrics = &self.side.metrics;
        match event {
            Event::Opened => metrics.connection_opened(),
            Event::Refused(reason) => metrics.connection_refused(reason),
            Event::AcceptFailed => metrics.accept_failed(),
            Event::BadHead(unread) => {
                metrics.bad_request(unread.reason);
                if let Some(writer) = &self.side.access {
                    request_context::log_unread(
                        writer,
                        unread,
                        self.side.wall.show(self.side.shared.clock.now()),
                        self.side.next_id(),
                    );
                }
            }
            Event::Panicked => self.side.shared.metrics.panicked(),
        }
    }
}

impl Gateway {
    /// Creates the gateway of one worker, on the worker's thread.
    pub fn new(shared: &Shared) -> Self {
        let mut cache = Cache::new(Arc::clone(&shared.current));
        let held = Rc::new(Arc::clone(cache.load()));
        let side = Side {
            wall: WallClock::of(shared.clock.clone()),
            metrics: shared.metrics.worker(),
            access: shared.access.as_ref().map(AccessLog::writer),
            refusals: shared.refusals.as_ref().map(Refusals::writer),
            ids: Cell::new(fastrand::u64(..)),
            quota: RefCell::default(),
            shared: shared.clone(),
        };
        let forwarder = Forwarder::of(shared.health.clone());
        held.policy
            .upstreams
            .iter()
            .for_each(|upstream| forwarder.watch(upstream));
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

    /// Whether there are rules for the descriptors of this domain.
    pub fn has_domain(&self, domain: &str) -> bool {
        self.snapshot().policy.domains.has(domain)
    }

    pub(crate) fn snapshot(&self) -> HeldSnapshot {
        let Current { cache, held } = &mut *self.current.borrow_mut();
        let latest = cache.load();
        if !Arc::ptr_eq(latest, held) {
            *held = Rc::new(Arc::clone(latest));
            held.policy
                .upstreams
                .iter()
                .for_each(|upstream| self.forwarder.watch(upstream));
        }
        Rc::clone(held)
    }
}

/// The gateway, serving one connection.
#[derive(Clone)]
pub struct ConnectionService {
    gateway: Rc<Gateway>,
    connection: Rc<ConnInfo>,
}

impl ConnectionService {
    /// Serves the requests that arrive over `connection`.
    pub fn new(gateway: Rc<Gateway>, connection: ConnInfo) -> Self {
        Self {
            gateway,
            connection: Rc::new(connection),
        }
    }
}

impl<B: Into<Inbound>> Service<Request<B>> for ConnectionService {
    type Response = Response<<Gateway as Handler>::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>>>>;

    fn call(&self, request: Request<B>) -> Self::Future {
        let Self {
            gateway,
            connection,
        } = self.clone();
        let request = request.map(Into::into);
        Box::pin(async move { Ok(gateway.handle(&connection, request).await) })
    }
}
