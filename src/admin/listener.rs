//! The admin listener's socket: TCP or Unix.

use std::io;
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::pin::Pin;

use socket2::Socket;

use super::Listen;
use super::operators::Peer;
use crate::outbound::Duplex;

/// A listening socket, registered with the runtime that serves it.
pub(super) enum Listener {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

/// A connection of either kind. Boxed, because there are few.
pub(super) type Connection = Pin<Box<dyn Duplex>>;

pub(super) fn bind(listen: &Listen) -> io::Result<Socket> {
    Ok(match listen {
        Listen::Tcp { address, .. } => TcpListener::bind(address)?.into(),
        Listen::Unix(path) => {
            clear(path)?;
            let listener = UnixListener::bind(path)?;
            // Its file is created anew, with access for its owner and group only.
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
            listener.into()
        }
    })
}

pub(super) fn address(socket: &Socket) -> io::Result<Listen> {
    let local = socket.local_addr()?;
    Ok(match local.as_socket() {
        Some(address) => Listen::Tcp {
            address,
            tls: false,
        },
        None => Listen::Unix(
            local
                .as_pathname()
                .map(Path::to_path_buf)
                .unwrap_or_default(),
        ),
    })
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

impl Listener {
    pub(super) fn new(socket: Socket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(match address(&socket)? {
            Listen::Tcp { .. } => Self::Tcp(tokio::net::TcpListener::from_std(socket.into())?),
            Listen::Unix(_) => Self::Unix(tokio::net::UnixListener::from_std(socket.into())?),
        })
    }

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
