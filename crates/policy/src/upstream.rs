//! Upstreams as data: their servers, and their timeouts. Holds no connections.

use std::path::PathBuf;
use std::sync::Arc;

use tollgate_limit::Micros;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    pub name: Arc<str>,
    pub servers: Vec<Server>,
    pub balance: Balance,
    pub timeouts: UpstreamTimeouts,
    /// The most idle connections kept per worker and server.
    pub idle_connections: usize,
    /// The most connections per worker and server; further requests wait in a bounded queue.
    pub connections: usize,
    pub host: HostPolicy,
    pub http2: bool,
    /// Whether its interim responses (103 and other 1xx) are passed on, where possible: with
    /// HTTP/1.1 on both sides.
    pub early_hints: bool,
    pub attempts: u32,
    /// The most requests that may wait for a connection, per worker and server.
    pub pending: usize,
    /// The longest a request may wait for a connection; then 503.
    pub queue_timeout: Micros,
    pub tls: TlsFiles,
    pub health: Option<Health>,
    pub eject: Eject,
    /// The failures after which a request may be sent again.
    pub retry: Retry,
    pub resolve_every: Micros,
    pub slow_start: Micros,
    pub proxy_protocol: ProxyProtocol,
}

/// Timeouts of an upstream, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamTimeouts {
    pub connect: Micros,
    pub response: Micros,
    pub idle: Micros,
    /// How long an idle connection is kept at most.
    pub keep_alive: Micros,
    /// From the request's head to the response's end; `None`: no bound of its own.
    pub total: Option<Micros>,
}

/// Active health checks: a server that fails them gets no requests while other servers are healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    pub path: String,
    pub every: Micros,
    pub timeout: Micros,
    pub healthy_after: u32,
    pub unhealthy_after: u32,
}

/// Passive ejection: a server that fails requests is not used for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eject {
    pub failures: u32,
    pub wait: Micros,
}

/// The failures after which a request may be sent again. A request that a server may have read is
/// sent again only if its method is idempotent and it has no body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    pub connect_failure: bool,
    pub refused_stream: bool,
    pub connection_closed: bool,
    pub statuses: Vec<u16>,
}

/// The PROXY protocol header sent to a server (haproxy.org, proxy-protocol.txt).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProxyProtocol {
    #[default]
    Off,
    V1,
    V2,
}

/// A PEM file with its content at the time the configuration was read. A changed file makes a
/// different upstream, with connections of its own.
#[derive(Clone, PartialEq, Eq)]
pub struct PemFile {
    pub path: PathBuf,
    pub content: Arc<[u8]>,
}

impl std::fmt::Debug for PemFile {
    /// Does not print the content, which may be a private key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PemFile")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    pub ca: Option<PemFile>,
    pub certificate: Option<PemFile>,
    pub key: Option<PemFile>,
    /// SHA-256 of the certificates that a server may present; empty: any certificate that verifies.
    pub pinned: Vec<[u8; 32]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub address: ServerAddress,
    /// The TLS server name; `None`: no TLS.
    pub tls: Option<Arc<str>>,
    /// `host[:port]` of its URL, for the Host header.
    pub authority: http::uri::Authority,
    /// The path prefix of its URL, without a trailing slash.
    pub base_path: String,
    pub weight: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServerAddress {
    Tcp(String, u16),
    Unix(PathBuf),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    #[default]
    LeastRequests,
    RoundRobin,
    IdentityHash,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostPolicy {
    #[default]
    Keep,
    Upstream,
    Fixed(http::uri::Authority),
}
