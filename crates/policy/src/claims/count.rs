//! Which responses count against a limit, by their status.

use std::ops::RangeInclusive;

use http::StatusCode;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Count {
    #[default]
    All,
    /// Only those whose response has one of these statuses; the others are given back.
    Statuses(Vec<StatusMatch>),
}

impl Count {
    pub fn counts(&self, status: StatusCode) -> bool {
        match self {
            Self::All => true,
            Self::Statuses(statuses) => statuses
                .iter()
                .any(|range| range.contains(&status.as_u16())),
        }
    }
}

/// A status, or a class of them (`"5xx"`). A file writes no other ranges, so reports print a range of
/// more than one status as its class.
pub type StatusMatch = RangeInclusive<u16>;

/// Whether a response with this status is charged, by what a limit counts and after what it refunds.
pub fn is_charged(count: &Count, refund_on: &[StatusMatch], status: StatusCode) -> bool {
    let is_charged = |status| {
        count.counts(status)
            && !refund_on
                .iter()
                .any(|range| range.contains(&status.as_u16()))
    };
    is_charged(status) || replaces_success(status) && is_charged(StatusCode::OK)
}

/// Whether a response has this status in place of a success, because of what the caller sent: a
/// condition, a range, or an upgrade to a protocol that the server offers.
const fn replaces_success(status: StatusCode) -> bool {
    is_selection(status) || matches!(status, StatusCode::SWITCHING_PROTOCOLS)
}

/// Whether a response has this status because of a conditional header or a range that the caller
/// sent. Servers evaluate those only where the response would otherwise be a success (RFC 9110
/// 13.2.1), so the response counts as the 200 that it takes the place of. The status is looked at
/// and not the request's headers, because servers know other spellings of them.
pub const fn is_selection(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::PARTIAL_CONTENT
            | StatusCode::IM_USED
            | StatusCode::NOT_MODIFIED
            | StatusCode::PRECONDITION_FAILED
            | StatusCode::RANGE_NOT_SATISFIABLE
    )
}
