//! One server of an upstream as this worker sees it: its pool, its connector, how it has fared lately.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use hyper::client::conn::http2;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::connect::Connector;
use super::{ForwardError, RequestBody};
use crate::policy::upstream::{HostPolicy, Server, Upstream};
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
    failures: Cell<u32>,
    ejected: RefCell<Option<Instant>>,
}

impl ServerState {
    /// `server` of `upstream`, without a connection yet.
    ///
    /// # Errors
    /// When its TLS name is no name.
    pub(super) fn new(server: &Server, upstream: &Upstream, tls: Option<&TlsConnector>) -> Result<Self, ForwardError> {
        let bounds = Bounds {
            idle: upstream.idle_connections,
            idle_age: IDLE_SECONDS,
            in_use: upstream.connections,
            pending: upstream.pending,
            queue_timeout: upstream.queue_timeout.into(),
        };
        Ok(Self {
            server: server.clone(),
            host: upstream.host.clone(),
            pool: Rc::new(Pool::new(bounds)),
            connector: Connector::new(server, tls, upstream.timeouts.connect.into())?,
            http2: tokio::sync::Mutex::new(None),
            failures: Cell::new(0),
            ejected: RefCell::new(None),
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
        let sender = self.connector.http2().await?;
        *current = Some(sender.clone());
        Ok((sender, false))
    }

    /// Forgets the HTTP/2 connection: it takes no more streams.
    pub(super) async fn drop_http2(&self) {
        *self.http2.lock().await = None;
    }

    /// A request reached it.
    pub(super) fn succeeded(&self) {
        self.failures.set(0);
    }

    /// It could not be reached: after [`FAILURES_MAX`] times in a row it is left out for a while, longer each time.
    pub(super) fn failed(&self) {
        let failures = self.failures.get().saturating_add(1);
        self.failures.set(failures);
        if let Some(over) = failures.checked_sub(FAILURES_MAX) {
            let pause = EJECTED_FOR * 2_u32.pow(over.min(5));
            *self.ejected.borrow_mut() = Some(Instant::now() + pause);
        }
    }

    /// Whether it is left out at present. When its time is over one request tries it again.
    pub(super) fn is_ejected(&self) -> bool {
        let mut ejected = self.ejected.borrow_mut();
        match *ejected {
            None => false,
            Some(until) if Instant::now() < until => true,
            Some(_) => {
                *ejected = None;
                false
            }
        }
    }
}

/// Seconds an idle connection is kept.
const IDLE_SECONDS: u64 = 60;
/// Failures in a row after which a server is left out.
const FAILURES_MAX: u32 = 3;
/// How long it is left out at first; doubled with each further failure, 32 times that at most.
const EJECTED_FOR: Duration = Duration::from_secs(1);
