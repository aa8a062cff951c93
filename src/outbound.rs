//! Requests of the gateway's own to services that the operator names: a receiver of events, a
//! collector of traces, an authority of certificates. Each has a connection of its own, since they are few.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderName, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use tollgate_gateway::forward::tls::client_config;
use tollgate_policy::upstream::{Server, ServerAddress, TlsFiles};

#[derive(Clone)]
pub(crate) struct Service {
    server: Server,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    patience: Duration,
}

/// Why a document was not taken.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) why: String,
    /// Whether the same document may be taken later.
    pub(crate) again: bool,
    pub(crate) wait: Option<Duration>,
}

impl Service {
    pub(crate) fn new(server: &Server, patience: Duration) -> Result<Self, String> {
        Self::trusting(server, patience, &TlsFiles::default())
    }

    /// The same, with the authorities of `files`.
    pub(crate) fn trusting(
        server: &Server,
        patience: Duration,
        files: &TlsFiles,
    ) -> Result<Self, String> {
        let tls = server.tls.as_ref().map(|name| {
            let name = ServerName::try_from(name.to_string())
                .map_err(|_| format!("`{name}` is no name that a certificate can have"))?;
            Ok::<_, String>((client_config(files, false)?, name))
        });
        Ok(Self {
            server: server.clone(),
            tls: tls.transpose()?,
            patience,
        })
    }

    /// Sends a JSON document, with more headers.
    pub(crate) async fn post(
        &self,
        document: Bytes,
        more: &[(HeaderName, HeaderValue)],
    ) -> Result<(), Failed> {
        let sent = tokio::time::timeout(self.patience, self.sent(document, more)).await;
        let unreachable = |why: String| Failed {
            why,
            again: true,
            wait: None,
        };
        let (status, wait) = sent
            .map_err(|_| unreachable(format!("no response in {:?}", self.patience)))?
            .map_err(unreachable)?;
        if status.is_success() {
            return Ok(());
        }
        let again = status.is_server_error()
            || matches!(
                status,
                StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT
            );
        Err(Failed {
            why: format!("it responded with {status}"),
            again,
            wait,
        })
    }

    async fn sent(
        &self,
        document: Bytes,
        more: &[(HeaderName, HeaderValue)],
    ) -> Result<(StatusCode, Option<Duration>), String> {
        let path = match self.server.base_path.as_str() {
            "" => "/",
            path => path,
        };
        let mut request = Request::post(path)
            .body(Full::new(document))
            .map_err(|error| error.to_string())?;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in more {
            headers.insert(name.clone(), value.clone());
        }
        let response = self.exchange(request, None).await?;
        Ok((response.status(), retry_after(response.headers())))
    }

    /// Sends one request whose target is in origin form. Reads the body of the response if it has at
    /// most `body_max` bytes; `None`: does not read it.
    pub(crate) async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
        body_max: Option<usize>,
    ) -> Result<Response<Bytes>, String> {
        let stream = self.connected().await.map_err(|error| error.to_string())?;
        // The connection ends when it is dropped.
        let (response, _connection) =
            exchange(stream, self.server.authority.as_str(), request).await?;
        let (head, body) = response.into_parts();
        let body = match body_max {
            None => Bytes::new(),
            Some(most) => {
                let read = Limited::new(body, most).collect().await;
                read.map_err(|error| error.to_string())?.to_bytes()
            }
        };
        Ok(Response::from_parts(head, body))
    }

    async fn connected(&self) -> std::io::Result<Stream> {
        let stream = match &self.server.address {
            ServerAddress::Unix(path) => return Ok(Box::pin(UnixStream::connect(path).await?)),
            ServerAddress::Tcp(host, port) => TcpStream::connect((host.as_str(), *port)).await?,
        };
        match &self.tls {
            None => Ok(Box::pin(stream)),
            Some((config, name)) => over_tls(stream, config, name.clone()).await,
        }
    }
}

/// The wait that a response asks for, in seconds. A date is not read: the wait is then our own.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse();
    seconds.ok().map(Duration::from_secs)
}

/// TLS over a connection to the server of this name.
pub(crate) async fn over_tls(
    stream: TcpStream,
    config: &Arc<ClientConfig>,
    name: ServerName<'static>,
) -> std::io::Result<Stream> {
    let connector = TlsConnector::from(Arc::clone(config));
    Ok(Box::pin(connector.connect(name, stream).await?))
}

/// Sends a request to `host` over a connection of its own; returns the response, and the connection,
/// which ends when it is dropped.
pub(crate) async fn exchange(
    stream: Stream,
    host: &str,
    mut request: Request<Full<Bytes>>,
) -> Result<(Response<Incoming>, JoinSet<hyper::Result<()>>), String> {
    let host = HeaderValue::from_str(host).map_err(|error| error.to_string())?;
    for (name, value) in [
        (HOST, host),
        (CONNECTION, HeaderValue::from_static("close")),
        (USER_AGENT, AGENT),
    ] {
        request.headers_mut().insert(name, value);
    }
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let mut carries = JoinSet::new();
    carries.spawn(connection);
    let response = sender.send_request(request).await;
    let response = response.map_err(|error| error.to_string())?;
    Ok((response, carries))
}

pub(crate) type Stream = Pin<Box<dyn Duplex>>;

/// The name by which the gateway asks.
const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("tollgate/", env!("CARGO_PKG_VERSION")));

pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}
