//! How a Redis is reached: one server, the master that sentinels name, a cluster.

use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{Sentinel, SentinelNodeConnectionInfo};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, RedisError, RedisFuture, TlsCertificates,
    TlsMode, Value,
};

use super::RedisLink;
use crate::redis::address::Address;

/// A connection is up within this or not at all; requests do not wait for it.
pub(super) const CONNECT_WITHIN: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(super) enum Wire {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl ConnectionLike for Wire {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Single(connection) => connection.req_packed_command(cmd),
            Self::Cluster(connection) => connection.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        cmd: &'a redis::Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Single(connection) => connection.req_packed_commands(cmd, offset, count),
            Self::Cluster(connection) => connection.req_packed_commands(cmd, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Single(connection) => connection.get_db(),
            Self::Cluster(connection) => connection.get_db(),
        }
    }
}

impl RedisLink {
    pub(super) async fn wire(&self) -> Result<Wire, RedisError> {
        // Calls have our own deadline around them; this one only keeps the greeting from hanging.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_WITHIN))
            .set_response_timeout(Some(CONNECT_WITHIN));
        match &self.address {
            Address::Single(info) => {
                let client = Client::open((**info).clone())?;
                Ok(Wire::Single(client.get_multiplexed_async_connection_with_config(&config).await?))
            }
            Address::Sentinel { sentinels, name, master, certificates: Some(certificates), .. } => {
                let client = master_by_hand(sentinels, name, master, certificates, &config).await?;
                Ok(Wire::Single(client.get_multiplexed_async_connection_with_config(&config).await?))
            }
            Address::Sentinel { sentinels, name, master, tls, certificates: None } => {
                let mut node = SentinelNodeConnectionInfo::default()
                    .set_redis_connection_info(master.redis_settings().clone())
                    .set_tcp_settings(master.tcp_settings().clone());
                if *tls {
                    node = node.set_tls_mode(TlsMode::Secure);
                }
                // Asked anew each time: the master may be another since.
                let mut sentinel = Sentinel::build(sentinels.clone())?;
                let client = sentinel.async_master_for(name, Some(&node)).await?;
                Ok(Wire::Single(client.get_multiplexed_async_connection_with_config(&config).await?))
            }
            Address::Cluster { nodes, certificates } => {
                let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
                // A charge is not sent twice; redirections are followed, as the script has not run then.
                let mut client = ClusterClient::builder(nodes.clone())
                    .retries(2)
                    .connection_timeout(CONNECT_WITHIN)
                    .response_timeout(CONNECT_WITHIN)
                    .tcp_settings(tcp);
                if let Some(certificates) = certificates {
                    client = client.certs((**certificates).clone());
                }
                let client = client.build()?;
                Ok(Wire::Cluster(client.get_async_connection().await?))
            }
        }
    }
}

/// The master that the first sentinel to answer names. redis-rs asks sentinels by itself, but speaks to the master they
/// name with the system's authorities only.
async fn master_by_hand(
    sentinels: &[ConnectionInfo],
    name: &str,
    master: &ConnectionInfo,
    certificates: &TlsCertificates,
    config: &AsyncConnectionConfig,
) -> Result<Client, RedisError> {
    let mut last = RedisError::from((redis::ErrorKind::MasterNameNotFoundBySentinel, "no sentinel answers"));
    for sentinel in sentinels {
        let found: Result<(String, u16), RedisError> = async {
            let client = Client::open(sentinel.clone())?;
            let mut wire = client.get_multiplexed_async_connection_with_config(config).await?;
            redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).query_async(&mut wire).await
        }
        .await;
        match found {
            Ok((host, port)) => {
                let addr = ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None };
                return Client::build_with_tls(master.clone().set_addr(addr), certificates.clone());
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
