//! `builtin:echo`: an upstream inside the gateway, for trying out limits.
//!
//! The response to a request with a body is that body, streamed; a request without one receives its
//! own description as JSON.

use std::sync::Arc;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{Method, Request, Response};
use http_body::Body as _;
use serde::Serialize;

use super::body::{Received, ResponseBody};
use super::{MinimumRate, RequestBody};
use crate::proxy_defaults::ProxyDefaults;
use tollgate_limit::Micros;
use tollgate_net::server::Inbound;
use tollgate_policy::Guarded;

/// Echoes `request`: at most `most` bytes of its body, counted in `received`, without trailers in
/// `guarded`. A larger body, or a client that sends nothing for too long, breaks the response off,
/// because its head has been sent by then.
pub(crate) fn reflect(
    request: Request<Inbound>,
    most: Option<u64>,
    defaults: &ProxyDefaults,
    received: Received,
    guarded: &Arc<Guarded>,
) -> Response<ResponseBody> {
    let (head, body) = request.into_parts();
    // A body sent by an attacker must not come back as a page that a browser would run.
    let (body, kind) = if body.is_end_stream() || head.method == Method::HEAD {
        (describe(&head).into(), "application/json")
    } else {
        // The head of the response is sent before the body, so send `100 Continue` too; the client
        // must not wait for it.
        body.want();
        let min_rate = MinimumRate::new(defaults.body_idle, 0, Micros::ZERO, None);
        let (body, _) =
            RequestBody::new(body, most, min_rate, received, false, Arc::clone(guarded));
        let body = ResponseBody::Echo(Box::new(body));
        (body, "application/octet-stream")
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[derive(Serialize)]
struct Description<'r> {
    method: &'r str,
    path: &'r str,
    query: Option<&'r str>,
    headers: Vec<(&'r str, String)>,
}

/// The request's head as JSON, with header values as Latin-1.
fn describe(head: &Parts) -> String {
    let text = |value: &HeaderValue| value.as_bytes().iter().copied().map(char::from).collect();
    let headers = head.headers.iter();
    let description = Description {
        method: head.method.as_str(),
        path: head.uri.path(),
        query: head.uri.query(),
        headers: headers
            .map(|(name, value)| (name.as_str(), text(value)))
            .collect(),
    };
    serde_json::to_string(&description).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_described_as_json_whatever_it_holds() {
        let odd = HeaderValue::from_bytes(b"a\"b\\c\xe9").expect("visible bytes");
        let request = Request::get("/a?b=%22c%22").header("x-odd", odd);
        let (head, ()) = request.body(()).expect("a request").into_parts();
        let text = describe(&head);
        let json: serde_json::Value = serde_json::from_str(&text).expect("valid JSON");
        assert_eq!(json["method"], "GET");
        assert_eq!(json["query"], "b=%22c%22");
        assert_eq!(json["headers"][0][1], "a\"b\\c\u{e9}");
    }
}
