//! The timeout for the head of a response.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::ForwardError;
use super::blame::ClientsPart;
use super::request::Outgoing;
use super::request_body::Gate;
use super::stall::Stall;
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
            clients_part: ClientsPart::new(
                outgoing.progress.as_deref(),
                outgoing.callers_deadline,
                outgoing.total_is_clients,
            ),
            gate: outgoing.gate.as_ref(),
            held: None,
        }
    }

    /// Ready when one of them has passed, with the matching error.
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
