//! `builtin:echo`: an upstream inside the gateway, for trying out limits.
//!
//! The response to a request with a body is that body, streamed; a request without one receives its
//! own description as JSON.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use serde::Serialize;

use super::body::{BodyError, FramePoll, Received, ResponseBody};
use tollgate_limit::Micros;
use tollgate_net::server::Inbound;
use tollgate_net::timers::Expiry;

/// Echoes `request`: at most `most` bytes of its body, counted in `received`. A larger body, or a
/// client that sends nothing for `idle`, breaks the response off, because its head has been sent by
/// then.
pub fn reflect(
    request: Request<Inbound>,
    most: Option<u64>,
    idle: Micros,
    received: Received,
) -> Response<ResponseBody> {
    let (head, body) = request.into_parts();
    let with_body = !body.is_end_stream() && head.method != Method::HEAD;
    let mut response = if with_body {
        // The head of the response is sent before the body, so send `100 Continue` too; the client
        // must not wait for it.
        body.want();
        let left = most.unwrap_or(u64::MAX);
        let body = EchoBody {
            incoming: body,
            left,
            idle: Expiry::after(idle.into()),
            received,
        };
        Response::new(ResponseBody::Echo(Box::new(body)))
    } else {
        let text = describe(&head);
        let length = text.len();
        let mut response = Response::new(if head.method == Method::HEAD {
            ResponseBody::Empty
        } else {
            text.into()
        });
        response
            .headers_mut()
            .insert(http::header::CONTENT_LENGTH, HeaderValue::from(length));
        response
    };
    // A body sent by an attacker must not come back as a page that a browser would run.
    let kind = if with_body {
        "application/octet-stream"
    } else {
        "application/json"
    };
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

#[derive(Debug)]
pub struct EchoBody {
    incoming: Inbound,
    /// The bytes that the route still allows.
    left: u64,
    idle: Expiry,
    received: Received,
}

impl Body for EchoBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> FramePoll {
        let body = self.get_mut();
        let frame = match Pin::new(&mut body.incoming).poll_frame(cx) {
            Poll::Ready(frame) => frame.transpose(),
            Poll::Pending => {
                return body
                    .idle
                    .poll(cx)
                    .map(|()| Some(Err(BodyError::ClientIdle)));
            }
        };
        body.idle.reset();
        if let Ok(Some(piece)) = frame
            .as_ref()
            .map(|frame| frame.as_ref().and_then(Frame::data_ref))
        {
            body.received.add(piece.len());
            match body.left.checked_sub(piece.len() as u64) {
                Some(left) => body.left = left,
                None => return Poll::Ready(Some(Err(BodyError::TooBig))),
            }
        }
        Poll::Ready(frame.map_err(BodyError::Client).transpose())
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
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
