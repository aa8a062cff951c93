//! The flow-control window of an HTTP/2 connection: how much its client may still send.
//!
//! All streams share this window (RFC 9113 5.2.1), which reopens only as bodies are read. Bodies
//! that the gateway holds back can close it for a body that the gateway waits for; that silence is
//! not the client's fault.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The window of one HTTP/2 connection. Only one thread uses it; its socket must be `Send`.
#[derive(Clone, Debug)]
pub struct Window(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    /// The granted bytes that have not arrived; negative where a client sent too much.
    left: i64,
    /// The time since which it has been closed, if it is.
    since: Option<Instant>,
    /// The total time for which it was closed before.
    shut: Duration,
}

impl Default for Window {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Inner {
            left: INITIAL,
            since: None,
            shut: Duration::ZERO,
        })))
    }
}

impl Window {
    pub fn granted(&self, bytes: u32) {
        self.0.lock().change(i64::from(bytes));
    }

    pub fn took(&self, bytes: u32) {
        self.0.lock().change(-i64::from(bytes));
    }

    /// The total time for which the client could send almost nothing.
    pub fn shut(&self) -> Duration {
        let inner = self.0.lock();
        inner.shut + inner.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl Inner {
    fn change(&mut self, by: i64) {
        self.left = self.left.saturating_add(by);
        if self.left < LEAST {
            self.since.get_or_insert_with(Instant::now);
        } else if let Some(since) = self.since.take() {
            self.shut += since.elapsed();
        }
    }
}

/// A connection's window before anything is granted (RFC 9113 6.9.2).
const INITIAL: i64 = 65_535;
/// With less than a usual frame left, the window counts as closed.
const LEAST: i64 = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_time_counts_in_which_next_to_nothing_is_left() {
        let (window, second) = (Window::default(), Duration::from_secs(1));
        for (granted, took, shut) in [
            (100, 0, 0),
            (0, 65_635 - 16_384, 0),
            (0, 1, 1),
            (0, 20_000, 2),
            (30_000, 0, 2),
        ] {
            window.granted(granted);
            window.took(took);
            tokio::time::advance(second).await;
            assert_eq!(
                window.shut(),
                shut * second,
                "{granted} granted, {took} taken"
            );
        }
    }
}
