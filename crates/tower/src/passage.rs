//! A request from its admission to the end of its response.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};

use super::engine::{Engine, Snapshot};
use tollgate_admission::settle::Head;
use tollgate_admission::{Account, follow};
use tollgate_limiter::Cause;
use tollgate_response::RefusalForm;
use tollgate_response::quota_headers::{Prepared, Report};

/// A request and what the limits decided about it. When it is dropped, the charges are settled as
/// far as the response is known.
#[derive(Debug)]
pub(super) struct Passage {
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) engine: Arc<Engine>,
    pub(super) account: Account,
    pub(super) form: RefusalForm,
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
        if let Self::Settlement(passage) = self {
            passage.account.keep_readable(request);
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

/// The quota headers for what was decided.
pub(super) fn quota_headers(snapshot: &Snapshot, account: &Account) -> Prepared {
    if snapshot.quota.is_silent() {
        return Prepared::default();
    }
    let judged = &account.judged;
    snapshot.quota.prepare(&Report {
        facts: &judged.facts(&account.claims, &snapshot.policy.limits),
        refused: judged.refuses(),
        retry_after: judged.retry_after(),
        now: account.at,
    })
}

impl Passage {
    pub(super) fn new<B>(
        snapshot: Arc<Snapshot>,
        engine: Arc<Engine>,
        account: Account,
        request: &Request<B>,
    ) -> Self {
        Self {
            snapshot,
            engine,
            account,
            form: RefusalForm::of(request, true, false),
            sent: 0,
            whole: false,
        }
    }

    /// Records the head of a response, and adds headers. Returns itself if the body matters.
    pub(super) fn respond<R>(mut self: Box<Self>, response: &mut Response<R>) -> Option<Box<Self>> {
        let status = response.status();
        let settled = self.account.judged.permit()?.is_settled();
        let now = self.engine.clock.now();
        if !settled {
            let took = now.since(self.account.at);
            let lost = status == StatusCode::SERVICE_UNAVAILABLE;
            self.account.answered(took, lost);
        }
        if self.snapshot.follows {
            let (limiter, claims) = (&self.snapshot.limiter, &self.account.claims);
            follow(limiter, claims, status, response.headers(), now);
        }
        self.annotate(response.headers_mut());
        if settled {
            return None;
        }
        let is_head = self.form.head;
        self.account.on_head(Head {
            cause: Cause::Upstream,
            status,
            headers: response.headers(),
            unreadable: is_head,
        });
        // A server does not read the body of a response to HEAD.
        self.whole = is_head;
        Some(self)
    }

    pub(super) fn annotate(&self, headers: &mut HeaderMap) {
        quota_headers(&self.snapshot, &self.account).insert(headers);
    }

    /// Records a piece of the body.
    pub(super) fn data(&mut self, piece: &Bytes) {
        self.sent = self.sent.saturating_add(piece.len() as u64);
        self.account.on_data(piece);
    }

    /// Records that the body has ended.
    pub(super) fn end(mut self: Box<Self>) {
        self.whole = true;
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        self.account.on_end(self.sent, self.whole);
    }
}
