//! The health of one server: from the results of its requests, its health checks, and the time since
//! it came back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::incidents::{Incidents, ServerHealth, ServerStatus};
use tollgate_policy::upstream::{Eject, Health, Upstream};
use tollgate_telemetry::metrics::Samples;

#[derive(Debug)]
pub(super) struct HealthRecord {
    eject: Eject,
    slow_start: Duration,
    health: Option<Health>,
    /// Whether nothing is held against the server. Every request reads this, and only a change writes
    /// it: a store on every request would dirty a cache line that all cores share.
    calm: AtomicBool,
    state: Mutex<State>,
    /// Whether some worker sends its health checks.
    watched: AtomicBool,
    /// The reasons of its failures, for the log and the status.
    pub(super) incidents: Incidents,
}

#[derive(Debug)]
struct State {
    /// What [`Incidents`] knows.
    health: ServerHealth,
    /// How many requests in a row have failed.
    failures: u32,
    /// `None`: it is not ejected.
    ejected_until: Option<Instant>,
    /// The state by health checks, and the number of consecutive results that contradict it.
    healthy: bool,
    contrary: u32,
    /// Since when its share grows; `None`: it gets its whole share.
    back_since: Option<Instant>,
    ejections: u64,
    checks_good: u64,
    checks_bad: u64,
}

impl HealthRecord {
    pub(super) fn new(upstream: &Upstream, server: String) -> Self {
        Self {
            eject: upstream.eject,
            slow_start: upstream.slow_start.into(),
            health: upstream.health.clone(),
            calm: AtomicBool::new(true),
            state: Mutex::new(State {
                health: ServerHealth::Up,
                failures: 0,
                ejected_until: None,
                healthy: true,
                contrary: 0,
                back_since: None,
                ejections: 0,
                checks_good: 0,
                checks_bad: 0,
            }),
            watched: AtomicBool::new(false),
            incidents: Incidents::new(&upstream.name, server),
        }
    }

    pub(super) fn judges_as(&self, upstream: &Upstream) -> bool {
        self.eject == upstream.eject
            && self.health == upstream.health
            && self.slow_start == Duration::from(upstream.slow_start)
    }

    /// Changes the state at the present moment; a new health is logged.
    fn change<T>(&self, change: impl FnOnce(&mut State, Instant) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state, Instant::now());
        let health = match *state {
            State { healthy: false, .. } => ServerHealth::Unhealthy,
            State {
                ejected_until: Some(_),
                ..
            } => ServerHealth::Ejected,
            _ => ServerHealth::Up,
        };
        let calm = health == ServerHealth::Up && state.failures == 0 && state.back_since.is_none();
        if self.calm.load(Ordering::Relaxed) != calm {
            self.calm.store(calm, Ordering::Relaxed);
        }
        // Still locked: the healths are logged in their order.
        if std::mem::replace(&mut state.health, health) != health {
            self.incidents.entered(health);
        }
        result
    }

    pub(super) fn succeeded(&self) {
        if !self.calm.load(Ordering::Relaxed) {
            self.change(|state, now| {
                state.failures = 0;
                // An upstream's only server receives requests even when it is ejected.
                self.end_pause(state, now);
            });
        }
    }

    /// Records that a request failed: after a number of consecutive failures the server is ejected,
    /// longer each time.
    pub(super) fn failed(&self) {
        self.change(|state, now| {
            let failures = state.failures.saturating_add(1);
            if let Some(over) = failures.checked_sub(self.eject.failures.max(1)) {
                // Failures of requests that were in progress at the ejection give no new information.
                if state.is_ejected(now) {
                    return;
                }
                let wait = Duration::from(self.eject.wait);
                let pause = wait.saturating_mul(1 << over.min(PAUSE_DOUBLINGS));
                state.ejected_until = now.checked_add(pause);
                state.ejections += 1;
            }
            state.failures = failures;
        });
    }

    /// Records the result of a health check; the state changes after `unhealthy_after` or
    /// `healthy_after` consecutive results.
    pub(super) fn checked(&self, good: bool, healthy_after: u32, unhealthy_after: u32) {
        self.change(|state, now| {
            state.checks_good += u64::from(good);
            state.checks_bad += u64::from(!good);
            state.contrary = if good == state.healthy {
                0
            } else {
                state.contrary + 1
            };
            if state.contrary >= if good { healthy_after } else { unhealthy_after } {
                (state.contrary, state.healthy) = (0, good);
                if good {
                    (state.failures, state.ejected_until) = (0, None);
                    self.begin_slowly(state, now);
                }
            }
        });
    }

    /// Takes over the health checks of this server, unless another worker has them.
    pub(super) fn watch(self: &Arc<Self>) -> Option<Watch> {
        (!self.watched.swap(true, Ordering::Relaxed)).then(|| Watch(Arc::clone(self)))
    }

    /// Whether it receives requests at present. After its pause, the next request tries it again.
    pub(super) fn is_fit(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
            || self.change(|state, now| {
                if !state.healthy || state.is_ejected(now) {
                    return false;
                }
                self.end_pause(state, now) || self.takes_its_share(state, now)
            })
    }

    /// Returns whether a pause has ended.
    fn end_pause(&self, state: &mut State, now: Instant) -> bool {
        let ends = state.ejected_until.is_some() && !state.is_ejected(now);
        if ends {
            state.ejected_until = None;
            self.begin_slowly(state, now);
        }
        ends
    }

    pub(super) fn status(&self) -> ServerStatus {
        // Without requests the end of the pause has not been noticed yet.
        self.change(|state, now| self.end_pause(state, now));
        self.incidents.status()
    }

    pub(super) fn came_back(&self) {
        self.change(|state, now| self.begin_slowly(state, now));
    }

    fn begin_slowly(&self, state: &mut State, now: Instant) {
        state.back_since = Some(now).filter(|_| !self.slow_start.is_zero());
    }

    /// Whether a server that came back accepts this request; its share grows with time, from a tenth.
    fn takes_its_share(&self, state: &mut State, now: Instant) -> bool {
        let since = state.back_since.map(|back| now.duration_since(back));
        let Some(since) = since.filter(|since| *since < self.slow_start) else {
            state.back_since = None;
            return true;
        };
        let share = since.as_micros() * 100 / self.slow_start.as_micros().max(1);
        fastrand::u128(..100) < share.max(10)
    }

    pub(super) fn samples(&self, upstream: &str, server: &str, samples: &mut Samples) {
        let labels = [("upstream", upstream), ("server", server)];
        let one = |holds: bool| f64::from(u8::from(holds));
        let state = self.state.lock();
        let ejected = state.is_ejected(Instant::now());
        let help = "Whether a server of an upstream gets requests: healthy and not ejected";
        let up = one(state.healthy && !ejected);
        samples.gauge("upstream_server_up", help, &labels, up);
        let help = "Whether a server is left out for a while because it failed requests";
        samples.gauge("upstream_server_ejected", help, &labels, one(ejected));
        let help = "Times a server was left out because it failed requests";
        let ejections = state.ejections;
        samples.counter("upstream_server_ejections", help, &labels, ejections);
        if self.health.is_some() {
            for (result, count) in [("good", state.checks_good), ("bad", state.checks_bad)] {
                let labels = [labels[0], labels[1], ("result", result)];
                let help = "Health checks made, by result";
                samples.counter("upstream_health_checks", help, &labels, count);
            }
        }
    }
}

impl State {
    fn is_ejected(&self, now: Instant) -> bool {
        self.ejected_until.is_some_and(|until| now < until)
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
        upstream.slow_start = slow_start.into();
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
        assert_eq!(server.state.lock().ejections, 1);
    }
}
