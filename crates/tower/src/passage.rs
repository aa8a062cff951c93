//! A request from its admission to the end of its response.

use std::cell::RefCell;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};

use super::engine::{Engine, Snapshot};
use tollgate_admission::settle::{self, Owed};
use tollgate_admission::{Judged, follow};
use tollgate_limit::Timestamp;
use tollgate_limiter::{Cause, Deadline};
use tollgate_policy::Claims;
use tollgate_response::Asked;
use tollgate_response::quota_headers::{Prepared, Writer};

/// A request and what the limits decided about it. When it is dropped, the charges are settled as
/// far as the response is known.
#[derive(Debug)]
pub(super) struct Passage {
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) engine: Arc<Engine>,
    /// When the request arrived.
    pub(super) at: Timestamp,
    pub(super) deadline: Deadline,
    pub(super) route: usize,
    pub(super) claims: Claims,
    pub(super) judged: Judged,
    pub(super) asked: Asked,
    owed: Owed,
    /// The bytes of the response's body so far, and whether they are all.
    sent: u64,
    whole: bool,
}

/// What is left to be done for an admitted request when its response comes.
pub(super) enum Due {
    /// Its charges are final: only the quota headers.
    Headers(Prepared),
    /// The response can correct a charge, or tells what a limit learns from.
    Settlement(Box<Passage>),
}

impl Due {
    /// Removes request headers that could make the response omit its cost.
    pub(super) fn keep_readable<B>(&self, request: &mut Request<B>) {
        if let Self::Settlement(passage) = self
            && passage.owed.reads_body()
        {
            let method: Method = request.method().clone();
            settle::want_readable(&method, request.headers_mut());
        }
    }

    /// Completes the head of the service's response. Returns the passage if the body matters.
    pub(super) fn respond<R>(self, response: &mut Response<R>) -> Option<Box<Passage>> {
        match self {
            Self::Headers(headers) => {
                headers.insert(response.headers_mut());
                None
            }
            Self::Settlement(passage) => passage.respond(response),
        }
    }
}

/// The quota headers for a decision at `at`.
pub(super) fn quota_headers(
    snapshot: &Snapshot,
    claims: &Claims,
    judged: &Judged,
    at: Timestamp,
) -> Prepared {
    if snapshot.quota.is_silent() {
        return Prepared::default();
    }
    let facts = judged.facts(claims, &snapshot.policy.limits);
    let (refuses, retry_after) = (judged.refuses(), judged.retry_after());
    WRITER.with_borrow_mut(|writer| {
        let quota = &snapshot.quota;
        quota.prepare(&facts, refuses, retry_after, at, writer)
    })
}

thread_local! {
    /// The buffer in which quota headers are written before they are copied into a response.
    static WRITER: RefCell<Writer> = RefCell::default();
}

impl Passage {
    pub(super) fn new<B>(
        snapshot: Arc<Snapshot>,
        engine: Arc<Engine>,
        at: Timestamp,
        (route, claims): (usize, Claims),
        request: &Request<B>,
    ) -> Self {
        Self {
            snapshot,
            engine,
            at,
            deadline: Deadline::default(),
            route,
            claims,
            judged: Judged::Not,
            asked: Asked::of(request, true, false),
            owed: Owed::default(),
            sent: 0,
            whole: false,
        }
    }

    /// Makes the charges final, except for the corrections that the response can bring.
    pub(super) fn keep_charges(&mut self) {
        if let Judged::Permitted(permit) = &mut self.judged {
            permit.forwarded();
        }
    }

    /// Records which charges the response can still change.
    pub(super) fn owe(&mut self) {
        let policy = &self.snapshot.policy;
        let limits = policy.routes[self.route].limits.iter();
        let owed = Owed::new(limits.map(|limit| &policy.rules[limit.rule]));
        self.owed = owed.at_prices(&self.claims, policy);
    }

    /// Records the head of the service's response, and adds the quota headers. Returns the passage
    /// if the body matters.
    pub(super) fn respond<R>(mut self: Box<Self>, response: &mut Response<R>) -> Option<Box<Self>> {
        let status = response.status();
        let Judged::Permitted(permit) = &self.judged else {
            return None;
        };
        let settled = permit.is_settled();
        if !settled {
            let took = self.engine.clock.now().since(self.at);
            permit.answered(took, status == StatusCode::SERVICE_UNAVAILABLE);
        }
        if self.snapshot.follows {
            let now = self.engine.clock.now();
            let limiter = &self.snapshot.limiter;
            follow(limiter, &self.claims, status, response.headers(), now);
        }
        self.annotate(response.headers_mut());
        if settled {
            return None;
        }
        let is_head = self.asked.is_head();
        if let (Judged::Permitted(permit), false) = (&mut self.judged, self.owed.is_empty()) {
            let head = settle::Head {
                cause: Cause::Upstream,
                status,
                headers: response.headers(),
                unreadable: is_head,
            };
            self.owed.on_head(permit, head);
        }
        // A server does not read the body of a response to HEAD.
        self.whole = is_head;
        Some(self)
    }

    /// Adds the quota headers.
    pub(super) fn annotate(&self, headers: &mut HeaderMap) {
        quota_headers(&self.snapshot, &self.claims, &self.judged, self.at).insert(headers);
    }

    /// Records a piece of the body.
    pub(super) fn data(&mut self, piece: &Bytes) {
        self.sent = self.sent.saturating_add(piece.len() as u64);
        self.owed.on_data(piece);
    }

    /// Records that the body has ended.
    pub(super) fn end(mut self: Box<Self>) {
        self.whole = true;
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        if let (Judged::Permitted(permit), false) = (&mut self.judged, self.owed.is_empty()) {
            std::mem::take(&mut self.owed).on_end(permit, self.sent, self.whole);
        }
    }
}
