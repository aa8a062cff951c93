//! The request path on one screen: match, identify, limit, hold, forward; and what is told of it afterwards.
//!
//! One [`Gateway`] serves one worker and never leaves its thread. What workers share is [`Shared`]: the snapshot in
//! force, swapped whole by a reload. A request holds the snapshot it began with to its end.

mod hold;
mod local_responses;
mod request_context;
mod snapshot;
mod upstream_quota;

use std::cell::{Cell, RefCell};
use std::hash::{Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arc_swap::ArcSwap;
use arc_swap::cache::Cache;
use http::header::{CONTENT_TYPE, LOCATION};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;

use super::body::{Guarded, ResponseBody};
use super::forward::{ForwardContext, Forwarded, Forwarder, UpstreamHealth};
use super::framing::RequestTarget;
use super::headers::{HeaderSet, RequestHeaders};
use super::rejection::{self, Rejection};
use super::settle::{self, Owed};
use super::{echo, framing, quota_headers};
use request_context::RequestContext;
use tollgate_limit::Placement;
use tollgate_limiter::{Cause, Decision, Denied, Look};
use tollgate_net::server::{ConnInfo, Event, Handler, Inbound};
use tollgate_net::worker::Worker;
use tollgate_policy::route::Target;
use tollgate_policy::upstream::Balance;
use tollgate_policy::{Claims, Descriptor, FilledEdits, Identified, IdentityReason, Policy};
use tollgate_store::StoreError;
use tollgate_store::clock::Clock;
use tollgate_telemetry::access::{AccessLog, AccessWriter};
use tollgate_telemetry::metrics::{self, Metrics};

pub use request_context::Closing;
pub use snapshot::Snapshot;

/// What the workers of a gateway share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The snapshot in force.
    pub current: Arc<ArcSwap<Snapshot>>,
    /// The one clock.
    pub clock: Clock,
    /// Where requests are counted.
    pub metrics: Metrics,
    /// Where requests are told of; `None`: nowhere.
    pub access: Option<AccessLog>,
    /// Requests under way, where they are bounded.
    pub requests: Arc<AtomicUsize>,
    /// Requests that wait for their turn (`max_wait`) now.
    pub held: Arc<AtomicUsize>,
    /// How the upstreams' servers fare.
    pub fleet: UpstreamHealth,
}

/// Answers the requests of one worker.
pub struct Gateway {
    side: Rc<Side>,
    current: RefCell<Current>,
    forwarder: Forwarder,
}

/// What a worker's requests need to the end of their answers.
struct Side {
    clock: Clock,
    metrics: metrics::Worker,
    registry: Metrics,
    access: Option<AccessWriter>,
    requests: Arc<AtomicUsize>,
    held: Arc<AtomicUsize>,
    /// Decision ids of this worker: a random start, then one after another.
    ids: Cell<u64>,
    /// Where quota fields are written before they are copied off.
    quota: RefCell<quota_headers::Writer>,
}

impl Side {
    /// The number of the next decision.
    fn next_id(&self) -> u64 {
        let id = self.ids.get();
        self.ids.set(id.wrapping_add(1));
        id
    }
}

/// A snapshot as one worker's requests hold it: counted per worker, as an atomic count would be one more line that all
/// cores write.
type HeldSnapshot = Rc<Arc<Snapshot>>;

/// The snapshot in force, as this worker last saw it.
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
        let mut seen = RequestHeaders::of(request.headers());
        let asked = rejection::Asked::of(&request, seen.present);
        let mut context = RequestContext::open(
            &self.side,
            &snapshot,
            &request,
            &mut seen,
            self.side.clock.now(),
        );
        // Until forwarding headers have been looked at.
        context.described(connection.peer.map(|peer| peer.ip()));
        // In place: it is large, and what refuses it has only to look at it.
        let mut request = Some(request);
        let mut edits = None;
        let answer = self
            .answer(
                &snapshot,
                connection,
                &mut request,
                &seen,
                &mut context,
                &mut edits,
            )
            .await;
        let Forwarded {
            mut response,
            verbatim,
            tunnel,
            cause,
        } = match answer {
            Ok(forwarded) => forwarded,
            Err(rejection) => return turn_away(context, &rejection, &asked, &mut request, edits),
        };
        // Before the answer: whether the connection goes on is asked of who still holds the body.
        drop(request);
        // Over HTTP/1 they are written with the head; a tunnel's answer has nobody who would.
        let behind = asked.is_http1() && tunnel.is_none();
        context.annotate(response.headers_mut(), behind);
        context.answered(&response, None, cause, asked.is_head() || tunnel.is_some());
        match tunnel {
            None => response.map(|body| Guarded::new(body, Closing(context)).with(verbatim)),
            Some(tunnel) => {
                // The permit, and so a place in a concurrency limit, is held as long as the tunnel.
                let task = Worker::current().map(|worker| worker.task());
                tokio::task::spawn_local(async move {
                    // A drain waits for it, as for a request.
                    let carried = tunnel.run(task.as_ref()).await;
                    context.tunnelled(carried.up);
                    context.close(carried.down, None);
                });
                response.map(Guarded::bare)
            }
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
    /// A gateway for one worker, on its thread.
    pub fn new(shared: &Shared) -> Self {
        let mut cache = Cache::new(Arc::clone(&shared.current));
        let held = Rc::new(Arc::clone(cache.load()));
        let side = Side {
            clock: shared.clock.clone(),
            metrics: shared.metrics.worker(),
            registry: shared.metrics.clone(),
            access: shared.access.as_ref().map(AccessLog::writer),
            requests: Arc::clone(&shared.requests),
            held: Arc::clone(&shared.held),
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

    fn snapshot(&self) -> HeldSnapshot {
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

    /// The whole way of a request: `?` is where it is turned away.
    async fn answer<'s>(
        &self,
        snapshot: &'s Snapshot,
        connection: &ConnInfo,
        slot: &mut Option<Request<Inbound>>,
        seen: &RequestHeaders,
        context: &mut RequestContext,
        refusal_edits: &mut Option<FilledEdits<'s>>,
    ) -> Result<Forwarded, Rejection> {
        let Some(request) = slot else {
            return Err(Rejection::Internal);
        };
        let conduct = &snapshot.conduct;
        if conduct
            .requests
            .is_some_and(|most| !context.takes_place(most))
        {
            return Err(Rejection::Overloaded);
        }
        let form = framing::admit(request, seen)?;
        if form.via
            && conduct
                .via
                .as_ref()
                .is_some_and(|via| via.has_passed(request.headers()))
        {
            return Err(Rejection::Loop);
        }
        let policy = &snapshot.policy;
        policy.drop_lookalikes(
            form.present.has(HeaderSet::UNDERSCORED),
            request.headers_mut(),
        );
        let peer = connection.peer();
        let described =
            describe(policy, connection, &form, request).map_err(|_| Rejection::BadPath)?;
        context.described(described.client);
        let matched = policy
            .route(&described)
            .ok_or_else(|| local_responses::unrouted(policy, &described))?;
        context.matched(matched.route);
        let route = &policy.routes[matched.route];
        let edited = !route.response_headers.is_empty();
        if edited {
            // Whoever it is is not known yet: a refusal before that names no caller.
            let nobody = Identified::default();
            *refusal_edits =
                Some(policy.edits(&route.response_headers, &matched, &nobody, &described));
        }
        if policy.egress && !local_responses::is_listed(policy, route, &form) {
            return Err(Rejection::Unlisted);
        }
        if form.bridged && !matches!(route.target, Target::Upstream(_)) {
            return Err(framing::Malformed::Connect.into());
        }
        if *request.method() == Method::TRACE {
            local_responses::check_trace(route, request.body().is_end_stream())?;
        }
        let body_max = route.body_max.or(conduct.body_max);
        let length = request.body().size_hint().exact();
        if length
            .zip(body_max)
            .is_some_and(|(length, most)| length > most)
        {
            return Err(Rejection::TooBig);
        }
        let preflight = policy.preflight(&described).is_some() && request.body().is_end_stream();
        let mut who = Identified::default();
        let mut unidentified = None;
        let mut without = None;
        if preflight {
            // A browser sends no credentials with its question whether it may.
            policy.place_into(&mut who, &matched, &described, context.seconds());
        } else if let Err(refusal) =
            policy.identify_known_into(&mut who, &matched, &described, context.seconds())
        {
            policy.place_into(&mut who, &matched, &described, context.seconds());
            policy.claims_into(
                context.claims_mut(),
                &matched,
                &who,
                request.headers(),
                length,
            );
            unidentified = Some(refusal);
        }
        if unidentified
            .as_ref()
            .is_some_and(|refusal| refusal.reason == IdentityReason::Unverified)
        {
            // Limits by address and for everyone decide before a signature is verified, which costs far more.
            without = Box::pin(self.look(snapshot, context)).await?;
            let mut verified = Identified::default();
            match policy.identify_into(&mut verified, &matched, &described, context.seconds()) {
                Ok(()) => {
                    (who, unidentified) = (verified, None);
                    *context.claims_mut() = Claims::default();
                }
                Err(refusal) => unidentified = Some(refusal),
            }
        }
        context.identified(&who);
        let edits = |edits| policy.edits(edits, &matched, &who, &described);
        let response_edits = edits(&route.response_headers);
        if edited {
            *refusal_edits = Some(response_edits.clone());
        }
        match unidentified {
            None => {
                policy.claims_into(
                    context.claims_mut(),
                    &matched,
                    &who,
                    request.headers(),
                    length,
                );
                self.admit(snapshot, context, without).await?;
            }
            Some(refusal) => {
                let rejection = snapshot.unidentified(refusal);
                context
                    .claims_mut()
                    .retain_counting(policy, rejection.status());
                self.admit(snapshot, context, without).await?;
                // What it is charged stays: nothing of it can be corrected any more.
                context.goes_on(Owed::default())?;
                return Err(rejection);
            }
        }
        let rules = route.limits.iter().map(|limit| &policy.rules[limit.rule]);
        let caller = match &route.target {
            Target::Upstream(upstream)
                if policy.upstreams[*upstream].balance == Balance::IdentityHash =>
            {
                caller_hash(&who, &described)
            }
            _ => 0,
        };
        let request_edits = edits(&route.request_headers);
        if let Target::Redirect { status, location } = &route.target {
            let location = policy.location(location, &matched, &who, &described);
            context.goes_on(Owed::new(rules))?;
            return Ok(fixed(
                status_of(*status),
                LOCATION,
                location,
                ResponseBody::Empty,
                response_edits,
            ));
        }
        let received = context.receiving(request.body());
        // They borrow the request, which goes its way now.
        drop(matched);
        drop(described);
        let upstream = match &route.target {
            Target::Upstream(_) if form.last_hop => {
                context.goes_on(Owed::new(rules))?;
                let mut response = local_responses::last(request, route);
                response_edits.apply(response.headers_mut());
                // It reached no upstream, since the client said so.
                return Ok(Forwarded::own(response, Cause::Gateway));
            }
            Target::Upstream(upstream) => *upstream,
            // Answered above.
            Target::Redirect { .. } => return Err(Rejection::Internal),
            Target::Fixed {
                status,
                body,
                content_type,
            } => {
                context.goes_on(Owed::new(rules))?;
                return Ok(fixed(
                    status_of(*status),
                    CONTENT_TYPE,
                    content_type.clone(),
                    body.clone().into(),
                    response_edits,
                ));
            }
            Target::Echo => {
                context.goes_on(Owed::new(rules))?;
                request_edits.apply(request.headers_mut());
                let request = slot.take().ok_or(Rejection::Internal)?;
                let mut response =
                    echo::answer(request, body_max, snapshot.conduct.body_idle, received);
                response_edits.apply(response.headers_mut());
                return Ok(Forwarded::own(response, Cause::Upstream));
            }
        };
        let owed = Owed::new(rules);
        if owed.reads_body() {
            let method = request.method().clone();
            settle::want_readable(&method, request.headers_mut());
        }
        let trusted = peer.is_trusted(&policy.address);
        // Nobody looks at what the upstream says but the caller, who is told in the same words.
        let verbatim =
            !connection.http2 && response_edits.is_empty() && owed.is_empty() && !snapshot.follows;
        let passage = ForwardContext {
            peer,
            trusted,
            present: form.present,
            host: form.host,
            route,
            permit: context.goes_on(owed)?,
            request_edits,
            caller,
            body_max,
            conduct,
            interim: connection.interim.as_ref(),
            window: connection.window.as_ref(),
            guarded: &policy.guarded,
            received,
            verbatim,
        };
        let request = slot.take().ok_or(Rejection::Internal)?;
        let since = self.side.clock.now();
        let outcome = match self
            .forwarder
            .forward(passage, &policy.upstreams[upstream], request)
        {
            // Boxed: a request that goes no further, a refused one above all, does not pay for the room that this takes.
            Ok(sent) => Box::pin(sent).await,
            Err(error) => Err(error),
        };
        // Before the edits, which may take away what the upstream says of its quota.
        context.forwarded(
            upstream,
            since,
            outcome.as_ref().map(|forwarded| &forwarded.response),
        );
        let mut forwarded = outcome?;
        response_edits.apply(forwarded.response.headers_mut());
        Ok(forwarded)
    }

    /// Whether the limits would admit the request; why the shared store need not be asked again, if it does not answer.
    async fn look(
        &self,
        snapshot: &Snapshot,
        context: &mut RequestContext,
    ) -> Result<Option<StoreError>, Rejection> {
        let claims = context.claims().list(&snapshot.policy);
        if claims.is_empty() {
            return Ok(None);
        }
        let look = snapshot.limiter.look(&claims, context.at()).await;
        drop(claims);
        match look {
            Look::Open => Ok(None),
            Look::Unavailable(error) => Ok(Some(error)),
            Look::Denied(denied) => Err(refuse(context, denied)),
        }
    }

    /// Asks the buckets, and holds the request until its token is due. `without`: why the shared store need not be asked.
    async fn admit(
        &self,
        snapshot: &Snapshot,
        context: &mut RequestContext,
        without: Option<StoreError>,
    ) -> Result<(), Rejection> {
        let now = context.at();
        let claims = context.claims().list(&snapshot.policy);
        let (decision, decided) = match snapshot.limiter.try_check(&claims, now) {
            Some(decision) => (decision, now),
            None => {
                let decision = match without {
                    None => Box::pin(snapshot.limiter.check(&claims, now)).await,
                    Some(error) => {
                        Box::pin(snapshot.limiter.check_without(&claims, now, error)).await
                    }
                };
                (decision, self.side.clock.now())
            }
        };
        let shared = claims
            .iter()
            .any(|claim| claim.limit.placement == Placement::Shared);
        drop(claims);
        if shared {
            context.store_took(decided.since(now));
        }
        match decision {
            Decision::Allow(permit) => {
                let hold = permit.hold();
                context.permitted(permit);
                if hold.0 > 0 {
                    Box::pin(hold::until(
                        &self.side.clock,
                        decided.after(hold),
                        &self.side.held,
                    ))
                    .await;
                }
                Ok(())
            }
            Decision::Deny(denied) => Err(refuse(context, denied)),
            Decision::Unavailable(unavailable) => Err(Rejection::StoreDown {
                limit: unavailable.limit,
            }),
        }
    }
}

/// What a refusal by the limits is answered with.
fn refuse(context: &mut RequestContext, denied: Denied) -> Rejection {
    let overload = context.is_overload(&denied);
    let refused = context.denied(denied);
    if overload {
        Rejection::Overloaded
    } else {
        Rejection::Denied(refused)
    }
}

/// The answer to a request that goes no further, which is dropped. A function of its own, so that its code and what it moves are
/// not part of every request.
#[inline(never)]
fn turn_away(
    mut context: Box<RequestContext>,
    rejection: &Rejection,
    asked: &rejection::Asked,
    request: &mut Option<Request<Inbound>>,
    edits: Option<FilledEdits<'_>>,
) -> Response<Guarded<ResponseBody, Closing>> {
    let status = context.turned_away(rejection);
    let mut response = context.refusal(rejection, asked, edits.is_some());
    // The request's table goes back with an answer that has none, to be used again.
    if let Some(request) = request
        && response.headers().capacity() == 0
    {
        *response.headers_mut() = std::mem::take(request.headers_mut());
        response.headers_mut().clear();
    }
    if let Some(edits) = edits {
        edits.complete(response.headers_mut());
    }
    // Before the answer: whether the connection goes on is asked of who still holds the body.
    *request = None;
    context.annotate(response.headers_mut(), asked.is_http1());
    context.answered(&response, Some(status), rejection.cause(), asked.is_head());
    response.map(|body| Guarded::new(body, Closing(context)))
}

/// The facts that routes and keys are found by.
fn describe<'r>(
    policy: &Policy,
    connection: &'r ConnInfo,
    form: &'r RequestTarget,
    request: &'r Request<Inbound>,
) -> Result<Descriptor<'r>, tollgate_policy::Malformed> {
    let (method, uri, headers, peer) = (
        request.method(),
        request.uri(),
        request.headers(),
        connection.peer(),
    );
    let subject = connection
        .tls
        .as_ref()
        .and_then(|tls| tls.client_subject.as_deref());
    // Most hosts have been found to be in their normal form.
    let plain = form
        .plain_host
        .and_then(|length| form.host.as_ref()?.to_str().ok()?.get(..length));
    policy.describe(plain, method, uri, headers, peer, subject)
}

/// An answer of the gateway's own.
fn fixed(
    status: StatusCode,
    name: HeaderName,
    value: HeaderValue,
    body: ResponseBody,
    edits: FilledEdits<'_>,
) -> Forwarded {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(name, value);
    edits.apply(response.headers_mut());
    Forwarded::own(response, Cause::Upstream)
}

/// The caller as a number: what `balance = "identity_hash"` goes by. The same on every worker and gateway.
fn caller_hash(who: &Identified, described: &Descriptor<'_>) -> u64 {
    let mut hasher = siphasher::sip::SipHasher13::new();
    match who.resolved.first() {
        Some(resolved) => hasher.write(&resolved.key),
        None => described.client.hash(&mut hasher),
    }
    hasher.finish()
}

/// The configuration admits only statuses that exist.
fn status_of(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

impl Forwarded {
    /// The gateway's own answer, and who brought it about.
    fn own(response: Response<ResponseBody>, cause: Cause) -> Self {
        Self {
            response,
            verbatim: None,
            tunnel: None,
            cause,
        }
    }
}
