//! The connections of the admin listener.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use http::Request;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use socket2::Socket;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower_service::Service;

use super::listener::{Connection, Listener};
use super::operators::Peer;
use super::{Options, Webhook, events, penalties, routes, thresholds};

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
    tokio::spawn(thresholds::watch(Arc::clone(&options)));
    let webhook = options.webhook.as_ref().map(Webhook::start);
    if let Some(Err(error)) = &webhook {
        tracing::error!(%error, "the thread of the webhook cannot be started: no event is sent");
    }
    tokio::select! {
        () = accept(&listener, &options) => {}
        _ = stopped.wait_for(|stopped| *stopped) => {}
    }
}

async fn accept(listener: &Listener, options: &Arc<Options>) {
    let (router, full) = (routes::router(options), routes::full());
    let (mut served, mut refused) = (Connections::default(), Connections::default());
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            // For example out of descriptors: give the open connections time to end.
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        match served.have_room() {
            true => served.open(stream, peer, &router),
            false => refused.open(stream, peer, &full),
        }
        // Its request may have come with it: it is read before another client can have it closed.
        tokio::task::yield_now().await;
    }
}

/// Open connections, the oldest first.
#[derive(Default)]
struct Connections(Vec<Open>);

struct Open {
    task: JoinHandle<()>,
    idle: Arc<Idle>,
}

/// Since when a connection has had no request; `None`: it has one.
struct Idle(Mutex<Option<Instant>>);

/// A request of a connection, until its response has been made.
struct Busy(Arc<Idle>);

impl Busy {
    fn new(idle: &Arc<Idle>) -> Self {
        *idle.0.lock() = None;
        Self(Arc::clone(idle))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        *self.0.0.lock() = Some(Instant::now());
    }
}

impl Connections {
    /// Makes room for one more. Clients that hold connections open must not block a probe, so the one
    /// that has been idle for longest is closed; a busy one never is. Returns whether there is room.
    /// It never waits, because all clients that connect would wait with it.
    fn have_room(&mut self) -> bool {
        self.0.retain(|one| !one.task.is_finished());
        if self.0.len() < CONNECTIONS_MAX {
            return true;
        }
        let idle = self.0.iter().enumerate();
        let idle = idle.filter_map(|(place, one)| Some(((*one.idle.0.lock())?, place)));
        let Some((_, place)) = idle.min() else {
            return false;
        };
        self.0.remove(place).task.abort();
        true
    }

    fn open(&mut self, stream: Connection, peer: Peer, router: &Router) {
        if self.0.len() >= CONNECTIONS_MAX {
            self.0.remove(0).task.abort();
        }
        let idle = Arc::new(Idle(Mutex::new(Some(Instant::now()))));
        let served = connection(stream, Arc::new(peer), router.clone(), Arc::clone(&idle));
        let task = tokio::spawn(served);
        self.0.push(Open { task, idle });
    }
}

async fn connection(stream: Connection, peer: Arc<Peer>, router: Router, idle: Arc<Idle>) {
    let cut = Arc::new(Notify::new());
    let ended = Arc::clone(&cut);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let busy = Busy::new(&idle);
        request.extensions_mut().insert(Arc::clone(&peer));
        request.extensions_mut().insert(Arc::clone(&cut));
        let response = router.clone().call(request);
        async move {
            // The body ends with its last frame, and the request with its body.
            let until_sent = move |frame| {
                let _busy = &busy;
                frame
            };
            let response = response.await?;
            Ok::<_, Infallible>(response.map(|body| body.map_frame(until_sent)))
        }
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
}

/// There are few probes and scrapers, so a larger number is a mistake.
const CONNECTIONS_MAX: usize = 64;

/// The timeout for a request's head, and between two requests of a connection: longer than common
/// scrape intervals.
const HEADER_READ: Duration = Duration::from_secs(75);

/// The largest head of a request; hyper requires at least 8 KiB.
const HEAD_MAX: usize = 16 << 10;

const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
