//! Listening sockets, bound before anything starts, so that a failed bind fails the start.
//!
//! TCP: every worker has its own socket on the same port (`SO_REUSEPORT`), and the kernel
//! distributes the connections. The first socket is bound and listens before it allows others
//! beside it, so that a port on which any process listens counts as taken, even if that is another
//! gateway, whose limits would be counted separately. Unix sockets and inherited sockets are a
//! single socket whose descriptor is duplicated.
//!
//! A gateway that is replaced hands all of its sockets to the next one: if one of them were closed,
//! the kernel would reset the connections in its queue.

mod socket;

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, io};

use socket2::Socket;

use super::tls::ServerTls;
use socket::{defer_accept, keepalive, tcp, unix};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP address; port 0 takes a free one.
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Listen {
    pub address: Address,
    pub tls: Option<Arc<ServerTls>>,
}

#[derive(Debug)]
pub struct Bound {
    /// Its actual address, with port 0 replaced.
    pub address: Address,
    pub tls: Option<Arc<ServerTls>>,
    /// At least one socket per worker.
    pub sockets: Vec<Listener>,
}

/// A bound and listening socket in non-blocking mode.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct BindError {
    pub address: Address,
    pub source: io::Error,
}

/// Binds `listen` for `workers` workers. One that cannot be bound closes those before it.
pub fn bind(listen: &[Listen], workers: usize) -> Result<Vec<Bound>, BindError> {
    bind_or_adopt(listen, workers, &mut Vec::new()).map(|(bound, _)| bound)
}

/// Does the same as [`bind`], but uses sockets from `inherited` that were bound for the same
/// address. Also returns the sockets to be handed over later.
pub fn bind_or_adopt(
    listen: &[Listen],
    workers: usize,
    inherited: &mut Vec<Inherited>,
) -> Result<(Vec<Bound>, Vec<ListenerSockets>), BindError> {
    let one = |listen: &Listen| {
        let error = |source| BindError {
            address: listen.address.clone(),
            source,
        };
        let wanted = listen.address.to_string();
        let sockets = Inherited::take(inherited, &wanted);
        let (address, sockets) = if sockets.is_empty() {
            bound(&listen.address, workers).map_err(error)?
        } else {
            adopted(sockets).map_err(error)?
        };
        let kept: io::Result<_> = sockets.iter().map(Listener::duplicate).collect();
        let kept = ListenerSockets {
            wanted,
            sockets: kept.map_err(error)?,
        };
        let bound = Bound {
            address,
            tls: listen.tls.clone(),
            sockets: share(sockets, workers).map_err(error)?,
        };
        Ok((bound, kept))
    };
    let bound: Result<Vec<_>, _> = listen.iter().map(one).collect();
    Ok(bound?.into_iter().unzip())
}

/// Creates sockets: one per worker if the kernel distributes connections, otherwise a single one.
fn bound(address: &Address, workers: usize) -> io::Result<(Address, Vec<Listener>)> {
    match address {
        Address::Tcp(wanted) => {
            let first = tcp(*wanted, false)?;
            // If several gateways do this at once, the kernel lets only one listen; that one then
            // allows its own other sockets.
            first.set_reuse_port(true)?;
            let first: TcpListener = first.into();
            // With port 0 the first socket chooses the port for the others.
            let actual = first.local_addr()?;
            let mut sockets = vec![Listener::Tcp(first)];
            for _ in 1..workers {
                sockets.push(Listener::Tcp(tcp(actual, true)?.into()));
            }
            Ok((Address::Tcp(actual), sockets))
        }
        Address::Unix(path) => Ok((address.clone(), vec![Listener::Unix(unix(path)?)])),
    }
}

/// Uses inherited sockets, all of one address.
fn adopted(sockets: Vec<Socket>) -> io::Result<(Address, Vec<Listener>)> {
    let mut address = None;
    let mut listeners = Vec::with_capacity(sockets.len());
    for socket in sockets {
        socket.set_nonblocking(true)?;
        address = address_of(&socket)?;
        if socket.local_addr()?.is_unix() {
            listeners.push(Listener::Unix(socket.into()));
            continue;
        }
        // Inherited by every accepted connection.
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_keepalive(&keepalive())?;
        defer_accept(&socket)?;
        listeners.push(Listener::Tcp(socket.into()));
    }
    let nameless = || io::Error::new(io::ErrorKind::InvalidInput, "a socket without an address");
    Ok((address.ok_or_else(nameless)?, listeners))
}

fn address_of(socket: &Socket) -> io::Result<Option<Address>> {
    let local = socket.local_addr()?;
    let path = || Some(Address::Unix(local.as_pathname()?.to_path_buf()));
    Ok(local.as_socket().map(Address::Tcp).or_else(path))
}

/// Returns at least as many sockets as there are workers, by duplicating descriptors. No additional
/// socket is bound: connections that the kernel gives to it would be lost if this process fails
/// before it serves.
fn share(mut sockets: Vec<Listener>, workers: usize) -> io::Result<Vec<Listener>> {
    for place in 0..workers.saturating_sub(sockets.len()) {
        sockets.push(match &sockets[place] {
            Listener::Tcp(socket) => Listener::Tcp(socket.try_clone()?),
            Listener::Unix(socket) => Listener::Unix(socket.try_clone()?),
        });
    }
    Ok(sockets)
}

impl Listener {
    fn duplicate(&self) -> io::Result<OwnedFd> {
        Ok(match self {
            Self::Tcp(socket) => socket.try_clone()?.into(),
            Self::Unix(socket) => socket.try_clone()?.into(),
        })
    }
}

/// A listening socket bound by a service manager, or the process that this one replaces.
#[derive(Debug)]
pub struct Inherited {
    /// The address that its owner was told to use; `None`: ask the socket.
    pub wanted: Option<String>,
    pub socket: Socket,
}

impl Inherited {
    /// Its address, in the form of [`Address`].
    pub fn place(&self) -> String {
        let address = address_of(&self.socket).ok().flatten();
        address.map_or_else(String::new, |address| address.to_string())
    }

    pub fn take(all: &mut Vec<Self>, place: &str) -> Vec<Socket> {
        let is = |one: &mut Self| one.wanted.clone().unwrap_or_else(|| one.place()) == place;
        all.extract_if(.., is).map(|one| one.socket).collect()
    }
}

/// The sockets of a listener, kept to be handed over.
#[derive(Debug)]
pub struct ListenerSockets {
    pub wanted: String,
    pub sockets: Vec<OwnedFd>,
}

#[cfg(test)]
mod tests;
