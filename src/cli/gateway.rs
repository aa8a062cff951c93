//! The admin listener of a running gateway: its address, and one request to it, without an HTTP
//! library.

mod whereabouts;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::time::Instant;

use tollgate_config::settings::Listener;
pub(super) use whereabouts::Whereabouts;

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
    /// Whether no other machine can read what is sent there.
    pub(super) fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// Connects `within` this time for one request, which may take until `until`.
    pub(super) fn connect(&self, within: Duration, until: Instant) -> io::Result<Connection> {
        let (stream, host) = match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, within)?;
                (Socket::from(stream), address.to_string())
            }
            Self::Unix(path) => (connect_unix(path, within)?, "localhost".to_owned()),
        };
        Ok(Connection {
            stream,
            host,
            until,
        })
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

pub(super) struct Request<'r> {
    pub(super) method: &'r str,
    pub(super) path: &'r str,
    /// A JSON document, if something is to be changed.
    pub(super) change: Option<&'r str>,
}

impl<'r> Request<'r> {
    pub(super) const fn read(path: &'r str) -> Self {
        Self {
            method: "GET",
            path,
            change: None,
        }
    }
}

/// A connection for one request, on which no read or write lasts longer than until a moment.
pub(super) struct Connection {
    stream: Socket,
    host: String,
    until: Instant,
}

impl Connection {
    /// Sends the request; returns the status and the body.
    pub(super) fn ask(
        mut self,
        request: &Request<'_>,
        token: Option<&str>,
    ) -> io::Result<(u16, String)> {
        let Request {
            method,
            path,
            change,
        } = request;
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.host);
        if let Some(token) = token {
            text += &format!("Authorization: Bearer {token}\r\n");
        }
        if let Some(body) = change {
            let length = body.len();
            text += &format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
        }
        text += "Connection: close\r\n\r\n";
        text += change.unwrap_or_default();
        self.write_all(text.as_bytes())?;
        let mut response = Vec::new();
        self.take(RESPONSE_MAX).read_to_end(&mut response)?;
        parsed(&response)
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        // A socket takes zero microseconds for no limit.
        match left.as_micros() == 0 {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(Some(left)),
        }
    }
}

impl Read for Connection {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(into)
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn parsed(response: &[u8]) -> io::Result<(u16, String)> {
    let response = String::from_utf8_lossy(response);
    let status = response
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3))
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "this is not an HTTP response")
        })?;
    let body = response.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status, body.to_owned()))
}

/// That there is no response, and why. The system's own words for a time-out do not say that it is
/// one: `late` takes their place.
pub(super) fn no_response(error: &io::Error, late: &str) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!("no response {late}"),
        _ => format!("no response: {error}"),
    }
}

pub(super) fn within(span: Duration) -> String {
    match span.subsec_millis() {
        0 => format!("within {} s", span.as_secs()),
        _ => format!("within {} ms", span.as_millis()),
    }
}

const RESPONSE_MAX: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_read_to_its_status_and_body() {
        let good = parsed(b"HTTP/1.1 503 x\r\na: b\r\n\r\n[-] draining\n").expect("a response");
        assert_eq!(good, (503, "[-] draining\n".to_owned()));
        for bad in [&b""[..], b"HTTP/1.1 ", b"SSH-2.0", b"HTTP/1.1 \xff\xff\xff"] {
            assert!(parsed(bad).is_err());
        }
    }
}
