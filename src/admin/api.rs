//! What the handlers of the admin listener share: problem documents, changes by operators, and paths.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, Request};
use axum::response::{IntoResponse, Response};
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Options;
use super::changes::By;
use super::decisions::Decision;
use super::keys::Bucket;
use super::limits::Query;
use super::live::Live;
use super::operators::{Peer, authorise};
use crate::moments::moment;
use tollgate_config::settings::Operator;
use tollgate_limit::hex;

/// An error of the API: a problem document (RFC 9457).
#[derive(Clone, Debug, Serialize)]
pub(super) struct Problem {
    #[serde(skip)]
    pub(super) code: StatusCode,
    title: &'static str,
    status: u16,
    detail: String,
    #[serde(skip)]
    header: Option<(HeaderName, HeaderValue)>,
}

impl Problem {
    pub(super) fn new(code: StatusCode, detail: impl Into<String>) -> Self {
        let challenge = HeaderValue::from_static("Bearer realm=\"tollgate\"");
        Self {
            code,
            title: code.canonical_reason().unwrap_or_default(),
            status: code.as_u16(),
            detail: detail.into(),
            header: (code == StatusCode::UNAUTHORIZED).then_some((WWW_AUTHENTICATE, challenge)),
        }
    }

    pub(super) fn bad_request<T: Into<String>>(detail: T) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(super) fn not_found<T: Into<String>>(detail: T) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    pub(super) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.header = Some((name, value));
        self
    }

    /// The same request may be sent again after so many seconds.
    pub(super) fn retry_after(self, seconds: u64) -> Self {
        self.with(RETRY_AFTER, seconds.into())
    }

    /// Its detail as text, for endpoints that are not of the API.
    pub(super) fn into_text(self) -> Response {
        let response = text(self.code, self.detail + "\n");
        (HeaderMap::from_iter(self.header), response).into_response()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let response = json(self.code, "application/problem+json", &self);
        (HeaderMap::from_iter(self.header), response).into_response()
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Self {
        Self::bad_request(rejection.body_text())
    }
}

pub(super) type Answer = Result<Response, Problem>;

/// A request that changes something: the operator who sends it, and its body.
pub(super) struct Change {
    pub(super) options: Arc<Options>,
    operator: Operator,
    peer: Arc<Peer>,
    body: Bytes,
}

impl FromRequest<Arc<Options>> for Change {
    type Rejection = Problem;

    /// The operator is looked for first: nobody else has a body read.
    async fn from_request(request: Request, options: &Arc<Options>) -> Result<Self, Problem> {
        let (mut head, body) = request.into_parts();
        let peer = head.extensions.remove::<Arc<Peer>>();
        let peer = peer.expect("each connection has its peer");
        let operator = authorise(&(options.operators)(), &head.headers, &peer)?.clone();
        let options = Arc::clone(options);
        let body = read(&head.headers, body).await?;
        Ok(Self {
            options,
            operator,
            peer,
            body,
        })
    }
}

impl Change {
    pub(super) fn asked<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        let asked = serde_json::from_slice(&self.body);
        asked.map_err(|error| Problem::bad_request(format!("the body: {error}")))
    }

    pub(super) fn by(&self) -> By<'_> {
        By {
            operator: &self.operator,
            peer: &self.peer,
            audit: &self.options.audit,
        }
    }

    pub(super) fn live(&self) -> Live {
        self.options.live.for_change()
    }
}

/// Makes a change in a task of its own, so that a client that leaves cannot make one without its record.
pub(super) async fn alone(change: impl Future<Output = Answer> + Send + 'static) -> Answer {
    let broke_off = "the change broke off";
    tokio::spawn(change)
        .await
        .unwrap_or_else(|_| Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, broke_off)))
}

/// Reads the body of a change. A page in a browser cannot send this content type elsewhere without
/// asking first.
async fn read(headers: &HeaderMap, body: Body) -> Result<Bytes, Problem> {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next());
    if !kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json")) {
        let detail = "a change is asked for with `Content-Type: application/json`";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    let body = tokio::time::timeout(BODY_WITHIN, to_bytes(body, BODY_MAX));
    body.await
        .map_err(|_| Problem::bad_request("the body did not end in time"))?
        .map_err(|error| Problem::bad_request(format!("the body: {error}")))
}

/// The identity and the values of a path below `/api/v1/keys/`, percent-decoded.
pub(super) struct KeyPath(Vec<String>);

impl KeyPath {
    pub(super) fn identity(&self) -> &str {
        &self.0[0]
    }

    pub(super) fn values(&self) -> Vec<&str> {
        self.0[1..].iter().map(String::as_str).collect()
    }
}

/// The key in a path that ends with `action` (`""`: with nothing), the part that a router cannot tell
/// from the key. Without an action, the second part is a value, whatever its name is.
pub(super) fn key_path(uri: &Uri, action: &str) -> Result<KeyPath, Problem> {
    let path = uri.path().strip_prefix("/api/v1/keys/").unwrap_or_default();
    let ends = |action: &&str| path.ends_with(&format!("/{action}"));
    let is_value = action.is_empty() && path.split('/').count() == 2;
    let mut actions = ["reset", "override", "grant"].into_iter();
    let found = actions.find(|action| !is_value && ends(action));
    if found.unwrap_or_default() != action {
        let allowed = match found {
            Some("override") => "PUT, DELETE",
            Some(_) => "POST",
            None => "GET, HEAD",
        };
        let detail = format!("this path takes {allowed}");
        let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail);
        return Err(problem.with(ALLOW, HeaderValue::from_static(allowed)));
    }
    let parts = path.split('/').map(decoded).collect();
    let parts: Option<Vec<String>> = parts;
    let mut parts =
        parts.ok_or_else(|| Problem::bad_request("the path is not percent-encoded UTF-8"))?;
    parts.truncate(parts.len() - usize::from(found.is_some()));
    Ok(KeyPath(parts))
}

pub(super) async fn keys_of(name: &str, query: &str, live: &Live) -> Answer {
    let query = Query::parse(query).map_err(Problem::bad_request)?;
    let keys = live.keys(name, query).await;
    Ok(document(&keys.ok_or_else(|| no_limit(name))?))
}

fn no_limit(name: &str) -> Problem {
    Problem::not_found(format!("no limit is called `{}`", name.escape_default()))
}

/// `key` is in hexadecimal digits; the query may have `tier` and `cost`.
pub(super) async fn bucket(
    limit: &str,
    key: &str,
    query: &str,
    live: &Live,
) -> Result<Bucket, Problem> {
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

fn decoded(part: &str) -> Option<String> {
    let is_escape =
        |rest: &str| matches!(rest.as_bytes(), [high, low, ..] if hex::byte(*high, *low).is_some());
    if !part.split('%').skip(1).all(is_escape) {
        return None;
    }
    String::from_utf8(hex::percent_decoded(part.as_bytes(), false).into_owned()).ok()
}

pub(super) async fn decision(id: &str, live: &Live) -> Result<Decision, Problem> {
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

pub(super) fn document(document: &impl Serialize) -> Response {
    json(StatusCode::OK, "application/json", document)
}

fn json(status: StatusCode, content_type: &'static str, document: &impl Serialize) -> Response {
    let text = serde_json::to_string_pretty(document).expect("text, numbers and lists are JSON");
    typed(status, content_type, text + "\n")
}

pub(super) fn text(status: StatusCode, words: String) -> Response {
    typed(status, "text/plain; charset=utf-8", words)
}

/// A response that no cache keeps, and whose content is nothing but `content_type`.
pub(super) fn typed(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Body>,
) -> Response {
    let headers = [
        (CONTENT_TYPE, content_type),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (status, headers, body.into()).into_response()
}

const BODY_MAX: usize = 16 << 10;

const BODY_WITHIN: Duration = Duration::from_secs(10);
