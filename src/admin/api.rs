//! The resources under `/api/v1/` that are made from [`Live`] data.

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use serde::Serialize;

use super::limits::Query;
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

/// Responds to `GET path?query`; `None`: there is no such resource.
pub(super) async fn get(path: &str, query: &str, live: &Live) -> Option<Response<Full<Bytes>>> {
    let rest = path.strip_prefix("/api/v1/")?;
    let Some(parts) = rest.split('/').map(decoded).collect::<Option<Vec<_>>>() else {
        let detail = "the path is not percent-encoded UTF-8";
        return Some(refused(&Problem::new(StatusCode::BAD_REQUEST, detail)));
    };
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    Some(match *parts.as_slice() {
        ["decisions", id] => decision(id, live).await,
        ["limits"] => document(StatusCode::OK, &live.limits()),
        ["limits", name, "keys"] => keys(name, query, live).await,
        ["keys", identity, ref values @ ..] => caller(identity, values, live).await,
        ["buckets", limit, key] => bucket(limit, key, query, live).await,
        _ => return None,
    })
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
        Err(error) => refused(&Problem::new(StatusCode::NOT_FOUND, error.to_string())),
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
    if text == "-" {
        return Some(Vec::new());
    }
    if text.is_empty()
        || !text.len().is_multiple_of(2)
        || !text.bytes().all(|one| one.is_ascii_hexdigit())
    {
        return None;
    }
    let pair = |at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(pair).collect()
}

/// A part of a path, percent-decoded.
fn decoded(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok()?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
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
