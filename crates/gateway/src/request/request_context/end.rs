//! The end of a request: the outcome at its upstream, the head and the end of its response. The
//! charges are settled, and the request is counted and logged.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};

use super::RequestContext;
use crate::forward::body::{BodyOutcome, Guard};
use crate::forward::{CallersDeadline, ForwardError, Forwarded, ServerSign};
use crate::rejection::{CLIENT_LEFT, PANIC, Rejection};
use tollgate_admission::follow;
use tollgate_admission::settle::{self, Owed};
use tollgate_limit::{Micros, Timestamp};
use tollgate_limiter::Cause;

impl RequestContext {
    /// Records that the request was sent at `since` and that its response has begun or will not come.
    pub(crate) fn forwarded(
        &mut self,
        upstream: usize,
        since: Timestamp,
        outcome: Result<&Forwarded, &ForwardError>,
    ) {
        if let (Ok(forwarded), true) = (outcome, self.snapshot.follows) {
            let (status, headers) = (forwarded.response.status(), forwarded.response.headers());
            let now = self.side.shared.clock.now();
            follow(
                &self.snapshot.limiter,
                &self.account.claims,
                status,
                headers,
                now,
            );
        }
        // A client that sends slowly says nothing about the load of the server.
        let waited = outcome.map_or(Micros::ZERO, |forwarded| forwarded.waited);
        let sign = outcome.map_or_else(|error| error.blame().sign, |response| response.blame.sign);
        let outcome = outcome.map(|forwarded| forwarded.response.status());
        self.upstream = u32::try_from(upstream).ok();
        let slot = self.snapshot.labels.upstream(upstream);
        let took = self.side.shared.clock.now().since(since);
        if sign != ServerSign::Nothing {
            let lost = outcome.map_or(true, |status| status == StatusCode::SERVICE_UNAVAILABLE);
            let took = Micros(took.0.saturating_sub(waited.0));
            self.account.answered(took, lost);
        }
        match outcome {
            Ok(status) => {
                self.upstream_micros = Some(took.0);
                self.side.metrics.upstream(slot, status.as_u16(), took.0);
                self.side.metrics.overhead(since.since(self.account.at).0);
            }
            Err(error) => self.side.metrics.upstream_failed(slot, error.label()),
        }
    }

    /// Records that the gateway refuses the request. Returns the status of the refusal; a gRPC call
    /// receives a gRPC status with the same meaning.
    pub(crate) fn turned_away(&mut self, rejection: &Rejection) -> StatusCode {
        let (label, status) = (rejection.label(), rejection.status());
        (self.reason, self.turned_away) = (label, true);
        if status == StatusCode::BAD_REQUEST && !rejection.is_unreceived() {
            self.side.metrics.bad_request(label);
        }
        self.side.metrics.rejected(label);
        status
    }

    /// Records the head of the response, and settles the charges that the head decides. `meant` is
    /// the status of a response of the gateway itself; a gRPC call has HTTP status 200, and `meant`
    /// is then the status that it would have without gRPC. `cause` says which party caused the
    /// response; `unreadable` says that the client accepts no body that could be read.
    pub(crate) fn answered<B>(
        &mut self,
        response: &Response<B>,
        meant: Option<StatusCode>,
        cause: Cause,
        unreadable: bool,
    ) {
        self.status = response.status().as_u16();
        self.account.on_head(settle::Head {
            cause,
            status: meant.unwrap_or(response.status()),
            headers: response.headers(),
            unreadable,
        });
    }

    pub(crate) fn set_deadline(&mut self, deadline: Option<CallersDeadline>) {
        if !self.account.owed.is_empty() {
            self.callers_deadline = deadline;
        }
    }

    /// Records the trailers of the response. The caller gets nothing back if its deadline may have
    /// ended it.
    fn received_trailers(&mut self, trailers: &HeaderMap) {
        let ended = |deadline: CallersDeadline| deadline.explains(trailers);
        if self.callers_deadline.is_some_and(ended) {
            self.account.owed.withdraw_credit();
        }
    }

    /// Records that the response has ended after `bytes` bytes of body: settles, counts and logs
    /// the request.
    pub(crate) fn close(mut self: Box<Self>, bytes: u64, reason: Option<&'static str>) {
        if let Some(reason) = reason {
            self.reason = reason;
        }
        self.record(bytes, reason.is_none());
    }

    /// `whole`: the response is complete.
    fn record(&mut self, sent: u64, whole: bool) {
        self.closed = true;
        if self.placed {
            self.side.shared.requests.fetch_sub(1, Ordering::Relaxed);
        }
        // An upstream may end a response in order when the deadline has passed.
        if self.callers_deadline.is_some_and(CallersDeadline::is_due) {
            self.account.owed.withdraw_credit();
        }
        let used = self.account.on_end(sent, whole);
        if let Some(used) = &used {
            self.count_near_after();
            let caller = self.caller.as_ref().map(|caller| &caller.name);
            self.side.shared.usage.count(caller, used);
        }
        let took = self.side.shared.clock.now().since(self.account.at).0;
        self.side.metrics.finished(
            self.snapshot.labels.route(self.account.route),
            self.status,
            took,
        );
        let received = self.received.bytes();
        self.side.metrics.bytes(received, sent);
        self.export([received, sent], took);
        if let (Some(writer), Some(head)) = (&self.side.access, &self.head)
            && writer.enabled(self.turned_away)
        {
            self.log(writer, head, [received, sent], took, used.as_deref());
        }
    }
}

impl Drop for RequestContext {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        // The handler was dropped before there was a response: the client left. A panic also ends
        // here; it is counted where it is caught.
        self.reason = CLIENT_LEFT;
        if std::thread::panicking() {
            self.reason = PANIC;
            self.status = StatusCode::INTERNAL_SERVER_ERROR.as_u16();
            // The gateway failed: the charges stay.
            self.account.owed = Owed::default();
        }
        self.record(0, false);
    }
}

pub struct Closing(pub(crate) Box<RequestContext>);

impl Guard for Closing {
    fn write_fields(&self, out: &mut Vec<u8>) {
        self.0.write_fields(out);
    }

    fn on_data(&mut self, piece: &Bytes) {
        self.0.account.on_data(piece);
    }

    fn on_trailers(&mut self, trailers: &HeaderMap) {
        self.0.received_trailers(trailers);
    }

    fn on_end(self, bytes: u64, outcome: BodyOutcome<'_>) {
        let reason = match outcome {
            BodyOutcome::Whole => None,
            BodyOutcome::Broken(error) => Some(error.label()),
            BodyOutcome::Dropped => Some(CLIENT_LEFT),
        };
        self.0.close(bytes, reason);
    }
}

/// The logged status if the client left before there was a response (as in NGINX).
pub(crate) const STATUS_CLIENT_LEFT: u16 = 499;
