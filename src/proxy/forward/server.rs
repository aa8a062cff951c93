//! One server of an upstream as this worker sees it: its pool, its connector, how it has fared lately.

use std::rc::Rc;

use hyper::client::conn::http2;
use tokio_rustls::TlsConnector;

use super::connect::Connector;
use super::fitness::Fitness;
use super::{ForwardError, RequestBody};
use crate::policy::upstream::{HostPolicy, ProxyProtocol, Server, Upstream};
use crate::proxy::pool::{Bounds, Pool};

/// One server of an upstream.
#[derive(Debug)]
pub(super) struct ServerState {
    /// As the policy describes it.
    pub(super) server: Server,
    /// What is sent as Host.
    pub(super) host: HostPolicy,
    /// Its HTTP/1 connections, and the bound on requests under way.
    pub(super) pool: Rc<Pool>,
    /// Opens new ones.
    pub(super) connector: Connector,
    http2: tokio::sync::Mutex<Option<http2::SendRequest<RequestBody>>>,
    /// Whether it gets requests.
    pub(super) fitness: Fitness,
    /// Whether HTTP/2 is spoken to it.
    pub(super) speaks_http2: bool,
}

impl ServerState {
    /// `server` of `upstream`, without a connection yet.
    ///
    /// # Errors
    /// When its TLS name is no name.
    pub(super) fn new(server: &Server, upstream: &Upstream, tls: Option<&TlsConnector>) -> Result<Self, ForwardError> {
        // A connection that names its client serves no other.
        let shared = upstream.proxy_protocol == ProxyProtocol::Off;
        let bounds = Bounds {
            idle: if shared { upstream.idle_connections } else { 0 },
            idle_age: upstream.timeouts.idle.ceil_secs().max(1),
            in_use: upstream.connections,
            pending: upstream.pending,
            queue_timeout: upstream.queue_timeout.into(),
        };
        Ok(Self {
            server: server.clone(),
            host: upstream.host.clone(),
            pool: Rc::new(Pool::new(bounds)),
            connector: Connector::new(server, tls, upstream)?,
            http2: tokio::sync::Mutex::new(None),
            fitness: Fitness::new(upstream),
            speaks_http2: upstream.http2,
        })
    }

    /// A handle on the one HTTP/2 connection, opened if there is none; the flag says that it has served before.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(super) async fn http2(&self) -> Result<(http2::SendRequest<RequestBody>, bool), ForwardError> {
        let mut current = self.http2.lock().await;
        if let Some(sender) = current.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok((sender.clone(), true));
        }
        let sender = Box::pin(self.connector.http2()).await?;
        *current = Some(sender.clone());
        Ok((sender, false))
    }

    /// Forgets the HTTP/2 connection: it takes no more streams.
    pub(super) async fn drop_http2(&self) {
        *self.http2.lock().await = None;
    }
}
