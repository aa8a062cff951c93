//! Why a request got no response from its upstream, and who caused it.

use std::io;

use crate::body::BodyError;
use tollgate_http1::Malformed;
use tollgate_limiter::Cause;
use tollgate_net::client::Failure;

/// The reason why a request got no response from its upstream.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// No connection could be made.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// Connecting took too long.
    #[error("connecting took too long")]
    ConnectTimeout,
    /// The TLS handshake failed.
    #[error("TLS: {0}")]
    Tls(String),
    /// Too many requests are in progress or waiting.
    #[error("too many requests to this upstream are under way")]
    Overloaded,
    /// There is no server.
    #[error("the upstream has no server")]
    NoServer,
    /// The response's head did not arrive in time.
    #[error("no response in time")]
    ResponseTimeout {
        /// Whether a deadline that the caller stated had passed by then. The upstream may have given
        /// up on the request at that deadline, so the caller may have caused the timeout.
        after_callers_deadline: bool,
    },
    /// The upstream accepted nothing of the request's body for too long.
    #[error("the upstream did not accept the request's body in time")]
    UploadTimeout,
    /// The response's head did not arrive within the client's own deadline.
    #[error("no response within the client's deadline")]
    ClientDeadline,
    /// The total time was over before the request was sent: it waited for a connection.
    #[error("no connection within the request's total time")]
    TotalTimeout,
    /// The response's head did not arrive in time, and the client spent some of that time on its
    /// request's body, or has not sent all of it.
    #[error("no response in time, after a slow or unfinished upload")]
    SlowUpload,
    /// HTTP/2: the connection broke, or the response is invalid.
    #[error("no usable response")]
    Response(#[source] hyper::Error),
    /// The connection broke in the middle of the response's head.
    #[error("the response broke off")]
    Broken(#[source] io::Error),
    /// The response is not valid HTTP/1.
    #[error("no usable response")]
    Malformed(#[source] Malformed),
    /// The upstream closed its connection without a response.
    #[error("the connection closed without a response")]
    Closed,
    /// The response's Transfer-Encoding is not exactly `chunked`.
    #[error("the response's transfer coding is not supported")]
    ResponseCoding,
    /// HTTP/2: the stream was refused before it was processed.
    #[error("the stream was refused")]
    RefusedStream,
    /// HTTP/2: the server ended the connection with an error, for which this request or another one
    /// on the connection may be the reason.
    #[error("the server ended its connection with an error")]
    Aborted(#[source] hyper::Error),
    /// HTTP/2: the server closes the connection, and has not processed the request.
    #[error("the server closes its connection")]
    GoingAway,
    /// A 101 without a request for an upgrade.
    #[error("the upstream switched protocols without a request for it")]
    Upgrade,
    /// An upgrade requested by extended CONNECT that cannot be requested from the upstream.
    #[error("the upgrade is not passed on")]
    Bridge,
    /// The request's body could not be forwarded.
    #[error("the request's body could not be sent on")]
    Body(#[source] BodyError),
    /// The path cannot be rewritten as the route requires.
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
        Self::ResponseTimeout { after_callers_deadline: true } | Self::ClientDeadline => "client_deadline",
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
    }
}

impl ForwardError {
    /// Whether it counts as a failure of the server.
    pub(super) const fn is_the_upstreams(&self) -> bool {
        // A server that shuts down in order is replaced, not unhealthy. A short deadline is the
        // client's choice. A server may refuse a stream, or end its connection with an error,
        // because of the headers of one request: that fails other requests on the connection, too.
        !matches!(
            self,
            Self::Overloaded
                | Self::NoServer
                | Self::ClientDeadline
                | Self::TotalTimeout
                | Self::SlowUpload
                | Self::Bridge
                | Self::Body(_)
                | Self::Rewrite
                | Self::RefusedStream
                | Self::Aborted(_)
                | Self::GoingAway
        )
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

    /// The party that caused it. Every error that a request can be crafted to cause is the
    /// client's.
    pub const fn cause(&self) -> Cause {
        match self {
            Self::Connect(_)
            | Self::ConnectTimeout
            | Self::Tls(_)
            | Self::NoServer
            | Self::ResponseTimeout {
                after_callers_deadline: false,
            } => Cause::Upstream,
            Self::Overloaded | Self::TotalTimeout | Self::Bridge | Self::Rewrite => Cause::Gateway,
            Self::ResponseTimeout {
                after_callers_deadline: true,
            }
            | Self::ClientDeadline
            | Self::SlowUpload
            | Self::UploadTimeout
            | Self::Response(_)
            | Self::Broken(_)
            | Self::Malformed(_)
            | Self::Closed
            | Self::ResponseCoding
            | Self::RefusedStream
            | Self::Aborted(_)
            | Self::GoingAway
            | Self::Upgrade
            | Self::Body(_) => Cause::Client,
        }
    }

    /// Whether it shows that the upstream is overloaded; limits that follow its health learn from
    /// it.
    pub const fn tells_of_load(&self) -> bool {
        self.is_the_upstreams()
            || matches!(
                self,
                Self::Overloaded | Self::TotalTimeout | Self::RefusedStream
            )
    }
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
        assert!(late.is_the_upstreams() && late.tells_of_load());
        assert_eq!(late.cause(), Cause::Client);
        assert_eq!(
            (late.label(), late.kind()),
            ("client_deadline", "response_timeout")
        );
        let hasty = ForwardError::ClientDeadline;
        assert!(!hasty.is_the_upstreams() && !hasty.tells_of_load());
    }

    #[test]
    fn refused_stream_tells_of_load_and_is_no_failure_of_the_server() {
        let refused = ForwardError::RefusedStream;
        assert!(refused.tells_of_load() && !refused.is_the_upstreams());
        let leaving = ForwardError::GoingAway;
        assert!(!leaving.tells_of_load() && !leaving.is_the_upstreams());
    }
}
