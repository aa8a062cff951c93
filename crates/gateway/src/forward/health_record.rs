//! The health of one server: from the results of its requests, its health checks, and the time since
//! it came back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::incidents::{Incidents, ServerHealth, ServerStatus};
use tollgate_policy::upstream::{Eject, Health, Upstream};
use tollgate_telemetry::metrics::Samples;

#[derive(Debug)]
pub(super) struct HealthRecord {
    eject: Eject,
    slow_start: Duration,
    health: Option<Health>,
    /// Points in time are counted from here in microseconds, so that atomics hold them; 0: none.
    anchor: Instant,
    failures: AtomicU32,
    ejected_until: AtomicU64,
    /// The state by health checks, and the number of consecutive results that contradict it.
    healthy: AtomicBool,
    contrary: AtomicU32,
    back_since: AtomicU64,
    /// Whether some worker sends its health checks.
    watched: AtomicBool,
    ejections: AtomicU64,
    checks_good: AtomicU64,
    checks_bad: AtomicU64,
    /// The reasons of its failures, for the log and the status.
    pub(super) incidents: Incidents,
}

impl HealthRecord {
    pub(super) fn new(upstream: &Upstream, server: String) -> Self {
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

    pub(super) fn judges_as(&self, upstream: &Upstream) -> bool {
        self.eject == upstream.eject
            && self.health == upstream.health
            && self.slow_start == Duration::from(upstream.slow_start)
    }

    pub(super) fn succeeded(&self) {
        // Read first: a store on every request would dirty a cache line that all cores share.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
        // An upstream's only server receives requests even when it is ejected.
        self.notice_end_of_pause();
    }

    /// Records that a request failed: after a number of consecutive failures the server is ejected,
    /// longer each time.
    pub(super) fn failed(&self) {
        let failures = self.failures.load(Ordering::Relaxed).saturating_add(1);
        self.failures.store(failures, Ordering::Relaxed);
        if let Some(over) = failures.checked_sub(self.eject.failures.max(1)) {
            // Failures of requests that were in progress at the ejection give no new information.
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

    /// Records the result of a health check; the state changes after `unhealthy_after` or
    /// `healthy_after` consecutive results.
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

    /// Takes over the health checks of this server, unless another worker has them.
    pub(super) fn watch(self: &Arc<Self>) -> Option<Watch> {
        (!self.watched.swap(true, Ordering::Relaxed)).then(|| Watch(Arc::clone(self)))
    }

    /// Whether it receives requests at present. After its pause, the next request tries it again.
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

    /// Records the end of the pause; one worker logs it.
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

    pub(super) fn status(&self) -> ServerStatus {
        // Without requests the end of the pause has not been noticed yet.
        self.notice_end_of_pause();
        self.incidents.status()
    }

    fn is_ejected(&self) -> bool {
        let until = self.ejected_until.load(Ordering::Relaxed);
        until != 0 && self.moment() < until
    }

    pub(super) fn came_back(&self) {
        if !self.slow_start.is_zero() {
            self.back_since.store(self.moment(), Ordering::Relaxed);
        }
    }

    /// Whether a server that came back accepts this request; its share grows with time, from a
    /// tenth.
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

    pub(super) fn samples(&self, upstream: &str, server: &str, samples: &mut Samples) {
        let labels = [("upstream", upstream), ("server", server)];
        let one = |holds: bool| f64::from(u8::from(holds));
        let (healthy, ejected) = (self.healthy.load(Ordering::Relaxed), self.is_ejected());
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
            count(&self.ejections),
        );
        if self.health.is_some() {
            for (result, cell) in [("good", &self.checks_good), ("bad", &self.checks_bad)] {
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

    /// The current time, never 0.
    fn moment(&self) -> u64 {
        micros(self.anchor.elapsed()).saturating_add(1)
    }
}

/// The right of one worker to send the health checks of a server; released when dropped.
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

const PAUSE_DOUBLINGS: u32 = 5;

#[cfg(test)]
pub(super) mod tests {
    use super::super::tests::upstream;
    use super::*;
    use tollgate_limit::Micros;

    pub(in crate::forward) fn judged(slow_start: Duration) -> Upstream {
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

    #[test]
    fn health_checks_that_are_good_again_forgive_failures_and_end_a_pause() {
        let server = record(Duration::ZERO);
        server.failed();
        server.failed();
        for good in [false, true] {
            server.checked(good, 1, 1);
        }
        assert!(server.is_fit(), "its pause is over");
        server.failed();
        assert!(server.is_fit(), "the first failure since");
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
    async fn failures_of_requests_in_progress_do_not_lengthen_the_pause() {
        let server = record(Duration::ZERO);
        for _ in 0..50 {
            server.failed();
        }
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(server.is_fit());
        assert_eq!(server.ejections.load(Ordering::Relaxed), 1);
    }
}
