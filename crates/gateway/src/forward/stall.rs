//! How long an upstream may take nothing of a request's body that is there for it.

use std::rc::Rc;
use std::task::{Context, Poll};

use super::request_body::Progress;
use tollgate_limit::Micros;
use tollgate_net::timers::Expiry;

/// The bound on an upload that the upstream does not take. Time in which the client is waited for does not count: it
/// has a bound of its own.
#[derive(Debug)]
pub(super) struct Stall {
    progress: Rc<Progress>,
    idle: Expiry,
    pieces: u64,
}

impl Stall {
    /// Between two pieces of the body that reports to `progress` the upstream may take nothing for `idle`.
    pub(super) fn new(progress: Rc<Progress>, idle: Micros) -> Self {
        Self {
            progress,
            idle: Expiry::after(idle.into()),
            pieces: 0,
        }
    }

    /// Whether some of the body has yet to go out, and may.
    pub(super) fn is_uploading(&self) -> bool {
        !self.progress.ended() && !self.progress.gated()
    }

    /// Ready when the upstream has taken nothing for too long. Polled while the client is waited for, too: over HTTP/2
    /// another task moves the body, and does not wake this one.
    pub(super) fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        if !self.is_uploading() {
            return Poll::Pending;
        }
        let pieces = self.progress.pieces();
        if pieces != self.pieces || self.progress.waiting() {
            self.pieces = pieces;
            self.idle.reset();
        }
        self.progress.wake_at_end(cx.waker());
        self.idle.poll(cx)
    }
}
