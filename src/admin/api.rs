//! The resources under `/api/v1/` that are made from [`Live`] data.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Options;
use super::callers::Hint;
use super::changes::By;
use super::decisions::Decision;
use super::keys::Bucket;
use super::limits::Query;
use super::live::{Live, moment};
use super::operators::{Peer, authorise, shown};
use super::overrides::{self, Wanted};
use super::serve::{index, typed};
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

    pub(super) fn bad_request<T: Into<String>>(detail: T) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(super) fn not_found<T: Into<String>>(detail: T) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }
}

/// Responds to `GET path?query`.
///
/// # Errors
/// Why there is no such document.
pub(super) async fn get(
    path: &str,
    query: &str,
    (headers, peer): (&HeaderMap, &Peer),
    options: &Options,
) -> Result<Response<Full<Bytes>>, Problem> {
    let live = &options.live.for_read();
    let parts = segments(path)?;
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    Ok(match *parts.as_slice() {
        ["decisions", id] => document(&decision(id, live).await?),
        ["overrides"] => document(&live.overrides()),
        ["openapi.json"] => typed(StatusCode::OK, "application/json", OPENAPI.to_owned()),
        ["log-level"] => document(&options.log_levels.level()),
        ["audit"] => document(&options.audit.entries()),
        ["figures"] => document(&options.observe().await.0),
        ["limits"] => document(&live.limits()),
        ["limits", name, "keys"] => {
            let query = Query::parse(query).map_err(Problem::bad_request)?;
            let keys = live.keys(name, query).await;
            document(&keys.ok_or_else(|| no_limit(name))?)
        }
        ["keys", identity, ref values @ ..] => {
            // A read needs no operator: what is no proof of one is no error.
            let operators = (options.operators)();
            let hint = match shown(&operators, headers, peer) {
                Ok(Some(_)) => Hint::Given,
                Ok(None) | Err(_) => Hint::None,
            };
            document(&live.caller(identity, values, hint).await?)
        }
        ["buckets", limit, key] => document(&bucket(limit, key, query, live).await?),
        _ => index(StatusCode::NOT_FOUND),
    })
}

/// Responds to a request that changes something.
///
/// # Errors
/// Why nothing, or not everything, was changed.
pub(super) async fn change(
    request: Request<Incoming>,
    peer: Arc<Peer>,
    options: Arc<Options>,
) -> Result<Response<Full<Bytes>>, Problem> {
    let (head, body) = request.into_parts();
    let operator = authorise(&(options.operators)(), &head.headers, &peer)?.clone();
    let body = read(&head, body).await?;
    // A task of its own, so that a client that leaves cannot make a change without its record.
    let change = tokio::spawn(async move {
        let by = By {
            operator: &operator,
            peer: &peer,
            audit: &options.audit,
        };
        let parts = segments(head.uri.path())?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let live = &options.live.for_change();
        Ok(match (head.method.as_str(), parts.as_slice()) {
            ("PUT", ["log-level"]) => document(&options.log_levels.change(&asked(&body)?, &by)?),
            ("POST", ["keys", identity, values @ .., "reset"]) => {
                let asked = asked(&body)?;
                let wanted = Wanted::nothing_set(&asked)?;
                document(&live.reset(identity, values, &wanted, &by).await?)
            }
            ("PUT", ["keys", identity, values @ .., "override"]) => {
                let asked: overrides::Asked = asked(&body)?;
                let wanted = asked.wanted(live.now())?;
                document(&live.change_override(identity, values, &wanted, &by).await?)
            }
            ("DELETE", ["keys", identity, values @ .., "override"]) => {
                let asked = asked(&body)?;
                let wanted = Wanted::nothing_set(&asked)?;
                document(&live.change_override(identity, values, &wanted, &by).await?)
            }
            _ => return Err(Problem::not_found("there is no such resource")),
        })
    });
    let broke_off = "the change broke off";
    change
        .await
        .unwrap_or_else(|_| Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, broke_off)))
}

/// Reads the body of a change. A page in a browser cannot send this content type elsewhere without
/// asking first.
async fn read(head: &Parts, body: Incoming) -> Result<Bytes, Problem> {
    let content_type = head.headers.get(CONTENT_TYPE);
    if content_type.is_none_or(|kind| kind != "application/json") {
        let detail = "a change is asked for with `Content-Type: application/json`";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    let body = Limited::new(body, BODY_MAX).collect();
    let body = tokio::time::timeout(BODY_WITHIN, body)
        .await
        .map_err(|_| Problem::bad_request("the body did not end in time"))?
        .map_err(|error| Problem::bad_request(format!("the body: {error}")))?;
    Ok(body.to_bytes())
}

/// What the body of a change asks for.
fn asked<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| Problem::bad_request(format!("the body: {error}")))
}

/// The segments of a path after `/api/v1/`, percent-decoded.
fn segments(path: &str) -> Result<Vec<String>, Problem> {
    let rest = path.strip_prefix("/api/v1/").unwrap_or_default();
    let parts: Option<Vec<String>> = rest.split('/').map(decoded).collect();
    parts.ok_or_else(|| Problem::bad_request("the path is not percent-encoded UTF-8"))
}

fn no_limit(name: &str) -> Problem {
    Problem::not_found(format!("no limit is called `{}`", name.escape_default()))
}

/// `key` is in hexadecimal digits; the query may have `tier` and `cost`.
async fn bucket(limit: &str, key: &str, query: &str, live: &Live) -> Result<Bucket, Problem> {
    let wrong = Problem::bad_request::<&str>;
    let key = hexadecimal(key).ok_or_else(|| {
        wrong("a bucket's key is given in hexadecimal digits; `-` is the empty key")
    })?;
    let (mut tier, mut cost) = (None, 1);
    for part in query.split('&').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some(("tier", value)) => tier = decoded(value),
            Some(("cost", value)) => {
                let units = value.parse();
                cost = units.map_err(|_| wrong("`cost` is a number of units"))?;
            }
            _ => return Err(wrong("a bucket is asked for with `tier` and `cost` only")),
        }
    }
    let bucket = live.bucket(limit, &key, tier.as_deref(), cost).await;
    bucket.ok_or_else(|| no_limit(limit))
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

async fn decision(id: &str, live: &Live) -> Result<Decision, Problem> {
    if let Some(decision) = live.decision(id).await {
        return Ok(decision);
    }
    let kept = live.refusals.as_ref().map(|refusals| refusals.kept());
    let kept = match kept {
        Some((count, Some(oldest))) => {
            format!("it keeps {count}, the oldest of {}", moment(oldest))
        }
        _ => "none has happened yet".to_owned(),
    };
    Err(Problem::not_found(format!(
        "no refusal by a limit has this decision id on this gateway: {kept}, and knows none of before its start or upgrade; of several gateways ask all, by --admin A,B; the access log has every id"
    )))
}

/// A response with `document` as JSON.
pub(super) fn document(document: &impl Serialize) -> Response<Full<Bytes>> {
    json(StatusCode::OK, "application/json", document)
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
