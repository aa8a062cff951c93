//! The timeout for an upstream that accepts nothing of an available request body.

use std::rc::Rc;
use std::task::{Context, Poll};

use super::request_body::Progress;
use tollgate_limit::Micros;
use tollgate_net::timers::Expiry;

/// The timeout for an upload that the upstream does not accept. Time spent waiting for the client
/// does not count; that wait has a timeout of its own.
#[derive(Debug)]
pub(super) struct Stall {
    progress: Rc<Progress>,
    idle: Expiry,
    pieces: u64,
}

impl Stall {
    /// The upstream may accept nothing for `idle` between two pieces of the body that reports to
    /// `progress`.
    pub(super) fn new(progress: Rc<Progress>, idle: Micros) -> Self {
        Self {
            progress,
            idle: Expiry::after(idle.into()),
            pieces: 0,
        }
    }

    /// Whether part of the body has still to be sent, and may be.
    pub(super) fn is_uploading(&self) -> bool {
        !self.progress.ended() && !self.progress.gated()
    }

    /// Ready when the upstream has accepted nothing for too long. Also polled while the client is
    /// awaited: over HTTP/2 another task moves the body, and does not wake this one.
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
