//! Upstreams as data: where requests go, and how long they may take. No connection lives here.

use std::path::PathBuf;
use std::sync::Arc;

use tollgate_limit::Micros;

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Its name in the file, or its URL.
    pub name: Arc<str>,
    /// Its servers.
    pub servers: Vec<Server>,
    /// How a server is chosen.
    pub balance: Balance,
    /// How long it may take.
    pub timeouts: UpstreamTimeouts,
    /// The most idle connections kept per worker and server.
    pub idle_connections: usize,
    /// The most connections per worker and server; a request beyond waits in a bounded queue.
    pub connections: usize,
    /// What is sent as Host.
    pub host: HostPolicy,
    /// Whether HTTP/2 is spoken to it.
    pub http2: bool,
    /// Whether its interim answers (103 and other 1xx) are passed on, where they can be: HTTP/1.1 on both sides.
    pub early_hints: bool,
    /// Attempts in all (1: no retry), for what may be sent again.
    pub attempts: u32,
    /// The most requests that may wait for a connection, per worker and server.
    pub pending: usize,
    /// The longest a request may wait for a connection; then 503.
    pub queue_timeout: Micros,
    /// Files for TLS towards its servers.
    pub tls: TlsFiles,
    /// Active health checks.
    pub health: Option<Health>,
    /// Passive ejection.
    pub eject: Eject,
    /// After what a request may be sent again.
    pub retry: Retry,
    /// From the request's head to the answer's end; `None`: no bound of its own.
    pub total: Option<Micros>,
    /// How long an answer of the resolver is used.
    pub resolve_every: Micros,
    /// How long a recovered server takes to get its full share; zero: none.
    pub slow_start: Micros,
    /// The PROXY protocol header sent on new connections, which are then used for one request each.
    pub proxy_protocol: ProxyProtocol,
}

/// How long an upstream may take, each bound in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamTimeouts {
    /// To connect.
    pub connect: Micros,
    /// From the end of the request to the head of the answer.
    pub response: Micros,
    /// Between two pieces of a body, either way.
    pub idle: Micros,
}

/// Active health checks: a server that fails them gets no requests while there are others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The path asked for; any 2xx or 3xx is good.
    pub path: String,
    /// How often.
    pub every: Micros,
    /// How long an answer may take.
    pub timeout: Micros,
    /// Good answers in a row that bring a server back.
    pub healthy_after: u32,
    /// Bad answers in a row that take a server out.
    pub unhealthy_after: u32,
}

/// Passive ejection: a server that fails requests is left out for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eject {
    /// Failures in a row (no connection, no answer, 502, 503, 504) that take a server out.
    pub failures: u32,
    /// For how long at first; doubled each time, 32 times that at most.
    pub wait: Micros,
}

impl Default for Eject {
    fn default() -> Self {
        Self {
            failures: 5,
            wait: Micros::from_secs(10),
        }
    }
}

/// After what a request may be sent again. What a server may have read is sent again only if its method is idempotent and
/// it has no body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// No connection could be made.
    pub connect_failure: bool,
    /// HTTP/2: the stream was refused before it was looked at.
    pub refused_stream: bool,
    /// A kept connection closed without a byte of answer.
    pub connection_closed: bool,
    /// These statuses.
    pub statuses: Vec<u16>,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            connect_failure: true,
            refused_stream: true,
            connection_closed: true,
            statuses: Vec::new(),
        }
    }
}

/// The PROXY protocol header sent to a server (haproxy.org, proxy-protocol.txt).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// None.
    #[default]
    Off,
    /// The text form.
    V1,
    /// The binary form.
    V2,
}

/// A PEM file, with what it held when the configuration was read: one that changes makes another upstream of it, with
/// connections of its own.
#[derive(Clone, PartialEq, Eq)]
pub struct PemFile {
    /// Where it is.
    pub path: PathBuf,
    /// What it held.
    pub content: Arc<[u8]>,
}

impl std::fmt::Debug for PemFile {
    /// Not the content, which may be a private key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PemFile")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Files for TLS towards an upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates (PEM) to trust in place of the platform's.
    pub ca: Option<PemFile>,
    /// The certificate chain (PEM) to show.
    pub certificate: Option<PemFile>,
    /// Its key (PEM).
    pub key: Option<PemFile>,
    /// SHA-256 of the certificates that a server may show; empty: any that verifies.
    pub pinned: Vec<[u8; 32]>,
}

/// One server of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Where it listens.
    pub address: ServerAddress,
    /// Whether TLS is spoken to it, and to which name.
    pub tls: Option<Arc<str>>,
    /// `host[:port]` as its URL says, for the Host header.
    pub authority: http::uri::Authority,
    /// A path prefix its URL carries, without a trailing slash.
    pub base_path: String,
    /// Its share among the servers.
    pub weight: u32,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServerAddress {
    /// A name or address, and a port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

/// How a server is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// In turn by weight, passing over those that have more than their weight's share of what is under way.
    #[default]
    LeastRequests,
    /// In turn, by weight.
    RoundRobin,
    /// By a consistent hash of the caller's identity and the server's name, by weight.
    IdentityHash,
}

/// What is sent as Host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostPolicy {
    /// The caller's.
    #[default]
    Keep,
    /// The server's authority.
    Upstream,
    /// This.
    Fixed(http::uri::Authority),
}
