//! The list of all reasons of the access log and the metrics.

use crate::body::BodyError;
use crate::forward::ForwardError;
use crate::framing::Malformed;
use crate::gateway::{CLIENT_LEFT, PANIC};
use crate::rejection::Rejection;
use tollgate_net::server::UnreadReason;
use tollgate_policy::BodyFlaw;
use tollgate_policy::identity::IdentityReason;
use tollgate_policy::jwt::JwtError;
use tollgate_response::Refused;

/// Every word that the access log and the metrics give as the reason of a rejection, of a failure
/// of an upstream, or of input that is no request.
pub fn reasons() -> impl Iterator<Item = &'static str> {
    let lists = [
        Rejection::LABELS,
        Refused::LABELS,
        IdentityReason::LABELS,
        JwtError::LABELS,
        BodyFlaw::LABELS,
        Malformed::LABELS,
        ForwardError::LABELS,
        BodyError::LABELS,
        UnreadReason::LABELS,
        &[CLIENT_LEFT, PANIC],
    ];
    lists.into_iter().flatten().copied()
}
