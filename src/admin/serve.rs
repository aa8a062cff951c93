//! The connections and routes of the admin listener.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::Socket;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::listener::Listener;
use super::operators::Peer;
use super::{Options, Webhook, api, events, guard, page, penalties, routes};
use tollgate_telemetry::metrics::Format;

/// Serves until `stopped` is set.
pub(super) async fn serve(
    socket: Socket,
    options: Arc<Options>,
    mut stopped: watch::Receiver<bool>,
) {
    let listener = match Listener::new(socket) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the admin listener cannot be served"),
    };
    // Ends with the runtime, as the connections do.
    tokio::spawn(events::watch(Arc::clone(&options)));
    tokio::spawn(penalties::watch(Arc::clone(&options)));
    let webhook = options.webhook.as_ref().map(Webhook::start);
    if let Some(Err(error)) = &webhook {
        tracing::error!(%error, "the thread of the webhook cannot be started: no event is sent");
    }
    let mut connections: VecDeque<JoinHandle<()>> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|stopped| *stopped) => return,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            // For example out of descriptors: give the open connections time to end.
            Err(_) => {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        connections.retain(|connection| !connection.is_finished());
        // The oldest connection is closed, not the newest: clients that hold connections open must
        // not block a probe.
        if connections.len() >= CONNECTIONS_MAX
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        let (options, peer) = (Arc::clone(&options), Arc::new(peer));
        connections.push_back(tokio::spawn(async move {
            let cut = Arc::new(Notify::new());
            let ended = Arc::clone(&cut);
            let service = service_fn(move |request| {
                let (options, peer) = (Arc::clone(&options), Arc::clone(&peer));
                let cut = Arc::clone(&cut);
                async move { Ok::<_, Infallible>(respond(request, &peer, &options, &cut).await) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_READ)
                .max_buf_size(HEAD_MAX)
                .serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                // A connection that was aborted is not worth logging.
                _ = connection => {}
                // A reader of events does not take them, so waiting for it may not end.
                () = ended.notified() => {}
            }
        }));
    }
}

async fn respond(
    request: Request<Incoming>,
    peer: &Arc<Peer>,
    options: &Arc<Options>,
    cut: &Arc<Notify>,
) -> Response<events::Sent> {
    let streams = request.uri().path() == "/api/v1/events" && request.method() == Method::GET;
    let responded = if streams && guard::check_origin(&request, &options.hosts).is_ok() {
        events::respond(&request, options, cut)
    } else {
        let whole = respond_whole(request, peer, options).await;
        whole.map(|response| response.map(Either::Left))
    };
    responded.unwrap_or_else(|problem| api::refused(&problem).map(Either::Left))
}

async fn respond_whole(
    request: Request<Incoming>,
    peer: &Arc<Peer>,
    options: &Arc<Options>,
) -> Result<Response<Full<Bytes>>, api::Problem> {
    let refuse = |status, words: String| {
        if request.uri().path().starts_with("/api/v1/") {
            api::refused(&api::Problem::new(status, words.trim_end()))
        } else {
            text(status, words)
        }
    };
    if let Err((status, words)) = guard::check_origin(&request, &options.hosts) {
        return Ok(refuse(status, words));
    }
    let query = request.uri().query().unwrap_or_default();
    let asks = |word: &str| {
        query
            .split('&')
            .any(|part| part.split('=').next() == Some(word))
    };
    let path = request.uri().path();
    let Some(methods) = routes::methods(path) else {
        let hint = "`GET /` of this listener lists what there is";
        return match path.starts_with("/api/v1/") {
            true => Err(api::Problem::not_found(hint)),
            false => Ok(index(StatusCode::NOT_FOUND)),
        };
    };
    if !routes::allows(methods, request.method()) {
        let words = format!("this takes {}\n", methods.join(" or "));
        let mut refusal = refuse(StatusCode::METHOD_NOT_ALLOWED, words);
        let allow = HeaderValue::from_str(&routes::allow(methods)).expect("methods are ASCII");
        refusal.headers_mut().insert(header::ALLOW, allow);
        return Ok(refusal);
    }
    Ok(match path {
        _ if path != "/-/reload" && !request.method().is_safe() => {
            api::change(request, Arc::clone(peer), Arc::clone(options)).await?
        }
        "/livez" => text(StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => readyz(options, asks("verbose")),
        "/metrics" => metrics(&request, options),
        "/api/v1/status" => api::document(&(options.status)()),
        "/-/reload" => reload(options).await,
        "/" if page::is_wanted(request.headers()) => page::response(),
        "/" => index(StatusCode::OK),
        path => api::get(path, query, (request.headers(), peer), options).await?,
    })
}

fn readyz(options: &Options, verbose: bool) -> Response<Full<Bytes>> {
    let report = options.readiness.report();
    let (status, word) = match report.ready() {
        true => (StatusCode::OK, "ok\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
    };
    match verbose {
        true => text(status, report.to_string()),
        false => text(status, word.to_owned()),
    }
}

fn metrics(request: &Request<Incoming>, options: &Options) -> Response<Full<Bytes>> {
    let accept = request
        .headers()
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|accept| accept.to_str().ok());
    let format = Format::negotiate(accept);
    typed(
        StatusCode::OK,
        format.content_type(),
        options.metrics.render(format),
    )
}

/// A reload reads files and may take a while, so it does not run on the thread that serves probes.
async fn reload(options: &Arc<Options>) -> Response<Full<Bytes>> {
    let reload = Arc::clone(&options.reload);
    match tokio::task::spawn_blocking(move || reload()).await {
        Ok(Ok(words)) => text(StatusCode::OK, words + "\n"),
        Ok(Err(words)) => text(StatusCode::UNPROCESSABLE_ENTITY, words + "\n"),
        Err(_) => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the reload broke off\n".to_owned(),
        ),
    }
}

/// The list of resources.
pub(super) fn index(status: StatusCode) -> Response<Full<Bytes>> {
    text(status, INDEX.to_owned())
}

fn text(status: StatusCode, words: String) -> Response<Full<Bytes>> {
    typed(status, "text/plain; charset=utf-8", words)
}

/// A response that no cache keeps, and whose content is nothing but `content_type`.
pub(super) fn typed<B>(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<B>,
) -> Response<B> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

const INDEX: &str = "\
GET  /                the page, for a browser
GET  /livez           the process answers
GET  /readyz          it takes requests (?verbose says why not)
GET  /metrics         Prometheus or OpenMetrics text
GET  /api/v1/status   what runs, as JSON
GET  /api/v1/limits   every limit and its counts
GET  /api/v1/limits/NAME/keys   who is refused now (?near: who is close)
GET  /api/v1/keys/IDENTITY/VALUE   how a caller's buckets stand
GET  /api/v1/decisions/ID   why a request was refused
GET  /api/v1/events   what changes, as Server-Sent Events
GET  /api/v1/figures   all counters, who is refused or close, what is not exact
GET  /api/v1/overrides   the overrides in force
GET  /api/v1/audit   what operators changed
GET  /api/v1/log-level   how much the operations log says
GET  /api/v1/openapi.json   the description of all this for programs
PUT  /api/v1/log-level   change it, for a while
POST /api/v1/keys/IDENTITY/VALUE/reset   fill a caller's buckets
PUT  /api/v1/keys/IDENTITY/VALUE/override   other numbers, no limit or a block for a while (DELETE lifts them)
POST /-/reload        load the configuration again
";

/// There are few probes and scrapers, so a larger number is a mistake; the oldest connection is
/// closed.
const CONNECTIONS_MAX: usize = 64;

/// The timeout for a request's head, and between two requests of a connection: longer than common
/// scrape intervals.
const HEADER_READ: Duration = Duration::from_secs(75);

/// The largest head of a request; hyper requires at least 8 KiB.
const HEAD_MAX: usize = 16 << 10;

const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
