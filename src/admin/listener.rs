//! The admin listener's socket: TCP or Unix.

use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::pin::Pin;

use socket2::Socket;
use tokio::io::{AsyncRead, AsyncWrite};

use super::Listen;
use super::operators::Peer;

/// A bound socket that is not yet registered with a runtime.
pub(super) enum Bound {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A bound socket, registered with the runtime that serves it.
pub(super) enum Listener {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

/// A connection of either kind. Boxed, because there are few.
pub(super) type Connection = Pin<Box<dyn Duplex>>;

/// Both directions of a connection.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

impl Bound {
    /// Uses an inherited socket; also returns its address.
    pub(super) fn adopt(socket: Socket) -> io::Result<(Self, Listen)> {
        socket.set_nonblocking(true)?;
        let local = socket.local_addr()?;
        if let Some(address) = local.as_socket() {
            return Ok((Self::Tcp(socket.into()), Listen::Tcp(address)));
        }
        let path = local
            .as_pathname()
            .map(Path::to_path_buf)
            .unwrap_or_default();
        Ok((Self::Unix(socket.into()), Listen::Unix(path)))
    }

    /// Another descriptor of the socket.
    pub(super) fn duplicate(&self) -> io::Result<OwnedFd> {
        Ok(match self {
            Self::Tcp(listener) => listener.try_clone()?.into(),
            Self::Unix(listener) => listener.try_clone()?.into(),
        })
    }
}

/// Binds; also returns the actual address.
pub(super) fn bind(listen: &Listen) -> io::Result<(Bound, Listen)> {
    match listen {
        Listen::Tcp(address) => {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((Bound::Tcp(listener), Listen::Tcp(address)))
        }
        Listen::Unix(path) => {
            clear(path)?;
            let listener = UnixListener::bind(path)?;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
            listener.set_nonblocking(true)?;
            Ok((Bound::Unix(listener), listen.clone()))
        }
    }
}

/// Removes the socket file of a gateway that has ended; never another file, and never that of a
/// running gateway.
fn clear(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {
            if UnixStream::connect(path).is_ok() {
                return Err(io::Error::new(
                    io::ErrorKind::AddrInUse,
                    "another process listens there",
                ));
            }
            std::fs::remove_file(path)
        }
        _ => Ok(()),
    }
}

impl Bound {
    pub(super) fn into_listener(self) -> io::Result<Listener> {
        Ok(match self {
            Self::Tcp(listener) => Listener::Tcp(tokio::net::TcpListener::from_std(listener)?),
            Self::Unix(listener) => Listener::Unix(tokio::net::UnixListener::from_std(listener)?),
        })
    }
}

impl Listener {
    pub(super) async fn accept(&self) -> io::Result<(Connection, Peer)> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                let peer = Peer {
                    from: address.to_string(),
                    user: None,
                };
                (Box::pin(stream), peer)
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let credentials = stream.peer_cred()?;
                let process = credentials
                    .pid()
                    .map_or_else(String::new, |pid| format!(", process {pid}"));
                let peer = Peer {
                    from: format!("user {}{process}", credentials.uid()),
                    user: Some(credentials.uid()),
                };
                (Box::pin(stream), peer)
            }
        })
    }
}
