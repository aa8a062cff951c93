//! Whether a server gets requests: how it has fared with them, what its health checks say, how lately it came back.
//!
//! Known once for all workers of a gateway: what one learns of a server the others need not find out by failures of
//! their own, and one of them asks for its health.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::incidents::{Incidents, ServerHealth, ServerStatus};
use super::resolver::{Answers, Resolver};
use tollgate_policy::upstream::{Eject, Health, Server, ServerAddress, Upstream};
use tollgate_telemetry::metrics::Samples;

/// The servers of all upstreams, as all workers of a gateway see them. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct UpstreamHealth {
    known: Arc<Mutex<Known>>,
    resolver: Resolver,
    /// What it said last, for upstreams that a reload makes anew.
    pub(super) answers: Answers,
}

#[derive(Debug, Default)]
struct Known {
    servers: HashMap<Name, Weak<HealthRecord>>,
    /// The servers that each upstream has by its newest configuration, and whether one came to others and is yet to
    /// begin: such a server starts slowly.
    configured: HashMap<Arc<str>, HashMap<String, bool>>,
    /// What the servers that are given by a name were found to be, by their newest lookup.
    resolved: HashMap<Name, Vec<String>>,
}

/// An upstream's name, and its server's.
type Name = (Arc<str>, String);

impl UpstreamHealth {
    /// Takes note of the servers of `upstream`. Those of the first configuration take their shares at once; one that a
    /// reload adds starts slowly.
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

    /// Whether a reload added `server` to others, and nobody has asked this before.
    pub(super) fn comes(&self, upstream: &Upstream, server: &Server) -> bool {
        let configured = &mut self.known.lock().configured;
        let comes = configured
            .get_mut(&upstream.name)
            .and_then(|servers| servers.get_mut(&name(server)));
        comes.is_some_and(std::mem::take)
    }

    /// Takes note that `server` was found to be `found`; what it was before.
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

    /// Who is asked for names.
    pub(super) fn resolver(&self) -> Resolver {
        self.resolver.clone()
    }

    /// One that finds names in `table`.
    #[cfg(test)]
    pub(super) fn with_names(table: &super::resolver::Table) -> Self {
        Self {
            resolver: Resolver::Table(Arc::clone(table)),
            ..Self::default()
        }
    }

    /// The record of `server` of `upstream`: the one the other workers have, unless a reload changed how it is judged. A
    /// server that is new and `comes` to others starts slowly.
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

    /// How the servers of `upstream` do, in the order of the file; of one that is given by a name, all of its addresses.
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
                all.push(
                    record.map_or_else(|| ServerStatus::unused(name), |record| record.status()),
                );
            }
        }
        all
    }

    /// What is to be told of every server that some worker knows.
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
            let labels = [("upstream", &*upstream), ("server", server.as_str())];
            let one = |holds: bool| f64::from(u8::from(holds));
            let (healthy, ejected) = (record.healthy.load(Ordering::Relaxed), record.is_ejected());
            samples.gauge(
                "upstream_server_up",
                "Whether a server of an upstream gets requests: healthy and not ejected",
                &labels,
                one(healthy && !ejected),
            );
            samples.gauge(
                "upstream_server_ejected",
                "Whether a server is left out for a while because it failed requests",
                &labels,
                one(ejected),
            );
            let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
            let help = "Times a server was left out because it failed requests";
            samples.counter(
                "upstream_server_ejections",
                help,
                &labels,
                count(&record.ejections),
            );
            if record.health.is_some() {
                for (result, cell) in [("good", &record.checks_good), ("bad", &record.checks_bad)] {
                    let labels = [labels[0], labels[1], ("result", result)];
                    samples.counter(
                        "upstream_health_checks",
                        "Health checks made, by result",
                        &labels,
                        count(cell),
                    );
                }
            }
        }
    }
}

/// What a server is called, in metrics and where clients are placed by their identity. No two of an upstream are called
/// alike: one address may serve several.
pub(super) fn name(server: &Server) -> String {
    let scheme = if server.tls.is_some() { "https://" } else { "" };
    match &server.address {
        ServerAddress::Tcp(host, port) => format!("{scheme}{host}:{port}{}", server.base_path),
        ServerAddress::Unix(path) => format!("{scheme}unix:{}{}", path.display(), server.base_path),
    }
}

/// One server's record.
#[derive(Debug)]
pub(super) struct HealthRecord {
    eject: Eject,
    slow_start: Duration,
    health: Option<Health>,
    /// Moments are counted from here, in microseconds, so that atomics hold them; 0: none.
    anchor: Instant,
    failures: AtomicU32,
    ejected_until: AtomicU64,
    /// What health checks say: answers in a row that differ from the present opinion.
    healthy: AtomicBool,
    contrary: AtomicU32,
    back_since: AtomicU64,
    /// Whether some worker asks for its health.
    watched: AtomicBool,
    ejections: AtomicU64,
    checks_good: AtomicU64,
    checks_bad: AtomicU64,
    /// Why it failed, for the log and the status.
    pub(super) incidents: Incidents,
}

impl HealthRecord {
    /// A server of `upstream`, thought well of until it fails.
    fn new(upstream: &Upstream, server: String) -> Self {
        Self {
            eject: upstream.eject,
            slow_start: upstream.slow_start.into(),
            health: upstream.health.clone(),
            anchor: Instant::now(),
            failures: AtomicU32::new(0),
            ejected_until: AtomicU64::new(0),
            healthy: AtomicBool::new(true),
            contrary: AtomicU32::new(0),
            back_since: AtomicU64::new(0),
            watched: AtomicBool::new(false),
            ejections: AtomicU64::new(0),
            checks_good: AtomicU64::new(0),
            checks_bad: AtomicU64::new(0),
            incidents: Incidents::new(&upstream.name, server),
        }
    }

    fn judges_as(&self, upstream: &Upstream) -> bool {
        self.eject == upstream.eject
            && self.health == upstream.health
            && self.slow_start == Duration::from(upstream.slow_start)
    }

    /// A request got its response.
    pub(super) fn succeeded(&self) {
        // Looked at first: a store on every request would be a line that all cores write.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
        // An upstream's only server is asked whether it is ejected or not.
        self.notice_end_of_pause();
    }

    /// A request failed: after so many in a row the server is left out, longer each time.
    pub(super) fn failed(&self) {
        let failures = self.failures.load(Ordering::Relaxed).saturating_add(1);
        self.failures.store(failures, Ordering::Relaxed);
        if let Some(over) = failures.checked_sub(self.eject.failures.max(1)) {
            // Requests that were under way when it was left out say nothing new.
            if self.is_ejected() {
                self.failures.store(failures - 1, Ordering::Relaxed);
                return;
            }
            let pause =
                Duration::from(self.eject.wait).saturating_mul(1 << over.min(PAUSE_DOUBLINGS));
            self.ejected_until.store(
                self.moment().saturating_add(micros(pause)),
                Ordering::Relaxed,
            );
            self.ejections.fetch_add(1, Ordering::Relaxed);
            if self.healthy.load(Ordering::Relaxed) {
                self.incidents.entered(ServerHealth::Ejected);
            }
        }
    }

    /// A health check's verdict; the opinion changes after `unhealthy_after` or `healthy_after` of them in a row.
    pub(super) fn checked(&self, good: bool, healthy_after: u32, unhealthy_after: u32) {
        if good {
            &self.checks_good
        } else {
            &self.checks_bad
        }
        .fetch_add(1, Ordering::Relaxed);
        if good == self.healthy.load(Ordering::Relaxed) {
            self.contrary.store(0, Ordering::Relaxed);
            return;
        }
        let contrary = self.contrary.fetch_add(1, Ordering::Relaxed) + 1;
        if contrary >= if good { healthy_after } else { unhealthy_after } {
            self.contrary.store(0, Ordering::Relaxed);
            self.healthy.store(good, Ordering::Relaxed);
            self.incidents.entered(if good {
                ServerHealth::Up
            } else {
                ServerHealth::Unhealthy
            });
            if good {
                self.failures.store(0, Ordering::Relaxed);
                self.ejected_until.store(0, Ordering::Relaxed);
                self.came_back();
            }
        }
    }

    /// Takes on the health checks of this server, unless some worker has them.
    pub(super) fn watch(self: &Arc<Self>) -> Option<Watch> {
        (!self.watched.swap(true, Ordering::Relaxed)).then(|| Watch(Arc::clone(self)))
    }

    /// Whether it gets requests at present. When its pause is over the next request tries it again.
    pub(super) fn is_fit(&self) -> bool {
        if !self.healthy.load(Ordering::Relaxed) {
            return false;
        }
        match self.ejected_until.load(Ordering::Relaxed) {
            0 => self.takes_its_share(),
            until if self.moment() < until => false,
            until => {
                self.pause_is_over(until);
                true
            }
        }
    }

    /// One worker tells that the server came back.
    fn pause_is_over(&self, until: u64) {
        let first =
            self.ejected_until
                .compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_ok() {
            self.came_back();
            if self.healthy.load(Ordering::Relaxed) {
                self.incidents.entered(ServerHealth::Up);
            }
        }
    }

    fn notice_end_of_pause(&self) {
        let until = self.ejected_until.load(Ordering::Relaxed);
        if until != 0 && self.moment() >= until {
            self.pause_is_over(until);
        }
    }

    fn status(&self) -> ServerStatus {
        // Without requests nobody else has noticed.
        self.notice_end_of_pause();
        self.incidents.status()
    }

    fn is_ejected(&self) -> bool {
        let until = self.ejected_until.load(Ordering::Relaxed);
        until != 0 && self.moment() < until
    }

    fn came_back(&self) {
        if !self.slow_start.is_zero() {
            self.back_since.store(self.moment(), Ordering::Relaxed);
        }
    }

    /// A server that came back gets a share that grows with time, a tenth at the least.
    fn takes_its_share(&self) -> bool {
        let back = self.back_since.load(Ordering::Relaxed);
        if back == 0 {
            return true;
        }
        let (since, whole) = (
            self.moment().saturating_sub(back),
            micros(self.slow_start).max(1),
        );
        if since >= whole {
            self.back_since.store(0, Ordering::Relaxed);
            return true;
        }
        fastrand::u128(..100) < (u128::from(since) * 100 / u128::from(whole)).max(10)
    }

    /// Now, never 0.
    fn moment(&self) -> u64 {
        micros(self.anchor.elapsed()).saturating_add(1)
    }
}

/// The health checks of a server, which one worker makes for all; given up when dropped.
#[derive(Debug)]
pub(super) struct Watch(Arc<HealthRecord>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.watched.store(false, Ordering::Relaxed);
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// A pause is doubled so often at most.
const PAUSE_DOUBLINGS: u32 = 5;

#[cfg(test)]
mod tests {
    use super::super::tests::{server, upstream};
    use super::*;
    use tollgate_limit::Micros;

    fn judged(slow_start: Duration) -> Upstream {
        let mut upstream = upstream(([127, 0, 0, 1], 9).into());
        upstream.eject = Eject {
            failures: 2,
            wait: Micros::from_secs(10),
        };
        upstream.slow_start = Micros(micros(slow_start));
        upstream
    }

    fn record(slow_start: Duration) -> HealthRecord {
        HealthRecord::new(&judged(slow_start), "127.0.0.1:9".to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_leave_a_server_out_longer_each_time() {
        let server = record(Duration::ZERO);
        server.failed();
        server.succeeded();
        server.failed();
        assert!(server.is_fit(), "not in a row");
        server.failed();
        assert!(!server.is_fit());
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(server.is_fit(), "its pause is over");
        server.failed();
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(!server.is_fit(), "twice as long");
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(server.is_fit());
    }

    #[test]
    fn health_checks_change_the_opinion_after_enough_of_them() {
        let server = record(Duration::ZERO);
        for (good, fit) in [
            (false, true),
            (true, true),
            (false, true),
            (false, true),
            (false, false),
            (true, false),
            (true, true),
        ] {
            server.checked(good, 2, 3);
            assert_eq!(server.is_fit(), fit);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_came_back_starts_slowly() {
        let server = record(Duration::from_secs(10));
        for good in [false, true] {
            server.checked(good, 1, 1);
        }
        let taken = (0..1000).filter(|_| server.is_fit()).count();
        assert!((1..400).contains(&taken), "{taken}");
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!((0..100).all(|_| server.is_fit()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_was_left_out_gets_its_share_back_slowly() {
        let server = record(Duration::from_secs(10));
        server.failed();
        server.failed();
        assert!(!server.is_fit());
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(server.is_fit(), "the one that tries it");
        let taken = (0..1000).filter(|_| server.is_fit()).count();
        assert!((1..400).contains(&taken), "{taken}");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_of_what_was_under_way_do_not_lengthen_the_pause() {
        let server = record(Duration::ZERO);
        for _ in 0..50 {
            server.failed();
        }
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(server.is_fit());
        assert_eq!(server.ejections.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn workers_share_what_they_know_until_it_is_judged_differently() {
        let (fleet, upstream) = (UpstreamHealth::default(), judged(Duration::ZERO));
        let one = fleet.record(&upstream, &upstream.servers[0], false);
        let two = fleet.record(&upstream, &upstream.servers[0], false);
        assert!(Arc::ptr_eq(&one, &two));
        one.failed();
        two.failed();
        assert!(!one.is_fit() && !two.is_fit());
        let watch = one.watch().expect("nobody has them");
        assert!(two.watch().is_none(), "one asks for all");
        drop(watch);
        assert!(two.watch().is_some(), "when it goes another takes over");

        let other = server(([127, 0, 0, 1], 10).into());
        assert!(
            fleet.record(&upstream, &other, false).is_fit(),
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
            let beside = fleet.record(&upstream, &beside, false);
            assert!(beside.is_fit(), "another server at the same address");
            assert!(beside.watch().is_some(), "and its health is asked for");
        }
        let mut samples = Samples::default();
        fleet.samples(&mut samples);
        let told = format!("{samples:?}");
        assert!(
            told.contains("upstream_server_up") && told.contains("127.0.0.1:9"),
            "{told}"
        );
        let mut stricter = upstream.clone();
        stricter.eject.failures = 1;
        assert!(!Arc::ptr_eq(
            &one,
            &fleet.record(&stricter, &stricter.servers[0], false)
        ));
    }
}
