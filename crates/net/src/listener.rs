//! Listening sockets: bound before anything starts, one per worker, so that a bind that fails fails the start.
//!
//! TCP: every worker gets a socket of its own on the same port (`SO_REUSEPORT`), and the kernel deals the connections
//! out. The first of them is bound and listens before it takes others beside it: a port that anybody listens on is taken,
//! were it another gateway, whose limits would count apart. Unix sockets and sockets handed over by a service manager are
//! one socket whose descriptor is duplicated.
//!
//! A gateway that is replaced leaves all of its sockets to the next one: were one of them closed, the kernel would reset
//! the connections that wait on it.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use super::tls::ServerTls;

/// Where a listener listens.
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
    /// Where.
    pub address: Address,
    /// TLS, if it is spoken there.
    pub tls: Option<Arc<ServerTls>>,
}

/// One listener, bound.
#[derive(Debug)]
pub struct Bound {
    /// Where it really listens: port 0 has become a port.
    pub address: Address,
    /// TLS, if it is spoken there.
    pub tls: Option<Arc<ServerTls>>,
    /// One socket per worker at least.
    pub sockets: Vec<Listener>,
}

/// A listening socket that somebody else has bound: a service manager, or the process that this one replaces.
#[derive(Debug)]
pub struct Inherited {
    /// Where the one who bound it was told to listen; `None`: ask the socket.
    pub wanted: Option<String>,
    /// The socket.
    pub socket: Socket,
}

impl Inherited {
    /// Where it listens, as [`Address`] is written.
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

    /// Takes out of `all` those that were bound for `place`.
    pub fn take(all: &mut Vec<Self>, place: &str) -> Vec<Socket> {
        let is = |one: &mut Self| one.wanted.clone().unwrap_or_else(|| one.place()) == place;
        all.extract_if(.., is).map(|one| one.socket).collect()
    }
}

/// The sockets behind a listener, kept to be handed on.
#[derive(Debug)]
pub struct Kept {
    /// Where the file says that it listens.
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
    /// Where.
    pub address: Address,
    /// Why.
    pub source: io::Error,
}

/// Binds `listen` for `workers` workers.
///
/// # Errors
/// The first listener that cannot be bound; those before it are closed again.
pub fn bind(listen: &[Listen], workers: usize) -> Result<Vec<Bound>, BindError> {
    bind_or_adopt(listen, workers, &mut Vec::new()).map(|(bound, _)| bound)
}

/// As [`bind`], but takes sockets out of `inherited` where they were bound for the same place. Also what is to be handed
/// on one day.
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

/// New sockets: one a worker where the kernel deals connections out, else a single one.
fn bound(address: &Address, workers: usize) -> io::Result<(Address, Vec<Listener>)> {
    match address {
        Address::Tcp(wanted) => {
            let first = tcp(*wanted, false)?;
            // Of several gateways that come to this at once, the kernel has let one listen. It alone lets others in: its own.
            first.set_reuse_port(true)?;
            let first: TcpListener = first.into();
            // Port 0: the first socket chooses, the others must follow it.
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

/// Sockets that somebody else bound, all to one address.
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

/// At least as many as there are workers: where there are fewer, their descriptors are duplicated. None is bound beside
/// them: the kernel would deal connections to it that are lost if this process does not come to serve.
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

/// A socket that listens; `beside` others of this process, or alone.
fn tcp(address: SocketAddr, beside: bool) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    // What is left of connections that have ended does not keep a port taken, a socket that listens does.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(beside)?;
    if address.is_ipv6() {
        // `[::]` does not shadow a listener on 0.0.0.0: each is listed in the file, or it does not listen.
        socket.set_only_v6(true)?;
    }
    // Set on the listener, inherited by what it accepts: two system calls a connection saved.
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&keepalive())?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

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

/// Removes the socket file of a process that is gone; a socket that still answers, and any other file, stay.
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

/// Connections the kernel may hold for us per socket; it clamps this to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// A peer that says nothing is asked after this long whether it is there, this often, and this many times: one that
/// vanished in the middle of a long answer or a tunnel is gone within 90 seconds.
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
