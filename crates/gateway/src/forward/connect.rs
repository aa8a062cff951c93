//! Opens connections to a server: connects the socket and performs the TLS handshake, all within one timeout.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use socket2::TcpKeepalive;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::http2_pool::{Ear, Heard};
use super::{ForwardError, LocalExecutor, RequestBody, Socket, Stream, proxy_header, tls};
use crate::forward::pool::Connection;
use tollgate_net::timers;
use tollgate_policy::upstream::{ProxyProtocol, Server, ServerAddress, Upstream};

pub(super) struct Connector {
    address: ServerAddress,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    tls_http1: Option<TlsConnector>,
    pub(super) timeout: Duration,
    proxy_protocol: ProxyProtocol,
    /// The interval of pings on a silent HTTP/2 connection with open streams.
    ping_every: Duration,
}

/// An HTTP/2 connection: the handle that sends requests, the task that drives it, and the record of
/// reads that brought bytes.
pub(super) type Http2 = (
    http2::SendRequest<RequestBody>,
    http2::Connection<TokioIo<Heard>, RequestBody, LocalExecutor>,
    Rc<Ear>,
);

/// A connection, with the version that both sides agreed on.
pub(super) enum Opened {
    Http2(Box<Http2>),
    Http1(Box<Connection>),
}

impl Connector {
    /// A connector to `server`, with the TLS configuration `tls` if the server uses TLS.
    pub(super) fn new(
        server: &Server,
        tls: Option<&TlsConnector>,
        upstream: &Upstream,
    ) -> Result<Self, ForwardError> {
        let tls = match (&server.tls, tls) {
            (Some(name), Some(connector)) => {
                let bare = name.trim_matches(['[', ']']).to_owned();
                let name = ServerName::try_from(bare).map_err(|error| {
                    ForwardError::Tls(format!("`{name}` is no server name: {error}"))
                })?;
                Some((connector.clone(), name))
            }
            _ => None,
        };
        let tls_http1 = tls
            .as_ref()
            .filter(|_| upstream.http2)
            .map(|(connector, _)| {
                let mut config = rustls::ClientConfig::clone(connector.config());
                config.alpn_protocols = vec![tls::HTTP1.to_vec()];
                TlsConnector::from(Arc::new(config))
            });
        Ok(Self {
            address: server.address.clone(),
            tls,
            tls_http1,
            timeout: upstream.timeouts.connect.into(),
            proxy_protocol: upstream.proxy_protocol,
            // A stream may be silent for as long as its idle timeout. Send at most two pings in
            // that time, because some servers (gRPC's) close the connection on the third.
            ping_every: (Duration::from(upstream.timeouts.idle) / 2).max(PING_LEAST),
        })
    }

    /// A new HTTP/1 connection, for a request from `client` (which the PROXY protocol header names,
    /// if the upstream uses one).
    pub(super) async fn http1(
        &self,
        client: Option<SocketAddr>,
    ) -> Result<Box<Connection>, ForwardError> {
        Ok(Box::new(Connection::new(self.stream(client, true).await?)))
    }

    /// A new HTTP/2 connection. Over TLS, HTTP/2 is used only if ALPN agreed on it (RFC 9113 3.2),
    /// and HTTP/1.1 otherwise.
    pub(super) async fn http2(&self) -> Result<Opened, ForwardError> {
        let stream = self.stream(None, false).await?;
        if let Stream::Tls(tls) = &stream
            && tls.get_ref().1.alpn_protocol() != Some(tls::HTTP2)
        {
            return Ok(Opened::Http1(Box::new(Connection::new(stream))));
        }
        let (stream, ear) = Heard::new(stream);
        let (sender, connection) = http2::Builder::new(LocalExecutor)
            .timer(TokioTimer::new())
            .keep_alive_interval(self.ping_every)
            .keep_alive_timeout(self.ping_every.min(PING_WITHIN))
            .initial_max_send_streams(UNSETTLED_STREAMS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake::<_, RequestBody>(TokioIo::new(stream))
            .await
            .map_err(ForwardError::Response)?;
        Ok(Opened::Http2(Box::new((sender, connection, ear))))
    }

    /// `http1`: only HTTP/1.1 will be used on it.
    async fn stream(
        &self,
        client: Option<SocketAddr>,
        http1: bool,
    ) -> Result<Stream, ForwardError> {
        match timers::within(self.timeout, self.open(client, http1)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(ForwardError::ConnectTimeout),
        }
    }

    async fn open(&self, client: Option<SocketAddr>, http1: bool) -> Result<Stream, ForwardError> {
        let (mut socket, to) = match &self.address {
            ServerAddress::Unix(path) => {
                let socket = UnixStream::connect(path).await;
                (Socket::Unix(socket.map_err(ForwardError::Connect)?), None)
            }
            ServerAddress::Tcp(host, port) => {
                // An address, or `localhost`: every other name was looked up before (`members.rs`).
                let socket = TcpStream::connect((host.trim_matches(['[', ']']), *port)).await;
                let socket = socket.map_err(ForwardError::Connect)?;
                // A request is written in one piece, so waiting for more bytes gains nothing.
                socket.set_nodelay(true).map_err(ForwardError::Connect)?;
                // A system without this option is used all the same.
                let _ = notice_death(&socket);
                let to = socket.peer_addr().ok();
                (Socket::Tcp(socket), to)
            }
        };
        if self.proxy_protocol != ProxyProtocol::Off {
            let header = proxy_header::header(self.proxy_protocol, client, to);
            let sent = socket.write_all(&header).await;
            sent.map_err(ForwardError::Connect)?;
        }
        let Some((tls, name)) = &self.tls else {
            return Ok(Stream::Plain(socket));
        };
        let alone = self.tls_http1.as_ref().filter(|_| http1);
        let connecting = alone.unwrap_or(tls).connect(name.clone(), socket);
        let encrypted = connecting.await;
        let encrypted = encrypted.map_err(|error| ForwardError::Tls(error.to_string()))?;
        Ok(Stream::Tls(Box::new(encrypted)))
    }
}

/// Makes the kernel detect a peer that disappeared without closing: unacknowledged bytes, or
/// silence on an idle connection, end the connection.
fn notice_death(stream: &TcpStream) -> io::Result<()> {
    let socket = socket2::SockRef::from(stream);
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(SILENT)
            .with_interval(ASKED_EVERY)
            .with_retries(3),
    )?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(SILENT))?;
    Ok(())
}

/// The shortest interval of pings on silent HTTP/2 connections, and the time allowed for a response
/// to a ping.
const PING_LEAST: Duration = Duration::from_secs(1);
const PING_WITHIN: Duration = Duration::from_secs(10);
/// The flow-control windows: how many bytes an upstream may send ahead of the client per stream,
/// and ahead of all clients per connection. The connection window is wide because the library
/// closes a connection on which too many small frames wait unread (its budget is half of the
/// window): with windows that start small, one slow reader of many small messages ended the calls
/// of all.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
/// The number of streams on an HTTP/2 connection before the server's settings arrive.
const UNSETTLED_STREAMS: usize = 1;
/// How long sent bytes may stay unacknowledged, and how long an idle connection may be silent.
const SILENT: Duration = Duration::from_secs(30);
const ASKED_EVERY: Duration = Duration::from_secs(10);
