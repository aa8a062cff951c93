//! The gateway has no route, no room or no response for the request: its routes, its capacity and its upstreams.

use http::StatusCode;

use super::{DEADLINE_EXCEEDED, INTERNAL, Problem, UNAVAILABLE, UNIMPLEMENTED};

impl Problem {
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
    /// 421: the gateway does not forward to this host.
    pub const UNLISTED: Self = Self {
        status: StatusCode::MISDIRECTED_REQUEST,
        kind: "urn:problem-type:tollgate:host-not-listed",
        title: "The gateway does not forward to this host",
        detail: "This gateway forwards only to the hosts that its routes name, by the scheme and port of their upstreams.",
        grpc: UNIMPLEMENTED,
    };
    /// 500: the gateway failed.
    pub const INTERNAL: Self = Self {
        status: StatusCode::INTERNAL_SERVER_ERROR,
        kind: "urn:problem-type:tollgate:internal",
        title: "The gateway failed",
        detail: "The gateway failed on this request.",
        grpc: INTERNAL,
    };
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
    /// 504: the upstream is too slow.
    pub const UPSTREAM_TIMEOUT: Self = Self {
        status: StatusCode::GATEWAY_TIMEOUT,
        kind: "urn:problem-type:tollgate:upstream-timeout",
        title: "The upstream is too slow",
        detail: "The upstream did not respond in time.",
        grpc: DEADLINE_EXCEEDED,
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
