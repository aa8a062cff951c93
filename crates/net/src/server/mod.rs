//! The HTTP server: serves HTTP/1.1 and HTTP/2 on one port, with limits and timeouts, and passes
//! each request to a [`Handler`].
//!
//! It knows nothing of routes and limits. By itself it refuses only input that never becomes a
//! request: too many connections, heads that are too large or too slow, failed handshakes.

mod accept;
mod task_pool;
mod bounds;
mod connection;
pub mod http1;
mod http2;
mod inbound;
mod interim;
mod io;
pub mod proxy_protocol;
mod respond;
mod socket;
mod upgrade;

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use parking_lot::Mutex;

use super::listener::{Address, Bound};
use super::worker::{Worker, Workers};
use tollgate_http1::Verbatim;
use tollgate_policy::Peer;
use tollgate_policy::identity::address::NetSet;

pub use bounds::Bounds;
pub use http2::state::Hold;
pub use http2::window::Window;
pub use inbound::{Inbound, InboundError, Replay};
pub use interim::Interim;
pub use respond::UnreadReason;
use task_pool::TaskPool;
pub use upgrade::{OnUpgrade, Upgraded};

/// Responds to requests. One handler per worker; it never leaves its thread.
pub trait Handler: 'static {
    /// The type of its response bodies; `From<Bytes>` makes the server's own.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Payload
        + From<Bytes>
        + Unpin
        + 'static;

    /// Responds to `request`. It cannot fail, because an error would drop the connection without a
    /// response. The future is dropped when the client leaves.
    fn handle(
        &self,
        connection: &Rc<ConnInfo>,
        request: Request<Inbound>,
    ) -> impl Future<Output = Response<Self::Body>>;

    /// Receives events outside requests, to count them.
    fn observe(&self, _event: Event<'_>) {}
}

pub trait Payload {
    /// Unparsed response headers, written before all others. HTTP/1 only.
    fn take_verbatim(&mut self) -> Option<Verbatim> {
        None
    }

    /// Writes header lines of the response that are not in its header table, each with its line
    /// end, after those that are. Not for framing, Connection or Date. HTTP/1 only.
    fn write_fields(&self, _out: &mut Vec<u8>) {}

    /// The connection failed before the whole response was written. HTTP/1 only; elsewhere a body
    /// that is not read to its end shows it.
    fn unsent(&mut self) {}
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'e> {
    Opened,
    Refused(&'static str),
    AcceptFailed,
    /// The head of a request was refused, so it never became a request.
    BadHead(Unread<'e>),
    /// A handler, or a connection outside its handler, panicked.
    Panicked,
}

/// Input that was refused before it became a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread<'e> {
    /// The reason: a fixed word.
    pub reason: &'static str,
    /// The status of the response; `None`: no response was sent.
    pub status: Option<StatusCode>,
    pub client: Option<IpAddr>,
    pub head: &'e [u8],
}

/// The properties of a connection before any header is trusted.
#[derive(Clone, Debug)]
pub struct ConnInfo {
    /// The peer's address (from the PROXY protocol, if that is trusted); `None` on a Unix socket.
    pub peer: Option<SocketAddr>,
    pub unnamed: bool,
    pub listener: Arc<Address>,
    /// The result of the TLS handshake; `None`: not encrypted.
    pub tls: Option<TlsInfo>,
    pub http2: bool,
    /// Receives interim responses, if they can be sent: not over HTTP/2.
    pub interim: Option<Interim>,
    /// HTTP/2: the flow-control window of the client.
    pub window: Option<Window>,
}

#[derive(Clone, Debug, Default)]
pub struct TlsInfo {
    pub server_name: Option<Arc<str>>,
    pub client_subject: Option<Arc<str>>,
}

impl ConnInfo {
    /// The peer in the form that the policy uses.
    pub fn peer(&self) -> Peer {
        Peer {
            address: self.peer.map(|peer| peer.ip()),
            port: self.peer.map_or(0, |peer| peer.port()),
            tls: self.tls.is_some(),
            unnamed: self.unnamed,
        }
    }

    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

/// The limits and timeouts of connections. A changed setting applies to new connections.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// From the start of a connection, or the first byte of a request, to the head's end.
    pub header_read: Duration,
    /// From the start of a connection to the end of the TLS handshake.
    pub tls_handshake: Duration,
    /// The longest time a client may accept no byte of a response.
    pub body_idle: Duration,
    /// The longest time a connection may be without a request.
    pub keep_alive: Duration,
    /// How long an idle connection stays ready for its next request, so that busy ones never rest.
    pub awake: Duration,
    /// The largest head of a request in bytes; above: 431.
    pub header_bytes: usize,
    /// The largest number of headers of a request; above: 431.
    pub headers: usize,
    /// The longest target of a request in bytes; above: 414.
    pub target_bytes: usize,
    pub connections: usize,
    /// Open connections per address; `None`: only bounded so that one address takes no more than is
    /// left for the others. Addresses in `trusted_proxies` are not counted.
    pub connections_per_address: Option<usize>,
    /// The prefix length by which IPv6 addresses count as one client.
    pub ipv6_prefix: u8,
    /// Concurrent streams of one HTTP/2 connection.
    pub streams: u32,
    /// Whether HTTP/2 clients may request upgrades by extended CONNECT (RFC 8441).
    pub connect_protocol: bool,
    /// Whether a PROXY protocol header is required, and allowed from `trusted_proxies` only.
    pub proxy_protocol: bool,
    /// Peers that are trusted to report the origin of a connection.
    pub trusted_proxies: NetSet,
}

/// How long an idle connection stays ready for its next request.
pub const AWAKE: Duration = Duration::from_secs(1);
/// The largest target of a request in bytes.
pub const TARGET_BYTES: usize = 16 * 1024;

/// Settings for tests: those of a file that says nothing (a test of the program compares them).
impl Default for Settings {
    fn default() -> Self {
        Self {
            header_read: Duration::from_secs(10),
            tls_handshake: Duration::from_secs(10),
            body_idle: Duration::from_secs(30),
            keep_alive: Duration::from_secs(75),
            awake: AWAKE,
            header_bytes: 64 * 1024,
            headers: 100,
            target_bytes: TARGET_BYTES,
            connections: 10_000,
            connections_per_address: None,
            ipv6_prefix: 64,
            streams: 100,
            connect_protocol: true,
            proxy_protocol: false,
            trusted_proxies: NetSet::default(),
        }
    }
}

impl Settings {
    fn trusts(&self, address: IpAddr) -> bool {
        self.trusted_proxies.contains(address)
    }
}

#[derive(Debug)]
pub struct ServerState {
    pub settings: ArcSwap<Settings>,
    pub stats: Stats,
    pub bounds: Bounds,
}

impl ServerState {
    pub fn new(settings: Settings) -> Self {
        Self {
            settings: ArcSwap::from_pointee(settings),
            stats: Stats::default(),
            bounds: Bounds::default(),
        }
    }
}

#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts of connection events that no handler observes. They are rare: plain shared counters suffice.
#[derive(Debug, Default)]
pub struct Stats {
    /// Connections closed because the client did not read what was sent.
    pub slow_reads: Count,
    /// Connections closed because they stood without a request.
    pub idle_closed: Count,
    /// Times that an idle connection gave its buffers back.
    pub rested: Count,
    /// HTTP/2: resets of streams and ends of connections, by error code.
    pub http2_errors: [Count; HTTP2_ERRORS.len()],
}

impl Stats {
    /// Counts a reset of a stream, or the end of a connection, with this code. An orderly end does
    /// not count (RFC 9113 7).
    pub(super) fn http2_error(&self, code: u32) {
        let index = usize::try_from(code).unwrap_or(usize::MAX).checked_sub(1);
        if let Some(count) = index.and_then(|index| self.http2_errors.get(index)) {
            count.add();
        }
    }
}

/// The names of HTTP/2's error codes from 1 on (RFC 9113 7).
pub const HTTP2_ERRORS: [&str; 13] = [
    "protocol_error",
    "internal_error",
    "flow_control_error",
    "settings_timeout",
    "stream_closed",
    "frame_size_error",
    "refused_stream",
    "cancel",
    "compression_error",
    "connect_error",
    "enhance_your_calm",
    "inadequate_security",
    "http_1_1_required",
];

/// Serves the bound listeners with `count` workers; `make` creates a handler on each thread.
pub fn serve<H, M>(
    bound: Vec<Bound>,
    count: usize,
    shared: Arc<ServerState>,
    make: M,
) -> std::io::Result<Workers>
where
    H: Handler,
    M: Fn(usize) -> H + Clone + Send + 'static,
{
    let sockets = Sockets::new(bound, count, shared);
    Workers::start(count, move |worker| {
        sockets.open(worker, &Rc::new(make(worker.index())))
    })
}

/// The sockets of bound listeners, shared out among workers.
#[derive(Clone, Debug)]
pub struct Sockets {
    bound: Arc<Mutex<Vec<Bound>>>,
    workers: usize,
    shared: Arc<ServerState>,
}

impl Sockets {
    pub fn new(bound: Vec<Bound>, workers: usize, shared: Arc<ServerState>) -> Self {
        Self {
            bound: Arc::new(Mutex::new(bound)),
            workers,
            shared,
        }
    }

    /// Serves this worker's sockets. Every worker must call it once, in the order of their numbers.
    pub fn open<H: Handler>(&self, worker: &Rc<Worker>, handler: &Rc<H>) -> std::io::Result<()> {
        for listener in self.bound.lock().iter_mut() {
            // One socket per worker, or more if a predecessor process had more workers.
            let workers_left = self.workers.saturating_sub(worker.index()).max(1);
            let share = listener.sockets.len().div_ceil(workers_left);
            let address = Arc::new(listener.address.clone());
            for socket in listener.sockets.drain(..share) {
                let acceptor = accept::Acceptor {
                    address: Arc::clone(&address),
                    tls: listener.tls.clone(),
                    shared: Arc::clone(&self.shared),
                    handler: Rc::clone(handler),
                    tasks: TaskPool::default(),
                };
                accept::open(socket, acceptor, worker)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
