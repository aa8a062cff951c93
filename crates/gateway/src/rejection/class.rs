//! What of a rejection is fixed: its status, its problem type and its words.

use http::StatusCode;

use crate::body::BodyError;
use crate::forward::ForwardError;
use crate::framing::Malformed;
use tollgate_policy::identity::IdentityReason;

/// A rejection's fixed part.
pub(super) struct Class {
    pub(super) status: StatusCode,
    /// The problem type.
    pub(super) kind: &'static str,
    pub(super) title: &'static str,
    pub(super) detail: &'static str,
    /// The gRPC status (google.rpc.Code).
    pub(super) grpc: u8,
}

pub(super) fn malformed(why: Malformed) -> Class {
    match why {
        Malformed::TransferEncoding => Class {
            detail: "Transfer-Encoding must be one single `chunked`.",
            ..BAD_REQUEST
        },
        Malformed::TransferCoding => Class {
            detail: "The only transfer coding understood is `chunked`.",
            ..NOT_IMPLEMENTED
        },
        Malformed::Host => Class {
            detail: "There must be exactly one Host, and it must agree with the target.",
            ..BAD_REQUEST
        },
        Malformed::HostSyntax => Class {
            detail: "Host must be a host name or address, with a port or without.",
            ..BAD_REQUEST
        },
        Malformed::Target => Class {
            detail: "The request target must be a path or an http URL.",
            ..BAD_REQUEST
        },
        Malformed::Connect => Class {
            detail: "CONNECT is not served here: a tunnel would pass every limit by. Ask for http:// instead of https://; the gateway speaks TLS to the upstream.",
            ..NOT_IMPLEMENTED
        },
        Malformed::Method => Class {
            detail: "The method is not understood.",
            ..NOT_IMPLEMENTED
        },
        Malformed::MethodCase => Class {
            detail: "A method must be written in capitals.",
            ..BAD_REQUEST
        },
        Malformed::Expectation => EXPECTATION,
        Malformed::Expectations => Class {
            detail: "There must be at most one Expect.",
            ..BAD_REQUEST
        },
        Malformed::FieldValue => Class {
            detail: "A field's value must not begin or end with a blank.",
            ..BAD_REQUEST
        },
    }
}

pub(super) fn unidentified(reason: IdentityReason) -> Class {
    match reason {
        IdentityReason::Ambiguous => Class {
            detail: "The key that says who asks is given twice, or cannot be decoded.",
            ..BAD_REQUEST
        },
        IdentityReason::Missing => Class {
            detail: "The request does not say who asks: its key is missing.",
            ..UNAUTHENTICATED
        },
        IdentityReason::Unknown => Class {
            detail: "The key that says who asks is not known.",
            ..UNAUTHENTICATED
        },
        IdentityReason::Token(_) | IdentityReason::Unverified => Class {
            detail: "The token that says who asks is not valid.",
            ..UNAUTHENTICATED
        },
    }
}

pub(super) fn upstream(error: &ForwardError) -> Class {
    match error {
        ForwardError::Connect(_)
        | ForwardError::ConnectTimeout
        | ForwardError::Tls(_)
        | ForwardError::NoServer => UNREACHABLE,
        ForwardError::Overloaded => OVERLOADED,
        ForwardError::ResponseTimeout
        | ForwardError::UploadTimeout
        | ForwardError::CallerDeadline
        | ForwardError::SlowUpload => TIMEOUT,
        ForwardError::Closed
        | ForwardError::Answer(_)
        | ForwardError::Broken(_)
        | ForwardError::Malformed(_)
        | ForwardError::AnswerCoding
        | ForwardError::RefusedStream
        | ForwardError::GoingAway
        | ForwardError::Upgrade => BAD_ANSWER,
        ForwardError::Rewrite => BAD_PATH,
        ForwardError::Bridge => Class {
            detail: "This upgrade is not passed on to this upstream.",
            ..NOT_IMPLEMENTED
        },
        ForwardError::Body(BodyError::TooBig) => TOO_BIG,
        ForwardError::Body(BodyError::ClientIdle) => STALLED,
        ForwardError::Body(BodyError::ClientSlow) => Class {
            detail: "The body of the request came more slowly than this gateway waits for.",
            ..STALLED
        },
        ForwardError::Body(BodyError::ClientTrailers) => Class {
            detail: "The request's trailers hold a pseudo-field.",
            ..BAD_REQUEST
        },
        ForwardError::Body(_) => CALLER_GONE,
    }
}

pub(super) const BAD_REQUEST: Class = Class {
    status: StatusCode::BAD_REQUEST,
    kind: "urn:problem-type:tollgate:malformed-request",
    title: "The request is malformed",
    detail: "The request is malformed.",
    grpc: INTERNAL_ERROR,
};
pub(super) const BAD_PATH: Class = Class {
    detail: "The path of the request cannot be read safely.",
    ..BAD_REQUEST
};
pub(super) const NOT_IMPLEMENTED: Class = Class {
    status: StatusCode::NOT_IMPLEMENTED,
    kind: "urn:problem-type:tollgate:not-implemented",
    title: "This is not served here",
    detail: "This is not served here.",
    grpc: UNIMPLEMENTED,
};
pub(super) const EXPECTATION: Class = Class {
    status: StatusCode::EXPECTATION_FAILED,
    kind: "urn:problem-type:tollgate:expectation-failed",
    title: "The expectation is not understood",
    detail: "The only expectation understood is `100-continue`.",
    grpc: INTERNAL_ERROR,
};
pub(super) const NO_ROUTE: Class = Class {
    status: StatusCode::NOT_FOUND,
    kind: "urn:problem-type:tollgate:no-route",
    title: "No route matches",
    detail: "No route of this gateway matches the request.",
    grpc: UNIMPLEMENTED,
};
pub(super) const UNLISTED: Class = Class {
    status: StatusCode::MISDIRECTED_REQUEST,
    kind: "urn:problem-type:tollgate:host-not-listed",
    title: "This host is not forwarded to",
    detail: "This gateway forwards only to the hosts that its routes name, by the scheme and port of their upstreams.",
    grpc: UNIMPLEMENTED,
};
pub(super) const METHOD: Class = Class {
    status: StatusCode::METHOD_NOT_ALLOWED,
    kind: "urn:problem-type:tollgate:method-not-allowed",
    title: "The method is not allowed",
    detail: "The routes for this path are for other methods.",
    grpc: UNIMPLEMENTED,
};
pub(super) const TRACE: Class = Class {
    detail: "TRACE sends back what browsers keep from scripts: it is forwarded only where a route names it.",
    ..METHOD
};
pub(super) const LOOP: Class = Class {
    status: StatusCode::LOOP_DETECTED,
    kind: "urn:problem-type:tollgate:loop",
    title: "The request goes round in a circle",
    detail: "The request has been forwarded by this gateway before, as its Via field says.",
    grpc: INTERNAL_ERROR,
};
pub(super) const UNAUTHENTICATED: Class = Class {
    status: StatusCode::UNAUTHORIZED,
    kind: "urn:problem-type:tollgate:unidentified",
    title: "Who asks is not known",
    detail: "Who asks is not known.",
    grpc: 16,
};
pub(super) const DENIED: Class = Class {
    status: StatusCode::TOO_MANY_REQUESTS,
    kind: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "Request cannot be satisfied as assigned quota has been exceeded",
    detail: "The quota is used up for now. A retry after the time given is admitted.",
    grpc: RESOURCE_EXHAUSTED,
};
pub(super) const CONCURRENT: Class = Class {
    detail: "As many requests as may be under way at once are under way. Retry when one has ended.",
    ..DENIED
};
pub(super) const NEVER_FITS: Class = Class {
    detail: "This request costs more than the quota can ever grant. A retry will not help.",
    ..DENIED
};
pub(super) const TOO_BIG: Class = Class {
    status: StatusCode::PAYLOAD_TOO_LARGE,
    kind: "urn:problem-type:tollgate:body-too-large",
    title: "The body is too large",
    detail: "The body of the request is larger than this route admits.",
    grpc: RESOURCE_EXHAUSTED,
};
pub(super) const HEADERS_TOO_LARGE: Class = Class {
    status: StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
    kind: "urn:problem-type:tollgate:headers-too-large",
    title: "The header fields are too large",
    detail: "The header fields of the request are larger than this gateway admits.",
    grpc: RESOURCE_EXHAUSTED,
};
pub(super) const STALLED: Class = Class {
    status: StatusCode::REQUEST_TIMEOUT,
    kind: "urn:problem-type:tollgate:request-timeout",
    title: "The request took too long",
    detail: "The body of the request stalled.",
    grpc: DEADLINE_EXCEEDED,
};
/// Nobody reads it: the access log tells it as 499.
pub(super) const CALLER_GONE: Class = Class {
    status: StatusCode::BAD_REQUEST,
    kind: "urn:problem-type:tollgate:caller-gone",
    title: "The caller has gone",
    detail: "The request broke off.",
    grpc: 1,
};
pub(super) const STORE_DOWN: Class = Class {
    status: StatusCode::SERVICE_UNAVAILABLE,
    kind: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
    title: "The quota cannot be looked up",
    detail: "The store of a limit does not answer, and the limit says that this is a refusal.",
    grpc: UNAVAILABLE,
};
pub(super) const OVERLOADED: Class = Class {
    status: StatusCode::SERVICE_UNAVAILABLE,
    kind: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
    title: "There is too much to do",
    detail: "As many requests as can be taken are under way.",
    grpc: UNAVAILABLE,
};
pub(super) const DRAINING: Class = Class {
    detail: "This gateway is going away.",
    ..OVERLOADED
};
pub(super) const UNREACHABLE: Class = Class {
    status: StatusCode::BAD_GATEWAY,
    kind: "urn:problem-type:tollgate:upstream-unreachable",
    title: "The upstream cannot be reached",
    detail: "No connection to the upstream could be made.",
    grpc: UNAVAILABLE,
};
pub(super) const BAD_ANSWER: Class = Class {
    status: StatusCode::BAD_GATEWAY,
    kind: "urn:problem-type:tollgate:upstream-answer",
    title: "The upstream gave no usable answer",
    detail: "The upstream closed the connection, or its answer cannot be passed on.",
    grpc: UNAVAILABLE,
};
pub(super) const TIMEOUT: Class = Class {
    status: StatusCode::GATEWAY_TIMEOUT,
    kind: "urn:problem-type:tollgate:upstream-timeout",
    title: "The upstream is too slow",
    detail: "The upstream did not answer in time.",
    grpc: DEADLINE_EXCEEDED,
};
pub(super) const INTERNAL: Class = Class {
    status: StatusCode::INTERNAL_SERVER_ERROR,
    kind: "urn:problem-type:tollgate:internal",
    title: "The gateway failed",
    detail: "The gateway failed on this request.",
    grpc: INTERNAL_ERROR,
};

const DEADLINE_EXCEEDED: u8 = 4;
const RESOURCE_EXHAUSTED: u8 = 8;
const UNIMPLEMENTED: u8 = 12;
const INTERNAL_ERROR: u8 = 13;
const UNAVAILABLE: u8 = 14;
