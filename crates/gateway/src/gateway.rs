//! The request path: matches the route, identifies the caller, checks the limits, forwards or
//! refuses the request, and records the result.
//!
//! One [`Gateway`] serves one worker and never leaves its thread. The workers share [`Shared`],
//! which holds the snapshot in force; a reload replaces the whole snapshot. A request keeps the
//! snapshot it started with until it ends.

mod checks;
mod decide;
mod descriptors;
mod identify;
mod judge;
mod over_limit;
mod own;
mod read_body;
mod request_context;
mod respond;
mod service;
mod snapshot;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arc_swap::ArcSwap;
use arc_swap::cache::Cache;
use http::{HeaderMap, Request, Response};
use http_body::Body;

pub(crate) use request_context::{CLIENT_LEFT, PANIC};

use super::body::{Guarded, Received, ResponseBody};
use super::echo;
use super::forward::{ForwardContext, Forwarded, Forwarder, UpstreamHealth};
use super::framing::RequestTarget;
use super::headers::RequestHeaders;
use super::recent::{Drawing, Recent, Recorder};
use super::refusals::{RefusalWriter, Refusals};
use super::rejection::Rejection;
use over_limit::Matched;
use read_body::ReadAhead;
use request_context::RequestContext;
use tollgate_limiter::Cause;
use tollgate_limiter::settle::Owed;
use tollgate_net::server::{ConnInfo, Event, Handler, Inbound};
use tollgate_policy::route::{Match, Route, Target};
use tollgate_policy::upstream::Balance;
use tollgate_policy::{Descriptor, FilledEdits, Identified, Policy};
use tollgate_response::{Asked, quota_headers};
use tollgate_store::clock::Clock;
use tollgate_telemetry::access::{AccessLog, AccessWriter};
use tollgate_telemetry::metrics::{self, Metrics};

pub(crate) use decide::RecordedDraw;
pub use descriptors::{DescriptorAsked, DescriptorStatus, DescriptorsDecided, StatusOfLimit};
pub use request_context::Closing;
pub use service::ConnectionService;
pub use snapshot::{Snapshot, near};

/// State that all workers of a gateway share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The snapshot in force.
    pub current: Arc<ArcSwap<Snapshot>>,
    /// The clock that every worker reads.
    pub clock: Clock,
    /// The request counters.
    pub metrics: Metrics,
    /// The access log; `None` if there is none.
    pub access: Option<AccessLog>,
    /// The last refusals; `None` without an admin listener.
    pub refusals: Option<Refusals>,
    /// The number of requests in progress, counted where it is bounded.
    pub requests: Arc<AtomicUsize>,
    /// The number of requests that wait until their token is due (`max_wait`).
    pub held: Arc<AtomicUsize>,
    /// The health of the upstreams' servers.
    pub fleet: UpstreamHealth,
    /// Recent requests, where reloads are judged by them.
    pub recent: Recent,
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
    clock: Clock,
    metrics: metrics::Worker,
    registry: Metrics,
    access: Option<AccessWriter>,
    refusals: Option<RefusalWriter>,
    requests: Arc<AtomicUsize>,
    held: Arc<AtomicUsize>,
    recorder: Recorder,
    #[cfg(feature = "otlp")]
    spans: Option<tollgate_telemetry::spans::Spans>,
    /// The decision ids of this worker: a random start, then consecutive numbers.
    ids: Cell<u64>,
    /// The buffer in which quota headers are written before they are copied into a response.
    quota: RefCell<quota_headers::Writer>,
}

impl Side {
    /// Returns the number of the next decision.
    fn next_id(&self) -> u64 {
        let id = self.ids.get();
        self.ids.set(id.wrapping_add(1));
        id
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
        mut request: Request<Inbound>,
    ) -> Response<Self::Body> {
        let snapshot = self.snapshot();
        let mut headers = RequestHeaders::of(request.headers());
        let asked = Asked::of(
            &request,
            headers.present.decides_form(),
            request.body().takes_lines(),
        );
        let now = self.side.clock.now();
        let mut context = RequestContext::open(&self.side, &snapshot, &request, &mut headers, now);
        // The peer's address is the client's until the headers that a trusted proxy adds have been
        // read.
        context.set_client(connection.peer.map(|peer| peer.ip()));
        let mut edits = FilledEdits::default();
        let admitted = self
            .enter(
                &snapshot,
                connection,
                (&mut request, &headers),
                &mut context,
                &mut edits,
            )
            .await;
        let (target, admitted) = match admitted {
            Ok(admitted) => admitted,
            Err(rejection) => {
                context.keep_refusal(&rejection, &request);
                let spare = std::mem::take(request.headers_mut());
                return respond::refuse(context, &rejection, &asked, edits, spare);
            }
        };
        let outcome = match admitted.next {
            Next::Respond(response, cause) => {
                let response = own::head_alone(response, asked.is_head());
                Ok(Forwarded::own(response, cause))
            }
            Next::Echo => Ok(echo(&snapshot, admitted, request, &mut context)),
            Next::Forward(upstream) => {
                let received = context.receiving(request.body());
                let mut passage = admitted.passage(&snapshot, connection, target, received);
                passage.verbatim =
                    asked.takes_lines() && edits.is_empty() && context.reads_nothing();
                context.pass_trace_on(request.headers_mut());
                self.forward(&snapshot, upstream, passage, request, &mut context)
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
                        self.side.clock.now(),
                        self.side.next_id(),
                    );
                }
            }
            Event::Panicked => self.side.registry.panicked(),
        }
    }
}

impl Gateway {
    /// Creates the gateway of one worker, on the worker's thread.
    pub fn new(shared: &Shared) -> Self {
        let mut cache = Cache::new(Arc::clone(&shared.current));
        let held = Rc::new(Arc::clone(cache.load()));
        let side = Side {
            clock: shared.clock.clone(),
            metrics: shared.metrics.worker(),
            registry: shared.metrics.clone(),
            access: shared.access.as_ref().map(AccessLog::writer),
            refusals: shared.refusals.as_ref().map(Refusals::writer),
            requests: Arc::clone(&shared.requests),
            held: Arc::clone(&shared.held),
            recorder: shared.recent.recorder(),
            #[cfg(feature = "otlp")]
            spans: shared.spans.clone(),
            ids: Cell::new(fastrand::u64(..)),
            quota: RefCell::default(),
        };
        let forwarder = Forwarder::of(shared.fleet.clone());
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

    /// Normalises the target of a request and admits it, or says why it is refused.
    async fn enter<'s, B: ReadAhead>(
        &self,
        snapshot: &'s Snapshot,
        connection: &ConnInfo,
        (request, headers): (&mut Request<B>, &RequestHeaders),
        context: &mut RequestContext,
        edits: &mut FilledEdits<'s>,
    ) -> Result<(RequestTarget, Admitted<'s>), Rejection> {
        let target = checks::normalise(snapshot, request, headers, context)?;
        let admitted = self
            .admit(snapshot, connection, &target, request, context, edits)
            .await?;
        Ok((target, admitted))
    }

    /// The policy half of the request path: matches the route, identifies the caller, checks the
    /// limits. Each `?` is a point where a request is refused. `edits` receives the route's changes
    /// of the response as far as they are known at that point, because a refusal carries them too.
    ///
    /// The body is read first only where the route or its limits may depend on it.
    async fn admit<'s, B: ReadAhead>(
        &self,
        snapshot: &'s Snapshot,
        connection: &ConnInfo,
        target: &RequestTarget,
        request: &mut Request<B>,
        context: &mut RequestContext,
        edits: &mut FilledEdits<'s>,
    ) -> Result<Admitted<'s>, Rejection> {
        let policy = &snapshot.policy;
        let described = describe(policy, connection, target, request)?;
        context.set_client(described.client);
        let found = policy.find_route(&described);
        let asked = policy.asked(&found);
        if asked.is_empty() {
            let matched = found.matched;
            return self
                .admit_matched(
                    snapshot, target, request, &described, matched, context, edits,
                )
                .await;
        }
        if let Some(matched) = &found.matched {
            context.set_route(matched.route);
            checks::check_route(snapshot, &policy.routes[matched.route], target, request)?;
        }
        drop(found);
        Box::pin(async {
            let mut facts = match self.read_body(snapshot, connection, asked, request).await {
                Ok(facts) => facts,
                Err(rejection) => {
                    let described = describe(policy, connection, target, request)?;
                    let found = policy.find_route(&described).matched;
                    return Err(self
                        .charge_unread(snapshot, &described, found, context, rejection)
                        .await);
                }
            };
            context.set_calls(facts.take_calls());
            let mut described = describe(policy, connection, target, request)?;
            described.body = Some(&facts);
            let matched = policy.route(&described);
            self.admit_matched(
                snapshot, target, request, &described, matched, context, edits,
            )
            .await
        })
        .await
    }

    /// Charges a request that is refused for its body to the limits by address and for everyone of
    /// the route that it would have without its body: a caller that sends such requests is limited
    /// too. Returns the refusal.
    async fn charge_unread(
        &self,
        snapshot: &Snapshot,
        described: &Descriptor<'_>,
        matched: Option<Match<'_>>,
        context: &mut RequestContext,
        rejection: Rejection,
    ) -> Rejection {
        if let Some(matched) = matched {
            let (status, now) = (rejection.status(), context.seconds());
            let claims = context.claims_mut();
            snapshot
                .policy
                .claim_refused(claims, &matched, described, status, now);
            if let Err(denied) = self.judge(snapshot, context, None).await {
                return denied;
            }
        }
        rejection
    }

    /// The rest of [`Gateway::admit`], for a request with this route.
    #[expect(
        clippy::too_many_arguments,
        reason = "a request, and what is known of it"
    )]
    async fn admit_matched<'s, B: Body>(
        &self,
        snapshot: &'s Snapshot,
        target: &RequestTarget,
        request: &Request<B>,
        described: &Descriptor<'_>,
        matched: Option<Match<'_>>,
        context: &mut RequestContext,
        edits: &mut FilledEdits<'s>,
    ) -> Result<Admitted<'s>, Rejection> {
        let policy = &snapshot.policy;
        let matched = matched.ok_or_else(|| checks::unrouted(policy, described))?;
        context.set_route(matched.route);
        let route = &policy.routes[matched.route];
        let mut who = Identified::default();
        // A refusal before the caller is identified contains no caller in its edits.
        *edits = policy.edits(&route.response_headers, &matched, &who, described);
        checks::check_route(snapshot, route, target, request)?;
        let length = if request.body().is_end_stream() {
            Some(0)
        } else {
            request.body().size_hint().exact()
        };
        let asking = Matched {
            matched: &matched,
            described,
            length,
        };
        let identified = self.identify(snapshot, asking, &mut who, context).await?;
        context.set_caller(&who);
        *edits = policy.edits(&route.response_headers, &matched, &who, described);
        if let Some(numbers) = &snapshot.recorded_as
            && identified.refusal.is_none()
            && !who.exempt
        {
            let request = Drawing {
                at: context.at(),
                route: matched.route,
                client: described.client,
                who: &who,
                claims: context.claims(),
            };
            self.side.recorder.record(numbers, policy, &request);
        }
        if identified.refusal.is_none() && !route.over_limit.is_empty() {
            let judged =
                self.judge_targets(snapshot, asking, &who, context, identified.store_error);
            Box::pin(judged).await?;
        } else {
            self.judge(snapshot, context, identified.store_error)
                .await?;
        }
        if let Some(refusal) = identified.refusal {
            return Err(refusal);
        }
        let limits = route.limits_of(context.target()).iter();
        let owed = Owed::new(limits.map(|limit| &policy.rules[limit.rule]));
        let owed = owed.at_prices(context.claims(), policy);
        context.owes(owed);
        let over_limit = route.over_limit(context.target());
        Ok(Admitted {
            route,
            request_edits: policy.edits(&route.request_headers, &matched, &who, described),
            next: match over_limit {
                Some(over) if !target.last_hop => Next::Forward(over.upstream),
                _ => next(policy, &matched, &who, described, target, request),
            },
            caller: balance_hash(
                policy,
                over_limit
                    .map(|over| over.upstream)
                    .or(route.target.upstream()),
                &who,
                described,
            ),
        })
    }

    /// Sends an admitted request to its upstream.
    fn forward<'f>(
        &'f self,
        snapshot: &Snapshot,
        upstream: usize,
        passage: ForwardContext<'f>,
        mut request: Request<Inbound>,
        context: &'f mut RequestContext,
    ) -> impl Future<Output = Result<Forwarded, Rejection>> + use<'f> {
        context.keep_readable(&mut request);
        let permit = context
            .permit()
            .expect("`admit` returns only what the limiter permitted");
        let since = self.side.clock.now();
        let upstreams = &snapshot.policy.upstreams;
        let sent = self
            .forwarder
            .forward(permit, passage, &upstreams[upstream], request);
        // Boxed, so that a refused request does not pay for the space of this future.
        Box::pin(async move {
            let outcome = match sent {
                Ok(sent) => sent.await,
                Err(error) => Err(error),
            };
            // Runs before the route's edits, which may remove the upstream's quota headers.
            context.forwarded(
                upstream,
                since,
                outcome.as_ref().map(|forwarded| &forwarded.response),
            );
            Ok(outcome?)
        })
    }
}

/// A request that every limit admitted.
struct Admitted<'s> {
    route: &'s Route,
    next: Next,
    /// The route's edits of the request headers, with their templates filled.
    request_edits: FilledEdits<'s>,
    /// A hash of the caller, where the upstream balances by it.
    caller: u64,
}

/// The next step of an admitted request.
enum Next {
    /// Forward it to the upstream with this index.
    Forward(usize),
    /// Send it back to the client.
    Echo,
    /// Respond from the gateway, because the route or the request itself asks for it.
    Respond(Response<ResponseBody>, Cause),
}

impl<'s> Admitted<'s> {
    /// Builds the context that the forwarder needs.
    fn passage(
        self,
        snapshot: &'s Snapshot,
        connection: &'s ConnInfo,
        target: RequestTarget,
        received: Received,
    ) -> ForwardContext<'s> {
        let peer = connection.peer();
        ForwardContext {
            peer,
            trusted: peer.is_trusted(&snapshot.policy.address),
            present: target.present,
            host: target.host,
            route: self.route,
            request_edits: self.request_edits,
            caller: self.caller,
            body_max: snapshot.body_max(self.route),
            conduct: &snapshot.conduct,
            interim: connection.interim.as_ref(),
            window: connection.window.as_ref(),
            guarded: &snapshot.policy.guarded,
            received,
            verbatim: false,
        }
    }
}

/// Decides the next step of a request whose route is `matched`.
fn next<B>(
    policy: &Policy,
    matched: &Match<'_>,
    who: &Identified,
    described: &Descriptor<'_>,
    target: &RequestTarget,
    request: &Request<B>,
) -> Next {
    let route = &policy.routes[matched.route];
    match &route.target {
        // The request does not reach an upstream, because the client limited its hops
        // (`Max-Forwards`).
        Target::Upstream(_) if target.last_hop => {
            Next::Respond(own::last_recipient(request, route), Cause::Gateway)
        }
        Target::Upstream(upstream) => Next::Forward(*upstream),
        Target::Redirect { status, location } => {
            let location = policy.location(location, matched, who, described);
            Next::Respond(own::redirect(*status, location), Cause::Upstream)
        }
        Target::Fixed {
            status,
            body,
            content_type,
        } => {
            let response = own::fixed(*status, content_type.clone(), body.clone());
            Next::Respond(response, Cause::Upstream)
        }
        // A gateway reads no policies for services.
        Target::Echo | Target::Service => Next::Echo,
    }
}

/// Echoes an admitted request to its client.
fn echo(
    snapshot: &Snapshot,
    admitted: Admitted<'_>,
    mut request: Request<Inbound>,
    context: &mut RequestContext,
) -> Forwarded {
    let received = context.receiving(request.body());
    admitted.request_edits.apply(request.headers_mut());
    let body_max = snapshot.body_max(admitted.route);
    let response = echo::reflect(request, body_max, snapshot.conduct.body_idle, received);
    Forwarded::own(response, Cause::Upstream)
}

/// The properties of a request by which routes and keys are found.
fn describe<'r, B>(
    policy: &Policy,
    connection: &'r ConnInfo,
    target: &'r RequestTarget,
    request: &'r Request<B>,
) -> Result<Descriptor<'r>, Rejection> {
    let subject = connection
        .tls
        .as_ref()
        .and_then(|tls| tls.client_subject.as_deref());
    // Most hosts have already been found to be in normal form.
    let plain = target
        .plain_host
        .and_then(|length| target.host.as_ref()?.to_str().ok()?.get(..length));
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    policy
        .describe(plain, method, uri, headers, connection.peer(), subject)
        .map_err(|_| Rejection::BadPath)
}

/// The caller's hash for `balance = "identity_hash"`: the same on every worker and gateway. 0 where
/// the upstream does not balance by it.
fn balance_hash(
    policy: &Policy,
    upstream: Option<usize>,
    who: &Identified,
    described: &Descriptor<'_>,
) -> u64 {
    let hashes = |upstream: usize| policy.upstreams[upstream].balance == Balance::IdentityHash;
    if !upstream.is_some_and(hashes) {
        return 0;
    }
    let mut hasher = siphasher::sip::SipHasher13::new();
    match who.resolved.first() {
        Some(resolved) => hasher.write(&resolved.key),
        None => described.client.hash(&mut hasher),
    }
    hasher.finish()
}
