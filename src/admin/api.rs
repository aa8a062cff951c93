//! The resources under `/api/v1/` that are made from [`Live`] data.

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use serde::Serialize;

use super::live::{Live, moment};
use super::serve::typed;

/// An error of the API: a problem document (RFC 9457).
#[derive(Clone, Debug, Serialize)]
pub(super) struct Problem {
    #[serde(skip)]
    code: StatusCode,
    title: &'static str,
    status: u16,
    detail: String,
}

impl Problem {
    pub(super) fn new(code: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            code,
            title: code.canonical_reason().unwrap_or_default(),
            status: code.as_u16(),
            detail: detail.into(),
        }
    }
}

/// Responds to `GET path`; `None`: there is no such resource.
pub(super) async fn get(path: &str, live: &Live) -> Option<Response<Full<Bytes>>> {
    let rest = path.strip_prefix("/api/v1/")?;
    if let Some(id) = rest.strip_prefix("decisions/") {
        return Some(decision(id, live).await);
    }
    None
}

async fn decision(id: &str, live: &Live) -> Response<Full<Bytes>> {
    if let Some(decision) = live.decision(id).await {
        return document(StatusCode::OK, &decision);
    }
    let kept = live.refusals.as_ref().map(|refusals| refusals.kept());
    let kept = match kept {
        Some((count, Some(oldest))) => {
            format!("{count} are kept, the oldest of {}", moment(oldest))
        }
        _ => "none has happened yet".to_owned(),
    };
    refused(&Problem::new(
        StatusCode::NOT_FOUND,
        format!("no refusal by a limit has this decision id: {kept}; the access log has every id"),
    ))
}

/// A response with `document` as JSON.
pub(super) fn document(status: StatusCode, document: &impl Serialize) -> Response<Full<Bytes>> {
    json(status, "application/json", document)
}

/// The response to a request that is refused.
pub(super) fn refused(problem: &Problem) -> Response<Full<Bytes>> {
    json(problem.code, "application/problem+json", problem)
}

fn json(
    status: StatusCode,
    content_type: &'static str,
    document: &impl Serialize,
) -> Response<Full<Bytes>> {
    let text = serde_json::to_string_pretty(document).expect("text, numbers and lists are JSON");
    typed(status, content_type, text + "\n")
}
