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
pub(crate) use self::end::STATUS_CLIENT_LEFT;
use self::fields::Lines;
use super::gateway::{HeldSnapshot, Side};
use super::read_body::INCLUDE_USAGE;
use crate::forward::CallersDeadline;
use crate::forward::body::Received;
use crate::headers::RequestHeaders;
use crate::rejection::Rejection;
pub(crate) use access_log::log_unread;
pub use end::Closing;
use tollgate_admission::Account;
use tollgate_limit::Micros;
use tollgate_policy::body::json::Calls;
use tollgate_policy::identity::Caller;
use tollgate_response::DecisionId;
use tollgate_telemetry::TraceParent;

/// The context of one request, from its head to the end of its response. If it is dropped before
/// [`RequestContext::close`], it records that the client left.
pub(crate) struct RequestContext {
    side: Rc<Side>,
    snapshot: HeldSnapshot,
    /// What it draws from, and what the limits decided; the log names both at the end.
    pub(crate) account: Account,
    id: u64,
    trace: Option<TraceParent>,
    /// `None`: the request is not sampled.
    span: Option<Box<span::Own>>,
    head: Option<Head>,
    pub(crate) client: Option<IpAddr>,
    pub(crate) caller: Option<Arc<Caller>>,
    /// The JSON-RPC calls that a refusal must answer one by one.
    pub(crate) calls: Option<Box<Calls>>,
    store_micros: Option<u64>,
    upstream: Option<u32>,
    upstream_micros: Option<u64>,
    reason: &'static str,
    turned_away: bool,
    /// Whether the client did not ask for the usage of the stream that it gets.
    pub(crate) hides_usage: bool,
    pub(crate) status: u16,
    pub(crate) received: Received,
    /// The deadline of the caller that may end the response, where a charge depends on its end.
    callers_deadline: Option<CallersDeadline>,
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
    pub(crate) fn open<B>(
        side: &Rc<Side>,
        snapshot: &HeldSnapshot,
        request: &Request<B>,
        headers: &mut RequestHeaders,
        client: Option<IpAddr>,
    ) -> Box<Self> {
        let mut context = Box::new(Self {
            side: Rc::clone(side),
            snapshot: Rc::clone(snapshot),
            account: Account::new(side.shared.clock.now()),
            id: side.next_id(),
            trace: headers.trace,
            span: None,
            head: None,
            client,
            caller: None,
            calls: None,
            store_micros: None,
            upstream: None,
            upstream_micros: None,
            reason: "",
            turned_away: false,
            hides_usage: false,
            status: STATUS_CLIENT_LEFT,
            received: Received::default(),
            callers_deadline: None,
            lines: Lines::Nothing,
            placed: false,
            closed: false,
        });
        let sampled = context.sample();
        if side.access.is_some() || sampled {
            // Assigned in place: the value is large, and most gateways without a log do not need it.
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

    /// When the request's head had arrived, in seconds since the Unix epoch, by which the validity of
    /// a token is checked.
    pub(crate) fn seconds(&self) -> u64 {
        self.side.seconds(self.account.at)
    }

    /// Counts the request among those in progress until it ends; returns whether there are at most `most`.
    pub(crate) fn takes_place(&mut self, most: usize) -> bool {
        self.placed = true;
        self.side.shared.requests.fetch_add(1, Ordering::Relaxed) < most
    }

    pub(crate) fn id(&self) -> DecisionId {
        DecisionId::of(self.id)
    }

    /// Returns the counter to which the reader of the request's body adds.
    pub(crate) fn receiving<B: Body>(&mut self, body: &B) -> Received {
        if !body.is_end_stream() {
            self.received = Received::from(0);
        }
        self.received.clone()
    }

    /// The bytes that the gateway has put into the body, which count against no bound.
    pub(crate) const fn added_to_body(&self) -> u64 {
        if self.hides_usage {
            INCLUDE_USAGE.len() as u64
        } else {
            0
        }
    }

    pub(crate) fn count_passed_on(&self) {
        let route = self.snapshot.labels.route(self.account.route);
        self.side.metrics.passed_on(route);
    }

    pub(crate) fn store_took(&mut self, span: Micros) {
        self.store_micros = Some(span.0);
    }

    pub(crate) fn denial(&self) -> Rejection {
        let (policy, now) = (&self.snapshot.policy, self.side.shared.clock.now());
        let refused = self
            .account
            .refused(policy, Some(&self.side.shared.under_way), now);
        refused.map_or(Rejection::Overloaded, Rejection::Denied)
    }

    /// Whether no decision here depends on the upstream's response.
    pub(crate) fn reads_nothing(&self) -> bool {
        self.account.owed.is_empty() && !self.snapshot.follows
    }
}

// The allocator caches freed blocks of up to 1032 bytes; a larger block costs several times as
// much, twice per request.
const _: () = assert!(size_of::<RequestContext>() <= 1032);
