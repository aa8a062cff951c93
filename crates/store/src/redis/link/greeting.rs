//! What a server tells of itself: whether it may be written to, who it is, and what the audit says of it.

use std::collections::HashMap;

use redis::RedisError;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};

use super::RedisLink;
use super::wire::Wire;
use crate::audit::Finding;
use crate::redis::audit::{audit, blind, fields};
use crate::shape::signed;

impl RedisLink {
    /// Audits the server, or all masters of a cluster; its INFO, if it is one that tells.
    pub(super) async fn look(&self, wire: &mut Wire) -> Result<Option<String>, RedisError> {
        if let Wire::Cluster(cluster) = wire {
            // Each node has its own history, and its own settings.
            if let Some(masters) = seen_or_blind(masters(cluster).await)? {
                let found = masters.into_iter().flat_map(|(node, info, server)| {
                    let findings = self.audit(&info, server).into_iter();
                    findings.map(move |one| Finding { message: format!("{node}: {}", one.message), ..one })
                });
                self.shared.audited(found.collect());
            } else {
                self.shared.audited(vec![blind()]);
            }
            return Ok(None);
        }
        let Some(info) = seen_or_blind(redis::cmd("INFO").query_async::<String>(wire).await)? else {
            self.shared.audited(vec![blind()]);
            return Ok(None);
        };
        let server = micros(redis::cmd("TIME").query_async(wire).await?);
        self.shared.audited(self.audit(&info, server));
        Ok(Some(info))
    }

    /// What a server's INFO and clock say.
    fn audit(&self, info: &str, server: u64) -> Vec<Finding> {
        audit(&fields(info), server, self.clock.now().as_micros(), self.shared.has_long_quotas())
    }

    /// Who answers (its fingerprint), whether it may be written to, and what the audit says of it.
    pub(super) async fn greet(&self, wire: &mut Wire) -> Result<i64, String> {
        // Fail-over rules by fingerprint need one server.
        let Some(info) = self.look(wire).await.map_err(|error| error.to_string())? else { return Ok(0) };
        let fields = fields(&info);
        if fields.get("role").is_some_and(|role| *role != "master") {
            return Err("it is a replica, not the primary".into());
        }
        if fields.get("loading").is_some_and(|loading| *loading != "0") {
            return Err("it is loading its data".into());
        }
        Ok(fingerprint(fields.get("run_id"), fields.get("master_replid")))
    }
}

/// A user who may not read INFO can still draw; the audit and the fail-over rule are then blind: `None`.
fn seen_or_blind<T>(seen: Result<T, RedisError>) -> Result<Option<T>, RedisError> {
    match seen {
        Ok(seen) => Ok(Some(seen)),
        Err(error) if error.code() == Some("NOPERM") => Ok(None),
        Err(error) => Err(error),
    }
}

/// Every master of a cluster: its address, INFO and clock.
async fn masters(cluster: &mut ClusterConnection) -> Result<Vec<(String, String, u64)>, RedisError> {
    let everywhere = || RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
    let infos = cluster.route_command(redis::cmd("INFO"), everywhere()).await?;
    let infos: HashMap<String, String> = redis::from_redis_value(infos)?;
    let times = cluster.route_command(redis::cmd("TIME"), everywhere()).await?;
    let times: HashMap<String, (u64, u64)> = redis::from_redis_value(times)?;
    let both = |(node, info): (String, String)| Some((micros(*times.get(&node)?), node, info));
    let mut masters: Vec<_> = infos.into_iter().filter_map(both).map(|(time, node, info)| (node, info, time)).collect();
    masters.sort_unstable();
    Ok(masters)
}

/// What TIME says, in microseconds.
fn micros((seconds, micros): (u64, u64)) -> u64 {
    seconds.saturating_mul(1_000_000).saturating_add(micros)
}

/// Of the process and of its data's history, in 52 bits.
fn fingerprint(run_id: Option<&&str>, replid: Option<&&str>) -> i64 {
    use std::hash::Hasher;
    let mut hasher = siphasher::sip::SipHasher13::new();
    for part in [run_id, replid].into_iter().flatten() {
        hasher.write(part.as_bytes());
        hasher.write_u8(0xff);
    }
    signed(hasher.finish() >> 12)
}
