//! The addresses of the admin listener of a running gateway, and requests to it.

mod connection;
mod addresses;
mod whereabouts;

use std::cell::Cell;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::time::Instant;

pub(super) use addresses::{Addresses, Attempts};
use connection::worded;
pub(super) use connection::{Connection, no_response};
use tollgate_config::settings::Listener;
pub(super) use whereabouts::Whereabouts;

/// How long a gateway is asked at one of its addresses.
pub(super) struct Attempt {
    patience: Duration,
    until: Instant,
    /// How many addresses are left, with this one.
    left: usize,
    /// Whether the gateway has others.
    others: bool,
    /// Set when the address takes the connection.
    connected: Rc<Cell<bool>>,
}

impl Attempt {
    /// At one of `all` addresses, of which `left` are left with this one.
    pub(super) fn new(patience: Duration, until: Instant, left: usize, all: usize) -> Self {
        Self {
            patience,
            until,
            left,
            others: all > 1,
            connected: Rc::default(),
        }
    }

    /// The same, which sets `connected` when the address takes the connection.
    fn noting(self, connected: Rc<Cell<bool>>) -> Self {
        Self { connected, ..self }
    }

    /// How long it may take to connect: an address that drops packets leaves time for the next ones.
    fn connect_within(&self) -> Duration {
        let left = self.until.saturating_duration_since(Instant::now());
        let addresses = u32::try_from(self.left).unwrap_or(u32::MAX);
        // A socket takes zero for no limit.
        (left / addresses).max(Duration::from_millis(1))
    }

    /// The error of a connection, in words. The time for one of several addresses is a fraction of the
    /// time limit, so it is not shown.
    fn worded(&self, error: io::Error) -> io::Error {
        let of_one = worded(error, self.patience, "");
        match (of_one.kind(), self.others) {
            (io::ErrorKind::TimedOut, true) => io::Error::new(io::ErrorKind::TimedOut, "in time"),
            _ => of_one,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl From<Listener> for Place {
    fn from(listener: Listener) -> Self {
        match listener {
            Listener::Tcp { address, .. } => Self::Tcp(reachable(address)),
            Listener::Unix(path) => Self::Unix(path),
        }
    }
}

impl Place {
    /// Sends `GET path`; returns the status and the body.
    ///
    /// # Errors
    /// If the gateway does not respond in time.
    pub(super) fn get(&self, path: &str, attempt: &Attempt) -> io::Result<(u16, String)> {
        self.read(path, None, attempt)
    }

    /// The same, with the token of an operator.
    ///
    /// # Errors
    /// If the gateway does not respond in time.
    pub(super) fn read(
        &self,
        path: &str,
        token: Option<&str>,
        attempt: &Attempt,
    ) -> io::Result<(u16, String)> {
        self.connect(attempt)?.get(path, token)
    }

    /// Whether no other machine can read what is sent there.
    pub(super) fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// Connects for one request, which may take the time that is left of the gateway's.
    ///
    /// # Errors
    /// If the gateway does not accept the connection in time.
    pub(super) fn connect(&self, attempt: &Attempt) -> io::Result<Connection> {
        let within = attempt.connect_within();
        let (stream, host) = match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, within);
                (stream.map(Socket::from), address.to_string())
            }
            Self::Unix(path) => (connect_unix(path, within), "localhost".to_owned()),
        };
        let stream = stream.map_err(|error| attempt.worded(error))?;
        attempt.connected.set(true);
        let (patience, until) = (attempt.patience, attempt.until);
        Ok(Connection::new(stream, host, patience, until))
    }
}

/// Connects to a Unix socket. While its backlog is full, Linux waits as long as for a write;
/// [`Socket::connect_timeout`] would fail at once, because such a connection is never in progress.
fn connect_unix(path: &Path, within: Duration) -> io::Result<Socket> {
    let stream = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    stream.set_write_timeout(Some(within))?;
    stream.connect(&SockAddr::unix(path)?)?;
    Ok(stream)
}

/// A listener on all addresses is queried on the loopback address.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}
