use super::{CANCELLED, Problem};
use tollgate_policy::OperationFlaw;

problems! {
    // Mistakes of HTTP itself: a message that is not well formed, too long, too late, or asks for
    // what this server cannot do.

    MALFORMED = BAD_REQUEST, "urn:problem-type:tollgate:malformed-request", "The request is malformed", INTERNAL:
        "The request is malformed.";

    NOT_HTTP of MALFORMED: "The request is not well-formed HTTP/1.1.";

    PLAIN_HTTP of MALFORMED: "This is plain HTTP, and this port speaks TLS: use https://.";

    TLS_HANDSHAKE of MALFORMED: "This is a TLS handshake, and this port speaks plain HTTP: use http://.";

    TRANSFER_ENCODING of MALFORMED: "Transfer-Encoding must be one single `chunked`.";

    HOST of MALFORMED: "There must be exactly one Host, and it must agree with the target.";

    HOST_SYNTAX of MALFORMED: "Host must be a host name or address, with a port or without.";

    TARGET of MALFORMED: "The request target must be a path or an http URL.";

    METHOD_CASE of MALFORMED: "A method must be written in capitals.";

    EXPECTATIONS of MALFORMED: "There must be at most one Expect.";

    CONNECTION_OPTION of MALFORMED: "Connection must not list a header that is meant for the server.";

    STATED_TWICE of MALFORMED: "A header that decides about the request must have one value.";

    HEADER_VALUE of MALFORMED: "A header's value must not begin or end with whitespace.";

    PATH of MALFORMED: "The path of the request cannot be read safely.";

    CLIENT of MALFORMED: "The headers of trusted proxies name different clients: only one can be right.";

    TRACE of METHOD:
        "TRACE returns headers that browsers hide from scripts: it is forwarded only if a route names it.";

    HEAD_TIMEOUT of BODY_STALLED: "The request head did not arrive in time.";

    BODY_STALLED = REQUEST_TIMEOUT, "urn:problem-type:tollgate:request-timeout", "The request took too long", DEADLINE_EXCEEDED:
        "The body of the request stalled.";

    BODY_SLOW of BODY_STALLED: "The body of the request arrived too slowly.";

    TARGET_TOO_LONG = URI_TOO_LONG, "urn:problem-type:tollgate:target-too-long", "The request target is too long", RESOURCE_EXHAUSTED:
        "The request target is longer than this gateway accepts.";

    EXPECTATION = EXPECTATION_FAILED, "urn:problem-type:tollgate:expectation-failed", "The expectation is not supported", INTERNAL:
        "The only supported expectation is `100-continue`.";

    HEAD_TOO_LARGE = REQUEST_HEADER_FIELDS_TOO_LARGE, "urn:problem-type:tollgate:headers-too-large", "The headers are too large", RESOURCE_EXHAUSTED:
        "The head of the request is larger than this gateway accepts.";

    TRANSFER_CODING = NOT_IMPLEMENTED, "urn:problem-type:tollgate:not-implemented", "This is not supported", UNIMPLEMENTED:
        "The only supported transfer coding is `chunked`.";

    CONNECT of TRANSFER_CODING:
        "CONNECT is not supported: a tunnel would bypass every limit. Request http:// instead of https://; the gateway speaks TLS to the upstream.";

    METHOD_UNKNOWN of TRANSFER_CODING: "The method is not supported.";

    /// 501: an upgrade over HTTP/2 that cannot be requested from the upstream.
    UPGRADE of TRANSFER_CODING: "This upgrade is not passed on to this upstream.";

    // A caller that is not identified.

    KEY_TWICE of MALFORMED: "The key that identifies the caller is given twice, and not the same.";

    KEY_UNCLEAR of MALFORMED: "The key that identifies the caller cannot be decoded in one way.";

    KEY_MISSING = UNAUTHORIZED, "urn:problem-type:tollgate:unidentified", "The caller is not identified", UNAUTHENTICATED:
        "The request has no key that identifies the caller.";

    KEY_UNKNOWN of KEY_MISSING: "The key that identifies the caller is not known.";

    // A body that is too large, or from which a value that must be known cannot be read.

    KEY_MISSING_IN_BODY of MALFORMED:
        "The body lacks a value that it must have here, is too long, or has no form in which it is read.";

    BODY_MALFORMED of MALFORMED:
        "The body of the request is not a JSON object or list in UTF-8, or is nested more than 128 levels deep.";

    MODEL_UNKNOWN of MALFORMED:
        "The body of the request names no model that has a price here, or is too long to be read for it.";

    BODY_AMBIGUOUS of MALFORMED:
        "A value in the body of the request is given twice, or in a form that servers read differently.";

    BODY_MIXED of MALFORMED: "The calls of the batch are limited differently: send them one by one.";

    BODY_TOO_LARGE = PAYLOAD_TOO_LARGE, "urn:problem-type:tollgate:body-too-large", "The body is too large", RESOURCE_EXHAUSTED:
        "The body of the request is larger than this route admits.";

    BODY_TOO_LARGE_TO_ROUTE of BODY_TOO_LARGE: "The body of the request is too large to find its route.";

    BATCH_TOO_LONG of BODY_TOO_LARGE: "The batch has more than 1000 calls, which is the most that are read.";

    BODY_CHARSET = UNSUPPORTED_MEDIA_TYPE, "urn:problem-type:tollgate:unsupported-media-type", "The body cannot be read", INTERNAL:
        "The body of the request must be in UTF-8.";

    // Mistakes of programs that ask the listener for decisions.

    /// /check: the method of the original request is not stated once.
    ASKED_METHOD of MALFORMED:
        "The method of the original request must be stated once: by X-Original-Method or X-Forwarded-Method.";

    ASKED_TARGET of MALFORMED:
        "The target of the original request must be stated once: by X-Original-URI or X-Forwarded-Uri, or by an http URL in X-Original-URL. Its path begins with one slash.";

    ASKED_HOST of MALFORMED:
        "The host of the original request must be stated once: by X-Forwarded-Host or X-Original-URL.";

    ASKED_SCHEME of MALFORMED:
        "The scheme of the original request must be stated once: `http` or `https` by X-Forwarded-Proto or X-Original-URL.";

    ASKED_CLIENT of MALFORMED:
        "The address of the client must be stated, and not in two ways: by X-Forwarded-For, Forwarded or X-Real-IP, as [address] says.";

    JSON_ONLY of MALFORMED: "This resource takes JSON: Content-Type must be application/json.";

    BAD_JSON of MALFORMED: "The JSON document is not what this resource takes.";

    UNTRUSTED_PEER = FORBIDDEN, "urn:problem-type:tollgate:untrusted-peer", "The peer may not ask for decisions", PERMISSION_DENIED:
        "This listener decides only for the networks in `trusted` of [decide].";

    WEB_PAGE of UNTRUSTED_PEER: "This resource is for programs, and a web page asks for it.";

    UNKNOWN_PERMIT = NOT_FOUND, "urn:problem-type:tollgate:unknown-permit", "There is no such permit", NOT_FOUND:
        "The permit is unknown: it was settled or given back before, has expired, or was made by another process.";

    NO_RESOURCE = NOT_FOUND, "urn:problem-type:tollgate:no-resource", "There is no such resource", UNIMPLEMENTED:
        "The resources are /check, /v1/decide, /v1/settle and /v1/give-back.";

    POST_ONLY of METHOD: "This resource takes POST.";

    // A limit or a budget refuses, or its numbers cannot be read.

    /// 402: a limit with `refuse_status = 402` refuses, with a known retry time.
    BUDGET_EXHAUSTED = PAYMENT_REQUIRED, "urn:problem-type:tollgate:budget-exhausted", "The budget does not cover the request", RESOURCE_EXHAUSTED:
        "The budget is used up for now. A retry after the time given is admitted.";

    BUDGET_AND_CONCURRENCY of BUDGET_EXHAUSTED:
        "The budget is used up for now, and the largest number of concurrent requests is in progress.";

    NEVER_IN_BUDGET of BUDGET_EXHAUSTED:
        "This request costs more than the budget can ever grant. A retry will not help.";

    QUOTA_EXCEEDED = TOO_MANY_REQUESTS, "https://iana.org/assignments/http-problem-types#quota-exceeded", "Request cannot be satisfied as assigned quota has been exceeded", RESOURCE_EXHAUSTED:
        "The quota is used up for now. A retry after the time given is admitted.";

    RESERVED of QUOTA_EXCEEDED:
        "What is left is reserved by requests under way, which seldom use all of it. One of them ends within the time given.";

    CONCURRENCY_EXCEEDED of QUOTA_EXCEEDED:
        "The largest number of concurrent requests is in progress. Retry when one has ended.";

    NEVER_FITS of QUOTA_EXCEEDED:
        "This request costs more than the quota can ever grant, or states a cost above the highest allowed one, or one that cannot be read. A retry will not help.";

    // The gateway has no route, no room or no response for the request.

    NO_ROUTE = NOT_FOUND, "urn:problem-type:tollgate:no-route", "No route matches", UNIMPLEMENTED:
        "No route of this gateway matches the request.";

    METHOD = METHOD_NOT_ALLOWED, "urn:problem-type:tollgate:method-not-allowed", "The method is not allowed", UNIMPLEMENTED:
        "The routes for this path are for other methods.";

    UNLISTED = MISDIRECTED_REQUEST, "urn:problem-type:tollgate:host-not-listed", "The gateway does not forward to this host", UNIMPLEMENTED:
        "This gateway forwards only to the hosts that its routes name, by the scheme and port of their upstreams.";

    INTERNAL = INTERNAL_SERVER_ERROR, "urn:problem-type:tollgate:internal", "The gateway failed", INTERNAL:
        "The gateway failed on this request.";

    UPSTREAM_UNREACHABLE = BAD_GATEWAY, "urn:problem-type:tollgate:upstream-unreachable", "The upstream cannot be reached", UNAVAILABLE:
        "No connection to the upstream could be made.";

    OVERLOADED = SERVICE_UNAVAILABLE, "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity", "The capacity is exhausted", UNAVAILABLE:
        "As many requests, or bytes of their bodies, as can be processed are in progress.";

    TOO_MANY_CONNECTIONS of OVERLOADED: "Too many connections are open.";

    UPSTREAM_TIMEOUT = GATEWAY_TIMEOUT, "urn:problem-type:tollgate:upstream-timeout", "The upstream is too slow", DEADLINE_EXCEEDED:
        "The upstream did not respond in time.";

    VERSION = HTTP_VERSION_NOT_SUPPORTED, "urn:problem-type:tollgate:version-not-supported", "The version of HTTP is not supported", UNIMPLEMENTED:
        "This gateway does not speak that version of HTTP.";

    LOOP = LOOP_DETECTED, "urn:problem-type:tollgate:loop", "The request is in a loop", INTERNAL:
        "This gateway has forwarded the request before, as its Via header shows.";
}

impl Problem {
    pub const CLIENT_GONE: Self = Self {
        kind: "urn:problem-type:tollgate:client-gone",
        title: "The client has gone",
        detail: "The request broke off.",
        grpc: CANCELLED,
        ..Self::MALFORMED
    };

    pub const TOKEN: Self =
        Self::KEY_MISSING.saying("The token that identifies the caller is not valid.");

    pub const fn operation(why: OperationFlaw) -> Self {
        Self::BODY_AMBIGUOUS.saying(why.words())
    }

    pub const BODY_COMPRESSED: Self =
        Self::BODY_CHARSET.saying("The body of the request must not be compressed.");

    pub const DOCUMENT_TOO_LARGE: Self =
        Self::BODY_TOO_LARGE.saying("The document is larger than 256 KiB.");

    pub const BLOCKED: Self = Self {
        kind: "urn:problem-type:tollgate:blocked",
        title: "The caller is blocked",
        detail: "An operator has blocked this caller for a while. A retry after the time given is not blocked any more.",
        ..Self::QUOTA_EXCEEDED
    };

    pub const PENALTY: Self = Self {
        detail: "The caller is blocked for a while because it was refused too often. A retry after the time given is not blocked any more.",
        ..Self::BLOCKED
    };

    /// 503: a store did not respond, and its limit is configured to refuse in that case.
    pub const STORE_DOWN: Self = Self {
        title: "The quota cannot be read",
        detail: "The store of a limit does not respond, and the limit is configured to refuse requests then.",
        ..Self::OVERLOADED
    };

    pub const NO_KEYS: Self = Self {
        title: "The token cannot be verified",
        detail: "The keys that verify tokens cannot be fetched at the moment.",
        ..Self::OVERLOADED
    };

    pub const UPSTREAM_RESPONSE: Self = Self {
        kind: "urn:problem-type:tollgate:upstream-answer",
        title: "The upstream gave no usable response",
        detail: "The upstream closed the connection, or its response cannot be passed on.",
        ..Self::UPSTREAM_UNREACHABLE
    };
}
