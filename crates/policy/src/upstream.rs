//! Upstreams as data: their servers, and their timeouts. Holds no connections.

use std::path::PathBuf;
use std::sync::Arc;

use tollgate_limit::Micros;

/// A group of servers that requests are forwarded to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Its name in the file, or its URL.
    pub name: Arc<str>,
    pub servers: Vec<Server>,
    pub balance: Balance,
    pub timeouts: UpstreamTimeouts,
    /// The most idle connections kept per worker and server.
    pub idle_connections: usize,
    /// The most connections per worker and server; further requests wait in a bounded queue.
    pub connections: usize,
    pub host: HostPolicy,
    /// Whether the gateway uses HTTP/2 to it.
    pub http2: bool,
    /// Whether its interim responses (103 and other 1xx) are passed on, where possible: with
    /// HTTP/1.1 on both sides.
    pub early_hints: bool,
    /// The total number of attempts (1: no retry), for requests that may be sent again.
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
    /// How long a recovered server takes to get its full share; zero: no slow start.
    pub slow_start: Micros,
    /// The PROXY protocol header sent on new connections, which are then used for one request each.
    pub proxy_protocol: ProxyProtocol,
}

/// Timeouts of an upstream, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamTimeouts {
    pub connect: Micros,
    /// From the end of the request to the head of the response.
    pub response: Micros,
    /// Between two parts of a body, in either direction.
    pub idle: Micros,
    /// How long an idle connection is kept at most.
    pub keep_alive: Micros,
    /// From the request's head to the response's end; `None`: no bound of its own.
    pub total: Option<Micros>,
}

/// Active health checks: a server that fails them gets no requests while other servers are healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The path requested; any 2xx or 3xx is a success.
    pub path: String,
    pub every: Micros,
    /// How long a response may take.
    pub timeout: Micros,
    /// Successes in a row after which a server is used again.
    pub healthy_after: u32,
    /// Failures in a row after which a server is no longer used.
    pub unhealthy_after: u32,
}

/// Passive ejection: a server that fails requests is not used for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eject {
    /// Failures in a row (no connection, no response, 502, 503, 504) after which a server is
    /// ejected. Outcomes that a client may have caused are not counted.
    pub failures: u32,
    /// The first ejection time; doubled each time, up to 32 times this value.
    pub wait: Micros,
}

/// The failures after which a request may be sent again. A request that a server may have read is
/// sent again only if its method is idempotent and it has no body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// No connection could be made.
    pub connect_failure: bool,
    /// HTTP/2: the stream was refused before it was processed.
    pub refused_stream: bool,
    /// A kept-alive connection closed without a byte of the response.
    pub connection_closed: bool,
    /// A response with one of these statuses.
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
    /// Certificates (PEM) to trust instead of the platform's.
    pub ca: Option<PemFile>,
    /// The certificate chain (PEM) to present.
    pub certificate: Option<PemFile>,
    pub key: Option<PemFile>,
    /// SHA-256 of the certificates that a server may present; empty: any certificate that verifies.
    pub pinned: Vec<[u8; 32]>,
}

/// One server of an upstream.
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
    /// In turn by weight, skipping servers with more than their weight's share of the requests in
    /// flight.
    #[default]
    LeastRequests,
    RoundRobin,
    /// By a consistent hash of the caller's identity and the server's name, by weight.
    IdentityHash,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostPolicy {
    #[default]
    Keep,
    Upstream,
    Fixed(http::uri::Authority),
}
