//! A prepared request, and the copy that is needed to send it again.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::response::Parts;
use http::{HeaderMap, Request, Response};

use super::blame::ClientsPart;
use super::callers_deadline::CallersDeadline;
use super::kept_body::KeptBody;
use super::request_body::{Progress, RequestBody};
use super::response_timeout::Stall;
use super::{ForwardError, Forwarded, Upgrade};
use crate::forward::body::ResponseBody;
use crate::headers::{GRPC_TIMEOUT, HeaderSet, Origin, grpc_timeout};
use tollgate_http1::Verbatim;
use tollgate_net::server::Interim;
use tollgate_net::timers::Deadline;
use tollgate_policy::UpstreamTimeouts;
use tollgate_policy::routes::HeaderEdits;
use tollgate_policy::upstream::Upstream;

pub(super) struct Outgoing {
    pub(super) request: Option<Request<RequestBody>>,
    pub(super) progress: Option<Rc<Progress>>,
    pub(super) upgrade: Option<Upgrade>,
    pub(super) timeouts: UpstreamTimeouts,
    /// The deadline for the end of the response.
    pub(super) total: Option<Deadline>,
    /// Whether the client set that deadline, and not the file or its route.
    pub(super) total_is_clients: bool,
    /// The deadline that the caller states. The gateway or the upstream may enforce it.
    pub(super) callers_deadline: Option<CallersDeadline>,
    pub(super) client: Option<SocketAddr>,
    pub(super) idempotent: bool,
    /// The attempts that are left, including the current one.
    pub(super) attempts: u32,
    /// Whether the attempt that failed last is no longer among them, and its retry was withdrawn from
    /// the budget.
    pub(super) counted: bool,
    pub(super) was_sent: bool,
    pub(super) interim: Option<Interim>,
    pub(super) origin: Option<Origin>,
    pub(super) hosted: bool,
    /// Whether the response headers need not be parsed.
    pub(super) verbatim: bool,
    copy: Option<Request<()>>,
    kept: Option<Rc<KeptBody>>,
}

impl Outgoing {
    /// Starts the time of `request`, which was changed by the route's `edits` and has the headers in
    /// `present`. Its body reports to `progress`. An upgrade, an origin and the receiver of interim
    /// responses are set later for the requests that have them.
    pub(super) fn new(
        request: Request<RequestBody>,
        present: HeaderSet,
        edits: &HeaderEdits,
        progress: Option<Rc<Progress>>,
        upstream: &Upstream,
        client: Option<SocketAddr>,
    ) -> Self {
        let own = upstream.timeouts.total.map(Duration::from);
        // A gRPC client, or the route in its place, sends a deadline that the gateway keeps, too.
        let said = present
            .has(HeaderSet::GRPC_TIMEOUT)
            .then(|| grpc_call_timeout(request.headers()))
            .flatten();
        let is_first = said.is_some_and(|said| own.is_none_or(|own| said < own));
        Self {
            idempotent: request.method().is_idempotent(),
            attempts: upstream.attempts.max(1),
            callers_deadline: CallersDeadline::of(
                request.headers(),
                present,
                edits,
                upstream.timeouts.response,
            ),
            counted: false,
            was_sent: false,
            request: Some(request),
            progress,
            upgrade: None,
            timeouts: upstream.timeouts,
            total: own.into_iter().chain(said).min().map(Deadline::after),
            total_is_clients: is_first && !edits.fixes(&GRPC_TIMEOUT),
            client,
            interim: None,
            origin: None,
            hosted: present.has(HeaderSet::HOST),
            verbatim: false,
            copy: None,
            kept: None,
        }
    }

    pub(super) fn keep_copy(&mut self) {
        self.copy = self.request.as_ref().map(head_of);
        self.kept = self
            .request
            .as_mut()
            .and_then(|request| request.body_mut().keep());
    }

    pub(super) const fn has_attempts(&self) -> bool {
        self.attempts > if self.counted { 0 } else { 1 }
    }

    /// Waits for `future`, by which nothing is sent, at most until the total time is over.
    pub(super) async fn in_time<F: Future + Unpin>(
        &mut self,
        mut future: F,
    ) -> Result<F::Output, ForwardError> {
        let total = &mut self.total;
        let outcome = poll_fn(|cx| {
            if let Some(total) = total.as_mut()
                && total.poll_passed(cx).is_ready()
            {
                return Poll::Ready(None);
            }
            Pin::new(&mut future).poll(cx).map(Some)
        });
        outcome.await.ok_or(if self.total_is_clients {
            ForwardError::ClientDeadline {
                unsent: !self.was_sent,
            }
        } else {
            ForwardError::TotalTimeout
        })
    }

    pub(super) fn is_over(&self) -> bool {
        self.total.as_ref().is_some_and(Deadline::passed)
    }

    /// The deadline for the end of the response that begins now. This one stays, because the request
    /// may be sent again in place of that response.
    pub(super) fn total_of_response(&self) -> Option<Deadline> {
        let left = self.total.as_ref().map(Deadline::left);
        left.map(Deadline::after)
    }

    pub(super) fn response_began(&self) {
        if let Some(progress) = &self.progress {
            progress.has_response.set(true);
        }
        if let Some(kept) = &self.kept {
            kept.forget();
        }
    }

    pub(super) fn clients_part(&self) -> ClientsPart<'_> {
        ClientsPart {
            progress: self.progress.as_deref(),
            deadline: self.callers_deadline,
            deadline_is_kept: self.total_is_clients,
        }
    }

    /// The response with this head and body, and the client's part in it. `verbatim`: the unparsed
    /// headers of the head.
    pub(super) fn forwarded(
        &self,
        head: Parts,
        body: ResponseBody,
        verbatim: Option<Verbatim>,
    ) -> Forwarded {
        let clients_part = self.clients_part();
        Forwarded {
            blame: clients_part.in_response(&head),
            waited: clients_part.waited(),
            // A body that has arrived cannot be ended by a deadline any more.
            callers_deadline: self.callers_deadline.filter(|_| body.is_streamed()),
            response: Response::from_parts(head, body),
            verbatim,
            tunnel: None,
        }
    }

    /// The timeout for an upload that the upstream does not accept; `None` if there is no body.
    pub(super) fn stall(&self) -> Option<Stall> {
        self.progress
            .as_ref()
            .map(|progress| Stall::new(Rc::clone(progress), self.timeouts.idle))
    }

    pub(super) fn has_copy(&self) -> bool {
        self.copy.is_some() && self.kept.as_ref().is_none_or(|kept| kept.is_whole())
    }

    /// Whether there is something to send: the request, or its copy.
    pub(super) fn is_at_hand(&self) -> bool {
        self.request.is_some() || self.has_copy()
    }

    pub(super) fn restore(&mut self) {
        if self.request.is_none() {
            let copy = self.copy.as_ref().map(head_of);
            self.request = copy.map(|copy| copy.map(|()| RequestBody::empty()));
            if let (Some(request), Some(kept)) = (&mut self.request, &self.kept) {
                *request.body_mut() = kept.again();
            }
        }
    }
}

/// The request without its body and its extensions.
fn head_of<B>(request: &Request<B>) -> Request<()> {
    let mut head = Request::new(());
    *head.method_mut() = request.method().clone();
    *head.uri_mut() = request.uri().clone();
    *head.version_mut() = request.version();
    *head.headers_mut() = request.headers().clone();
    head
}

/// How long the client of a gRPC call waits for the complete response; `None` if it is no gRPC
/// call, or if the value cannot be parsed (gRPC over HTTP/2: `grpc-timeout` is one to eight digits
/// and a unit).
fn grpc_call_timeout(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(GRPC_TIMEOUT)?.as_bytes();
    if !headers
        .get(CONTENT_TYPE)?
        .as_bytes()
        .starts_with(b"application/grpc")
    {
        return None;
    }
    grpc_timeout(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_digits_and_a_unit_of_a_grpc_call() {
        let read = |kind: &str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, kind.parse().expect("a value"));
            headers.insert(GRPC_TIMEOUT, value.parse().expect("a value"));
            grpc_call_timeout(&headers)
        };
        for (value, expected) in [
            ("1H", Duration::from_secs(3600)),
            ("2M", Duration::from_secs(120)),
            ("3S", Duration::from_secs(3)),
            ("250m", Duration::from_millis(250)),
            ("99999999u", Duration::from_micros(99_999_999)),
            ("5n", Duration::from_nanos(5)),
        ] {
            assert_eq!(read("application/grpc+proto", value), Some(expected));
        }
        for value in ["", "S", "1", "123456789S", "1s", "-1S", "1.5S", "1 S"] {
            assert_eq!(read("application/grpc", value), None, "{value}");
        }
        assert_eq!(read("application/json", "1S"), None);
    }
}
