//! How fast a client must send its body: a bound on each silence, and one on the time it is waited for in all.

use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use crate::limit::Micros;
use crate::proxy::body::BodyError;
use crate::proxy::timers::Expiry;

/// The bounds on one body. They cost nothing until it is waited for; time in which the upstream takes nothing does not
/// count.
#[derive(Debug)]
pub(super) struct Pace {
    idle: Expiry,
    /// Bytes a second; 0: no such bound.
    rate: u64,
    grace: Duration,
    slow: Expiry,
    waiting_since: Option<Instant>,
    waited: Duration,
    bytes: u64,
}

impl Pace {
    /// A silence may last `idle`; over all the time that the body is waited for, beyond `grace`, it must come at `rate`
    /// bytes a second.
    pub(super) const fn new(idle: Micros, rate: u64, grace: Micros) -> Self {
        Self {
            idle: Expiry::after_micros(idle),
            rate,
            grace: Duration::from_micros(grace.0),
            slow: Expiry::after_micros(Micros::ZERO),
            waiting_since: None,
            waited: Duration::ZERO,
            bytes: 0,
        }
    }

    /// The body is waited for: how it fails when that has lasted too long. `streams`: the answer has begun, and nobody
    /// waits for the end of the body.
    pub(super) fn poll(&mut self, cx: &Context<'_>, streams: bool) -> Poll<BodyError> {
        if self.idle.poll(cx).is_ready() {
            return Poll::Ready(BodyError::ClientIdle);
        }
        if self.rate == 0 || streams {
            return Poll::Pending;
        }
        if self.waiting_since.is_none() {
            self.waiting_since = Some(Instant::now());
            let earned = Duration::from_millis(self.bytes.saturating_mul(1_000) / self.rate);
            // At least a moment, since none means no bound.
            self.slow = Expiry::after((self.grace + earned).saturating_sub(self.waited).max(Duration::from_millis(1)));
        }
        self.slow.poll(cx).map(|()| BodyError::ClientSlow)
    }

    /// The wait is over, with this many bytes.
    pub(super) fn came(&mut self, bytes: usize) {
        self.idle.reset();
        if let Some(since) = self.waiting_since.take() {
            self.waited += since.elapsed();
        }
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until it fails or `span` has passed.
    async fn wait(pace: &mut Pace, span: Duration) -> Option<&'static str> {
        let failed = std::future::poll_fn(|cx| pace.poll(cx, false));
        tokio::time::timeout(span, failed).await.ok().map(|error| error.label())
    }

    #[tokio::test(start_paused = true)]
    async fn a_trickle_is_given_up_and_a_slow_but_steady_body_is_not() {
        let second = Duration::from_secs(1);
        let (idle, grace) = (Micros::from_secs(30), Micros::from_secs(5));
        let mut steady = Pace::new(idle, 100, grace);
        let mut trickle = Pace::new(idle, 100, grace);
        for passed in 0..60 {
            assert_eq!(wait(&mut steady, second).await, None);
            steady.came(101);
            match wait(&mut trickle, second).await {
                None => assert!(passed < 6, "{passed}"),
                Some(label) => {
                    assert_eq!((label, passed >= 5), ("client_slow", true), "{passed}");
                    break;
                }
            }
            trickle.came(1);
        }
        assert!(trickle.waited >= 5 * second);
        let mut silent = Pace::new(Micros::from_secs(2), 0, grace);
        assert_eq!(wait(&mut silent, 60 * second).await, Some("client_idle"));
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_nobody_waits_does_not_count() {
        let mut pace = Pace::new(Micros::from_secs(30), 100, Micros::from_secs(2));
        for _ in 0..20 {
            assert_eq!(wait(&mut pace, Duration::from_millis(50)).await, None);
            pace.came(1);
            tokio::time::advance(Duration::from_secs(10)).await;
        }
    }
}
