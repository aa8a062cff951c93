//! The party to blame for the outcome of a request. This decides whether its caller may get credit, and
//! what the outcome says about the server: for ejection, and for limits that follow its load.
//!
//! A response is judged by its head and by the client's part in it. A request without a response is
//! judged by its error ([`ForwardError::blame`]); [`ForwardError::Provoked`] marks an error that the
//! client may have caused.

use http::response::Parts;

use super::ForwardError;
use super::callers_deadline::CallersDeadline;
use super::request_body::Progress;
use tollgate_limit::Micros;
use tollgate_limiter::Cause;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blame {
    /// The party that caused it. Every outcome that a request can be crafted to cause is the client's.
    pub cause: Cause,
    pub sign: ServerSign,
}

/// The conclusion that an outcome allows about its server. This is less strict than
/// [`Blame::cause`]: a server that closes its connections is left out, and no caller gets credit
/// for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerSign {
    Works,
    /// The server failed: it may be ejected, and it may be overloaded.
    Failed,
    /// There was no room for the request. The server did not fail, but it may be overloaded.
    Full,
    /// Nothing: the client or the gateway may have caused the outcome.
    Nothing,
}

/// The client's part in the outcome of a request: its upload and its deadline.
#[derive(Clone, Copy)]
pub(super) struct ClientsPart<'o> {
    pub(super) progress: Option<&'o Progress>,
    /// The deadline that the client states, and whether the gateway keeps it.
    pub(super) deadline: Option<CallersDeadline>,
    pub(super) deadline_is_kept: bool,
}

impl ClientsPart<'_> {
    /// Whether the gateway ever waited for the client's body.
    pub(super) fn was_waited_for(self) -> bool {
        self.progress.is_some_and(|progress| progress.waited.get())
    }

    /// How long the gateway waited for the client's body: that says nothing about the server.
    pub(super) fn waited(self) -> Micros {
        self.progress
            .map(Progress::waited)
            .unwrap_or_default()
            .into()
    }

    /// The party to blame for a response with this head that begins now.
    pub(super) fn in_response(self, head: &Parts) -> Blame {
        let cause = if self.may_cause(head) {
            Cause::Early
        } else {
            Cause::Upstream
        };
        let sign = match head.status.as_u16() {
            504 if self.is_unfinished() || self.is_hurried() => ServerSign::Nothing,
            502..=504 => ServerSign::Failed,
            _ => ServerSign::Works,
        };
        Blame { cause, sign }
    }

    /// The error for a response that did not begin in time. The upstream can have caused it only if
    /// the request had arrived completely. The caller gets nothing back if its deadline had passed,
    /// because the upstream may have given up on the request; the server is judged as if the caller
    /// had stated no deadline.
    pub(super) fn in_silence(self) -> ForwardError {
        if self.is_unfinished() {
            return ForwardError::SlowUpload;
        }
        ForwardError::ResponseTimeout {
            after_callers_deadline: self.deadline.is_some_and(CallersDeadline::is_due),
        }
    }

    /// The error for a request that failed with `error`. Upstreams end streams and connections
    /// without a response when a deadline has passed or an upload is slow. The client may have caused
    /// such an end, so it says nothing about the server. An earlier end counts: otherwise no server
    /// would ever be left out where all clients state deadlines, as those of gRPC do.
    pub(super) fn in_failure(self, error: ForwardError) -> ForwardError {
        if !error.is_end_without_response() {
            return error;
        }
        match self.deadline {
            Some(deadline) if deadline.is_due() && self.deadline_is_kept => {
                ForwardError::ClientDeadline { unsent: false }
            }
            Some(deadline) if deadline.is_due() => ForwardError::Provoked(Box::new(error)),
            _ if self.is_slow_upload() => ForwardError::Provoked(Box::new(error)),
            _ => error,
        }
    }

    /// Whether the client may have caused a response with this head that begins now: the upstream
    /// alone did only if the request has arrived completely, and no deadline of its own ends it.
    fn may_cause(self, head: &Parts) -> bool {
        // A 408 says that the request has not arrived, even if its last byte came while the 408 was
        // on its way.
        let by_upload = |progress: &Progress| head.status == 408 || !progress.arrived.get();
        let by_deadline = |deadline: CallersDeadline| {
            deadline.is_due()
                || matches!(head.status.as_u16(), 408 | 499 | 504)
                || (head.status.is_server_error() && deadline.is_near())
                || deadline.explains(&head.headers)
        };
        self.progress.is_some_and(by_upload) || self.deadline.is_some_and(by_deadline)
    }

    fn is_unfinished(self) -> bool {
        self.progress
            .is_some_and(|progress| !progress.arrived.get())
    }

    fn is_slow_upload(self) -> bool {
        self.is_unfinished() && self.progress.is_some_and(Progress::is_slow)
    }

    /// Whether the client's deadline may be the reason for a 504: it has passed, or is so near that the
    /// upstream may give up because of it. Otherwise one client could eject every server with short deadlines.
    fn is_hurried(self) -> bool {
        let hurries = |deadline: CallersDeadline| deadline.is_near() || deadline.is_due();
        self.deadline.is_some_and(hurries)
    }
}
