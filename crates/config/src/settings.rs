//! What the gateway runs on besides its policy: listeners, bounds, logs, the store. Checked, typed, defaults filled in.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use http::{HeaderName, HeaderValue, Method, StatusCode, Uri};

pub use super::raw::{
    Audit, ClientCertificates, ColdStart, LogFormat, LogKeys, LogLevel, OperationsFormat, StoreKind,
};
use tollgate_limit::{Micros, Timestamp, WhenDown};

/// Where the gateway listens, and what it takes from callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Where it listens; at least one.
    pub listen: Vec<Listener>,
    /// Certificates of the TLS listeners.
    pub certificates: Vec<Certificate>,
    /// The authorities callers' certificates are verified against.
    pub client_ca: Option<PathBuf>,
    /// Whether a caller must show a certificate; means nothing without `client_ca`.
    pub client_certificates: ClientCertificates,
    /// What local buckets hold after a crash.
    pub cold_start: ColdStart,
    /// Where a clean stop saves the local buckets.
    pub state_file: Option<PathBuf>,
    /// Whether connections begin with a PROXY protocol header.
    pub proxy_protocol: bool,
    /// Threads that serve; `None`: one per core.
    pub workers: Option<usize>,
    /// Protocols a connection may be upgraded to, lower case.
    pub upgrades: Vec<String>,
    /// Whether it stands in front of services one depends on.
    pub egress: bool,
    /// Its name in Via; `None`: it adds none.
    pub via: Option<String>,
    /// How long callers may take.
    pub timeouts: ServerTimeouts,
    /// How much callers may send.
    pub bounds: Bounds,
}

/// Where the gateway listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listener {
    /// A TCP port.
    Tcp {
        /// The address.
        address: SocketAddr,
        /// Whether TLS is spoken on it.
        tls: bool,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp {
                address,
                tls: false,
            } => write!(f, "http://{address}"),
            Self::Tcp { address, tls: true } => write!(f, "https://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A certificate with its key, both PEM files that exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The chain.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// Names it is shown for; empty: the names in it.
    pub hosts: Vec<String>,
}

/// How long callers may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerTimeouts {
    /// To send the head of a request.
    pub header_read: Micros,
    /// Between two pieces of a body, either way.
    pub body_idle: Micros,
    /// Between two requests of a connection.
    pub keep_alive: Micros,
    /// For requests in flight when the gateway stops.
    pub drain: Micros,
    /// From SIGTERM to the end of accepting.
    pub drain_delay: Micros,
    /// To finish the TLS handshake.
    pub tls_handshake: Micros,
    /// Without a byte either way on an upgraded connection.
    pub upgrade_idle: Micros,
}

/// How much callers may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Connections at once.
    pub connections: usize,
    /// Connections at once from one address; `None`: as many as it leaves free for others.
    pub connections_per_address: Option<usize>,
    /// Requests at once; `None`: no bound of its own.
    pub requests: Option<usize>,
    /// Bytes of a request's head.
    pub header_bytes: usize,
    /// Fields of a request's head.
    pub headers: usize,
    /// Bytes of a request's body; `None`: unlimited.
    pub body: Option<u64>,
    /// Bytes a second that the body of a request must come at; 0: no such bound.
    pub body_rate: u64,
    /// Streams at once on an HTTP/2 connection.
    pub http2_streams: u32,
}

/// The admin listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Where it listens; `None`: not at all.
    pub listen: Option<Listener>,
    /// Names it may be asked by, besides `localhost` and addresses; lower case.
    pub hosts: Vec<String>,
}

/// Logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Where the access log goes.
    pub access: AccessLog,
    /// How its lines are written.
    pub format: LogFormat,
    /// The share of admitted requests that is logged, in hundredths of a percent.
    pub sample: u16,
    /// Whether identities stand in it as they are.
    pub keys: LogKeys,
    /// Whether queries stand in it.
    pub query: bool,
    /// The least serious message of the operations log.
    pub level: LogLevel,
    /// How the operations log is written.
    pub operations: OperationsFormat,
}

/// Where the access log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// To standard output.
    Stdout,
    /// To standard error.
    Stderr,
    /// Nowhere.
    Off,
    /// To a file.
    File(PathBuf),
}

/// The store that gateways share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// What it is.
    pub kind: StoreKind,
    /// How it is laid out, as its URL says.
    pub topology: Topology,
    /// Where it is, with what secrets the URL holds.
    pub url: Secret,
    /// The user, where the URL names none.
    pub username: Option<String>,
    /// The password, where the URL holds none.
    pub password: Option<Secret>,
    /// How long a request waits for it.
    pub answer_within: Micros,
    /// What happens to requests when it does not answer, where their limits say nothing of their own.
    pub when_down: WhenDown,
    /// What one gateway's local share is a part of; `None`: counted in the store.
    pub replicas: Option<u32>,
    /// What names of keys are hashed with.
    pub key_secret: Secret,
    /// Whether a charge is on disk before it is answered (PostgreSQL).
    pub synchronous_commit: bool,
    /// Whether the gateway creates what it needs (PostgreSQL).
    pub create: bool,
    /// What the audit at the start does.
    pub audit: Audit,
    /// Its TLS, where its URL asks for it.
    pub tls: StoreTls,
}

/// Files of a store's TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreTls {
    /// The authorities that sign the server's certificate; `None`: the system's.
    pub ca: Option<PathBuf>,
    /// Our certificate and its private key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// How a store is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Single,
    /// Redis Sentinel.
    Sentinel,
    /// Redis Cluster.
    Cluster,
}

/// A test of the file: requests in virtual time, and what must come out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestCase {
    /// Its name.
    pub name: String,
    /// The line it begins on.
    pub line: usize,
    /// What is sent, in this order, to the same buckets, which are fresh for each test.
    pub sent: Vec<Sent>,
    /// When it begins.
    pub start: Timestamp,
    /// Headers the requests carry.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// What must come out.
    pub expect: Expect,
}

/// Requests of one line of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// How many.
    pub count: u64,
    /// Their method.
    pub method: Method,
    /// Their host.
    pub host: Option<String>,
    /// Path and query.
    pub uri: Uri,
    /// Who sends them.
    pub caller: Option<TestCaller>,
    /// The address they come from.
    pub from: Option<IpAddr>,
    /// When the first comes, after the test's beginning.
    pub at: Micros,
    /// The time between two of them.
    pub every: Micros,
    /// How long each takes: what a concurrency limit sees of it.
    pub lasting: Micros,
    /// The status that the upstream answers with.
    pub answered: StatusCode,
}

/// `as IDENTITY:CALLER`; [`tollgate_policy::Policy::identify_as`] takes the two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestCaller {
    /// The identity's name.
    pub identity: String,
    /// The identity's index.
    pub index: usize,
    /// A known caller's name, or a key.
    pub name: String,
}

/// What must come out of a test; what is `None` may be anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expect {
    /// Requests admitted.
    pub allowed: Option<u64>,
    /// Requests refused by a limit.
    pub refused: Option<u64>,
    /// The wait the last refusal names, rounded up to whole seconds as the header is.
    pub retry_after: Option<Micros>,
    /// The status of the last answer, when it is the gateway's own.
    pub status: Option<u16>,
    /// The limit that refused last.
    pub limit: Option<String>,
}

/// Something that must not be shown: its `Debug` says only that it is there.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps it.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// The secret itself, for whoever must send or key with it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "Secret(…)");
    }
}
