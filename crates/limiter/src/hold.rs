//! Waits until the token of an admitted request is due (`max_wait`).

use std::time::Duration;

use tollgate_limit::Timestamp;
use tollgate_store::clock::Clock;

/// Waits until `clock` has reached `due`; never returns earlier. Dropping the future ends the wait.
pub async fn wait_until(clock: &Clock, due: Timestamp) {
    loop {
        let left = due.since(clock.now());
        if left.0 == 0 {
            return;
        }
        // A test sets its clock by hand, so poll it often. Held requests are rare enough for a
        // timer of the runtime, whose resolution of a millisecond is finer than a timer wheel's.
        let wait = match clock {
            Clock::System(_) => Duration::from(left),
            Clock::Manual(_) => Duration::from_millis(1),
        };
        tokio::time::sleep(wait).await;
    }
}
