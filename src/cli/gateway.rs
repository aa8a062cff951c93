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
        self.read(path, None, patience)
    }

    /// The same, with the token of an operator.
    ///
    /// # Errors
    /// If the gateway does not respond within `patience`.
    pub(super) fn read(
        &self,
        path: &str,
        token: Option<&str>,
        patience: Duration,
    ) -> io::Result<(u16, String)> {
        let token = bearer(token);
        let (stream, host) = self.connect(patience)?;
        exchange(
            stream,
            &host,
            &format!("GET {path} HTTP/1.1\r\n{token}"),
            "",
        )
        .map_err(|error| worded(error, patience, ""))
    }

    /// Sends `method path` with a JSON document; returns the status and the body.
    ///
    /// # Errors
    /// If the gateway does not answer within `patience`. If it was reached, the change may have been
    /// made.
    pub(super) fn change(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: &str,
        patience: Duration,
    ) -> io::Result<(u16, String)> {
        let token = bearer(token);
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{token}"
        );
        let (stream, host) = self.connect(patience)?;
        exchange(stream, &host, &head, body)
            .map_err(|error| worded(error, patience, "; the change may have been made"))
    }

    /// A connection, and the host for its requests.
    fn connect(&self, patience: Duration) -> io::Result<(Socket, String)> {
        let (stream, host): (Socket, String) = match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, patience)
                    .map_err(|error| worded(error, patience, ""))?;
                (stream.into(), address.to_string())
            }
            Self::Unix(socket) => (UnixStream::connect(socket)?.into(), "localhost".to_owned()),
        };
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok((stream, host))
    }
}

/// The error as it follows the words "no response": of a time-out the system tells nothing useful.
fn worded(error: io::Error, patience: Duration, also: &str) -> io::Error {
    let is_late = matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    );
    let words = match (is_late, patience.subsec_millis()) {
        (true, 0) => format!("within {} s", patience.as_secs()),
        (true, _) => format!("within {} ms", patience.as_millis()),
        (false, _) => error.to_string(),
    };
    let kind = match is_late {
        true => io::ErrorKind::TimedOut,
        false => error.kind(),
    };
    io::Error::new(kind, format!("{words}{also}"))
}

/// That there is no response from `place` (`""`: it is known from where), and why.
pub(super) fn no_response(place: &str, error: &io::Error) -> String {
    let colon = match error.kind() {
        io::ErrorKind::TimedOut => "",
        _ => ":",
    };
    format!("no response{place}{colon} {error}")
}

/// `head`: the first line and headers that depend on the request.
fn exchange(
    mut stream: impl Read + Write,
    host: &str,
    head: &str,
    body: &str,
) -> io::Result<(u16, String)> {
    let request = format!("{head}Host: {host}\r\nConnection: close\r\n\r\n{body}");
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

/// The header that shows this token.
fn bearer(token: Option<&str>) -> String {
    token.map_or_else(String::new, |token| {
        format!("Authorization: Bearer {token}\r\n")
    })
}

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
            "localhost",
            "GET /",
            "",
        )
        .expect("a response");
        assert_eq!(good, (503, "[-] draining\n".to_owned()));
        for bad in [&b""[..], b"HTTP/1.1 ", b"SSH-2.0", b"HTTP/1.1 \xff\xff\xff"] {
            assert!(exchange(Script(bad), "localhost", "GET /", "").is_err());
        }
    }

    /// A listener whose backlog takes the connection and that never responds.
    #[test]
    fn gateway_that_is_silent_is_told_in_words_and_of_a_change_that_it_may_have_been_made() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = Place::Tcp(silent.local_addr().expect("its address"));
        let patience = Duration::from_millis(20);
        let told = |error: &io::Error| no_response("", error);
        let read = place.get("/readyz", patience).expect_err("silence");
        assert_eq!(told(&read), "no response within 20 ms");
        let change = place.change("PUT", "/", None, "{}", patience);
        assert_eq!(
            told(&change.expect_err("silence")),
            "no response within 20 ms; the change may have been made"
        );
        let late = io::Error::from(io::ErrorKind::WouldBlock);
        let late = worded(late, Duration::from_secs(5), "");
        assert_eq!(told(&late), "no response within 5 s");
        drop(silent);
        let gone = place.change("PUT", "/", None, "{}", patience);
        let gone = told(&gone.expect_err("nobody listens"));
        assert!(gone.starts_with("no response: "), "{gone}");
        assert!(!gone.contains("may have been made"), "{gone}");
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
