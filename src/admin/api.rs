//! The resources under `/api/v1/` that are made from [`Live`] data.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Options;
use super::limits::Query;
use super::live::{Live, moment};
use super::operators::{Peer, authorise};
use super::resets::By;
use super::serve::typed;
use tollgate_limit::hex;

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

/// Responds to `GET path?query`; `None`: there is no such resource.
pub(super) async fn get(
    path: &str,
    query: &str,
    options: &Options,
) -> Option<Response<Full<Bytes>>> {
    let live = &options.live.within(STORE_TIME);
    let parts = match segments(path)? {
        Ok(parts) => parts,
        Err(problem) => return Some(refused(&problem)),
    };
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    Some(match *parts.as_slice() {
        ["decisions", id] => decision(id, live).await,
        ["overrides"] => document(StatusCode::OK, &live.overrides()),
        ["openapi.json"] => typed(StatusCode::OK, "application/json", OPENAPI.to_owned()),
        ["log-level"] => document(StatusCode::OK, &options.log_levels.level()),
        ["audit"] => document(StatusCode::OK, &options.audit.entries()),
        ["figures"] => document(StatusCode::OK, &options.observe().await.0),
        ["limits"] => document(StatusCode::OK, &live.limits()),
        ["limits", name, "keys"] => keys(name, query, live).await,
        ["keys", identity, ref values @ ..] => caller(identity, values, live).await,
        ["buckets", limit, key] => bucket(limit, key, query, live).await,
        _ => return None,
    })
}

/// How long the store is asked for one response, however many buckets it has: a silent store would
/// be waited for once for each.
const STORE_TIME: Duration = Duration::from_secs(2);

/// Responds to a request that changes something.
pub(super) async fn change(
    request: Request<Incoming>,
    peer: Arc<Peer>,
    options: Arc<Options>,
) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let operators = (options.operators)();
    let operator = match authorise(&operators, &head.headers, &peer) {
        Ok(operator) => operator.clone(),
        Err(problem) => return refused(&problem),
    };
    let body = match read(&head, body).await {
        Ok(body) => body,
        Err(problem) => return refused(&problem),
    };
    // A task of its own, so that a client that leaves cannot make a change without its record.
    let change = tokio::spawn(async move {
        let by = By {
            operator: &operator,
            peer: &peer,
        };
        let parts = match segments(head.uri.path()) {
            Some(Ok(parts)) => parts,
            Some(Err(problem)) => return Err(problem),
            None => Vec::new(),
        };
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let (live, audit) = (&options.live, &options.audit);
        match (head.method.as_str(), parts.as_slice()) {
            ("PUT", ["log-level"]) => {
                let done = options.log_levels.change(&asked(&body)?, &by, audit)?;
                Ok(document(StatusCode::OK, &done))
            }
            ("POST", ["keys", identity, values @ .., "reset"]) => {
                let asked = asked(&body)?;
                let done = live.reset(identity, values, &asked, &by, audit).await?;
                Ok(document(StatusCode::OK, &done))
            }
            ("PUT", ["keys", identity, values @ .., "override"]) => {
                let asked = asked(&body)?;
                let done = live.put_override(identity, values, &asked, &by, audit);
                Ok(document(StatusCode::OK, &done.await?))
            }
            ("DELETE", ["keys", identity, values @ .., "override"]) => {
                let lifted = asked(&body)?;
                let done = live.lift_override(identity, values, &lifted, &by, audit);
                Ok(document(StatusCode::OK, &done.await?))
            }
            _ => {
                let detail = "there is no such resource";
                Err(Problem::new(StatusCode::NOT_FOUND, detail))
            }
        }
    });
    match change.await {
        Ok(Ok(done)) => done,
        Ok(Err(problem)) => refused(&problem),
        Err(_) => refused(&Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the change broke off",
        )),
    }
}

/// Reads the body of a change. A page in a browser cannot send this content type elsewhere without
/// asking first.
async fn read(head: &Parts, body: Incoming) -> Result<Bytes, Problem> {
    let wrong = |detail: String| Problem::new(StatusCode::BAD_REQUEST, detail);
    let content_type = head.headers.get(CONTENT_TYPE);
    if content_type.is_none_or(|kind| kind != "application/json") {
        let detail = "a change is asked for with `Content-Type: application/json`";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    let body = Limited::new(body, BODY_MAX).collect();
    let body = tokio::time::timeout(BODY_WITHIN, body)
        .await
        .map_err(|_| wrong("the body did not end in time".to_owned()))?
        .map_err(|error| wrong(format!("the body: {error}")))?;
    Ok(body.to_bytes())
}

/// What the body of a change asks for.
fn asked<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| {
        let detail = format!("the body: {error}");
        Problem::new(StatusCode::BAD_REQUEST, detail)
    })
}

/// The segments of a path after `/api/v1/`, percent-decoded; `None`: it is another path.
fn segments(path: &str) -> Option<Result<Vec<String>, Problem>> {
    let rest = path.strip_prefix("/api/v1/")?;
    let parts: Option<Vec<String>> = rest.split('/').map(decoded).collect();
    let detail = "the path is not percent-encoded UTF-8";
    Some(parts.ok_or_else(|| Problem::new(StatusCode::BAD_REQUEST, detail)))
}

async fn keys(name: &str, query: &str, live: &Live) -> Response<Full<Bytes>> {
    let query = match Query::parse(query) {
        Ok(query) => query,
        Err(wrong) => return refused(&Problem::new(StatusCode::BAD_REQUEST, wrong)),
    };
    match live.keys(name, query).await {
        Some(keys) => document(StatusCode::OK, &keys),
        None => no_limit(name),
    }
}

fn no_limit(name: &str) -> Response<Full<Bytes>> {
    let detail = format!("no limit is called `{}`", name.escape_default());
    refused(&Problem::new(StatusCode::NOT_FOUND, detail))
}

async fn caller(identity: &str, values: &[&str], live: &Live) -> Response<Full<Bytes>> {
    match live.caller(identity, values).await {
        Ok(buckets) => document(StatusCode::OK, &buckets),
        Err(problem) => refused(&problem),
    }
}

/// `key` is in hexadecimal digits; the query may have `tier` and `cost`.
async fn bucket(limit: &str, key: &str, query: &str, live: &Live) -> Response<Full<Bytes>> {
    let wrong = |detail: &str| refused(&Problem::new(StatusCode::BAD_REQUEST, detail));
    let Some(key) = hexadecimal(key) else {
        return wrong("a bucket's key is given in hexadecimal digits; `-` is the empty key");
    };
    let (mut tier, mut cost) = (None, 1);
    for part in query.split('&').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some(("tier", value)) => tier = decoded(value),
            Some(("cost", value)) => match value.parse() {
                Ok(units) => cost = units,
                Err(_) => return wrong("`cost` is a number of units"),
            },
            _ => return wrong("a bucket is asked for with `tier` and `cost` only"),
        }
    }
    match live.bucket(limit, &key, tier.as_deref(), cost).await {
        Some(bucket) => document(StatusCode::OK, &bucket),
        None => no_limit(limit),
    }
}

/// The bytes that `text` has in hexadecimal digits; `-`: none.
fn hexadecimal(text: &str) -> Option<Vec<u8>> {
    match text {
        "-" => Some(Vec::new()),
        "" => None,
        digits => hex::bytes(digits),
    }
}

/// A part of a path, percent-decoded.
fn decoded(part: &str) -> Option<String> {
    let is_escape =
        |rest: &str| matches!(rest.as_bytes(), [high, low, ..] if hex::byte(*high, *low).is_some());
    if !part.split('%').skip(1).all(is_escape) {
        return None;
    }
    String::from_utf8(hex::percent_decoded(part.as_bytes(), false).into_owned()).ok()
}

async fn decision(id: &str, live: &Live) -> Response<Full<Bytes>> {
    if let Some(decision) = live.decision(id).await {
        return document(StatusCode::OK, &decision);
    }
    let kept = live.refusals.as_ref().map(|refusals| refusals.kept());
    let kept = match kept {
        Some((count, Some(oldest))) => {
            format!("it keeps {count}, the oldest of {}", moment(oldest))
        }
        _ => "none has happened yet".to_owned(),
    };
    refused(&Problem::new(
        StatusCode::NOT_FOUND,
        format!(
            "no refusal by a limit has this decision id on this gateway: {kept}; of several gateways ask all, by --admin A,B; the access log has every id"
        ),
    ))
}

/// A response with `document` as JSON.
pub(super) fn document(status: StatusCode, document: &impl Serialize) -> Response<Full<Bytes>> {
    json(status, "application/json", document)
}

/// The response to a request that is refused.
pub(super) fn refused(problem: &Problem) -> Response<Full<Bytes>> {
    let mut response = json(problem.code, "application/problem+json", problem);
    if problem.code == StatusCode::UNAUTHORIZED {
        let challenge = HeaderValue::from_static("Bearer realm=\"tollgate\"");
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    response
}

fn json(
    status: StatusCode,
    content_type: &'static str,
    document: &impl Serialize,
) -> Response<Full<Bytes>> {
    let text = serde_json::to_string_pretty(document).expect("text, numbers and lists are JSON");
    typed(status, content_type, text + "\n")
}

/// The description of the API.
const OPENAPI: &str = include_str!("../../docs/openapi.json");

/// The largest body of a change.
const BODY_MAX: usize = 16 << 10;

/// How long a body may take.
const BODY_WITHIN: Duration = Duration::from_secs(10);
