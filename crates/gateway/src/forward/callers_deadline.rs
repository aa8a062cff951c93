//! The deadline that a request states itself. Its upstream may keep it, and respond with an error
//! when it has passed or too little time is left: the caller chose that response.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::Instant;

use crate::headers::{HeaderSet, reads_deadline};
use tollgate_limit::Micros;
use tollgate_policy::routes::HeaderEdits;

/// The earliest deadline that the caller states for a request. The gateway keeps only that of a gRPC
/// call; which ones the upstream keeps is not known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallersDeadline {
    stated: Duration,
    /// When the gateway read that.
    since: Instant,
    /// The upstream's `timeouts.response`, as the type that takes half the space of a `Duration` in the
    /// record of each request.
    response_timeout: Micros,
}

impl CallersDeadline {
    /// The caller's deadline in `headers`, which contain those in `present`, after the route's
    /// `edits`: a header that the route sets is not the caller's, and one that it removes does not
    /// reach the upstream. `response_timeout` is the upstream's `timeouts.response`.
    pub(super) fn of(
        headers: &HeaderMap,
        present: HeaderSet,
        edits: &HeaderEdits,
        response_timeout: Micros,
    ) -> Option<Self> {
        let names = HeaderSet::GRPC_TIMEOUT
            .and(HeaderSet::TIMEOUT_MS)
            .and(HeaderSet::UNUSUAL);
        if !present.has(names) {
            return None;
        }
        let stated = headers.iter().filter_map(|(name, value)| {
            let read = reads_deadline(name.as_str())?;
            // One that cannot be read may have passed for the upstream.
            (!edits.fixes(name)).then(|| read(value.as_bytes()).unwrap_or_default())
        });
        stated.min().map(|stated| Self {
            stated,
            since: Instant::now(),
            response_timeout,
        })
    }

    /// Whether less time than the upstream's `timeouts.response` is left: the upstream may then give
    /// up on a request because of this deadline alone, at any time before it.
    pub(super) fn is_near(self) -> bool {
        self.since.elapsed() + Duration::from(self.response_timeout) > self.stated
    }

    /// Whether it may be the reason for a gRPC status in these headers or trailers: the status says
    /// so, or the call failed and the deadline is near. An upstream that gives up before a deadline
    /// need not say why: Envoy responds with UNAVAILABLE.
    pub(crate) fn explains(self, fields: &HeaderMap) -> bool {
        // OK is 0, CANCELLED is 1, DEADLINE_EXCEEDED is 4.
        let says = |value: &HeaderValue| match value.as_bytes() {
            b"1" | b"4" => true,
            other => other != b"0" && self.is_near(),
        };
        fields.get_all(GRPC_STATUS).iter().any(says)
    }

    /// Whether it has passed for the upstream, whose timer may be a little early.
    pub(crate) fn is_due(self) -> bool {
        self.since.elapsed() + EARLY >= self.stated
    }
}

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
/// How early the timer of an upstream may be. Some servers round a deadline to milliseconds.
const EARLY: Duration = Duration::from_millis(10);
