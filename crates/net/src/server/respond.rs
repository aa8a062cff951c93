//! From a request to its answer: the bounds that the protocol library does not know, and panics.

use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::inbound::Inbound;
use super::{ConnInfo, Event, Handler, Settings, Shared, Unread};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use tollgate_http1::request::BadHead;

/// What the requests of one connection share.
pub(super) struct Served<H> {
    pub(super) handler: Rc<H>,
    pub(super) connection: Rc<ConnInfo>,
    pub(super) settings: Arc<Settings>,
    pub(super) shared: Arc<Shared>,
}

/// Answers a request of HTTP/2, whose target and fields the library has not counted.
pub(super) async fn respond<H: Handler>(
    served: &Served<H>,
    request: Request<Inbound>,
) -> Response<H::Body> {
    let target = request
        .uri()
        .path_and_query()
        .map_or(0, |target| target.as_str().len());
    if target > served.settings.target_bytes {
        refused(served, &request, Refusal::of(BadHead::TargetTooLong));
        return problem(StatusCode::URI_TOO_LONG, TARGET_TOO_LONG);
    }
    if request.headers().len() > served.settings.headers {
        refused(served, &request, Refusal::of(BadHead::TooLarge));
        return problem(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, HEAD_TOO_LARGE);
    }
    let mut answer = pin!(served.handler.handle(&served.connection, request));
    std::future::poll_fn(|context| poll_guarded(served, answer.as_mut(), context)).await
}

/// Counts a request of HTTP/2 that is refused by its size, and tells of it.
#[cold]
fn refused<H: Handler>(served: &Served<H>, request: &Request<Inbound>, refusal: Refusal) {
    served.shared.stats.oversized_heads.add();
    let target = request
        .uri()
        .path_and_query()
        .map_or("", |target| target.as_str());
    let head = format!("{} {target} HTTP/2.0\r\n", request.method());
    served.handler.observe(Event::BadHead(
        refusal.told(&served.connection, head.as_bytes()),
    ));
}

/// Polls the handler's answer; what panics is answered too.
pub(super) fn poll_guarded<H: Handler, F: Future<Output = Response<H::Body>>>(
    served: &Served<H>,
    answer: Pin<&mut F>,
    context: &mut Context<'_>,
) -> Poll<Response<H::Body>> {
    // What a panic leaves behind in this request is dropped with it; what others see is behind locks that a
    // panic does not poison, or in cells that are never left half changed.
    match std::panic::catch_unwind(AssertUnwindSafe(|| answer.poll(context))) {
        Ok(poll) => poll,
        Err(_) => {
            served.shared.stats.panics.add();
            served.handler.observe(Event::Panicked);
            Poll::Ready(problem(StatusCode::INTERNAL_SERVER_ERROR, PANICKED))
        }
    }
}

/// An answer of the server's own.
fn problem<B: From<Bytes>>(status: StatusCode, body: &'static [u8]) -> Response<B> {
    let mut response = Response::new(B::from(Bytes::from_static(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// What is said to a client whose first bytes, or whose head, are no request. The connection ends with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    /// A fixed word for metrics and logs.
    reason: &'static str,
    detail: &'static str,
}

impl Refusal {
    /// A request in clear on a port that speaks TLS.
    pub(super) const PLAIN_HTTP: Self = Self {
        status: StatusCode::BAD_REQUEST,
        reason: "plain_http",
        detail: "This is plain HTTP, and this port speaks TLS: use https://.",
    };
    /// A TLS handshake on a port that does not speak TLS.
    pub(super) const TLS: Self = Self {
        status: StatusCode::BAD_REQUEST,
        reason: "tls_on_plain_port",
        detail: "This is a TLS handshake, and this port speaks plain HTTP: use http://.",
    };

    /// For a head of HTTP/1 that is refused.
    pub(super) const fn of(bad: BadHead) -> Self {
        let (status, reason, detail) = match bad {
            BadHead::Malformed => (
                StatusCode::BAD_REQUEST,
                "malformed",
                "The request is not well-formed HTTP/1.1.",
            ),
            BadHead::Version => (
                StatusCode::HTTP_VERSION_NOT_SUPPORTED,
                "malformed",
                "This gateway does not speak that version of HTTP.",
            ),
            BadHead::TooLarge => (
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "head_too_large",
                "The head of the request is larger than this gateway accepts.",
            ),
            BadHead::TargetTooLong => (
                StatusCode::URI_TOO_LONG,
                "target_too_long",
                "The request target is longer than this gateway accepts.",
            ),
        };
        Self {
            status,
            reason,
            detail,
        }
    }

    /// As the handler hears of it.
    pub(super) fn told<'h>(&self, connection: &ConnInfo, head: &'h [u8]) -> Unread<'h> {
        let client = connection.peer.map(|peer| peer.ip());
        Unread {
            reason: self.reason,
            status: Some(self.status),
            client,
            head,
        }
    }

    /// The response over HTTP/1.
    pub(super) fn response(&self) -> Vec<u8> {
        let Self { status, detail, .. } = self;
        let title = status.canonical_reason().unwrap_or_default();
        let code = status.as_u16();
        let body = format!(
            "{{\"type\":\"about:blank\",\"title\":\"{title}\",\"status\":{code},\"detail\":\"{detail}\"}}\n"
        );
        format!(
            "HTTP/1.1 {code} {title}\r\ncontent-type: application/problem+json\r\ncache-control: no-store\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    }
}

const TARGET_TOO_LONG: &[u8] =
    br#"{"type":"about:blank","title":"URI Too Long","status":414,"detail":"The request target is longer than this gateway accepts."}"#;
const HEAD_TOO_LARGE: &[u8] =
    br#"{"type":"about:blank","title":"Request Header Fields Too Large","status":431,"detail":"The request has more header fields than this gateway accepts."}"#;
const PANICKED: &[u8] =
    br#"{"type":"about:blank","title":"Internal Server Error","status":500,"detail":"The gateway failed on this request."}"#;

/// Sent to a connection that exceeds a bound, before it is closed.
pub(super) const OVERLOADED: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 108\r\n\r\n{\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503,\"detail\":\"Too many connections are open.\"}\n";

/// Sent to a connection whose request head does not come to an end, before it is closed.
pub(super) const TOO_SLOW: &[u8] = b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/problem+json\r\nconnection: close\r\ncontent-length: 112\r\n\r\n{\"type\":\"about:blank\",\"title\":\"Request Timeout\",\"status\":408,\"detail\":\"The request head did not come in time.\"}\n";

#[cfg(test)]
mod tests {
    use super::{BadHead, OVERLOADED, Refusal, TOO_SLOW};

    #[test]
    fn prepared_answers_have_the_length_they_claim() {
        let heads = [
            BadHead::Malformed,
            BadHead::Version,
            BadHead::TooLarge,
            BadHead::TargetTooLong,
        ]
        .map(Refusal::of);
        let bad = heads
            .into_iter()
            .chain([Refusal::PLAIN_HTTP, Refusal::TLS])
            .map(|refusal| refusal.response());
        let bad: Vec<Vec<u8>> = bad.collect();
        for answer in [OVERLOADED, TOO_SLOW]
            .into_iter()
            .chain(bad.iter().map(Vec::as_slice))
        {
            let text = std::str::from_utf8(answer).expect("ASCII");
            let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
            assert!(
                head.contains(&format!("content-length: {}", body.len())),
                "{head}: {}",
                body.len()
            );
            serde_json::from_str::<serde_json::Value>(body).expect("JSON");
        }
    }
}
