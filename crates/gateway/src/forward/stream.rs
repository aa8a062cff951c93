//! The transport to an upstream: one type for TCP, Unix sockets and TLS.

use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

/// A connection to an upstream's server.
#[derive(Debug)]
pub enum Stream {
    /// Plain TCP.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
    /// TLS over TCP.
    Tls(Box<TlsStream<TcpStream>>),
    /// TLS over a Unix socket.
    TlsUnix(Box<TlsStream<UnixStream>>),
}

impl Stream {
    /// The protocol on which ALPN agreed.
    pub fn protocol(&self) -> Option<&[u8]> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => None,
            Self::Tls(stream) => stream.get_ref().1.alpn_protocol(),
            Self::TlsUnix(stream) => stream.get_ref().1.alpn_protocol(),
        }
    }
}

tollgate_net::delegate_io!(Stream: Tcp, Unix, Tls, TlsUnix);
