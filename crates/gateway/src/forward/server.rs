//! One server of an upstream as this worker sees it: its pool, its connector, how it has fared lately.

use std::rc::Rc;
use std::sync::Arc;

use tokio_rustls::TlsConnector;

use super::connect::Connector;
use super::http2_pool::Http2Pool;
use super::upstream_health::{self, HealthRecord};
use super::{ForwardError, balance};
use crate::pool::{Bounds, Pool};
use tollgate_policy::upstream::{HostPolicy, ProxyProtocol, Server, Upstream};

/// One server of an upstream.
#[derive(Debug)]
pub(super) struct ServerState {
    /// As the policy describes it.
    pub(super) server: Server,
    /// Which of the upstream's servers it is, or is an address of.
    pub(super) origin: usize,
    /// Its name, hashed: what places callers by their identity.
    pub(super) name_hash: u64,
    /// What is sent as Host.
    pub(super) host: HostPolicy,
    /// Its HTTP/1 connections, and the bound on requests under way.
    pub(super) pool: Rc<Pool>,
    /// Opens new ones.
    pub(super) connector: Connector,
    /// Its HTTP/2 connections.
    pub(super) lanes: Http2Pool,
    /// Whether it gets requests, as all workers know it.
    pub(super) record: Arc<HealthRecord>,
    /// Whether HTTP/2 is spoken to it.
    pub(super) speaks_http2: bool,
}

impl ServerState {
    /// `server`, the one at `origin` of `upstream` or an address of that, which fares as `record` says, without a connection yet.
    ///
    /// # Errors
    /// When its TLS name is no name.
    pub(super) fn new(
        server: &Server,
        origin: usize,
        upstream: &Upstream,
        tls: Option<&TlsConnector>,
        record: Arc<HealthRecord>,
    ) -> Result<Self, ForwardError> {
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
            origin,
            name_hash: balance::name_hash(&upstream_health::name(server)),
            server: server.clone(),
            host: upstream.host.clone(),
            pool: Rc::new(Pool::new(bounds)),
            connector: Connector::new(server, tls, upstream)?,
            lanes: Http2Pool::new(bounds.idle_age, bounds.in_use),
            record,
            speaks_http2: upstream.http2,
        })
    }
}
