//! Holds a request until its token is due (shaping).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tollgate_limit::Timestamp;
use tollgate_store::clock::Clock;

/// Counts a request among those that wait, however the wait ends.
struct Waiting<'c>(&'c AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits until `clock` has reached `due`; never returns before. Dropping the future gives the wait up. `held` counts
/// those who wait.
pub(super) async fn until(clock: &Clock, due: Timestamp, held: &AtomicUsize) {
    held.fetch_add(1, Ordering::Relaxed);
    let _waiting = Waiting(held);
    loop {
        let left = due.since(clock.now());
        if left.0 == 0 {
            return;
        }
        // A clock that stands still is moved on by a test: look again soon. A held request is rare enough for a timer
        // of the runtime, whose millisecond is finer than the worker's wheel.
        let wait = match clock {
            Clock::System(_) => Duration::from(left),
            Clock::Manual(_) => Duration::from_millis(1),
        };
        tokio::time::sleep(wait).await;
    }
}
