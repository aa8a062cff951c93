//! JSON documents of programs: read within bounds, refused with a problem document.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ORIGIN};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;
use serde::Serialize;
use serde::de::DeserializeOwned;

use tollgate_net::server::Inbound;
use tollgate_net::timers;
use tollgate_response::Problem;

pub(super) struct Refused {
    pub(super) problem: Problem,
    /// What is wrong with it, where more is known than the problem says.
    detail: Option<String>,
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        let detail = None;
        Self { problem, detail }
    }
}

impl Refused {
    /// The document is not what the resource takes, for this reason.
    pub(super) fn bad(detail: impl Into<String>) -> Self {
        Self {
            problem: Problem::BAD_JSON,
            detail: Some(detail.into()),
        }
    }

    pub(super) fn value(&self) -> serde_json::Value {
        let Problem {
            status,
            kind,
            title,
            detail,
            ..
        } = self.problem;
        serde_json::json!({
            "type": kind,
            "title": title,
            "status": status.as_u16(),
            "detail": self.detail.as_deref().unwrap_or(detail),
        })
    }

    pub(super) fn response<B: From<Bytes>>(&self) -> Response<B> {
        let mut response = self.problem.response();
        if self.detail.is_some() {
            *response.body_mut() = B::from(Bytes::from(format!("{}\n", self.value())));
        }
        if self.problem == Problem::POST_ONLY {
            let post = HeaderValue::from_static("POST");
            response.headers_mut().insert(ALLOW, post);
        }
        response
    }
}

/// Reads the document of a request for a JSON resource; also returns the head of the request.
pub(super) async fn read<T: DeserializeOwned>(
    request: Request<Inbound>,
) -> Result<(Request<()>, T), Refused> {
    let (head, mut body) = request.into_parts();
    if head.method != Method::POST {
        return Err(Problem::POST_ONLY.into());
    }
    let headers = &head.headers;
    // A page in a browser on this machine connects from a trusted address.
    if headers.contains_key(ORIGIN) || headers.contains_key("sec-fetch-site") {
        return Err(Problem::WEB_PAGE.into());
    }
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let kind = kind.and_then(|kind| kind.split(|byte| *byte == b';').next());
    if !kind.is_some_and(|kind| kind.trim_ascii().eq_ignore_ascii_case(b"application/json")) {
        return Err(Problem::JSON_ONLY.into());
    }
    if body.size_hint().lower() > DOCUMENT_MAX {
        return Err(Problem::DOCUMENT_TOO_LARGE.into());
    }
    body.want();
    let mut document = BytesMut::new();
    let whole = async {
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let frame = frame.map_err(|_| Problem::CLIENT_GONE)?;
            let Some(data) = frame.data_ref() else {
                continue;
            };
            if document.len() as u64 + data.len() as u64 > DOCUMENT_MAX {
                return Err(Problem::DOCUMENT_TOO_LARGE);
            }
            document.extend_from_slice(data);
        }
        Ok(())
    };
    timers::within(READ_WITHIN, whole)
        .await
        .map_err(|_| Problem::BODY_STALLED)??;
    // The derived readers take a list for an object, too.
    if !document.trim_ascii_start().starts_with(b"{") {
        return Err(Refused::bad("The document is no JSON object."));
    }
    let read = serde_json::from_slice(&document);
    let read = read.map_err(|error| Refused::bad(format!("{error}.")))?;
    Ok((Request::from_parts(head, ()), read))
}

pub(super) fn document<B: From<Bytes>>(value: &impl Serialize) -> Response<B> {
    let text = serde_json::to_string(value).unwrap_or_default() + "\n";
    let mut response = Response::new(B::from(Bytes::from(text)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

pub(super) fn done<B: From<Bytes>>() -> Response<B> {
    let mut response = Response::new(B::from(Bytes::new()));
    *response.status_mut() = StatusCode::NO_CONTENT;
    response.headers_mut().remove(CONTENT_LENGTH);
    response
}

const DOCUMENT_MAX: u64 = 256 << 10;
const READ_WITHIN: Duration = Duration::from_secs(10);
