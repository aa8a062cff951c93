//! State of one request until its response has ended; then the permit is settled and the request is
//! counted and logged.

mod access_log;
mod end;
mod fields;
mod refusal;
mod span;

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{HeaderValue, Request};
use http_body::Body;

use self::access_log::Head;
use self::end::STATUS_CLIENT_LEFT;
use self::fields::Lines;
use super::{HeldSnapshot, Side};
use crate::body::Received;
use crate::forward::CallersDeadline;
use crate::headers::RequestHeaders;
pub(super) use access_log::log_unread;
pub use end::Closing;
pub(crate) use end::{CLIENT_LEFT, PANIC};
use tollgate_admission::settle::{self, Owed};
use tollgate_admission::{Judged, denial};
use tollgate_limit::{Micros, Timestamp};
use tollgate_limiter::{Deadline, Denied, Permit};
use tollgate_policy::identity::Caller;
use tollgate_policy::json::Calls;
use tollgate_policy::{Claims, Identified};
use tollgate_response::{DecisionId, Refused};
use tollgate_telemetry::TraceParent;

/// The context of one request, from its head to the end of its response. If it is dropped before
/// [`RequestContext::close`], it records that the client left.
pub(super) struct RequestContext {
    side: Rc<Side>,
    snapshot: HeldSnapshot,
    at: Timestamp,
    deadline: Deadline,
    id: u64,
    /// The trace that the request belongs to.
    trace: Option<TraceParent>,
    /// The gateway's own span in that trace, if the request is sampled.
    #[cfg(feature = "otlp")]
    span: Option<span::Own>,
    head: Option<Head>,
    client: Option<IpAddr>,
    route: Option<usize>,
    caller: Option<Arc<Caller>>,
    claims: Claims,
    /// The target of the route that the claims are for: 0 is its own.
    target: usize,
    /// The JSON-RPC calls that a refusal must answer one by one.
    calls: Option<Box<Calls>>,
    judged: Judged,
    store_micros: Option<u64>,
    upstream: Option<usize>,
    upstream_micros: Option<u64>,
    reason: &'static str,
    turned_away: bool,
    status: u16,
    /// The number of body bytes received.
    received: Received,
    owed: Owed,
    /// The deadline of the caller that may end the response, where a charge depends on its end.
    callers_deadline: Option<CallersDeadline>,
    /// Which lines are appended when the response's head is written.
    lines: Lines,
    /// Whether the request is counted among the requests in progress.
    placed: bool,
    closed: bool,
}

/// The authority of an HTTP/2 request or of an absolute target, in place of a Host that was
/// not sent.
fn asked_authority<B>(request: &Request<B>) -> Option<HeaderValue> {
    let authority = request.uri().authority()?;
    HeaderValue::from_str(authority.as_str()).ok()
}

impl RequestContext {
    /// Opens the context of a request whose head has arrived. Headers that only the log needs are
    /// taken out of `headers`. `client`: its address, as far as it is known.
    pub(super) fn open<B>(
        side: &Rc<Side>,
        snapshot: &HeldSnapshot,
        request: &Request<B>,
        headers: &mut RequestHeaders,
        client: Option<IpAddr>,
    ) -> Box<Self> {
        // Allocated first, so that the value is built in place and not moved: it is large.
        let place = Box::new_uninit();
        let mut context = Box::write(
            place,
            Self {
                side: Rc::clone(side),
                snapshot: Rc::clone(snapshot),
                at: side.clock.now(),
                deadline: Deadline::default(),
                id: side.next_id(),
                trace: headers.trace,
                #[cfg(feature = "otlp")]
                span: None,
                head: None,
                client,
                route: None,
                caller: None,
                claims: Claims::default(),
                target: 0,
                calls: None,
                judged: Judged::Not,
                store_micros: None,
                upstream: None,
                upstream_micros: None,
                reason: "",
                turned_away: false,
                status: STATUS_CLIENT_LEFT,
                received: Received::default(),
                owed: Owed::default(),
                callers_deadline: None,
                lines: Lines::Nothing,
                placed: false,
                closed: false,
            },
        );
        let sampled = context.sample();
        if side.access.is_some() || sampled {
            // Assigned in place: the value is large, and most gateways without a log do not need
            // it.
            context.head = Some(Head {
                method: request.method().clone(),
                path: request.uri().path_and_query().cloned(),
                version: request.version(),
                host: headers.host.clone().or_else(|| asked_authority(request)),
                user_agent: headers.user_agent.take(),
                referer: headers.referer.take(),
            });
        }
        context
    }

    /// The time at which the request's head had arrived.
    pub(super) fn at(&self) -> Timestamp {
        self.at
    }

    /// The same time in seconds since the Unix epoch, by which the validity of a token is checked.
    pub(super) fn seconds(&self) -> u64 {
        self.side.seconds(self.at)
    }

    /// When the work of the request on the shared store ends: one deadline for all of it.
    pub(super) fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    /// Counts the request among those in progress until it ends; returns whether there are at most
    /// `most`.
    pub(super) fn takes_place(&mut self, most: usize) -> bool {
        self.placed = true;
        self.side.requests.fetch_add(1, Ordering::Relaxed) < most
    }

    /// The decision's id, as it appears in refusals and in the log.
    pub(super) fn id(&self) -> DecisionId {
        DecisionId::of(self.id)
    }

    pub(super) fn set_client(&mut self, client: Option<IpAddr>) {
        self.client = client;
    }

    pub(super) fn set_route(&mut self, route: usize) {
        self.route = Some(route);
    }

    pub(super) fn set_caller(&mut self, who: &Identified) {
        self.caller.clone_from(&who.caller);
    }

    /// Keeps the JSON-RPC calls of the request, where its route refuses them one by one.
    pub(super) fn set_calls(&mut self, calls: Option<Calls>) {
        self.calls = calls.map(Box::new);
    }

    /// Returns the counter to which the reader of the request's body adds.
    pub(super) fn receiving<B: Body>(&mut self, body: &B) -> Received {
        if !body.is_end_stream() {
            self.received = Received::from(0);
        }
        self.received.clone()
    }

    /// Records that a tunnel carried `up` bytes from the client.
    pub(super) fn tunnelled(&mut self, up: u64) {
        self.received = Received::from(up);
    }

    /// The claims of the request; the log names them at the end.
    pub(super) fn claims_mut(&mut self) -> &mut Claims {
        &mut self.claims
    }

    pub(super) fn claims(&self) -> &Claims {
        &self.claims
    }

    /// The target of the route that the claims are for: 0 is its own.
    pub(super) fn target(&self) -> usize {
        self.target
    }

    /// Puts the claims of another target of the route in place of those that it returns.
    pub(super) fn set_target(&mut self, target: usize, claims: Claims) -> Claims {
        self.target = target;
        std::mem::replace(&mut self.claims, claims)
    }

    /// Counts that another target of the route takes the request.
    pub(super) fn count_passed_on(&self) {
        let route = self.snapshot.labels.route(self.route);
        self.side.metrics.passed_on(route);
    }

    /// Records how long the store took to respond.
    pub(super) fn store_took(&mut self, span: Micros) {
        self.store_micros = Some(span.0);
    }

    /// Records that a limit refuses; returns the contents of the refusal.
    pub(super) fn denied(&mut self, denied: Denied) -> Refused {
        let refused = denial::contents(&denied, &self.claims, &self.snapshot.policy);
        self.judged = Judged::Denied(denied);
        refused
    }

    /// Whether a refusal sheds load for an upstream at its capacity, which is not the caller's
    /// fault.
    pub(super) fn is_overload(&self, denied: &Denied) -> bool {
        denial::sheds_load(denied, &self.claims, &self.snapshot.policy.limits)
    }

    /// Records that the limits admit the request. Until [`Self::keep_charges`], a client that
    /// leaves gets its charges back.
    pub(super) fn permitted(&mut self, permit: Permit) {
        self.count_near(&permit);
        self.judged = Judged::Permitted(permit);
    }

    /// Makes the charges final, except for the corrections that the response can bring.
    pub(super) fn keep_charges(&mut self) {
        if let Judged::Permitted(permit) = &mut self.judged {
            permit.forwarded();
        }
    }

    /// Records which charges the response can still change, of those for the `rules`.
    pub(super) fn owes(&mut self, rules: impl Iterator<Item = usize>) {
        let policy = &self.snapshot.policy;
        let owed = Owed::new(rules.map(|rule| &policy.rules[rule]));
        self.owed = owed.at_prices(&self.claims, policy);
    }

    /// Takes out the charges that a later report can correct; `None`: all are final.
    pub(super) fn take_open(&mut self) -> Option<(Permit, Owed)> {
        let Judged::Permitted(permit) = &mut self.judged else {
            return None;
        };
        let owed = std::mem::take(&mut self.owed);
        permit.take_open().map(|open| (open, owed))
    }

    /// The proof that every limit admitted the request.
    pub(super) fn permit(&self) -> Option<&Permit> {
        self.judged.permit()
    }

    /// What the limits decided.
    pub(super) fn judged(&self) -> &Judged {
        &self.judged
    }

    /// Whether no decision here depends on the upstream's response.
    pub(super) fn reads_nothing(&self) -> bool {
        self.owed.is_empty() && !self.snapshot.follows
    }

    /// Asks the upstream for a response whose cost can be read, where a limit needs it.
    pub(super) fn keep_readable<B>(&self, request: &mut Request<B>) {
        if self.owed.reads_body() {
            let method = request.method().clone();
            settle::want_readable(&method, request.headers_mut());
        }
    }
}

// The allocator caches freed blocks of up to 1032 bytes; a larger block costs several times as
// much, twice per request.
const _: () = assert!(size_of::<RequestContext>() <= 1032);
