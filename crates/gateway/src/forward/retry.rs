//! Decides whether a request is sent again. The callers carry the decision out:
//! `Forwarder::attempt` on another server, `exchange` on another connection of the same server.
//!
//! A request that a server may have processed is sent again only if it is idempotent and has no
//! body, and only if the upstream's retries allow it.

use super::ForwardError;
use super::request::Outgoing;
use super::upstreams::UpstreamState;
use tollgate_policy::upstream::Upstream;

/// The outcome of one try to send a request and to receive its response.
pub(super) enum AttemptOutcome<'f> {
    Status(u16),
    /// No response of a server, for this reason.
    Error(&'f ForwardError),
    /// HTTP/1: a connection that was kept open closed without a byte of response. `untouched`: the
    /// server's system accepted no byte of the request, so the server cannot have read it.
    Closed {
        untouched: bool,
    },
    /// HTTP/2: one connection of the server closes without having processed the request.
    Unprocessed,
}

/// Whether, and at what price, a request is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    No,
    /// Yes, as a part of the same attempt, because no server has processed the request.
    SameAttempt,
    NextAttempt,
}

/// Whether the request in `outgoing` is sent again after `outcome`. Another attempt is withdrawn
/// from the upstream's budget of retries.
pub(super) fn decide(
    outcome: &AttemptOutcome<'_>,
    upstream: &UpstreamState,
    outgoing: &Outgoing,
) -> Again {
    let retry = &upstream.upstream.retry;
    let allowed = match outcome {
        AttemptOutcome::Unprocessed if outgoing.has_copy() => return Again::SameAttempt,
        AttemptOutcome::Unprocessed => false,
        AttemptOutcome::Closed { untouched: true } => return Again::SameAttempt,
        AttemptOutcome::Closed { untouched: false } => {
            retry.connection_closed && outgoing.idempotent
        }
        AttemptOutcome::Status(status) => {
            retry.statuses.contains(status) && is_repeatable(outgoing) && outgoing.has_copy()
        }
        AttemptOutcome::Error(
            ForwardError::Connect(_) | ForwardError::ConnectTimeout | ForwardError::Tls(_),
        ) => retry.connect_failure && outgoing.is_at_hand(),
        AttemptOutcome::Error(ForwardError::RefusedStream | ForwardError::GoingAway) => {
            retry.refused_stream && outgoing.has_copy()
        }
        AttemptOutcome::Error(_) => false,
    };
    let allowed = allowed && outgoing.has_attempts() && !outgoing.is_over();
    // A counted attempt has been withdrawn from the budget already.
    if allowed && (outgoing.counted || upstream.withdraw()) {
        Again::NextAttempt
    } else {
        Again::No
    }
}

/// Whether another address of the same name is tried after `outcome`, as a part of the same
/// attempt: nothing was sent yet.
pub(super) fn tries_siblings(outcome: &AttemptOutcome<'_>, outgoing: &Outgoing) -> bool {
    let unsent = matches!(
        outcome,
        AttemptOutcome::Error(ForwardError::Connect(_) | ForwardError::ConnectTimeout)
    );
    unsent && outgoing.is_at_hand() && !outgoing.is_over()
}

/// Whether the copy is needed from which a request is sent again after it has reached a server: for a
/// status, for HTTP/2 (whose servers may promise that they have not processed a request), and for
/// another server if a connection proves stale and this one cannot be reached.
pub(super) fn needs_copy(state: &UpstreamState, several: bool, outgoing: &Outgoing) -> bool {
    let Upstream { retry, http2, .. } = &*state.upstream;
    let repeated = outgoing.has_attempts() && !retry.statuses.is_empty() && is_repeatable(outgoing);
    let moves = several && outgoing.progress.is_none();
    (*http2 || repeated || moves) && outgoing.upgrade.is_none()
}

/// Whether a request may be sent again even though a server may have processed it.
const fn is_repeatable(outgoing: &Outgoing) -> bool {
    outgoing.idempotent && outgoing.progress.is_none()
}
