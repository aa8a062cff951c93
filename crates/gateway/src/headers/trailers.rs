//! Removes fields that are not allowed in trailers.

use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, COOKIE, EXPECT, FORWARDED, HOST, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    IF_RANGE, IF_UNMODIFIED_SINCE, MAX_FORWARDS, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, RANGE,
    SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA, WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderName};

use super::{
    KEEP_ALIVE, PROXY_CONNECTION, X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PORT,
    X_FORWARDED_PROTO, X_REAL_IP, reads_deadline,
};
use tollgate_policy::routes::method::is_override;
use tollgate_policy::{Guarded, looks_like};

/// Drops fields that are not allowed in trailers (RFC 9110 6.5.1): framing, routing,
/// authentication, request modifiers, and fields that report the origin of a message. Both
/// spellings that servers read are dropped, because some servers merge trailers into the headers.
pub fn clean_trailers(trailers: &mut HeaderMap) {
    drop_all(trailers, |name| {
        FORBIDDEN
            .iter()
            .any(|known| looks_like(known.as_str(), name.as_str()))
    });
}

/// [`clean_trailers`] for a request: also drops the fields that decided about the request as
/// headers, and deadlines, which count as headers only.
pub fn clean_request_trailers(trailers: &mut HeaderMap, guarded: &Guarded) {
    clean_trailers(trailers);
    let is_deadline = |name: &HeaderName| reads_deadline(name.as_str()).is_some();
    drop_all(trailers, |name| {
        guarded.covers(name) || is_override(name) || is_deadline(name)
    });
}

fn drop_all(trailers: &mut HeaderMap, which: impl Fn(&HeaderName) -> bool) {
    let found: Vec<HeaderName> = trailers
        .keys()
        .filter(|name| which(name))
        .cloned()
        .collect();
    for name in found {
        trailers.remove(name);
    }
}

const FORBIDDEN: [HeaderName; 34] = [
    TRANSFER_ENCODING,
    CONTENT_LENGTH,
    HOST,
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    UPGRADE,
    TE,
    TRAILER,
    EXPECT,
    MAX_FORWARDS,
    ACCEPT_ENCODING,
    RANGE,
    IF_RANGE,
    IF_MATCH,
    IF_NONE_MATCH,
    IF_MODIFIED_SINCE,
    IF_UNMODIFIED_SINCE,
    AUTHORIZATION,
    PROXY_AUTHORIZATION,
    WWW_AUTHENTICATE,
    PROXY_AUTHENTICATE,
    COOKIE,
    SET_COOKIE,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    CONTENT_RANGE,
    FORWARDED,
    X_FORWARDED_FOR,
    X_FORWARDED_PROTO,
    X_FORWARDED_HOST,
    X_FORWARDED_PORT,
    X_REAL_IP,
    VIA,
];
