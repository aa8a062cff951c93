//! Whether a server gets requests: how it has fared with them, what its health checks say, how lately it came back.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

use crate::policy::upstream::{Eject, Upstream};

/// One server's fitness, as this worker sees it.
#[derive(Debug)]
pub(super) struct Fitness {
    eject: Eject,
    failures: Cell<u32>,
    ejected: Cell<Option<Instant>>,
    /// What health checks say: answers in a row that differ from the present opinion.
    healthy: Cell<bool>,
    contrary: Cell<u32>,
    slow_start: Duration,
    back: Cell<Option<Instant>>,
}

impl Fitness {
    /// A server of `upstream`, thought well of until it fails.
    pub(super) fn new(upstream: &Upstream) -> Self {
        Self {
            eject: upstream.eject,
            failures: Cell::new(0),
            ejected: Cell::new(None),
            healthy: Cell::new(true),
            contrary: Cell::new(0),
            slow_start: upstream.slow_start.into(),
            back: Cell::new(None),
        }
    }

    /// A request got its answer.
    pub(super) fn succeeded(&self) {
        self.failures.set(0);
    }

    /// A request failed: after so many in a row the server is left out, longer each time.
    pub(super) fn failed(&self) {
        let failures = self.failures.get().saturating_add(1);
        self.failures.set(failures);
        if let Some(over) = failures.checked_sub(self.eject.failures.max(1)) {
            let pause = Duration::from(self.eject.wait).saturating_mul(1 << over.min(PAUSE_DOUBLINGS));
            self.ejected.set(Instant::now().checked_add(pause));
        }
    }

    /// A health check's verdict; the opinion changes after `unhealthy_after` or `healthy_after` of them in a row.
    pub(super) fn checked(&self, good: bool, healthy_after: u32, unhealthy_after: u32) {
        if good == self.healthy.get() {
            self.contrary.set(0);
            return;
        }
        let contrary = self.contrary.get() + 1;
        self.contrary.set(contrary);
        if contrary >= if good { healthy_after } else { unhealthy_after } {
            self.contrary.set(0);
            self.healthy.set(good);
            if good {
                self.failures.set(0);
                self.ejected.set(None);
                self.came_back();
            }
        }
    }

    /// Whether it gets requests at present. When its pause is over the next request tries it again.
    pub(super) fn is_fit(&self) -> bool {
        if !self.healthy.get() {
            return false;
        }
        match self.ejected.get() {
            None => self.takes_its_share(),
            Some(until) if Instant::now() < until => false,
            Some(_) => {
                self.ejected.set(None);
                self.came_back();
                true
            }
        }
    }

    fn came_back(&self) {
        if !self.slow_start.is_zero() {
            self.back.set(Some(Instant::now()));
        }
    }

    /// A server that came back gets a share that grows with time, a tenth at the least.
    fn takes_its_share(&self) -> bool {
        let Some(back) = self.back.get() else { return true };
        let since = back.elapsed();
        if since >= self.slow_start {
            self.back.set(None);
            return true;
        }
        let part = since.as_micros().saturating_mul(100) / self.slow_start.as_micros().max(1);
        fastrand::u128(..100) < part.max(10)
    }
}

/// A pause is doubled so often at most.
const PAUSE_DOUBLINGS: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Micros;

    fn fitness(slow_start: Duration) -> Fitness {
        Fitness {
            eject: Eject { failures: 2, wait: Micros::from_secs(10) },
            failures: Cell::new(0),
            ejected: Cell::new(None),
            healthy: Cell::new(true),
            contrary: Cell::new(0),
            slow_start,
            back: Cell::new(None),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_leave_a_server_out_longer_each_time() {
        let server = fitness(Duration::ZERO);
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
        let server = fitness(Duration::ZERO);
        for (good, fit) in
            [(false, true), (true, true), (false, true), (false, true), (false, false), (true, false), (true, true)]
        {
            server.checked(good, 2, 3);
            assert_eq!(server.is_fit(), fit);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_came_back_starts_slowly() {
        let server = fitness(Duration::from_secs(10));
        for good in [false, true] {
            server.checked(good, 1, 1);
        }
        let taken = (0..1000).filter(|_| server.is_fit()).count();
        assert!((1..400).contains(&taken), "{taken}");
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!((0..100).all(|_| server.is_fit()));
    }
}
