//! Every error response of the gateway: status, problem type and texts, each defined once.
//!
//! Connections refuse input that never becomes a request, the request path and the layer for
//! services refuse requests: all with these constants. A [`Problem`] is only the content of a
//! response; other crates decide when to refuse.

mod document;

use http::StatusCode;

use tollgate_policy::Malformed;
use tollgate_policy::identity::IdentityReason;
use tollgate_policy::source::Ambiguous;

pub use document::{END, PROBLEM_JSON};

/// The part of a problem (RFC 9457) that is the same for every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The status.
    pub status: StatusCode,
    /// The problem type.
    pub kind: &'static str,
    /// A short summary that belongs to the type.
    pub title: &'static str,
    /// A sentence about this occurrence.
    pub detail: &'static str,
    /// The status that a gRPC call receives (google.rpc.Code).
    pub grpc: u8,
}

// --- 400: the request can be read in more than one way, or not at all ---
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
    /// The body lacks a value that requests are limited by.
    pub const KEY_MISSING_IN_BODY: Self =
        Self::MALFORMED.saying("The body lacks a value that it must have here, is too long, or has no form in which it is read.");
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
        .saying("Forwarded and X-Forwarded-For name different clients: only one can be right.");
    /// The caller's key is given twice.
    pub const KEY_TWICE: Self = Self::MALFORMED
        .saying("The key that identifies the caller is given twice, and not the same.");
    /// The caller's key cannot be decoded, or servers read it differently.
    pub const KEY_UNCLEAR: Self =
        Self::MALFORMED.saying("The key that identifies the caller cannot be decoded in one way.");
    /// /check: the method of the original request is not stated once.
    pub const ASKED_METHOD: Self = Self::MALFORMED.saying(
        "The method of the original request must be stated once: by X-Original-Method or X-Forwarded-Method.",
    );
    /// /check: the target of the original request is not stated once.
    pub const ASKED_TARGET: Self = Self::MALFORMED.saying(
        "The target of the original request must be stated once: a path by X-Original-URI or X-Forwarded-Uri, or an http URL by X-Original-URL.",
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
    /// The body is no JSON, and something in it must be known.
    pub const BODY_MALFORMED: Self =
        Self::MALFORMED.saying(
            "The body of the request is not a JSON object or list in UTF-8, or is nested more than 128 levels deep.",
        );
    /// The model of the request has no price.
    pub const MODEL_UNKNOWN: Self =
        Self::MALFORMED.saying(
            "The body of the request names no model that has a price here, or is too long to be read for it.",
        );
    /// The body says something twice, or in a form that servers read differently.
    pub const BODY_AMBIGUOUS: Self = Self::MALFORMED
        .saying("A value in the body of the request is given twice, or in a form that servers read differently.");
    /// The calls of a batch are limited differently.
    pub const BODY_MIXED: Self = Self::MALFORMED
        .saying("The calls of the batch are limited differently: send them one by one.");
    /// The request broke off. The client is gone, so only the log shows this, as 499.
    pub const CLIENT_GONE: Self = Self {
        kind: "urn:problem-type:tollgate:client-gone",
        title: "The client has gone",
        detail: "The request broke off.",
        grpc: CANCELLED,
        ..Self::MALFORMED
    };
}

// --- 401 to 431: the request itself is refused ---
impl Problem {
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
    /// 402: a limit with `refuse_status = 402` refuses, with a known retry time.
    pub const BUDGET_EXHAUSTED: Self = Self {
        status: StatusCode::PAYMENT_REQUIRED,
        kind: "urn:problem-type:tollgate:budget-exhausted",
        title: "The budget does not cover the request",
        detail: "The budget is used up for now. A retry after the time given is admitted.",
        grpc: RESOURCE_EXHAUSTED,
    };
    /// 402: the same, and the largest number of concurrent requests is in progress.
    pub const BUDGET_AND_CONCURRENCY: Self = Self::BUDGET_EXHAUSTED.saying(
        "The budget is used up for now, and the largest number of concurrent requests is in progress.",
    );
    /// 402: the request costs more than the budget can ever grant.
    pub const NEVER_IN_BUDGET: Self = Self::BUDGET_EXHAUSTED
        .saying("This request costs more than the budget can ever grant. A retry will not help.");
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
    /// 404: no route matches.
    pub const NO_ROUTE: Self = Self {
        status: StatusCode::NOT_FOUND,
        kind: "urn:problem-type:tollgate:no-route",
        title: "No route matches",
        detail: "No route of this gateway matches the request.",
        grpc: UNIMPLEMENTED,
    };
    /// 405: routes match, but only for other methods.
    pub const METHOD: Self = Self {
        status: StatusCode::METHOD_NOT_ALLOWED,
        kind: "urn:problem-type:tollgate:method-not-allowed",
        title: "The method is not allowed",
        detail: "The routes for this path are for other methods.",
        grpc: UNIMPLEMENTED,
    };
    /// 405: a resource of the listener for decisions takes POST only.
    pub const POST_ONLY: Self = Self::METHOD.saying("This resource takes POST.");
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
    /// 413: the body is larger than the route allows.
    pub const BODY_TOO_LARGE: Self = Self {
        status: StatusCode::PAYLOAD_TOO_LARGE,
        kind: "urn:problem-type:tollgate:body-too-large",
        title: "The body is too large",
        detail: "The body of the request is larger than this route admits.",
        grpc: RESOURCE_EXHAUSTED,
    };
    /// 413: the document sent to the listener for decisions is too large.
    pub const DOCUMENT_TOO_LARGE: Self =
        Self::BODY_TOO_LARGE.saying("The document is larger than 256 KiB.");
    /// 413: the route depends on the body, which is too large for that.
    pub const BODY_TOO_LARGE_TO_ROUTE: Self =
        Self::BODY_TOO_LARGE.saying("The body of the request is too large to find its route.");
    /// A batch of more calls than are read for a value in them.
    pub const BATCH_TOO_LONG: Self = Self::BODY_TOO_LARGE
        .saying("The batch has more than 1000 calls, which is the most that are read.");
    /// 415: the charset of the body is not UTF-8, and something in it must be known.
    pub const BODY_CHARSET: Self = Self {
        status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
        kind: "urn:problem-type:tollgate:unsupported-media-type",
        title: "The body cannot be read",
        detail: "The body of the request must be in UTF-8.",
        grpc: INTERNAL,
    };
    /// 415: the body is compressed, and something in it must be known.
    pub const BODY_COMPRESSED: Self =
        Self::BODY_CHARSET.saying("The body of the request must not be compressed.");
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
    /// 421: the gateway does not forward to this host.
    pub const UNLISTED: Self = Self {
        status: StatusCode::MISDIRECTED_REQUEST,
        kind: "urn:problem-type:tollgate:host-not-listed",
        title: "The gateway does not forward to this host",
        detail: "This gateway forwards only to the hosts that its routes name, by the scheme and port of their upstreams.",
        grpc: UNIMPLEMENTED,
    };
    /// 429: a limit refuses, with a known retry time.
    pub const QUOTA_EXCEEDED: Self = Self {
        status: StatusCode::TOO_MANY_REQUESTS,
        kind: "https://iana.org/assignments/http-problem-types#quota-exceeded",
        title: "Request cannot be satisfied as assigned quota has been exceeded",
        detail: "The quota is used up for now. A retry after the time given is admitted.",
        grpc: RESOURCE_EXHAUSTED,
    };
    /// 429: the largest number of concurrent requests is in progress.
    pub const CONCURRENCY_EXCEEDED: Self = Self::QUOTA_EXCEEDED.saying(
        "The largest number of concurrent requests is in progress. Retry when one has ended.",
    );
    /// 429: the request costs more than the quota can ever grant, or more than its limit lets a request cost.
    pub const NEVER_FITS: Self = Self::QUOTA_EXCEEDED
        .saying("This request costs more than the quota can ever grant, or states a cost above the highest allowed one, or one that cannot be read. A retry will not help.");
    /// 429: an operator's override blocks the caller.
    pub const BLOCKED: Self = Self {
        kind: "urn:problem-type:tollgate:blocked",
        title: "The caller is blocked",
        detail: "An operator has blocked this caller for a while. A retry after the time given is not blocked any more.",
        ..Self::QUOTA_EXCEEDED
    };
    /// 429: a penalty blocks the caller.
    pub const PENALTY: Self = Self {
        detail: "The caller is blocked for a while because it was refused too often. A retry after the time given is not blocked any more.",
        ..Self::BLOCKED
    };
    /// 431: the head is larger than the server allows.
    pub const HEAD_TOO_LARGE: Self = Self {
        status: StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        kind: "urn:problem-type:tollgate:headers-too-large",
        title: "The headers are too large",
        detail: "The head of the request is larger than this gateway accepts.",
        grpc: RESOURCE_EXHAUSTED,
    };
}

// --- 500 to 508: the gateway, a store or an upstream cannot serve it ---
impl Problem {
    /// 500: the gateway failed.
    pub const INTERNAL: Self = Self {
        status: StatusCode::INTERNAL_SERVER_ERROR,
        kind: "urn:problem-type:tollgate:internal",
        title: "The gateway failed",
        detail: "The gateway failed on this request.",
        grpc: INTERNAL,
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
    /// 502: no connection to the upstream.
    pub const UPSTREAM_UNREACHABLE: Self = Self {
        status: StatusCode::BAD_GATEWAY,
        kind: "urn:problem-type:tollgate:upstream-unreachable",
        title: "The upstream cannot be reached",
        detail: "No connection to the upstream could be made.",
        grpc: UNAVAILABLE,
    };
    /// 502: no response that can be passed on.
    pub const UPSTREAM_RESPONSE: Self = Self {
        kind: "urn:problem-type:tollgate:upstream-answer",
        title: "The upstream gave no usable response",
        detail: "The upstream closed the connection, or its response cannot be passed on.",
        ..Self::UPSTREAM_UNREACHABLE
    };
    /// 503: the gateway or the upstream has reached its capacity.
    pub const OVERLOADED: Self = Self {
        status: StatusCode::SERVICE_UNAVAILABLE,
        kind: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
        title: "The capacity is exhausted",
        detail: "As many requests, or bytes of their bodies, as can be processed are in progress.",
        grpc: UNAVAILABLE,
    };
    /// 503: too many connections are open.
    pub const TOO_MANY_CONNECTIONS: Self =
        Self::OVERLOADED.saying("Too many connections are open.");
    /// 503: a store did not respond, and its limit is configured to refuse in that case.
    pub const STORE_DOWN: Self = Self {
        title: "The quota cannot be read",
        detail: "The store of a limit does not respond, and the limit is configured to refuse requests then.",
        ..Self::OVERLOADED
    };
    /// 504: the upstream is too slow.
    pub const UPSTREAM_TIMEOUT: Self = Self {
        status: StatusCode::GATEWAY_TIMEOUT,
        kind: "urn:problem-type:tollgate:upstream-timeout",
        title: "The upstream is too slow",
        detail: "The upstream did not respond in time.",
        grpc: DEADLINE_EXCEEDED,
    };
    /// 505: an unsupported version of HTTP.
    pub const VERSION: Self = Self {
        status: StatusCode::HTTP_VERSION_NOT_SUPPORTED,
        kind: "urn:problem-type:tollgate:version-not-supported",
        title: "The version of HTTP is not supported",
        detail: "This gateway does not speak that version of HTTP.",
        grpc: UNIMPLEMENTED,
    };
    /// 508: the request has already passed through this gateway.
    pub const LOOP: Self = Self {
        status: StatusCode::LOOP_DETECTED,
        kind: "urn:problem-type:tollgate:loop",
        title: "The request is in a loop",
        detail: "This gateway has forwarded the request before, as its Via header shows.",
        grpc: INTERNAL,
    };
}

impl Problem {
    /// 400 or 401: an identity refuses the request for this reason.
    pub const fn unidentified(reason: IdentityReason) -> Self {
        match reason {
            IdentityReason::Ambiguous(Ambiguous::Twice) => Self::KEY_TWICE,
            IdentityReason::Ambiguous(Ambiguous::Unclear) => Self::KEY_UNCLEAR,
            IdentityReason::ModelUnknown => Self::MODEL_UNKNOWN,
            IdentityReason::Missing => Self::KEY_MISSING,
            IdentityReason::MissingInBody => Self::KEY_MISSING_IN_BODY,
            IdentityReason::Unknown => Self::KEY_UNKNOWN,
            IdentityReason::Token(_) | IdentityReason::Unverified => Self::TOKEN,
        }
    }

    /// 400: the request cannot be matched safely, for this reason.
    pub const fn unmatchable(why: Malformed) -> Self {
        match why {
            Malformed::Host => Self::HOST_SYNTAX,
            Malformed::Method => Self::METHOD_CASE,
            Malformed::Client => Self::CLIENT,
            Malformed::NotAbsolute
            | Malformed::Escape
            | Malformed::Separator
            | Malformed::Control
            | Malformed::Encoding
            | Malformed::AboveRoot
            | Malformed::DotParameters => Self::PATH,
        }
    }

    /// The same problem with another detail.
    const fn saying(self, detail: &'static str) -> Self {
        Self { detail, ..self }
    }
}

// google.rpc.Code
const CANCELLED: u8 = 1;
const DEADLINE_EXCEEDED: u8 = 4;
const NOT_FOUND: u8 = 5;
const PERMISSION_DENIED: u8 = 7;
const RESOURCE_EXHAUSTED: u8 = 8;
const UNIMPLEMENTED: u8 = 12;
const INTERNAL: u8 = 13;
const UNAVAILABLE: u8 = 14;
const UNAUTHENTICATED: u8 = 16;
