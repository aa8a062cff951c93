//! Serves HTTP/1.1 and HTTP/2 on one port: accepts, bounds, times, and hands each request to a [`Handler`].
//!
//! It knows nothing of routes and limits. What it refuses by itself is what never becomes a request: too many
//! connections, heads that are too large or too slow, handshakes that fail.

mod accept;
mod ahead;
mod task_pool;
mod bounds;
mod connection;
mod frames;
mod gathered;
mod hpack;
pub mod http1;
mod inbound;
mod interim;
mod io;
pub mod proxy_protocol;
mod respond;
mod socket;
mod state;
mod stats;
mod streams;
mod trailers;
mod upgrade;
mod window;

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;

use super::listener::{Address, Bound};
use super::worker::Workers;
use tollgate_http1::Verbatim;
use tollgate_policy::Peer;
use tollgate_policy::address::NetSet;

pub use bounds::Bounds;
pub use inbound::{Inbound, InboundError};
pub use interim::Interim;
pub use state::Hold;
pub use stats::{HTTP2_ERRORS, Stats};
use task_pool::TaskPool;
pub use upgrade::{Caller, OnUpgrade, Upgraded};
pub use window::Window;

/// Answers requests. One handler per worker; it never leaves its thread.
pub trait Handler: 'static {
    /// The bodies of its answers; `From<Bytes>` makes the server's own.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Payload
        + From<Bytes>
        + Unpin
        + 'static;

    /// Answers `request`. It cannot fail: an error that escaped to the connection would drop it without an answer.
    /// The future is dropped when the caller goes away.
    fn handle(
        &self,
        connection: &Rc<ConnInfo>,
        request: Request<Inbound>,
    ) -> impl Future<Output = Response<Self::Body>>;

    /// Hears of what happens outside requests, to count it.
    fn observe(&self, _event: Event<'_>) {}
}

/// A body, and what it brings along.
pub trait Payload {
    /// Fields of the answer's head as they are to be written, before all others. HTTP/1 only.
    fn take_verbatim(&mut self) -> Option<Verbatim> {
        None
    }

    /// Writes lines of the answer's head that are not in its table of fields, each with its end, behind those that are: no
    /// framing, Connection or Date. HTTP/1 only.
    fn write_fields(&self, _out: &mut Vec<u8>) {}
}

/// What happens outside requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'e> {
    /// A connection was let in.
    Opened,
    /// A connection was turned away, and why.
    Refused(&'static str),
    /// Accepting failed: descriptors or memory ran out.
    AcceptFailed,
    /// The head of a request was refused: it never became a request.
    BadHead(Unread<'e>),
    /// A handler, or a connection outside its handler, panicked.
    Panicked,
}

/// What was refused before it became a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread<'e> {
    /// Why: a fixed word.
    pub reason: &'static str,
    /// The status it was answered with; `None`: it was not answered.
    pub status: Option<StatusCode>,
    /// The client's address.
    pub client: Option<IpAddr>,
    /// How it began, as far as that is known.
    pub head: &'e [u8],
}

/// What is known of a connection before any header is believed.
#[derive(Clone, Debug)]
pub struct ConnInfo {
    /// The other end (as the PROXY protocol told it, where that is trusted); `None` on a Unix socket.
    pub peer: Option<SocketAddr>,
    /// The end that connected to us: differs from `peer` behind the PROXY protocol.
    pub direct: Option<SocketAddr>,
    /// The PROXY protocol's header named nobody.
    pub unnamed: bool,
    /// The listener it came in by.
    pub listener: Arc<Address>,
    /// What the TLS handshake told; `None`: not encrypted.
    pub tls: Option<TlsInfo>,
    /// HTTP/2 (or HTTP/1).
    pub http2: bool,
    /// Takes interim answers, where they can be sent: not over HTTP/2.
    pub interim: Option<Interim>,
    /// HTTP/2: what its caller may still send.
    pub window: Option<Window>,
}

/// What a TLS handshake told.
#[derive(Clone, Debug, Default)]
pub struct TlsInfo {
    /// The name asked for.
    pub server_name: Option<Arc<str>>,
    /// The subject of the verified client certificate.
    pub client_subject: Option<Arc<str>>,
}

impl ConnInfo {
    /// The peer as the policy sees it.
    pub fn peer(&self) -> Peer {
        Peer {
            address: self.peer.map(|peer| peer.ip()),
            port: self.peer.map_or(0, |peer| peer.port()),
            tls: self.tls.is_some(),
            unnamed: self.unnamed,
        }
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

/// How connections are bounded and timed. A changed setting applies to new connections.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// From a connection's start, or a later request's first byte, to the end of the request's head.
    pub header_read: Duration,
    /// From a connection's start to the end of the TLS handshake; the first head's time begins then.
    pub tls_handshake: Duration,
    /// The longest a connection may stand without taking a byte of what we send.
    pub body_idle: Duration,
    /// The longest a connection may stand without a request.
    pub keep_alive: Duration,
    /// How long an idle connection keeps its buffers: long enough that a busy one never gives them back.
    pub awake: Duration,
    /// Bytes of a request's head; above: 431.
    pub header_bytes: usize,
    /// Fields of a request's head; above: 431.
    pub headers: usize,
    /// Bytes of a request's target; above: 414.
    pub target_bytes: usize,
    /// Open connections in all.
    pub connections: usize,
    /// Open connections per address; `None`: no bound but that nobody takes more than is left for the others. Those in
    /// `trusted_proxies` are not counted.
    pub connections_per_address: Option<usize>,
    /// So many leading bits of an IPv6 address are one customer's.
    pub ipv6_prefix: u8,
    /// Concurrent streams of one HTTP/2 connection.
    pub streams: u32,
    /// Whether HTTP/2 callers are told that they may ask for upgrades by extended CONNECT (RFC 8441).
    pub connect_protocol: bool,
    /// Whether connections begin with a PROXY protocol header. Required from `trusted_proxies`, refused from others.
    pub proxy_protocol: bool,
    /// Peers whose word is taken for where a connection came from.
    pub trusted_proxies: NetSet,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            header_read: Duration::from_secs(10),
            tls_handshake: Duration::from_secs(10),
            body_idle: Duration::from_secs(30),
            keep_alive: Duration::from_secs(75),
            awake: Duration::from_secs(1),
            header_bytes: 64 * 1024,
            headers: 100,
            target_bytes: 16 * 1024,
            connections: 10_000,
            connections_per_address: None,
            ipv6_prefix: 64,
            streams: 128,
            connect_protocol: true,
            proxy_protocol: false,
            trusted_proxies: NetSet::default(),
        }
    }
}

impl Settings {
    /// Whether `address` is one whose word is taken for where a connection came from.
    fn trusts(&self, address: IpAddr) -> bool {
        self.trusted_proxies.contains(address)
    }
}

/// What the workers of one server share.
#[derive(Debug)]
pub struct Shared {
    /// How connections are bounded and timed.
    pub settings: ArcSwap<Settings>,
    /// What is counted.
    pub stats: Stats,
    /// How many connections are open, and from where.
    pub bounds: Bounds,
}

impl Shared {
    /// With nothing open and nothing counted.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings: ArcSwap::from_pointee(settings),
            stats: Stats::default(),
            bounds: Bounds::default(),
        }
    }
}

/// Serves the bound listeners with `count` workers; `make` makes each worker's handler, on its thread.
///
/// # Errors
/// When a worker cannot be started.
pub fn serve<H, M>(
    bound: Vec<Bound>,
    count: usize,
    shared: Arc<Shared>,
    make: M,
) -> std::io::Result<Workers>
where
    H: Handler,
    M: Fn(usize) -> H + Clone + Send + 'static,
{
    let workers = serve_held(bound, count, shared, make)?;
    workers.open();
    Ok(workers)
}

/// As [`serve`], but nothing is accepted before [`Workers::open`].
///
/// # Errors
/// As for [`serve`].
pub fn serve_held<H, M>(
    bound: Vec<Bound>,
    count: usize,
    shared: Arc<Shared>,
    make: M,
) -> std::io::Result<Workers>
where
    H: Handler,
    M: Fn(usize) -> H + Clone + Send + 'static,
{
    let bound = Arc::new(parking_lot::Mutex::new(bound));
    Workers::start_held(count, move |worker| {
        let handler = Rc::new(make(worker.index()));
        for listener in bound.lock().iter_mut() {
            // Its own one; more than one where another process left more than there are workers.
            let share = listener
                .sockets
                .len()
                .div_ceil(count.saturating_sub(worker.index()).max(1));
            let address = Arc::new(listener.address.clone());
            for socket in listener.sockets.drain(..share) {
                let acceptor = accept::Acceptor {
                    address: Arc::clone(&address),
                    tls: listener.tls.clone(),
                    shared: Arc::clone(&shared),
                    handler: Rc::clone(&handler),
                    tasks: TaskPool::default(),
                };
                accept::open(socket, acceptor, worker)?;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests;
