//! The deadline that a request states itself. Its upstream may keep it, and respond with an error
//! when it has passed or too little time is left: the caller chose that response.

use std::time::Duration;

use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::Instant;

use crate::headers::{HeaderSet, reads_deadline};
use tollgate_policy::route::HeaderEdits;

/// The earliest deadline that the caller states for a request. The gateway keeps only that of a gRPC
/// call; which ones the upstream keeps is not known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallersDeadline {
    /// How long the caller waits.
    stated: Duration,
    /// When the gateway read that.
    since: Instant,
}

impl CallersDeadline {
    /// The caller's deadline in `headers`, which contain those in `present`, after the route's
    /// `edits`: a header that the route sets is not the caller's, and one that it removes does not
    /// reach the upstream.
    pub(super) fn of(headers: &HeaderMap, present: HeaderSet, edits: &HeaderEdits) -> Option<Self> {
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
        })
    }

    /// Whether the caller waits for a shorter time than `time`.
    pub(super) fn is_shorter_than(self, time: Duration) -> bool {
        self.stated < time
    }

    /// Whether it has passed.
    pub(crate) fn has_passed(self) -> bool {
        self.since.elapsed() >= self.stated
    }

    /// Whether it may have caused the response that begins with `head` now: the response says so, or
    /// comes late.
    pub(super) fn may_cause(self, head: &Parts) -> bool {
        matches!(head.status.as_u16(), 408 | 499 | 504)
            || says_deadline(&head.headers)
            || self.has_passed()
    }
}

/// Whether these headers or trailers of a response say that a deadline ended its call.
pub(crate) fn says_deadline(fields: &HeaderMap) -> bool {
    let says = |value: &HeaderValue| matches!(value.as_bytes(), b"1" | b"4");
    fields.get_all(GRPC_STATUS).iter().any(says)
}

/// CANCELLED is 1, DEADLINE_EXCEEDED is 4.
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
