//! Renders a rejection: as a problem document, as a configured body, or as a gRPC status.

use std::fmt::Write as _;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS,
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, VARY,
    WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use super::{Asked, Refused, Rejection};
use crate::body::{BodyError, ResponseBody};
use crate::forward::ForwardError;
use crate::quota_headers::{EXPOSED, retry_after_secs};
use tollgate_limit::Micros;
use tollgate_net::problem::{END, PROBLEM_JSON, Problem};
use tollgate_policy::RefusalBody;

pub(super) fn response(
    rejection: &Rejection,
    problem: &Problem,
    asked: &Asked,
    own: Option<&RefusalBody>,
    id: &str,
) -> Response<ResponseBody> {
    let mut response = match asked.grpc() {
        Some(content_type) => grpc(rejection, problem, content_type),
        None => document(rejection, problem, asked, own, id),
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(wait) = rejection.retry_after() {
        headers.insert(RETRY_AFTER, number(retry_after_secs(wait)));
    }
    if let Rejection::Unidentified {
        challenge: Some(challenge),
        ..
    } = rejection
    {
        headers.insert(WWW_AUTHENTICATE, challenge.clone());
    }
    if let Some(origin) = asked.origin() {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.insert(
            ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static(EXPOSED),
        );
        headers.insert(VARY, HeaderValue::from_static("Origin"));
        // A script that sent cookies may read that it must wait, but not whether its user is known
        // here.
        if !matches!(rejection, Rejection::Unidentified { .. }) {
            headers.insert(
                ACCESS_CONTROL_ALLOW_CREDENTIALS,
                HeaderValue::from_static("true"),
            );
        }
    }
    match rejection {
        Rejection::Trace => _ = headers.insert(ALLOW, ALLOWED),
        Rejection::Method { allow } => _ = headers.insert(ALLOW, allow.clone()),
        _ => {}
    }
    // If framing or target can be read in two ways, the following bytes may not be a real request,
    // so close the connection. Also close it if a body is malformed, or did not end in time, instead
    // of waiting for its end (RFC 9110 15.5.9).
    let endless = |rejection: &Rejection| {
        matches!(
            rejection,
            Rejection::Upstream(ForwardError::Body(
                BodyError::ClientIdle | BodyError::ClientSlow | BodyError::ClientMalformed
            ))
        )
    };
    if asked.http1 && (matches!(rejection, Rejection::Malformed(_)) || endless(rejection)) {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// A problem document, or the configured body if a limit or its store refuses.
fn document(
    rejection: &Rejection,
    problem: &Problem,
    asked: &Asked,
    own: Option<&RefusalBody>,
    id: &str,
) -> Response<ResponseBody> {
    let refuses = matches!(
        rejection,
        Rejection::Denied(_) | Rejection::StoreDown { .. }
    );
    let (content_type, body) = match own.filter(|_| refuses) {
        Some(own) => (
            own.content_type.clone(),
            fill(own, rejection, problem, id).into(),
        ),
        None => (PROBLEM_JSON, problem_document(rejection, problem, id)),
    };
    // The encoder knows the length of a body that it sends; it must be given the length of a body
    // that HEAD omits.
    let length = asked.head.then(|| HeaderValue::from(body.len()));
    let mut response = Response::new(if asked.head {
        ResponseBody::Empty
    } else {
        body.into()
    });
    *response.status_mut() = problem.status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    if let Some(length) = length {
        response.headers_mut().insert(CONTENT_LENGTH, length);
    }
    response
}

/// A trailers-only response (gRPC over HTTP/2, "Responses"): HTTP 200, the status in the head.
fn grpc(
    rejection: &Rejection,
    problem: &Problem,
    content_type: &HeaderValue,
) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Empty);
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type.clone());
    headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(problem.grpc)));
    let message = percent_encoded(problem.detail);
    headers.insert(
        GRPC_MESSAGE,
        HeaderValue::from_maybe_shared(bytes::Bytes::from(message)).expect("visible ASCII"),
    );
    pushback(rejection, headers);
    response
}

/// When a gRPC client's own retries are allowed; a negative number forbids them (gRFC A6).
fn pushback(rejection: &Rejection, headers: &mut HeaderMap) {
    let value = match rejection {
        Rejection::Denied(Refused {
            never_fits: true, ..
        }) => HeaderValue::from_static("-1"),
        _ => match rejection.retry_after() {
            Some(wait) => HeaderValue::from(wait.ceil_millis()),
            None => return,
        },
    };
    headers.insert(GRPC_RETRY_PUSHBACK, value);
}

/// A problem document (RFC 9457).
pub(super) fn problem_document(rejection: &Rejection, problem: &Problem, id: &str) -> Bytes {
    let (violated, wait) = match rejection {
        Rejection::Denied(refused) => (&refused.violated[..], rejection.retry_after()),
        Rejection::StoreDown { limit } => (std::slice::from_ref(limit), None),
        _ => (&[][..], None),
    };
    complete(constant_part(problem, violated).as_bytes(), wait, id)
}

/// The part of the document that is the same for all requests that one limit refuses; built once.
#[derive(Debug)]
pub struct Denial(Box<[u8]>);

impl Denial {
    /// Creates it for the limit of this name.
    pub fn by(limit: &str) -> Self {
        let part = constant_part(&Problem::QUOTA_EXCEEDED, &[limit]);
        Self(part.into_bytes().into())
    }

    /// The document for a caller that may retry after `wait`, refused by the decision `id`.
    pub(super) fn document(&self, wait: Micros, id: &str) -> Bytes {
        complete(&self.0, Some(wait), id)
    }
}

/// The beginning of a document: the members of `problem`, and the names of the limits that refused.
fn constant_part<N: AsRef<str>>(problem: &Problem, violated: &[N]) -> String {
    let mut out = String::with_capacity(384);
    problem.write_members(&mut out);
    for (place, name) in violated.iter().enumerate() {
        out.push_str(if place == 0 { VIOLATED } else { "\",\"" });
        escape_json(&mut out, name.as_ref());
    }
    if !violated.is_empty() {
        out.push_str("\"]");
    }
    out
}

/// Adds the members of one refusal to the beginning of its document.
fn complete(constant: &[u8], wait: Option<Micros>, id: &str) -> Bytes {
    let mut digits = itoa::Buffer::new();
    let millis = wait.map_or("", |wait| digits.format(wait.ceil_millis()));
    // Hexadecimal digits need no escaping.
    let pieces: [&[u8]; 6] = [
        if millis.is_empty() {
            b""
        } else {
            RETRY_AFTER_MS
        },
        millis.as_bytes(),
        if id.is_empty() { b"" } else { DECISION_ID },
        id.as_bytes(),
        if id.is_empty() { b"" } else { b"\"" },
        END.as_bytes(),
    ];
    // Allocated at its final length, so that it becomes `Bytes` without a copy.
    let rest: usize = pieces.iter().map(|piece| piece.len()).sum();
    let mut out = Vec::with_capacity(constant.len() + rest);
    out.extend_from_slice(constant);
    pieces.iter().for_each(|piece| out.extend_from_slice(piece));
    out.into()
}

/// Writes the header lines of a refusal that [`Rejection::response_without_table`] built, except
/// the quota headers. `wait` is the retry time of the rejection.
pub fn write_headers(out: &mut Vec<u8>, wait: Option<Micros>) {
    out.extend_from_slice(b"content-type: application/problem+json\r\ncache-control: no-store\r\n");
    if let Some(wait) = wait {
        out.extend_from_slice(b"retry-after: ");
        out.extend_from_slice(
            itoa::Buffer::new()
                .format(retry_after_secs(wait))
                .as_bytes(),
        );
        out.extend_from_slice(b"\r\n");
    }
}

const VIOLATED: &str = ",\"violated-policies\":[\"";
const RETRY_AFTER_MS: &[u8] = b",\"retry_after_ms\":";
const DECISION_ID: &[u8] = b",\"decision_id\":\"";

/// Fills the placeholders of a configured body; a brace that opens no known placeholder is copied.
/// An unknown time is `null` in JSON, so that the body stays valid; in a string or another format it
/// is empty.
fn fill(own: &RefusalBody, rejection: &Rejection, problem: &Problem, id: &str) -> String {
    let json = own
        .content_type
        .to_str()
        .is_ok_and(|kind| kind.contains("json"));
    let mut out = String::with_capacity(own.template.len() + 64);
    let mut rest = own.template.as_str();
    while let Some(open) = rest.find('{') {
        out.push_str(&rest[..open]);
        rest = &rest[open..];
        let filled = rest.find('}').and_then(|close| {
            let value = value(&rest[1..close], rejection, problem, id)?;
            Some((value, close + 1))
        });
        match filled {
            Some((value, length)) => {
                match value {
                    Some(value) if json => escape_json(&mut out, &value),
                    Some(value) => out.push_str(&value),
                    None if json && !ends_in_string(&out) => out.push_str("null"),
                    None => {}
                }
                rest = &rest[length..];
            }
            None => {
                out.push('{');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// Whether text that is appended to `json` is inside a string.
fn ends_in_string(json: &str) -> bool {
    let mut inside = false;
    let mut bytes = json.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => inside = !inside,
            b'\\' => _ = bytes.next(),
            _ => {}
        }
    }
    inside
}

/// The value of a placeholder in a refusal body: `None` if there is no such placeholder,
/// `Some(None)` for a time that is unknown.
fn value(name: &str, rejection: &Rejection, problem: &Problem, id: &str) -> Option<Option<String>> {
    let wait = rejection.retry_after();
    Some(Some(match name {
        "status" => problem.status.as_u16().to_string(),
        "title" => problem.title.to_owned(),
        "detail" => problem.detail.to_owned(),
        "type" => problem.kind.to_owned(),
        "code" => rejection.label().to_owned(),
        "retry_after" => return Some(wait.map(|wait| retry_after_secs(wait).to_string())),
        "retry_after_ms" => return Some(wait.map(|wait| wait.ceil_millis().to_string())),
        "decision_id" => id.to_owned(),
        "limits" => match rejection {
            Rejection::Denied(refused) => refused.violated.join(", "),
            Rejection::StoreDown { limit } => limit.to_string(),
            _ => String::new(),
        },
        _ => return None,
    }))
}

fn escape_json(out: &mut String, text: &str) {
    if text
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    {
        return out.push_str(text);
    }
    for character in text.chars() {
        escape_json_char(out, character);
    }
}

/// Appends `character`, escaped for a JSON string.
pub fn escape_json_char(out: &mut String, character: char) {
    match character {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        control if control.is_control() => {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{:04x}", u32::from(control));
        }
        plain => out.push(plain),
    }
}

/// gRPC's percent encoding: encodes everything but printable ASCII, and `%`.
fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'%' => out.push_str("%25"),
            b' '..=b'~' => out.push(char::from(byte)),
            other => {
                let _ = write!(out, "%{other:02X}");
            }
        }
    }
    out
}

/// A number as a header value, with one allocation; `HeaderValue::from` takes two.
fn number(number: u64) -> HeaderValue {
    HeaderValue::from_str(itoa::Buffer::new().format(number)).expect("digits are visible ASCII")
}

/// The methods that are served if a route lists none.
pub const ALLOWED: HeaderValue =
    HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
