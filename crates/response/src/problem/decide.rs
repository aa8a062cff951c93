//! Mistakes of programs that ask the listener for decisions.

use http::StatusCode;

use super::{NOT_FOUND, PERMISSION_DENIED, Problem, UNIMPLEMENTED};

impl Problem {
    /// /check: the method of the original request is not stated once.
    pub const ASKED_METHOD: Self = Self::MALFORMED.saying(
        "The method of the original request must be stated once: by X-Original-Method or X-Forwarded-Method.",
    );
    /// /check: the target of the original request is not stated once.
    pub const ASKED_TARGET: Self = Self::MALFORMED.saying(
        "The target of the original request must be stated once: by X-Original-URI or X-Forwarded-Uri, or by an http URL in X-Original-URL. Its path begins with one slash.",
    );
    /// /check: the host of the original request is stated differently, or is none.
    pub const ASKED_HOST: Self = Self::MALFORMED.saying(
        "The host of the original request must be stated once: by X-Forwarded-Host or X-Original-URL.",
    );
    /// /check: the scheme of the original request is stated differently, or is unknown.
    pub const ASKED_SCHEME: Self = Self::MALFORMED.saying(
        "The scheme of the original request must be stated once: `http` or `https` by X-Forwarded-Proto or X-Original-URL.",
    );
    /// /check: the client of the original request is not known.
    pub const ASKED_CLIENT: Self = Self::MALFORMED.saying(
        "The address of the client must be stated, and not in two ways: by X-Forwarded-For, Forwarded or X-Real-IP, as [address] says.",
    );
    /// A resource that takes JSON got another content type.
    pub const JSON_ONLY: Self =
        Self::MALFORMED.saying("This resource takes JSON: Content-Type must be application/json.");
    /// The JSON of a request is not what the resource takes.
    pub const BAD_JSON: Self =
        Self::MALFORMED.saying("The JSON document is not what this resource takes.");
    /// 403: the peer may not ask for decisions.
    pub const UNTRUSTED_PEER: Self = Self {
        status: StatusCode::FORBIDDEN,
        kind: "urn:problem-type:tollgate:untrusted-peer",
        title: "The peer may not ask for decisions",
        detail: "This listener decides only for the networks in `trusted` of [decide].",
        grpc: PERMISSION_DENIED,
    };
    /// 403: a web page asks for decisions.
    pub const WEB_PAGE: Self =
        Self::UNTRUSTED_PEER.saying("This resource is for programs, and a web page asks for it.");
    /// 404: there is no such permit.
    pub const UNKNOWN_PERMIT: Self = Self {
        status: StatusCode::NOT_FOUND,
        kind: "urn:problem-type:tollgate:unknown-permit",
        title: "There is no such permit",
        detail: "The permit is unknown: it was settled or given back before, has expired, or was made by another process.",
        grpc: NOT_FOUND,
    };
    /// 404: the listener for decisions has no such resource.
    pub const NO_RESOURCE: Self = Self {
        status: StatusCode::NOT_FOUND,
        kind: "urn:problem-type:tollgate:no-resource",
        title: "There is no such resource",
        detail: "The resources are /check, /v1/decide, /v1/settle and /v1/give-back.",
        grpc: UNIMPLEMENTED,
    };
    /// 405: a resource of the listener for decisions takes POST only.
    pub const POST_ONLY: Self = Self::METHOD.saying("This resource takes POST.");
    /// 413: the document sent to the listener for decisions is too large.
    pub const DOCUMENT_TOO_LARGE: Self =
        Self::BODY_TOO_LARGE.saying("The document is larger than 256 KiB.");
}
