//! One server of an upstream on this worker: its pool, its connector, its health.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use tokio_rustls::TlsConnector;

use super::blame::ServerSign;
use super::connect::Connector;
use super::health_record::HealthRecord;
use super::http2_pool::Http2Pool;
use super::upstream_health;
use super::{ForwardError, Forwarded, balance, incidents};
use crate::forward::pool::{Bounds, Pool};
use tollgate_policy::upstream::{HostPolicy, ProxyProtocol, Server, Upstream};

pub(super) struct ServerState {
    pub(super) server: Server,
    /// The index among the upstream's servers of this server, or of the name that resolved to it.
    pub(super) origin: usize,
    pub(super) name_hash: u64,
    pub(super) host: HostPolicy,
    /// Its HTTP/1 connections, and the limit on requests in progress.
    pub(super) pool: Rc<Pool>,
    pub(super) connector: Connector,
    pub(super) http2_pool: Http2Pool,
    /// Whether an attempt to connect goes on without its request.
    pub(super) connects_alone: Cell<bool>,
    pub(super) record: Arc<HealthRecord>,
    pub(super) speaks_http2: bool,
}

impl ServerState {
    /// `server` is the one at `origin` of `upstream`, or one of its addresses; `record` is its
    /// health. Starts without a connection.
    pub(super) fn new(
        server: &Server,
        origin: usize,
        upstream: &Upstream,
        tls: Option<&TlsConnector>,
        record: Arc<HealthRecord>,
    ) -> Result<Self, ForwardError> {
        // A connection that names its client in a PROXY header serves no other client.
        let shared = upstream.proxy_protocol == ProxyProtocol::Off;
        let bounds = Bounds {
            idle: if shared { upstream.idle_connections } else { 0 },
            // A connection that is dropped by a sweep may be a second older than the sweeps it survived.
            idle_age: upstream.timeouts.keep_alive.ceil_secs().saturating_sub(1),
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
            http2_pool: Http2Pool::new(bounds.idle_age, bounds.in_use),
            connects_alone: Cell::new(false),
            record,
            speaks_http2: upstream.http2,
        })
    }

    pub(super) fn observe(&self, result: &Result<Forwarded, ForwardError>) {
        let sign = match result {
            Ok(forwarded) => forwarded.blame.sign,
            Err(error) => error.blame().sign,
        };
        match sign {
            ServerSign::Works => return self.record.succeeded(),
            ServerSign::Nothing => return,
            ServerSign::Failed | ServerSign::Full => {}
        }
        let (kind, cause) = match result {
            Ok(forwarded) => {
                let status = forwarded.response.status().as_u16();
                ("status", format!("it responded with {status}"))
            }
            Err(error) => (error.kind(), incidents::causes(error)),
        };
        self.record.incidents.failed(kind, cause);
        if sign == ServerSign::Failed {
            self.record.failed();
        }
    }
}
