//! What a caller may still send over an HTTP/2 connection, all its streams together.
//!
//! The window is one for all (RFC 9113 5.2.1), and is given back only as bodies are read: those that we hold back can shut
//! it for one that we wait for. Its caller is not to blame for the silence.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The window of one HTTP/2 connection. `Send`, because the socket that is followed must be; one thread uses it.
#[derive(Clone, Debug)]
pub struct Window(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    /// Bytes that were granted and have not come. A caller that sends more than it may makes it negative.
    left: i64,
    /// Since when it has been shut, if it is.
    since: Option<Instant>,
    /// For how long it was, before that.
    shut: Duration,
}

impl Default for Window {
    /// As a connection begins.
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Inner {
            left: INITIAL,
            since: None,
            shut: Duration::ZERO,
        })))
    }
}

impl Window {
    /// The caller may send so many bytes more.
    pub fn granted(&self, bytes: u32) {
        self.0.lock().change(i64::from(bytes));
    }

    /// The caller has sent so many bytes.
    pub fn took(&self, bytes: u32) {
        self.0.lock().change(-i64::from(bytes));
    }

    /// For how long, in all, the caller could send next to nothing.
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
/// With less than a usual frame left, the window is shut.
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
