//! The timeout for the head of a response.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::ForwardError;
use super::request::Outgoing;
use super::request_body::Progress;
use tollgate_limit::Micros;
use tollgate_net::timers::{Deadline, Expiry};

/// The timeouts for the head of a response: its own, counted from the end of the request; that of
/// an upload which the upstream does not accept; and the total.
pub(super) struct ResponseTimeout<'o> {
    pub(super) outgoing: &'o mut Outgoing,
    response: Expiry,
    stall: Option<Stall>,
    /// When a body that is held back is sent anyway.
    opens: Option<Deadline>,
}

impl<'o> ResponseTimeout<'o> {
    pub(super) fn new(outgoing: &'o mut Outgoing) -> Self {
        Self {
            response: Expiry::after(outgoing.timeouts.response.into()),
            stall: outgoing.stall(),
            opens: None,
            outgoing,
        }
    }

    pub(super) fn poll(&mut self, cx: &Context<'_>) -> Poll<ForwardError> {
        let outgoing = &mut *self.outgoing;
        if let Some(total) = &mut outgoing.total
            && total.poll_passed(cx).is_ready()
        {
            let clients_part = outgoing.clients_part();
            return Poll::Ready(if outgoing.total_is_clients {
                ForwardError::ClientDeadline { unsent: false }
            } else if clients_part.was_waited_for() {
                ForwardError::SlowUpload
            } else {
                clients_part.in_silence()
            });
        }
        if let Some(progress) = outgoing.progress.as_ref().filter(|one| one.gated.get()) {
            let after = || Deadline::after(CONTINUE_WITHIN);
            let opens = self.opens.get_or_insert_with(after);
            if opens.poll_passed(cx).is_ready() {
                progress.open();
            }
        }
        if let Some(stall) = &mut self.stall {
            if stall.poll(cx).is_ready() {
                return Poll::Ready(ForwardError::UploadTimeout);
            }
            if stall.is_uploading() {
                self.response.reset();
                return Poll::Pending;
            }
        }
        let late = |()| outgoing.clients_part().in_silence();
        self.response.poll(cx).map(late)
    }
}

/// How long a body waits for a `100 Continue` before it is sent anyway (RFC 9110 10.1.1 forbids
/// waiting for ever).
const CONTINUE_WITHIN: Duration = Duration::from_secs(1);

/// The timeout for an upload that the upstream does not accept. Time spent waiting for the client
/// does not count; that wait has a timeout of its own.
#[derive(Debug)]
pub(super) struct Stall {
    progress: Rc<Progress>,
    idle: Expiry,
    pieces: u64,
}

impl Stall {
    /// The upstream may accept nothing for `idle` between two pieces of the body that reports to `progress`.
    pub(super) fn new(progress: Rc<Progress>, idle: Micros) -> Self {
        Self {
            progress,
            idle: Expiry::after(idle.into()),
            pieces: 0,
        }
    }

    /// Whether part of the body has still to be sent, and may be.
    pub(super) fn is_uploading(&self) -> bool {
        !self.progress.ended.get() && !self.progress.gated.get()
    }

    /// Ready when the upstream has accepted nothing for too long. Also polled while the client is
    /// awaited: over HTTP/2 another task moves the body, and does not wake this one.
    pub(super) fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        if !self.is_uploading() {
            return Poll::Pending;
        }
        let pieces = self.progress.pieces.get();
        if pieces != self.pieces || self.progress.waiting.get() {
            self.pieces = pieces;
            self.idle.reset();
        }
        self.progress.wake_at_end(cx.waker());
        self.idle.poll(cx)
    }
}
