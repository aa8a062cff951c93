//! The health records of all servers of all upstreams.
//!
//! All workers of a gateway share this state, so that a failure seen by one worker need not be
//! repeated on the others, and only one of them sends health checks.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::health_record::HealthRecord;
use super::incidents::ServerStatus;
use super::resolver::{Answers, Resolver};
use tollgate_policy::upstream::{Server, ServerAddress, Upstream};
use tollgate_telemetry::metrics::Samples;

/// The servers of all upstreams, shared by all workers of a gateway. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct UpstreamHealth {
    known: Arc<Mutex<Known>>,
    pub(super) resolver: Resolver,
    /// The resolver's last answers, for upstreams that a reload recreates.
    pub(super) answers: Answers,
}

#[derive(Debug, Default)]
struct Known {
    servers: HashMap<Name, Weak<HealthRecord>>,
    /// The servers of each upstream in its newest configuration, and whether one was added to
    /// others and has not started yet: such a server starts slowly.
    configured: HashMap<Arc<str>, HashMap<String, bool>>,
    /// The addresses of servers given by name, from their newest lookup.
    resolved: HashMap<Name, Vec<String>>,
}

/// The name of an upstream, and of its server.
type Name = (Arc<str>, String);

impl UpstreamHealth {
    /// Registers the servers of `upstream`. Those of the first configuration receive their full
    /// shares at once; one that a reload adds starts slowly.
    pub(super) fn meet(&self, upstream: &Upstream) {
        let Known {
            servers,
            configured,
            resolved,
        } = &mut *self.known.lock();
        servers.retain(|_, record| record.strong_count() > 0);
        configured.retain(|name, _| servers.keys().any(|(upstream, _)| upstream == name));
        let before = configured.remove(&upstream.name);
        let now = upstream.servers.iter().map(|server| {
            let name = name(server);
            let comes = before
                .as_ref()
                .is_some_and(|before| before.get(&name).copied().unwrap_or(true));
            (name, comes)
        });
        configured.insert(Arc::clone(&upstream.name), now.collect());
        let is_configured = |(upstream, server): &Name| {
            configured
                .get(upstream)
                .is_some_and(|servers| servers.contains_key(server))
        };
        resolved.retain(|name, _| is_configured(name));
    }

    /// Whether a reload added `server` to others; true only on the first call.
    pub(super) fn comes(&self, upstream: &Upstream, server: &Server) -> bool {
        let configured = &mut self.known.lock().configured;
        let comes = configured
            .get_mut(&upstream.name)
            .and_then(|servers| servers.get_mut(&name(server)));
        comes.is_some_and(std::mem::take)
    }

    /// Records that `server` resolved to `found`; returns the previous result.
    pub(super) fn resolved(
        &self,
        upstream: &Upstream,
        server: &Server,
        found: &[Server],
    ) -> Option<Vec<String>> {
        let names = found.iter().map(name).collect();
        self.known
            .lock()
            .resolved
            .insert((Arc::clone(&upstream.name), name(server)), names)
    }

    /// The record of `server` of `upstream`: the one that other workers use, unless a reload
    /// changed how it is judged. A new server that is added to others (`comes`) starts slowly.
    pub(super) fn record(
        &self,
        upstream: &Upstream,
        server: &Server,
        comes: bool,
    ) -> Arc<HealthRecord> {
        let name = (Arc::clone(&upstream.name), name(server));
        let servers = &mut self.known.lock().servers;
        if let Some(record) = servers
            .get(&name)
            .and_then(Weak::upgrade)
            .filter(|known| known.judges_as(upstream))
        {
            return record;
        }
        servers.retain(|_, record| record.strong_count() > 0);
        let record = Arc::new(HealthRecord::new(upstream, name.1.clone()));
        if comes {
            record.came_back();
        }
        servers.insert(name, Arc::downgrade(&record));
        record
    }

    /// The status of the servers of `upstream`, in the order of the file; for a server given by
    /// name, all of its addresses.
    pub fn status(&self, upstream: &Upstream) -> Vec<ServerStatus> {
        let known = self.known.lock();
        let mut all = Vec::new();
        for server in &upstream.servers {
            let own = (Arc::clone(&upstream.name), name(server));
            let names = known
                .resolved
                .get(&own)
                .cloned()
                .unwrap_or_else(|| vec![own.1]);
            for name in names {
                let record = known
                    .servers
                    .get(&(Arc::clone(&upstream.name), name.clone()))
                    .and_then(Weak::upgrade);
                all.push(match record {
                    Some(record) => record.status(),
                    None => ServerStatus {
                        server: name,
                        ..ServerStatus::default()
                    },
                });
            }
        }
        all
    }

    pub fn samples(&self, samples: &mut Samples) {
        let mut known: Vec<_> = {
            let known = self.known.lock();
            known
                .servers
                .iter()
                .filter_map(|(name, record)| Some((name.clone(), record.upgrade()?)))
                .collect()
        };
        known.sort_by(|(a, _), (b, _)| a.cmp(b));
        for ((upstream, server), record) in known {
            record.samples(&upstream, &server, samples);
        }
    }
}

/// The name of a server in metrics and in placing callers by their identity. It is unique within an
/// upstream, because one address may serve several.
pub(super) fn name(server: &Server) -> String {
    let scheme = if server.tls.is_some() { "https://" } else { "" };
    match &server.address {
        ServerAddress::Tcp(host, port) => format!("{scheme}{host}:{port}{}", server.base_path),
        ServerAddress::Unix(path) => format!("{scheme}unix:{}{}", path.display(), server.base_path),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::health_record::tests::judged;
    use super::super::tests::server;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn upstream_health_is_shared_between_workers() {
        let (health, upstream) = (UpstreamHealth::default(), judged(Duration::ZERO));
        let one = health.record(&upstream, &upstream.servers[0], false);
        let two = health.record(&upstream, &upstream.servers[0], false);
        assert!(Arc::ptr_eq(&one, &two));
        one.failed();
        two.failed();
        assert!(!one.is_fit() && !two.is_fit());
        let watch = one.watch().expect("it is not watched yet");
        assert!(two.watch().is_none(), "one asks for all");
        drop(watch);
        assert!(two.watch().is_some(), "when it goes another takes over");

        let other = server(([127, 0, 0, 1], 10).into());
        assert!(
            health.record(&upstream, &other, false).is_fit(),
            "another server"
        );
        for beside in [
            Server {
                base_path: "/b".into(),
                ..upstream.servers[0].clone()
            },
            Server {
                tls: Some("localhost".into()),
                ..upstream.servers[0].clone()
            },
        ] {
            let beside = health.record(&upstream, &beside, false);
            assert!(beside.is_fit(), "another server at the same address");
            assert!(beside.watch().is_some(), "and its health is asked for");
        }
        let mut samples = Samples::default();
        health.samples(&mut samples);
        let received = format!("{samples:?}");
        assert!(
            received.contains("upstream_server_up") && received.contains("127.0.0.1:9"),
            "{received}"
        );
        let mut stricter = upstream.clone();
        stricter.eject.failures = 1;
        let stricter = health.record(&stricter, &stricter.servers[0], false);
        assert!(!Arc::ptr_eq(&one, &stricter));
        let slower = judged(Duration::from_secs(1));
        let slower = health.record(&slower, &slower.servers[0], false);
        let back = health.record(&upstream, &upstream.servers[0], false);
        assert!(!Arc::ptr_eq(&slower, &back));
    }
}
