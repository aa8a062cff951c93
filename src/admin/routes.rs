//! The endpoints of the admin listener: what is not in [`ENDPOINTS`] does not exist. A new endpoint is a
//! line there and a handler below, and its description in `docs/openapi.json`; a test compares the two.

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post, put};
use http::{HeaderMap, Method, StatusCode, Uri, header};

use super::api::{
    Answer, Change, Problem, alone, bucket, decision, document, key_path, keys_of, text, typed,
};
use super::overrides::{self, Wanted};
use super::{Options, events, guard, page};
use tollgate_telemetry::metrics::Format;

pub struct Endpoint {
    /// Its method; GET includes HEAD.
    pub method: &'static str,
    /// Its path as in `docs/openapi.json`. `{value}` is any number of segments.
    pub path: &'static str,
    pub help: &'static str,
    handler: fn() -> MethodRouter<Shared>,
}

type Shared = Arc<Options>;

/// All endpoints, in the order in which `GET /` lists them.
#[rustfmt::skip]
pub const ENDPOINTS: &[Endpoint] = &[
    Endpoint { method: "GET", path: "/", help: "the page, for a browser", handler: || get(root) },
    Endpoint { method: "GET", path: "/livez", help: "the process answers", handler: || get(async || text(StatusCode::OK, "ok\n".to_owned())) },
    Endpoint { method: "GET", path: "/readyz", help: "it takes requests (?verbose says why not)", handler: || get(readyz) },
    Endpoint { method: "GET", path: "/metrics", help: "Prometheus or OpenMetrics text", handler: || get(metrics) },
    Endpoint { method: "GET", path: "/api/v1/status", help: "what runs, as JSON", handler: || get(async |State(all): State<Shared>| document(&(all.status)())) },
    Endpoint { method: "GET", path: "/api/v1/limits", help: "every limit and its counts", handler: || get(async |State(all): State<Shared>| document(&all.live.limits())) },
    Endpoint { method: "GET", path: "/api/v1/limits/{name}/keys", help: "who is refused now (?near: who is close)", handler: || get(keys) },
    Endpoint { method: "GET", path: "/api/v1/keys/{identity}", help: "how the buckets of everyone, or of a caller by its name in logs, stand", handler: || get(key) },
    Endpoint { method: "GET", path: "/api/v1/keys/{identity}/{value}", help: "how a caller's buckets stand", handler: || get(key) },
    Endpoint { method: "GET", path: "/api/v1/buckets/{limit}/{key}", help: "how one bucket stands, by the bytes of its key", handler: || get(one_bucket) },
    Endpoint { method: "GET", path: "/api/v1/decisions/{id}", help: "why a request was refused", handler: || get(one_decision) },
    Endpoint { method: "GET", path: "/api/v1/events", help: "what changes, as Server-Sent Events", handler: || get(events::respond) },
    Endpoint { method: "GET", path: "/api/v1/figures", help: "all counters, who is refused or close, what is not exact", handler: || get(async |State(all): State<Shared>| document(&all.observe().await.0)) },
    Endpoint { method: "GET", path: "/api/v1/overrides", help: "the overrides in force", handler: || get(async |State(all): State<Shared>| document(&all.live.overrides())) },
    Endpoint { method: "GET", path: "/api/v1/audit", help: "what operators changed", handler: || get(async |State(all): State<Shared>| document(&all.audit.entries((all.status)().store.and_then(|store| store.server)))) },
    Endpoint { method: "GET", path: "/api/v1/log-level", help: "how much the operations log says", handler: || get(async |State(all): State<Shared>| document(&all.log_levels.level())) },
    Endpoint { method: "GET", path: "/api/v1/openapi.json", help: "the description of all this for programs", handler: || get(async || typed(StatusCode::OK, "application/json", OPENAPI)) },
    Endpoint { method: "PUT", path: "/api/v1/log-level", help: "change it, for a while", handler: || put(set_log_level) },
    Endpoint { method: "POST", path: "/api/v1/keys/{identity}/{value}/reset", help: "fill a caller's buckets", handler: || post(reset_or_grant) },
    Endpoint { method: "POST", path: "/api/v1/keys/{identity}/{value}/grant", help: "add units to a caller's running window", handler: MethodRouter::new },
    Endpoint { method: "PUT", path: "/api/v1/keys/{identity}/{value}/override", help: "other numbers, no limit or a block for a while", handler: || put(change_override) },
    Endpoint { method: "DELETE", path: "/api/v1/keys/{identity}/{value}/override", help: "lift an override before its end", handler: || delete(change_override) },
    Endpoint { method: "POST", path: "/-/reload", help: "load the configuration again", handler: || post(reload) },
];

pub(super) fn router(options: &Shared) -> Router {
    let mut router = Router::new();
    for endpoint in ENDPOINTS {
        // A router takes any number of segments only at the end of a path; `key_path` reads what follows.
        let path = match endpoint.path.split_once("/{value}") {
            Some((before, _)) => format!("{before}/{{*rest}}"),
            None => endpoint.path.to_owned(),
        };
        router = router.route(&path, (endpoint.handler)());
    }
    router
        .fallback(unknown)
        .method_not_allowed_fallback(not_allowed)
        .layer(from_fn_with_state(Arc::clone(options), guarded))
        .with_state(Arc::clone(options))
}

/// The router of a connection beyond the bound.
pub(super) fn full() -> Router {
    Router::new().fallback(async || {
        let detail = "too many connections of the admin listener are busy: try again later";
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).retry_after(1);
        ([(header::CONNECTION, "close")], problem)
    })
}

/// Refuses what a web page of another site sends, before any handler. Below `/api/v1/` every error is a
/// problem document, elsewhere it is text.
async fn guarded(State(options): State<Shared>, request: Request, next: Next) -> Response {
    match guard::check_origin(&request, &options.hosts) {
        Ok(()) => next.run(request).await,
        Err(problem) => refused(request.uri(), problem),
    }
}

fn refused(uri: &Uri, problem: Problem) -> Response {
    match uri.path().starts_with("/api/v1/") {
        true => problem.into_response(),
        false => problem.into_text(),
    }
}

async fn unknown(uri: Uri) -> Response {
    match uri.path().starts_with("/api/v1/") {
        true => Problem::not_found("`GET /` of this listener lists what there is").into_response(),
        false => index(StatusCode::NOT_FOUND),
    }
}

async fn not_allowed(method: Method, uri: Uri) -> Response {
    let detail = format!("{method} is not for this path: `Allow` says what is");
    refused(&uri, Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail))
}

fn index(status: StatusCode) -> Response {
    let line = |one: &Endpoint| format!("{:<6} {}   {}\n", one.method, one.path, one.help);
    text(status, ENDPOINTS.iter().map(line).collect())
}

async fn root(headers: HeaderMap) -> Response {
    match page::is_wanted(&headers) {
        true => page::response(),
        false => index(StatusCode::OK),
    }
}

async fn readyz(State(options): State<Shared>, uri: Uri) -> Response {
    let report = options.readiness.report();
    let (status, word) = match report.ready() {
        true => (StatusCode::OK, "ok\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
    };
    let mut asked = uri.query().unwrap_or_default().split('&');
    match asked.any(|part| part.split('=').next() == Some("verbose")) {
        true => text(status, report.to_string()),
        false => text(status, word.to_owned()),
    }
}

async fn metrics(State(options): State<Shared>, headers: HeaderMap) -> Response {
    let accept = headers.get_all(header::ACCEPT).iter();
    let format = Format::negotiate(accept.filter_map(|accept| accept.to_str().ok()));
    typed(
        StatusCode::OK,
        format.content_type(),
        options.metrics.render(format),
    )
}

async fn keys(
    State(options): State<Shared>,
    name: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Answer {
    keys_of(
        &name?,
        uri.query().unwrap_or_default(),
        &options.live.for_read(),
    )
    .await
}

async fn key(State(options): State<Shared>, uri: Uri) -> Answer {
    let path = key_path(&uri, "")?;
    let live = options.live.for_read();
    Ok(document(
        &live.caller(path.identity(), &path.values()).await?,
    ))
}

async fn one_bucket(
    State(options): State<Shared>,
    path: Result<Path<(String, String)>, PathRejection>,
    uri: Uri,
) -> Answer {
    let Path((limit, key)) = path?;
    let query = uri.query().unwrap_or_default();
    Ok(document(
        &bucket(&limit, &key, query, &options.live.for_read()).await?,
    ))
}

async fn one_decision(
    State(options): State<Shared>,
    id: Result<Path<String>, PathRejection>,
) -> Answer {
    Ok(document(&decision(&id?, &options.live.for_read()).await?))
}

async fn set_log_level(change: Change) -> Answer {
    let levels = &change.options.log_levels;
    Ok(document(&levels.change(&change.asked()?, &change.by())?))
}

/// Both are changes by POST of what follows `/api/v1/keys/`, which a router cannot tell apart.
async fn reset_or_grant(uri: Uri, change: Change) -> Answer {
    let granted = key_path(&uri, "grant");
    let is_grant = granted.is_ok();
    let path = granted.or_else(|_| key_path(&uri, "reset"))?;
    alone(async move {
        let (values, live, by) = (path.values(), change.live(), change.by());
        if is_grant {
            let asked = change.asked()?;
            let done = live.grant(path.identity(), &values, &asked, &by);
            return Ok(document(&done.await?));
        }
        let asked = change.asked()?;
        let wanted = Wanted::of(&asked)?;
        let done = live.reset(path.identity(), &values, &wanted, &by);
        Ok(document(&done.await?))
    })
    .await
}

async fn change_override(method: Method, uri: Uri, change: Change) -> Answer {
    let path = key_path(&uri, "override")?;
    alone(async move {
        let (values, live, by) = (path.values(), change.live(), change.by());
        if method == Method::PUT {
            let asked = change.asked::<overrides::OverrideRequest>()?;
            let (wanted, set) = asked.wanted(live.now())?;
            let done = live.change_override(path.identity(), &values, &wanted, &set, &by);
            return Ok(document(&done.await?));
        }
        let asked = change.asked()?;
        let wanted = Wanted::of(&asked)?;
        let done = live.lift(path.identity(), &values, &wanted, &by);
        Ok(document(&done.await?))
    })
    .await
}

/// A reload reads files and may take a while, so it does not run on the thread that serves probes.
async fn reload(State(options): State<Shared>) -> Response {
    let done = tokio::task::spawn_blocking(move || (options.reload)());
    let (status, words) = match done.await {
        Ok(Ok(words)) => (StatusCode::OK, words),
        Ok(Err(words)) => (StatusCode::UNPROCESSABLE_ENTITY, words),
        Err(_) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "the reload broke off".to_owned(),
        ),
    };
    text(status, words + "\n")
}

const OPENAPI: &str = include_str!("../../docs/openapi.json");
