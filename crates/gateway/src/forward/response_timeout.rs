//! The timeout for the head of a response.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::ForwardError;
use super::blame::ClientsPart;
use super::request::Outgoing;
use super::request_body::{Gate, Progress};
use tollgate_limit::Micros;
use tollgate_net::timers::{Deadline, Expiry};

/// The timeouts for the head of a response: its own, counted from the end of the request; that of
/// an upload which the upstream does not accept; and the total.
pub(super) struct ResponseTimeout<'o> {
    response: Expiry,
    total: Option<&'o mut Deadline>,
    total_is_clients: bool,
    clients_part: ClientsPart<'o>,
    stall: Option<Stall>,
    gate: Option<&'o Arc<Gate>>,
    held: Option<Deadline>,
}

impl<'o> ResponseTimeout<'o> {
    pub(super) fn new(outgoing: &'o mut Outgoing) -> Self {
        Self {
            stall: outgoing.stall(),
            response: Expiry::after(outgoing.timeouts.response.into()),
            total: outgoing.total.as_mut(),
            total_is_clients: outgoing.total_is_clients,
            clients_part: ClientsPart {
                progress: outgoing.progress.as_deref(),
                deadline: outgoing.callers_deadline,
                deadline_is_kept: outgoing.total_is_clients,
            },
            gate: outgoing.gate.as_ref(),
            held: None,
        }
    }

    pub(super) fn poll(&mut self, cx: &Context<'_>) -> Poll<ForwardError> {
        if let Some(total) = &mut self.total
            && total.poll_passed(cx).is_ready()
        {
            return Poll::Ready(if self.total_is_clients {
                ForwardError::ClientDeadline { unsent: false }
            } else if self.clients_part.was_waited_for() {
                ForwardError::SlowUpload
            } else {
                self.clients_part.in_silence()
            });
        }
        if let Some(gate) = self.gate {
            let held = self
                .held
                .get_or_insert_with(|| Deadline::after(CONTINUE_WITHIN));
            if held.poll_passed(cx).is_ready() {
                gate.open();
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
        let clients_part = self.clients_part;
        self.response.poll(cx).map(|()| clients_part.in_silence())
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
