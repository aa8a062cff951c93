//! Requests to the admin listener of a running gateway. They use no HTTP library: each connection
//! carries one request and one response.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use socket2::Socket;

use super::args::ConfigFile;
use super::load;
use tollgate_config::settings::Listener;

/// The address of an admin listener.
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
    /// The addresses of the admin listener called `name`; without a name, of the one that the
    /// configuration names.
    ///
    /// # Errors
    /// Why it is not known.
    pub(super) fn find(name: Option<&str>, config: &ConfigFile) -> Result<Vec<Self>, String> {
        if let Some(name) = name {
            return Self::named(name).map_err(|error| format!("--admin {name}: {error}"));
        }
        match load::admin_listener(config) {
            Ok(Some(listener)) => Ok(vec![listener.into()]),
            Ok(None) => Err("the configuration switches the admin listener off; \
                 if the gateway has one, name it with --admin"
                .to_owned()),
            Err(error) => Err(format!(
                "the configuration does not say where the admin listener is; \
                 name it with --admin\n{}",
                error.render(super::colour())
            )),
        }
    }

    /// The addresses of a listener called `name`: `127.0.0.1:9180`, `unix:/run/admin.sock`.
    ///
    /// # Errors
    /// If the name is not an address and cannot be looked up.
    fn named(name: &str) -> io::Result<Vec<Self>> {
        if let Some(path) = name.strip_prefix("unix:") {
            return Ok(vec![Self::Unix(path.into())]);
        }
        let name = name
            .strip_prefix("http://")
            .unwrap_or(name)
            .trim_end_matches('/');
        Ok(name
            .to_socket_addrs()?
            .map(|address| Self::Tcp(reachable(address)))
            .collect())
    }

    /// Sends `GET path`; returns the status and the body.
    ///
    /// # Errors
    /// If the gateway does not respond within `patience`.
    pub(super) fn get(&self, path: &str, patience: Duration) -> io::Result<(u16, String)> {
        self.send(&format!("GET {path} HTTP/1.1\r\n"), "", patience)
    }

    /// Sends `method path` with a JSON document; returns the status and the body.
    ///
    /// # Errors
    /// If the gateway does not answer within `patience`.
    pub(super) fn change(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: &str,
        patience: Duration,
    ) -> io::Result<(u16, String)> {
        let token = token.map_or_else(String::new, |token| {
            format!("Authorization: Bearer {token}\r\n")
        });
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{token}"
        );
        self.send(&head, body, patience)
    }

    /// `head`: the first line and headers that depend on the request.
    fn send(&self, head: &str, body: &str, patience: Duration) -> io::Result<(u16, String)> {
        let (stream, host): (Socket, String) = match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, patience)?;
                (stream.into(), address.to_string())
            }
            Self::Unix(socket) => (UnixStream::connect(socket)?.into(), "localhost".to_owned()),
        };
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let request = format!("{head}Host: {host}\r\nConnection: close\r\n\r\n{body}");
        exchange(stream, &request)
    }
}

fn exchange(mut stream: impl Read + Write, request: &str) -> io::Result<(u16, String)> {
    stream.write_all(request.as_bytes())?;
    let mut response = Vec::new();
    stream.take(RESPONSE_MAX).read_to_end(&mut response)?;
    let response = String::from_utf8_lossy(&response);
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

/// The largest response.
const RESPONSE_MAX: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_read_to_its_status_and_body() {
        struct Script(&'static [u8]);
        impl Read for Script {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                self.0.read(into)
            }
        }
        impl Write for Script {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let good = exchange(
            Script(b"HTTP/1.1 503 x\r\na: b\r\n\r\n[-] draining\n"),
            "GET /",
        )
        .expect("a response");
        assert_eq!(good, (503, "[-] draining\n".to_owned()));
        for bad in [&b""[..], b"HTTP/1.1 ", b"SSH-2.0", b"HTTP/1.1 \xff\xff\xff"] {
            assert!(exchange(Script(bad), "GET /").is_err());
        }
    }

    #[test]
    fn a_listener_on_every_address_is_asked_on_the_loopback() {
        assert_eq!(
            Place::named("0.0.0.0:9").expect("an address"),
            [Place::Tcp("127.0.0.1:9".parse().expect("one"))]
        );
        assert_eq!(
            Place::named("http://[::]:9/").expect("an address"),
            [Place::Tcp("[::1]:9".parse().expect("one"))]
        );
        assert_eq!(
            Place::named("unix:/run/x").expect("a path"),
            [Place::Unix("/run/x".into())]
        );
        assert!(Place::named("nonsense").is_err());
    }
}
