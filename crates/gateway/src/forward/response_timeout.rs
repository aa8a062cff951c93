//! The timeout for the head of a response.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::ForwardError;
use super::callers_deadline::CallersDeadline;
use super::request::Outgoing;
use super::request_body::{Gate, Progress};
use super::stall::Stall;
use tollgate_net::timers::{Deadline, Expiry};

/// The timeouts for the head of a response: its own, counted from the end of the request; that of
/// an upload which the upstream does not accept; and the total.
pub(super) struct ResponseTimeout<'o> {
    response: Expiry,
    total: Option<&'o mut Deadline>,
    total_is_clients: bool,
    callers_deadline: Option<CallersDeadline>,
    progress: Option<&'o Progress>,
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
            callers_deadline: outgoing.callers_deadline,
            progress: outgoing.progress.as_deref(),
            gate: outgoing.gate.as_ref(),
            held: None,
        }
    }

    /// Ready when one of them has passed, with the matching error.
    pub(super) fn poll(&mut self, cx: &Context<'_>) -> Poll<ForwardError> {
        if let Some(total) = &mut self.total
            && total.poll_passed(cx).is_ready()
        {
            let uploaded = self.progress.is_some_and(Progress::was_waited_for);
            return Poll::Ready(if self.total_is_clients {
                ForwardError::ClientDeadline
            } else if uploaded {
                ForwardError::SlowUpload
            } else {
                self.no_response()
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
        self.response.poll(cx).map(|()| self.no_response())
    }

    /// The error for a response that did not begin in time. The upstream can have caused it only if
    /// the request had arrived completely. The caller gets nothing back if its deadline had passed,
    /// because the upstream may have given up on the request; the server is judged as if the caller
    /// had stated no deadline.
    fn no_response(&self) -> ForwardError {
        if !self.progress.is_none_or(Progress::has_arrived) {
            return ForwardError::SlowUpload;
        }
        ForwardError::ResponseTimeout {
            after_callers_deadline: self
                .callers_deadline
                .is_some_and(CallersDeadline::has_passed),
        }
    }
}

/// How long a body waits for a `100 Continue` before it is sent anyway (RFC 9110 10.1.1 forbids
/// waiting for ever).
const CONTINUE_WITHIN: Duration = Duration::from_secs(1);
