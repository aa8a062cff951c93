//! The nodes of a cluster: how each is reached, and the slot table that each reports.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{ConnectionAddr, ConnectionInfo, RedisError, Value};
use tokio::task::JoinSet;

use super::Cluster;
use super::slots::{Layout, layout};
use crate::redis::audit::fields;
use crate::redis::certificates::{Certificates, with_certificates};
use crate::redis::link::open;

/// The most nodes asked for the slot table at one time.
const ASKED_MAX: usize = 16;
/// The first response may be outdated; other nodes have this long to give a newer one.
const OTHERS: Duration = Duration::from_millis(100);
/// The most connections kept, besides those of the lanes.
const KEPT_MAX: usize = 1024;

pub(crate) struct Nodes {
    seeds: Vec<ConnectionInfo>,
    certificates: Option<Box<Certificates>>,
    connections: Mutex<HashMap<String, MultiplexedConnection>>,
}

/// A node's report and its rank: whether the node reaches most of the cluster, the cluster's epoch,
/// and the number of slots with a known owner.
type Said = ((bool, u64, usize), Layout);

impl Nodes {
    pub(crate) fn new(seeds: Vec<ConnectionInfo>, certificates: Option<Box<Certificates>>) -> Self {
        Self {
            seeds,
            certificates,
            connections: Mutex::default(),
        }
    }

    pub(crate) fn address(&self, node: &str) -> Result<ConnectionInfo, RedisError> {
        let malformed = || {
            RedisError::from((
                redis::ErrorKind::Client,
                "not the address of a node",
                node.to_owned(),
            ))
        };
        let (host, port) = node.rsplit_once(':').ok_or_else(malformed)?;
        let port = port.parse().map_err(|_| malformed())?;
        let like = self.seeds.first().ok_or_else(malformed)?;
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let addr = match like.addr() {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        with_certificates(like.clone().set_addr(addr), self.certificates.as_deref())
    }

    /// A connection to a node, separate from its lane's. After a failure the caller must
    /// [forget](Self::forget) it.
    pub(crate) async fn connection(&self, node: &str) -> Result<MultiplexedConnection, RedisError> {
        if let Some(known) = self.connections.lock().get(node) {
            return Ok(known.clone());
        }
        let connection = open(self.address(node)?).await?;
        self.keep(node, connection.clone());
        Ok(connection)
    }

    fn keep(&self, node: &str, connection: MultiplexedConnection) {
        let mut connections = self.connections.lock();
        if connections.len() >= KEPT_MAX {
            connections.clear();
        }
        connections.insert(node.to_owned(), connection);
    }

    pub(crate) fn forget(&self, node: &str) {
        self.connections.lock().remove(node);
    }

    /// Asks nodes, `known` ones first, for the slot table. The report of a node that reaches most
    /// of the cluster ranks highest, then that of the latest epoch.
    ///
    /// # Errors
    /// When no node reports it.
    pub(super) async fn who_has_what(
        cluster: &Arc<Cluster>,
        known: &[String],
    ) -> Result<Layout, String> {
        let seeds = cluster
            .nodes
            .seeds
            .iter()
            .filter_map(|seed| match seed.addr() {
                ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                    Some(format!("{host}:{port}"))
                }
                _ => None,
            });
        let mut asked: Vec<String> = seeds.collect();
        fastrand::shuffle(&mut asked);
        let mut others: Vec<&String> = known.iter().filter(|node| !asked.contains(node)).collect();
        fastrand::shuffle(&mut others);
        // Half of the places for nodes named in the file, if there are that many.
        asked.truncate(ASKED_MAX - others.len().min(ASKED_MAX / 2));
        asked.extend(
            others
                .into_iter()
                .take(ASKED_MAX - asked.len())
                .cloned()
                .collect::<Vec<_>>(),
        );
        let mut answers = JoinSet::new();
        for node in asked {
            let cluster = cluster.clone();
            answers.spawn_local(async move {
                let asked = cluster.nodes.ask(&node).await;
                asked.map_err(|error| format!("{node}: {error}"))
            });
        }
        let (mut best, mut last): (Option<Said>, _) =
            (None, String::from("no node of the cluster is known"));
        let mut enough = std::pin::pin!(tokio::time::sleep(Duration::MAX));
        loop {
            tokio::select! {
                answer = answers.join_next() => match answer {
                    None => break,
                    Some(Ok(Ok(said))) => {
                        if best.is_none() {
                            enough.as_mut().reset(tokio::time::Instant::now() + OTHERS);
                        }
                        if best.as_ref().is_none_or(|best| best.0 < said.0) {
                            best = Some(said);
                        }
                    }
                    Some(Ok(Err(error))) => last = error,
                    Some(Err(_)) => {}
                },
                () = &mut enough, if best.is_some() => break,
            }
        }
        best.map(|(_, layout)| layout).ok_or(last)
    }

    async fn ask(&self, node: &str) -> Result<Said, RedisError> {
        let mut connection = self.connection(node).await?;
        // Kept again after it has responded: a hanging connection is given up with this call.
        self.forget(node);
        let slots: Value = redis::cmd("CLUSTER")
            .arg("SLOTS")
            .query_async(&mut connection)
            .await?;
        let host = node.rsplit_once(':').map_or(node, |(host, _)| host);
        let Some(layout) = layout(&slots, host).filter(|layout| !layout.masters.is_empty()) else {
            return Err((redis::ErrorKind::Client, "it knows of no master with slots").into());
        };
        // A node whose user may not report its state is assumed to be healthy.
        let info: String = redis::cmd("CLUSTER")
            .arg("INFO")
            .query_async(&mut connection)
            .await
            .unwrap_or_default();
        let info = fields(&info);
        self.keep(node, connection);
        let epoch = info.get("cluster_current_epoch");
        let epoch = epoch.and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
        let ranges = layout.masters.values().flatten();
        let slots = ranges.map(|range| range.len()).sum();
        Ok((
            (info.get("cluster_state") != Some(&"fail"), epoch, slots),
            layout,
        ))
    }
}
