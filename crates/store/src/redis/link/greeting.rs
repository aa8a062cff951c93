//! Identifies a server: whether it may be written to, its fingerprint, and the audit's findings.

use redis::RedisError;
use redis::aio::MultiplexedConnection;

use super::RedisLink;
use crate::audit::Finding;
use crate::redis::audit::{audit, blind, fields};
use crate::wire_form::signed;

pub(super) struct Greeting {
    pub(super) fingerprint: i64,
    pub(super) print: Option<i64>,
}

impl RedisLink {
    /// Audits the server; returns its INFO, if the user may read it.
    pub(super) async fn look(
        &self,
        wire: &mut MultiplexedConnection,
    ) -> Result<Option<String>, RedisError> {
        let info: String = match redis::cmd("INFO").query_async(wire).await {
            Ok(info) => info,
            // A user without the right to read INFO can still draw, without audit and fail-over rule.
            Err(error) if error.code() == Some("NOPERM") => {
                self.shared.audited(self.named(vec![blind()]));
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query_async(wire).await?;
        let server = seconds.saturating_mul(1_000_000).saturating_add(micros);
        let (ours, long_quotas) = (self.clock.now(), self.shared.has_long_quotas());
        let findings = audit(&fields(&info), server, ours.as_micros(), long_quotas);
        self.shared.audited(self.named(findings));
        Ok(Some(info))
    }

    /// Findings about one of several servers name it.
    fn named(&self, findings: Vec<Finding>) -> Vec<Finding> {
        let Some(server) = self.shared.server() else {
            return findings;
        };
        findings
            .into_iter()
            .map(|one| Finding {
                message: format!("{server}: {}", one.message),
                ..one
            })
            .collect()
    }

    /// The server's fingerprint, whether it may be written to, and the audit's findings.
    pub(super) async fn greet(&self, wire: &mut MultiplexedConnection) -> Result<Greeting, String> {
        let Some(info) = self.look(wire).await.map_err(|error| error.to_string())? else {
            return Ok(Greeting {
                fingerprint: 0,
                print: None,
            });
        };
        let fields = fields(&info);
        if fields.get("role").is_some_and(|role| *role != "master") {
            return Err("it is a replica, not the primary".into());
        }
        if fields.get("loading").is_some_and(|loading| *loading != "0") {
            return Err("it is loading its data".into());
        }
        let (run_id, replid) = (fields.get("run_id"), fields.get("master_replid"));
        let print = fingerprint(run_id, replid);
        Ok(Greeting {
            // Slots move between the servers of a cluster, so a fingerprint says nothing there.
            fingerprint: if self.node.is_some() { 0 } else { print },
            print: run_id.or(replid).map(|_| print),
        })
    }
}

/// Identifies the process and its data's history, in 52 bits.
fn fingerprint(run_id: Option<&&str>, replid: Option<&&str>) -> i64 {
    use std::hash::Hasher;
    let mut hasher = siphasher::sip::SipHasher13::new();
    for part in [run_id, replid].into_iter().flatten() {
        hasher.write(part.as_bytes());
        hasher.write_u8(0xff);
    }
    signed(hasher.finish() >> 12)
}
