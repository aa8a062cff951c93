//! Removes fields that are not allowed in trailers.

use http::{HeaderMap, HeaderName};

use super::reads_deadline;
use tollgate_policy::routes::method::is_override;
use tollgate_policy::{Guarded, looks_like};

/// Drops fields that are not allowed in trailers (RFC 9110 6.5.1): framing, routing,
/// authentication, request modifiers, and fields that report the origin of a message. Both
/// spellings that servers read are dropped, because some servers merge trailers into the headers.
pub fn clean_trailers(trailers: &mut HeaderMap) {
    drop_all(trailers, |name| {
        FORBIDDEN
            .iter()
            .any(|known| looks_like(known, name.as_str()))
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

const FORBIDDEN: [&str; 34] = [
    "transfer-encoding",
    "content-length",
    "host",
    "connection",
    "keep-alive",
    "proxy-connection",
    "upgrade",
    "te",
    "trailer",
    "expect",
    "max-forwards",
    "accept-encoding",
    "range",
    "if-range",
    "if-match",
    "if-none-match",
    "if-modified-since",
    "if-unmodified-since",
    "authorization",
    "proxy-authorization",
    "www-authenticate",
    "proxy-authenticate",
    "cookie",
    "set-cookie",
    "content-encoding",
    "content-type",
    "content-range",
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-real-ip",
    "via",
];
