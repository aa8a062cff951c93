//! Why a request got no response from its upstream, and who caused it.

use std::io;

use super::blame::{Blame, ServerSign};
use crate::forward::body::BodyError;
use tollgate_http1::Malformed;
use tollgate_limiter::Cause;
use tollgate_net::client::Failure;

/// The reason why a request got no response from its upstream.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    #[error("connecting took too long")]
    ConnectTimeout,
    #[error("TLS: {0}")]
    Tls(String),
    #[error("too many requests to this upstream are under way")]
    Overloaded,
    #[error("the upstream has no server")]
    NoServer,
    #[error("no response in time")]
    ResponseTimeout {
        /// Whether a deadline that the caller stated had passed by then. The upstream may have given
        /// up on the request at that deadline, so the caller may have caused the timeout.
        after_callers_deadline: bool,
    },
    #[error("the upstream did not accept the request's body in time")]
    UploadTimeout,
    #[error("no response within the client's deadline")]
    ClientDeadline {
        /// Whether no part of the request was sent: it waited for a connection.
        unsent: bool,
    },
    /// The total time was over while the request waited for a connection, its first one or the one on
    /// which it would have been sent again.
    #[error("no connection within the request's total time")]
    TotalTimeout,
    /// The response's head did not arrive in time, and the client spent some of that time on its
    /// request's body, or has not sent all of it.
    #[error("no response in time, after a slow or unfinished upload")]
    SlowUpload,
    #[error("no usable response")]
    Response(#[source] hyper::Error),
    #[error("the response broke off")]
    Broken(#[source] io::Error),
    #[error("no usable response")]
    Malformed(#[source] Malformed),
    #[error("the connection closed without a response")]
    Closed,
    /// The response's Transfer-Encoding is not exactly `chunked`.
    #[error("the response's transfer coding is not supported")]
    ResponseCoding,
    /// The upstream ended the stream or the connection without a response, when the client's deadline
    /// had passed or in the middle of a slow upload. The client may have caused that.
    #[error(transparent)]
    Provoked(Box<Self>),
    #[error("the stream was refused")]
    RefusedStream,
    /// HTTP/2: the server ended the connection with an error, for which this request or another one
    /// on the connection may be the reason.
    #[error("the server ended its connection with an error")]
    Aborted(#[source] hyper::Error),
    #[error("the server closes its connection")]
    GoingAway,
    #[error("the upstream switched protocols without a request for it")]
    Upgrade,
    #[error("the upgrade is not passed on")]
    Bridge,
    #[error("the request's body could not be sent on")]
    Body(#[source] BodyError),
    #[error("the path cannot be rewritten")]
    Rewrite,
}

tollgate_policy::labels! {
    ForwardError {
        Self::Connect(_) => "connect",
        Self::ConnectTimeout => "connect_timeout",
        Self::Tls(_) => "tls",
        Self::Overloaded => "overloaded",
        Self::NoServer => "no_server",
        Self::ResponseTimeout { after_callers_deadline: false } => "response_timeout",
        Self::ResponseTimeout { after_callers_deadline: true } | Self::ClientDeadline { .. } => "client_deadline",
        Self::UploadTimeout => "upload_timeout",
        Self::TotalTimeout => "total_timeout",
        Self::SlowUpload => "slow_upload",
        Self::Response(_) | Self::Aborted(_) | Self::Broken(_) | Self::Malformed(_) => "answer",
        Self::Closed => "closed",
        Self::ResponseCoding => "answer_coding",
        Self::RefusedStream => "refused_stream",
        Self::GoingAway => "going_away",
        Self::Upgrade => "upgrade",
        Self::Bridge => "connect_protocol",
        Self::Rewrite => "rewrite",
    } and {
        Self::Body(error) => error.label(),
        Self::Provoked(error) => error.label(),
    }
}

impl ForwardError {
    /// The party to blame. The match has no wildcard, so that every new variant must name one.
    pub const fn blame(&self) -> Blame {
        let (cause, sign) = match self {
            Self::Connect(_) | Self::ConnectTimeout | Self::Tls(_) => {
                (Cause::Upstream, ServerSign::Failed)
            }
            Self::ResponseTimeout {
                after_callers_deadline: false,
            } => (Cause::Silence, ServerSign::Failed),
            Self::NoServer => (Cause::Upstream, ServerSign::Nothing),
            Self::Overloaded | Self::TotalTimeout => (Cause::Gateway, ServerSign::Full),
            // These earn no credit, and do not cost as much as a response that the client broke off.
            Self::ClientDeadline { unsent: true } | Self::Bridge | Self::Rewrite => {
                (Cause::Gateway, ServerSign::Nothing)
            }
            // A request can be crafted to cause these, so they earn no credit. They count as
            // failures all the same, because a server that fails every request must be left out.
            Self::ResponseTimeout {
                after_callers_deadline: true,
            }
            | Self::UploadTimeout
            | Self::Response(_)
            | Self::Broken(_)
            | Self::Malformed(_)
            | Self::Closed
            | Self::ResponseCoding
            | Self::Upgrade => (Cause::Client, ServerSign::Failed),
            // A server may refuse a stream because of the headers of one request.
            Self::RefusedStream => (Cause::Client, ServerSign::Full),
            // A short deadline, a slow upload and a bad body are the client's. A server that shuts
            // down in order is replaced, not unhealthy. It may end its connection with an error
            // because of one request, which fails other requests on the connection, too.
            Self::ClientDeadline { unsent: false }
            | Self::SlowUpload
            | Self::Provoked(_)
            | Self::Body(_)
            | Self::Aborted(_)
            | Self::GoingAway => (Cause::Client, ServerSign::Nothing),
        };
        Blame { cause, sign }
    }

    /// Whether the upstream ended the stream or the connection in place of a response.
    pub(super) fn is_end_without_response(&self) -> bool {
        match self {
            Self::Closed | Self::Broken(_) => true,
            // The library ends a stream or a connection if the response is malformed.
            Self::Response(error) => !protocol_error(error).is_some_and(h2::Error::is_library),
            _ => false,
        }
    }

    /// The word by which the log names this failure of the server. It does not depend on the
    /// caller's deadline, because the server is judged without it.
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::ResponseTimeout { .. } => {
                let by_server = Self::ResponseTimeout {
                    after_callers_deadline: false,
                };
                by_server.label()
            }
            other => other.label(),
        }
    }
}

/// The error of HTTP/2 itself, if that is what `error` is about.
pub(super) fn protocol_error(error: &hyper::Error) -> Option<&h2::Error> {
    std::error::Error::source(error)?.downcast_ref()
}

impl From<Failure<BodyError>> for ForwardError {
    fn from(failure: Failure<BodyError>) -> Self {
        match failure {
            Failure::Silent(None) => Self::Closed,
            Failure::Silent(Some(error)) | Failure::Broken(error) => Self::Broken(error),
            Failure::Malformed(Malformed::TransferEncoding) => Self::ResponseCoding,
            Failure::Malformed(error) => Self::Malformed(error),
            Failure::Body(error) => Self::Body(error.of_request()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_timeout_after_the_callers_deadline_counts_for_the_server_and_earns_nothing() {
        let late = ForwardError::ResponseTimeout {
            after_callers_deadline: true,
        };
        let blame = Blame {
            cause: Cause::Client,
            sign: ServerSign::Failed,
        };
        assert_eq!(late.blame(), blame);
        assert_eq!(
            (late.label(), late.kind()),
            ("client_deadline", "response_timeout")
        );
        let hasty = ForwardError::ClientDeadline { unsent: false };
        assert_eq!(hasty.blame().sign, ServerSign::Nothing);
    }

    #[test]
    fn refused_stream_tells_of_load_and_is_no_failure_of_the_server() {
        let refused = ForwardError::RefusedStream;
        assert_eq!(refused.blame().sign, ServerSign::Full);
        let leaving = ForwardError::GoingAway;
        assert_eq!(leaving.blame().sign, ServerSign::Nothing);
    }

    #[test]
    fn end_that_the_client_may_have_caused_keeps_its_name_and_says_nothing_of_the_server() {
        let closed = ForwardError::Provoked(Box::new(ForwardError::Closed));
        assert_eq!(closed.label(), "closed");
        assert_eq!(closed.to_string(), ForwardError::Closed.to_string());
        let blame = Blame {
            cause: Cause::Client,
            sign: ServerSign::Nothing,
        };
        assert_eq!(closed.blame(), blame);
    }
}
