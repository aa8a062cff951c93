//! Listening sockets: bound before anything starts, one per worker, so that a failed bind fails the
//! start.
//!
//! TCP: every worker has its own socket on the same port (`SO_REUSEPORT`), and the kernel
//! distributes the connections. The first socket is bound and listens before it allows others
//! beside it, so that a port on which any process listens counts as taken, even if that is another
//! gateway, whose limits would be counted separately. Unix sockets and inherited sockets are a
//! single socket whose descriptor is duplicated.
//!
//! A gateway that is replaced hands all of its sockets to the next one: if one of them were closed,
//! the kernel would reset the connections in its queue.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::setsockopt;
use nix::{setsockopt_impl, sockopt_impl};
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use super::tls::ServerTls;

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP address; port 0 takes a free one.
    Tcp(SocketAddr),
    /// A Unix socket.
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

/// One listener as configured.
#[derive(Clone, Debug)]
pub struct Listen {
    /// Its address.
    pub address: Address,
    /// TLS, if the listener uses it.
    pub tls: Option<Arc<ServerTls>>,
}

/// One listener, bound.
#[derive(Debug)]
pub struct Bound {
    /// Its actual address, with port 0 replaced.
    pub address: Address,
    /// TLS, if the listener uses it.
    pub tls: Option<Arc<ServerTls>>,
    /// At least one socket per worker.
    pub sockets: Vec<Listener>,
}

/// A listening socket bound by another process: a service manager, or the process that this one
/// replaces.
#[derive(Debug)]
pub struct Inherited {
    /// The address that its owner was told to use; `None`: ask the socket.
    pub wanted: Option<String>,
    /// The socket.
    pub socket: Socket,
}

impl Inherited {
    /// Its address, in the form of [`Address`].
    pub fn place(&self) -> String {
        let Ok(local) = self.socket.local_addr() else {
            return String::new();
        };
        let unix = || {
            local
                .as_pathname()
                .map(|path| Address::Unix(path.to_path_buf()))
        };
        local
            .as_socket()
            .map(Address::Tcp)
            .or_else(unix)
            .map_or_else(String::new, |address| address.to_string())
    }

    /// Takes the sockets that were bound for `place` out of `all`.
    pub fn take(all: &mut Vec<Self>, place: &str) -> Vec<Socket> {
        let is = |one: &mut Self| one.wanted.clone().unwrap_or_else(|| one.place()) == place;
        all.extract_if(.., is).map(|one| one.socket).collect()
    }
}

/// The sockets of a listener, kept to be handed over.
#[derive(Debug)]
pub struct Kept {
    /// Its address in the file.
    pub wanted: String,
    /// Each socket once.
    pub sockets: Vec<OwnedFd>,
}

/// A bound and listening socket in non-blocking mode.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// Unix.
    Unix(UnixListener),
}

/// A listener that could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct BindError {
    /// Its address.
    pub address: Address,
    /// The reason.
    pub source: io::Error,
}

/// Binds `listen` for `workers` workers.
///
/// # Errors
/// The first listener that cannot be bound; those before it are closed again.
pub fn bind(listen: &[Listen], workers: usize) -> Result<Vec<Bound>, BindError> {
    bind_or_adopt(listen, workers, &mut Vec::new()).map(|(bound, _)| bound)
}

/// Does the same as [`bind`], but uses sockets from `inherited` that were bound for the same
/// address. Also returns the sockets to be handed over later.
///
/// # Errors
/// The first listener that cannot be bound.
pub fn bind_or_adopt(
    listen: &[Listen],
    workers: usize,
    inherited: &mut Vec<Inherited>,
) -> Result<(Vec<Bound>, Vec<Kept>), BindError> {
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
        let kept = sockets
            .iter()
            .map(Listener::duplicate)
            .collect::<io::Result<_>>()
            .map_err(error)?;
        let sockets = share(sockets, workers).map_err(error)?;
        Ok((
            Bound {
                address,
                tls: listen.tls.clone(),
                sockets,
            },
            Kept {
                wanted,
                sockets: kept,
            },
        ))
    };
    Ok(listen
        .iter()
        .map(one)
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .unzip())
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
        let local = socket.local_addr()?;
        if let Some(tcp) = local.as_socket() {
            // Inherited by every accepted connection.
            socket.set_tcp_nodelay(true)?;
            socket.set_tcp_keepalive(&keepalive())?;
            defer_accept(&socket)?;
            address = Some(Address::Tcp(tcp));
            listeners.push(Listener::Tcp(socket.into()));
        } else {
            address = local
                .as_pathname()
                .map(|path| Address::Unix(path.to_path_buf()));
            listeners.push(Listener::Unix(socket.into()));
        }
    }
    let address = address.ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, "a socket without an address")
    })?;
    Ok((address, listeners))
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

/// A listening socket; `beside` other sockets of this process, or alone.
fn tcp(address: SocketAddr, beside: bool) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    // Remains of closed connections do not keep a port taken, but a listening socket does.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(beside)?;
    if address.is_ipv6() {
        // `[::]` must not shadow a listener on 0.0.0.0: each address must be listed in the file.
        socket.set_only_v6(true)?;
    }
    // Set on the listener and inherited by accepted connections, which saves two system calls per
    // connection.
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&keepalive())?;
    defer_accept(&socket)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Lets the kernel hold a connection until its client has sent something, for a second at most. A
/// request can then be read as soon as its connection is accepted: a new connection takes about a
/// fifth less CPU.
fn defer_accept(socket: &Socket) -> io::Result<()> {
    Ok(setsockopt(socket, DeferAccept, &DEFER_SECONDS)?)
}

sockopt_impl!(
    /// `TCP_DEFER_ACCEPT` (tcp(7)), in seconds, which the kernel rounds to its retransmissions.
    DeferAccept,
    SetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_DEFER_ACCEPT,
    u32
);

/// How long a client may send nothing before its connection is accepted all the same: the least
/// that the kernel knows.
const DEFER_SECONDS: u32 = 1;

fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(KEEPALIVE_TRIES)
}

fn unix(path: &Path) -> io::Result<UnixListener> {
    remove_stale(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Removes the socket file of a process that has ended; a socket in use, and any other file, stay.
fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "a file that is no socket is in the way",
        ));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another process listens there",
        )),
        Err(_) => std::fs::remove_file(path),
    }
}

/// The length of the kernel's accept queue per socket; the kernel clamps it to
/// `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// TCP keepalive: the idle time before probes, their interval and number. A peer that vanished
/// during a long response or a tunnel is detected within 90 seconds.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_TRIES: u32 = 3;

#[cfg(test)]
mod tests {
    use super::{Address, Listen, bind};

    #[test]
    fn port_zero_becomes_one_port_for_all_workers() {
        let listen = Listen {
            address: Address::Tcp(([127, 0, 0, 1], 0).into()),
            tls: None,
        };
        let bound = bind(&[listen], 3).expect("a free port");
        assert_eq!(bound[0].sockets.len(), 3);
        let Address::Tcp(address) = bound[0].address else {
            panic!("bound to TCP")
        };
        assert_ne!(address.port(), 0);
        for socket in &bound[0].sockets {
            let super::Listener::Tcp(socket) = socket else {
                panic!("bound to TCP")
            };
            assert_eq!(socket.local_addr().expect("an address"), address);
        }
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let listen = [Listen {
            address: Address::Unix(directory.path().join("s")),
            tls: None,
        }];
        drop(bind(&listen, 2).expect("nothing in the way"));
        let _live = bind(&listen, 2).expect("the first one is gone");
        let error = bind(&listen, 1)
            .expect_err("the second one lives")
            .to_string();
        assert!(error.contains("another process listens there"), "{error}");

        let file = directory.path().join("file");
        std::fs::write(&file, "precious").expect("written");
        assert!(
            bind(
                &[Listen {
                    address: Address::Unix(file.clone()),
                    tls: None
                }],
                1
            )
            .is_err()
        );
        assert_eq!(
            std::fs::read_to_string(file).expect("still there"),
            "precious"
        );
    }
}
