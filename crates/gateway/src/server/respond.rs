//! From a request to its answer: the bounds that the protocol library does not know, and panics.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use super::inbound::Inbound;
use super::{ConnInfo, Event, Handler, Settings, Shared};
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
pub(super) async fn respond<H: Handler>(served: &Served<H>, request: Request<Inbound>) -> Response<H::Body> {
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    if target > served.settings.target_bytes {
        served.shared.stats.oversized_heads.add();
        served.handler.observe(Event::BadHead("target_too_long"));
        return problem(StatusCode::URI_TOO_LONG, TARGET_TOO_LONG);
    }
    if request.headers().len() > served.settings.headers {
        served.shared.stats.oversized_heads.add();
        served.handler.observe(Event::BadHead("head_too_large"));
        return problem(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, HEAD_TOO_LARGE);
    }
    guarded(served, request).await
}

/// Answers a request; what panics is answered too.
pub(super) async fn guarded<H: Handler>(served: &Served<H>, request: Request<Inbound>) -> Response<H::Body> {
    let mut answer = pin!(served.handler.handle(&served.connection, request));
    std::future::poll_fn(|context| {
        // What a panic leaves behind in this request is dropped with it; what others see is behind locks that a
        // panic does not poison, or in cells that are never left half changed.
        match std::panic::catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(context))) {
            Ok(poll) => poll,
            Err(_) => {
                served.shared.stats.panics.add();
                served.handler.observe(Event::Panicked);
                Poll::Ready(problem(StatusCode::INTERNAL_SERVER_ERROR, PANICKED))
            }
        }
    })
    .await
}

/// An answer of the server's own.
fn problem<B: From<Bytes>>(status: StatusCode, body: &'static [u8]) -> Response<B> {
    let mut response = Response::new(B::from(Bytes::from_static(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The answer to a head of HTTP/1 that is no request. The connection ends with it.
pub(super) fn refusal(bad: BadHead) -> Vec<u8> {
    let (status, detail) = match bad {
        BadHead::Malformed => (StatusCode::BAD_REQUEST, "The request is not well-formed HTTP/1.1."),
        BadHead::Version => {
            (StatusCode::HTTP_VERSION_NOT_SUPPORTED, "This gateway does not speak that version of HTTP.")
        }
        BadHead::TooLarge => (
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "The head of the request is larger than this gateway accepts.",
        ),
        BadHead::TargetTooLong => (StatusCode::URI_TOO_LONG, "The request target is longer than this gateway accepts."),
    };
    let title = status.canonical_reason().unwrap_or_default();
    let code = status.as_u16();
    let body =
        format!("{{\"type\":\"about:blank\",\"title\":\"{title}\",\"status\":{code},\"detail\":\"{detail}\"}}\n");
    format!(
        "HTTP/1.1 {code} {title}\r\ncontent-type: application/problem+json\r\ncache-control: no-store\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
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
    use super::{BadHead, OVERLOADED, TOO_SLOW, refusal};

    #[test]
    fn prepared_answers_have_the_length_they_claim() {
        let bad = [BadHead::Malformed, BadHead::Version, BadHead::TooLarge, BadHead::TargetTooLong].map(refusal);
        for answer in [OVERLOADED, TOO_SLOW].into_iter().chain(bad.iter().map(Vec::as_slice)) {
            let text = std::str::from_utf8(answer).expect("ASCII");
            let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
            assert!(head.contains(&format!("content-length: {}", body.len())), "{head}: {}", body.len());
            serde_json::from_str::<serde_json::Value>(body).expect("JSON");
        }
    }
}
