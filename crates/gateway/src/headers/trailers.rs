//! What may not stand in trailers.

use http::HeaderMap;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, COOKIE, EXPECT,
    FORWARDED, HOST, MAX_FORWARDS, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE, VIA, WWW_AUTHENTICATE,
};

use super::{
    KEEP_ALIVE, PROXY_CONNECTION, X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PORT, X_FORWARDED_PROTO, X_REAL_IP,
};

/// Trailers hold what may not stand in trailers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("trailers hold a pseudo-field")]
pub struct PseudoTrailer;

/// Drops what may not stand in trailers (RFC 9110 6.5.1): framing, routing, authentication, request modifiers,
/// and what says whom a message comes from.
///
/// # Errors
/// When a pseudo-field is among them: the message is malformed (RFC 9113 8.1).
pub fn clean_trailers(trailers: &mut HeaderMap) -> Result<(), PseudoTrailer> {
    if trailers.keys().any(|name| name.as_str().starts_with(':')) {
        return Err(PseudoTrailer);
    }
    for name in [
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
    ] {
        trailers.remove(name);
    }
    Ok(())
}
