//! Mistakes of HTTP itself: a message that is not well formed, too long, too late, or asks for what this server cannot do.

use http::StatusCode;

use super::{CANCELLED, DEADLINE_EXCEEDED, INTERNAL, Problem, RESOURCE_EXHAUSTED, UNIMPLEMENTED};

impl Problem {
    /// The request is malformed.
    pub const MALFORMED: Self = Self {
        status: StatusCode::BAD_REQUEST,
        kind: "urn:problem-type:tollgate:malformed-request",
        title: "The request is malformed",
        detail: "The request is malformed.",
        grpc: INTERNAL,
    };
    /// The input is not HTTP/1.
    pub const NOT_HTTP: Self = Self::MALFORMED.saying("The request is not well-formed HTTP/1.1.");
    /// A plain-text request on a port that requires TLS.
    pub const PLAIN_HTTP: Self =
        Self::MALFORMED.saying("This is plain HTTP, and this port speaks TLS: use https://.");
    /// A TLS handshake on a port without TLS.
    pub const TLS_HANDSHAKE: Self = Self::MALFORMED
        .saying("This is a TLS handshake, and this port speaks plain HTTP: use http://.");
    /// Transfer-Encoding is not exactly one `chunked`.
    pub const TRANSFER_ENCODING: Self =
        Self::MALFORMED.saying("Transfer-Encoding must be one single `chunked`.");
    /// No Host, more than one, or one that contradicts the target.
    pub const HOST: Self = Self::MALFORMED
        .saying("There must be exactly one Host, and it must agree with the target.");
    /// Host is not `host[:port]`.
    pub const HOST_SYNTAX: Self =
        Self::MALFORMED.saying("Host must be a host name or address, with a port or without.");
    /// The target is neither a path nor an http URL.
    pub const TARGET: Self =
        Self::MALFORMED.saying("The request target must be a path or an http URL.");
    /// The method has a lower-case letter.
    pub const METHOD_CASE: Self = Self::MALFORMED.saying("A method must be written in capitals.");
    /// More than one Expect.
    pub const EXPECTATIONS: Self = Self::MALFORMED.saying("There must be at most one Expect.");
    /// Connection lists a header that is meant for the server.
    pub const CONNECTION_OPTION: Self =
        Self::MALFORMED.saying("Connection must not list a header that is meant for the server.");
    /// A header that decides about the request has several values.
    pub const STATED_TWICE: Self =
        Self::MALFORMED.saying("A header that decides about the request must have one value.");
    /// HTTP/2: a header's value begins or ends with whitespace.
    pub const HEADER_VALUE: Self =
        Self::MALFORMED.saying("A header's value must not begin or end with whitespace.");
    /// HTTP/2: the trailers contain a pseudo-header.
    pub const TRAILERS: Self =
        Self::MALFORMED.saying("The request's trailers contain a pseudo-header.");
    /// The path cannot be decoded, or contains characters that no path may contain.
    pub const PATH: Self = Self::MALFORMED.saying("The path of the request cannot be read safely.");
    /// The headers of trusted proxies name different clients.
    pub const CLIENT: Self = Self::MALFORMED
        .saying("The headers of trusted proxies name different clients: only one can be right.");
    /// The request broke off. The client is gone, so only the log shows this, as 499.
    pub const CLIENT_GONE: Self = Self {
        kind: "urn:problem-type:tollgate:client-gone",
        title: "The client has gone",
        detail: "The request broke off.",
        grpc: CANCELLED,
        ..Self::MALFORMED
    };
    /// 405: TRACE, and no route names it.
    pub const TRACE: Self = Self::METHOD.saying(
        "TRACE returns headers that browsers hide from scripts: it is forwarded only if a route names it.",
    );
    /// 408: the head of a request did not end in time.
    pub const HEAD_TIMEOUT: Self =
        Self::BODY_STALLED.saying("The request head did not arrive in time.");
    /// 408: the body of a request stalled.
    pub const BODY_STALLED: Self = Self {
        status: StatusCode::REQUEST_TIMEOUT,
        kind: "urn:problem-type:tollgate:request-timeout",
        title: "The request took too long",
        detail: "The body of the request stalled.",
        grpc: DEADLINE_EXCEEDED,
    };
    /// 408: the body of a request arrives too slowly.
    pub const BODY_SLOW: Self =
        Self::BODY_STALLED.saying("The body of the request arrived too slowly.");
    /// 414: the target is longer than the server allows.
    pub const TARGET_TOO_LONG: Self = Self {
        status: StatusCode::URI_TOO_LONG,
        kind: "urn:problem-type:tollgate:target-too-long",
        title: "The request target is too long",
        detail: "The request target is longer than this gateway accepts.",
        grpc: RESOURCE_EXHAUSTED,
    };
    /// 417: Expect has a value other than `100-continue`.
    pub const EXPECTATION: Self = Self {
        status: StatusCode::EXPECTATION_FAILED,
        kind: "urn:problem-type:tollgate:expectation-failed",
        title: "The expectation is not supported",
        detail: "The only supported expectation is `100-continue`.",
        grpc: INTERNAL,
    };
    /// 431: the head is larger than the server allows.
    pub const HEAD_TOO_LARGE: Self = Self {
        status: StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        kind: "urn:problem-type:tollgate:headers-too-large",
        title: "The headers are too large",
        detail: "The head of the request is larger than this gateway accepts.",
        grpc: RESOURCE_EXHAUSTED,
    };
    /// 501: an unsupported transfer coding.
    pub const TRANSFER_CODING: Self = Self {
        status: StatusCode::NOT_IMPLEMENTED,
        kind: "urn:problem-type:tollgate:not-implemented",
        title: "This is not supported",
        detail: "The only supported transfer coding is `chunked`.",
        grpc: UNIMPLEMENTED,
    };
    /// 501: CONNECT.
    pub const CONNECT: Self = Self::TRANSFER_CODING.saying(
        "CONNECT is not supported: a tunnel would bypass every limit. Request http:// instead of https://; the gateway speaks TLS to the upstream.",
    );
    /// 501: a method that is longer than any known one.
    pub const METHOD_UNKNOWN: Self = Self::TRANSFER_CODING.saying("The method is not supported.");
    /// 501: an upgrade over HTTP/2 that cannot be requested from the upstream.
    pub const UPGRADE: Self =
        Self::TRANSFER_CODING.saying("This upgrade is not passed on to this upstream.");
    /// 505: an unsupported version of HTTP.
    pub const VERSION: Self = Self {
        status: StatusCode::HTTP_VERSION_NOT_SUPPORTED,
        kind: "urn:problem-type:tollgate:version-not-supported",
        title: "The version of HTTP is not supported",
        detail: "This gateway does not speak that version of HTTP.",
        grpc: UNIMPLEMENTED,
    };
}
