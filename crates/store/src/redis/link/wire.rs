//! Connects to a Redis: one server, the master that sentinels name, or a node of a cluster.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, ErrorKind, RedisError};

use super::RedisLink;
use crate::batch::STRAGGLES;
use crate::redis::address::Address;

/// The timeout of a connection attempt; requests do not wait for it.
pub(super) const CONNECT_WITHIN: Duration = Duration::from_secs(1);

pub(crate) async fn open(info: ConnectionInfo) -> Result<MultiplexedConnection, RedisError> {
    // Calls have our own deadline, and a late one is waited for; the greeting has one, too.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_WITHIN))
        .set_response_timeout(Some(STRAGGLES));
    Client::open(info)?
        .get_multiplexed_async_connection_with_config(&config)
        .await
}

/// Whether a connection is known to have ended. The server is not asked: the command is given up before
/// it is sent.
pub(super) fn has_ended(wire: &MultiplexedConnection) -> bool {
    let (mut wire, ping) = (wire.clone(), redis::cmd("PING"));
    let mut ping = pin!(ping.query_async::<()>(&mut wire));
    let mut context = Context::from_waker(Waker::noop());
    matches!(ping.as_mut().poll(&mut context), Poll::Ready(Err(_)))
}

impl RedisLink {
    pub(super) async fn wire(&self) -> Result<MultiplexedConnection, RedisError> {
        if let Some(node) = &self.node {
            return open(node.cluster.nodes.address(&node.name)?).await;
        }
        match &self.address {
            Address::Single(info) => open((**info).clone()).await,
            Address::Sentinel {
                sentinels,
                name,
                master,
                tls,
                certificates,
            } => {
                let like = (&**master, *tls, certificates.as_deref());
                self.masters.open(sentinels, name, like).await
            }
            Address::Cluster { .. } => {
                Err((ErrorKind::Client, "a cluster is reached by its nodes").into())
            }
        }
    }
}
