//! Bounds how slowly a client may send its body: a limit on each silence, and one on the total time
//! spent waiting.

use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use crate::forward::body::BodyError;
use tollgate_limit::Micros;
use tollgate_net::server::Window;
use tollgate_net::timers::Expiry;

/// The bounds on one body. They cost nothing until the gateway waits for the body. Two times do not
/// count: while the upstream accepts nothing, and while other bodies that the gateway holds back
/// leave this client no flow-control window.
#[derive(Debug)]
pub(crate) struct MinimumRate {
    idle: Expiry,
    /// The minimum rate in bytes a second; 0: no such bound.
    rate: u64,
    grace: Duration,
    slow: Expiry,
    /// HTTP/2: the client's flow-control window on its connection.
    window: Option<Window>,
    wait: Option<Wait>,
    waited: Duration,
    bytes: u64,
}

#[derive(Debug)]
struct Wait {
    since: Instant,
    /// How long the window had been closed when the wait began.
    shut: Duration,
    /// The part of that time that was added to the bounds since: to the silence's, to the rate's.
    added: [Duration; 2],
}

impl MinimumRate {
    /// A silence may last `idle`. Over the total time of waiting, beyond `grace`, the body must
    /// arrive at `rate` bytes a second. `window` is the client's flow-control window.
    pub(crate) fn new(idle: Micros, rate: u64, grace: Micros, window: Option<Window>) -> Self {
        Self {
            idle: Expiry::after(idle.into()),
            rate,
            grace: Duration::from_micros(grace.0),
            slow: Expiry::after(Duration::ZERO),
            window,
            wait: None,
            waited: Duration::ZERO,
            bytes: 0,
        }
    }

    /// Called while the body is awaited; ready with the error if that has lasted too long.
    /// `streams`: the response has begun, and nothing waits for the end of the body.
    pub(crate) fn poll(&mut self, cx: &Context<'_>, streams: bool) -> Poll<BodyError> {
        if self.wait.is_none() {
            self.wait = Some(Wait {
                since: Instant::now(),
                shut: self.shut(),
                added: [Duration::ZERO; 2],
            });
            if let Some(earned) = self.bytes.saturating_mul(1_000).checked_div(self.rate) {
                let left = (self.grace + Duration::from_millis(earned)).saturating_sub(self.waited);
                // At least a millisecond, because zero means no bound.
                self.slow = Expiry::after(left.max(Duration::from_millis(1)));
            }
        }
        while self.idle.poll(cx).is_ready() {
            let Some(more) = self.more(0) else {
                return Poll::Ready(BodyError::ClientIdle);
            };
            self.idle.put_off(more);
        }
        if self.rate == 0 || streams {
            return Poll::Pending;
        }
        while self.slow.poll(cx).is_ready() {
            let Some(more) = self.more(1) else {
                return Poll::Ready(BodyError::ClientSlow);
            };
            self.slow.put_off(more);
        }
        Poll::Pending
    }

    /// How long to extend a bound that has passed: the time of this wait in which the window was
    /// closed, if not already added.
    fn more(&mut self, bound: usize) -> Option<Duration> {
        let shut = self.shut();
        let wait = self.wait.as_mut()?;
        let more = shut
            .saturating_sub(wait.shut)
            .saturating_sub(wait.added[bound]);
        wait.added[bound] += more;
        (!more.is_zero()).then_some(more)
    }

    fn shut(&self) -> Duration {
        self.window.as_ref().map_or(Duration::ZERO, Window::shut)
    }

    /// Whether the body arrives so slowly that a server may give up because of that: a silence, a
    /// trickle, or a long time in all. Most uploads pause for less, come faster and end sooner, so that
    /// they do not excuse a server that closes its connections.
    pub(crate) fn is_slow(&self) -> bool {
        let (silence, waited) = (self.silence(), self.waited());
        let rate = u128::from(self.bytes) * 1_000 / waited.as_millis().max(1);
        silence >= SLOW_AFTER || (waited >= SLOW_AFTER && rate < TRICKLE) || waited >= LONG
    }

    /// How long the body was awaited in all.
    pub(crate) fn waited(&self) -> Duration {
        self.waited + self.silence()
    }

    fn silence(&self) -> Duration {
        self.wait.as_ref().map_or(Duration::ZERO, |wait| {
            let shut = self.shut().saturating_sub(wait.shut);
            wait.since.elapsed().saturating_sub(shut)
        })
    }

    /// Ends the wait, with this many bytes received.
    pub(crate) fn came(&mut self, bytes: usize) {
        self.idle.reset();
        self.waited += self.silence();
        self.wait = None;
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }
}

/// The shortest wait for a body that counts as slow.
const SLOW_AFTER: Duration = Duration::from_secs(1);
/// The shortest wait in all that counts as long, whatever has come: timeouts of servers for a whole
/// request are longer.
const LONG: Duration = Duration::from_secs(10);
/// Bytes a second below which a body counts as slow.
const TRICKLE: u128 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until it fails or `span` has passed.
    async fn wait(min_rate: &mut MinimumRate, span: Duration) -> Option<&'static str> {
        let failed = std::future::poll_fn(|cx| min_rate.poll(cx, false));
        tokio::time::timeout(span, failed)
            .await
            .ok()
            .map(|error| error.label())
    }

    #[tokio::test(start_paused = true)]
    async fn a_trickle_is_given_up_and_a_slow_but_steady_body_is_not() {
        let second = Duration::from_secs(1);
        let (idle, grace) = (Micros::from_secs(30), Micros::from_secs(5));
        let mut steady = MinimumRate::new(idle, 100, grace, None);
        let mut trickle = MinimumRate::new(idle, 100, grace, None);
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
        let mut silent = MinimumRate::new(Micros::from_secs(2), 0, grace, None);
        assert_eq!(wait(&mut silent, 60 * second).await, Some("client_idle"));
    }

    #[tokio::test(start_paused = true)]
    async fn body_is_slow_in_a_silence_and_in_a_trickle() {
        let pause = Duration::from_millis(900);
        for (bytes, pieces, is_slow) in [(1, 5, true), (64 << 10, 5, false), (64 << 10, 12, true)] {
            let mut min_rate =
                MinimumRate::new(Micros::from_secs(30), 0, Micros::from_secs(5), None);
            for _ in 0..pieces {
                assert_eq!(wait(&mut min_rate, pause).await, None);
                min_rate.came(bytes);
            }
            assert_eq!(min_rate.is_slow(), is_slow, "{pieces} times {bytes} bytes");
            assert_eq!(
                wait(&mut min_rate, Duration::from_millis(1_100)).await,
                None
            );
            assert!(
                min_rate.is_slow(),
                "{pieces} times {bytes} bytes, and silence"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn time_without_a_waiting_reader_does_not_count() {
        let mut min_rate = MinimumRate::new(Micros::from_secs(30), 100, Micros::from_secs(2), None);
        for _ in 0..20 {
            assert_eq!(wait(&mut min_rate, Duration::from_millis(50)).await, None);
            min_rate.came(1);
            tokio::time::advance(Duration::from_secs(10)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_the_caller_has_no_room_to_send_does_not_count() {
        let second = Duration::from_secs(1);
        for (idle, rate, label) in [(8, 0, "client_idle"), (60, 100, "client_slow")] {
            let window = Window::default();
            let (idle, grace) = (Micros::from_secs(idle), Micros::from_secs(8));
            let mut min_rate = MinimumRate::new(idle, rate, grace, Some(window.clone()));
            assert_eq!(wait(&mut min_rate, 4 * second).await, None);
            for _ in 0..3 {
                window.took(65_000);
                assert_eq!(wait(&mut min_rate, 20 * second).await, None);
                window.granted(65_000);
                assert_eq!(wait(&mut min_rate, second).await, None);
            }
            assert_eq!(wait(&mut min_rate, second / 2).await, None);
            assert_eq!(
                wait(&mut min_rate, 2 * second).await,
                Some(label),
                "eight seconds are over"
            );
        }
    }
}
