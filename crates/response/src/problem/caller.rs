//! A caller that is not identified: its key or token is missing, unknown or ambiguous.

use http::StatusCode;

use super::{Problem, UNAUTHENTICATED};

impl Problem {
    /// The caller's key is given twice.
    pub const KEY_TWICE: Self = Self::MALFORMED
        .saying("The key that identifies the caller is given twice, and not the same.");
    /// The caller's key cannot be decoded, or servers read it differently.
    pub const KEY_UNCLEAR: Self =
        Self::MALFORMED.saying("The key that identifies the caller cannot be decoded in one way.");
    /// 401: the caller's key is missing.
    pub const KEY_MISSING: Self = Self {
        status: StatusCode::UNAUTHORIZED,
        kind: "urn:problem-type:tollgate:unidentified",
        title: "The caller is not identified",
        detail: "The request has no key that identifies the caller.",
        grpc: UNAUTHENTICATED,
    };
    /// 401: the caller's key is unknown.
    pub const KEY_UNKNOWN: Self =
        Self::KEY_MISSING.saying("The key that identifies the caller is not known.");
    /// 401: the caller's token is invalid.
    pub const TOKEN: Self =
        Self::KEY_MISSING.saying("The token that identifies the caller is not valid.");
}
