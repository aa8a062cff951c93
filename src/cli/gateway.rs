//! The addresses of the admin listener of a running gateway, and requests to it.

mod connection;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use socket2::Socket;
use tokio::time::Instant;

use super::args::ConfigFile;
use super::load;
use connection::worded;
pub(super) use connection::{Connection, no_response};
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
        self.connect(patience)?.get(path, token)
    }

    /// Whether no other machine can read what is sent there.
    pub(super) fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// Connects for one request, which may take `patience` from now on.
    ///
    /// # Errors
    /// If the gateway does not accept the connection in time.
    pub(super) fn connect(&self, patience: Duration) -> io::Result<Connection> {
        let until = Instant::now() + patience;
        let (stream, host): (Socket, String) = match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, patience)
                    .map_err(|error| worded(error, patience, ""))?;
                (stream.into(), address.to_string())
            }
            Self::Unix(socket) => (UnixStream::connect(socket)?.into(), "localhost".to_owned()),
        };
        Ok(Connection::new(stream, host, patience, until))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

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
