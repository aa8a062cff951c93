//! Why the gateway answers a request itself, and with what: the only file that chooses a status code.
//!
//! A [`Rejection`] becomes a problem document (RFC 9457) or, for a gRPC call, a trailers-only answer that a gRPC
//! client understands. Every answer can be read by a browser's script and by no cache.

mod render;

use std::sync::Arc;

use http::header::{CONTENT_TYPE, ORIGIN};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use smallvec::SmallVec;

use super::body::{BodyError, ResponseBody};
use super::forward::ForwardError;
use super::framing::Malformed;
use super::headers::Present;
use crate::limit::Micros;
use crate::policy::RefusalBody;
use crate::policy::identity::{IdentityReason, IdentityRefusal, Source};

pub use render::{ALLOWED, Denial, REFUSAL_PLACEHOLDERS, escape_json_char, write_fields};

/// Why the gateway answers a request itself.
#[derive(Debug)]
#[non_exhaustive]
pub enum Rejection {
    /// The request can be read in more than one way, or asks for what is not served.
    Malformed(Malformed),
    /// The path cannot be decoded, or names what no path may.
    BadPath,
    /// No route matches.
    NoRoute,
    /// The request asks for a host that is not forwarded to.
    Unlisted,
    /// TRACE, which no route asks for by name.
    Trace,
    /// The request has been here before.
    Loop,
    /// Who asks is not known, and must be.
    Unidentified {
        /// Which identity refused, and why.
        refusal: IdentityRefusal,
        /// What would satisfy it (`WWW-Authenticate`), where there is a scheme for that.
        challenge: Option<HeaderValue>,
    },
    /// A limit refuses.
    Denied(Refused),
    /// The caller left while its request was held for its token: nobody reads the answer.
    CallerGone,
    /// The request's body is larger than the route admits.
    TooBig,
    /// The request's head is larger than the server admits.
    HeadersTooLarge,
    /// A store did not answer, and its limit says that this is a refusal.
    StoreDown {
        /// The limit.
        limit: Arc<str>,
    },
    /// The gateway has as much to do as it will take.
    Overloaded,
    /// The gateway is going away.
    Draining,
    /// The upstream gave no answer.
    Upstream(ForwardError),
    /// The gateway failed on this request.
    Internal,
}

/// What a refusal by limits says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// The names of the limits that refused.
    pub violated: SmallVec<[Arc<str>; 2]>,
    /// When a retry is admitted; `None`: no time is known.
    pub retry_after: Option<Micros>,
    /// Whether the request costs more than a limit can ever grant.
    pub never_fits: bool,
}

/// What of a request decides how it is refused.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    head: bool,
    http1: bool,
    /// The content type of a gRPC call.
    grpc: Option<HeaderValue>,
    origin: Option<HeaderValue>,
}

impl Asked {
    /// What of `request`, whose fields are `present`, decides how it is refused.
    pub fn of<B>(request: &Request<B>, present: Present) -> Self {
        let headers = request.headers();
        let kind = if present.has(Present::CONTENT_TYPE) { headers.get(CONTENT_TYPE) } else { None };
        // To whoever sent a CONNECT a 200 is an open tunnel, whatever stands in it.
        let connects = *request.method() == Method::CONNECT;
        let grpc = kind.filter(|value| !connects && value.as_bytes().starts_with(b"application/grpc"));
        Self {
            head: *request.method() == Method::HEAD,
            http1: request.version() < Version::HTTP_2,
            grpc: grpc.cloned(),
            origin: if present.has(Present::ORIGIN) { headers.get(ORIGIN).cloned() } else { None },
        }
    }
}

impl Asked {
    /// Whether it came over HTTP/1.
    pub const fn is_http1(&self) -> bool {
        self.http1
    }
}

/// What `WWW-Authenticate` says for an identity made of `sources`; `None` where no scheme is registered.
pub fn challenge(sources: &[Source]) -> Option<HeaderValue> {
    sources.iter().find_map(|source| match source {
        Source::Bearer | Source::JwtClaim(_) => Some(HeaderValue::from_static("Bearer")),
        Source::BasicUser => Some(HeaderValue::from_static("Basic realm=\"api\", charset=\"UTF-8\"")),
        _ => None,
    })
}

/// A rejection's fixed part.
struct Class {
    status: StatusCode,
    /// The problem type.
    kind: &'static str,
    title: &'static str,
    detail: &'static str,
    /// The gRPC status (google.rpc.Code).
    grpc: u8,
}

impl Rejection {
    /// The answer. `id` is the decision's, which the log carries too; `own` the refusal body of the route or the file,
    /// used where a limit or its store refuses. Quota fields are added by the caller.
    pub fn respond(&self, asked: &Asked, own: Option<&RefusalBody>, id: &str) -> Response<ResponseBody> {
        render::respond(self, &self.class(), asked, own, id)
    }

    /// As [`Rejection::respond`] for most refusals by limits over HTTP/1, and without a table of fields: the answer has none,
    /// and [`write_fields`] writes them with its head. `None` where there is more to say than that. `prepared`: the opening of
    /// the document, where only one limit refuses.
    pub fn respond_bare(
        &self,
        asked: &Asked,
        own: Option<&RefusalBody>,
        prepared: Option<&Denial>,
        id: &str,
    ) -> Option<Response<ResponseBody>> {
        let plain = asked.http1 && !asked.head && asked.grpc.is_none() && asked.origin.is_none() && own.is_none();
        if !plain {
            return None;
        }
        let body = match (self, prepared) {
            (Self::Denied(Refused { never_fits: false, retry_after: Some(wait), .. }), Some(prepared)) => {
                prepared.document(*wait, id)
            }
            (Self::Denied(_) | Self::Overloaded, _) => render::problem(self, &self.class(), id).into(),
            _ => return None,
        };
        let mut response = Response::new(body.into());
        *response.status_mut() = self.status();
        Some(response)
    }

    /// The status of the answer (of a gRPC call: what it would be without gRPC).
    pub fn status(&self) -> StatusCode {
        self.class().status
    }

    /// A fixed word for metrics and logs.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Malformed(why) => why.label(),
            Self::BadPath => "bad_path",
            Self::NoRoute => "no_route",
            Self::Unlisted => "host_not_listed",
            Self::Trace => "trace",
            Self::Loop => "loop",
            Self::Unidentified { refusal, .. } => refusal.reason.label(),
            Self::Denied(_) => "denied",
            Self::CallerGone => "caller_gone",
            Self::TooBig => "too_big",
            Self::HeadersTooLarge => "headers_too_large",
            Self::StoreDown { .. } => "store_down",
            Self::Overloaded => "overloaded",
            Self::Draining => "draining",
            Self::Upstream(error) => error.label(),
            Self::Internal => "internal",
        }
    }

    /// When a retry makes sense: exact for a limit, a guess for our own troubles.
    pub fn retry_after(&self) -> Option<Micros> {
        match self {
            Self::Denied(refused) if !refused.never_fits => refused.retry_after,
            Self::StoreDown { .. } | Self::Overloaded | Self::Draining | Self::Upstream(ForwardError::Overloaded) => {
                Some(Micros::from_secs(1))
            }
            _ => None,
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Malformed(why) => malformed(*why),
            Self::BadPath => BAD_PATH,
            Self::NoRoute => NO_ROUTE,
            Self::Unlisted => UNLISTED,
            Self::Trace => TRACE,
            Self::Loop => LOOP,
            Self::Unidentified { refusal, .. } => unidentified(refusal.reason),
            Self::Denied(refused) if refused.never_fits => NEVER_FITS,
            Self::Denied(refused) if refused.retry_after.is_none() => CONCURRENT,
            Self::Denied(_) => DENIED,
            Self::CallerGone => CALLER_GONE,
            Self::TooBig => TOO_BIG,
            Self::HeadersTooLarge => HEADERS_TOO_LARGE,
            Self::StoreDown { .. } => STORE_DOWN,
            Self::Overloaded => OVERLOADED,
            Self::Draining => DRAINING,
            Self::Upstream(error) => upstream(error),
            Self::Internal => INTERNAL,
        }
    }
}

impl From<Malformed> for Rejection {
    fn from(why: Malformed) -> Self {
        Self::Malformed(why)
    }
}

impl From<ForwardError> for Rejection {
    fn from(error: ForwardError) -> Self {
        Self::Upstream(error)
    }
}

fn malformed(why: Malformed) -> Class {
    match why {
        Malformed::TransferEncoding => {
            Class { detail: "Transfer-Encoding must be one single `chunked`.", ..BAD_REQUEST }
        }
        Malformed::TransferCoding => {
            Class { detail: "The only transfer coding understood is `chunked`.", ..NOT_IMPLEMENTED }
        }
        Malformed::Host => {
            Class { detail: "There must be exactly one Host, and it must agree with the target.", ..BAD_REQUEST }
        }
        Malformed::HostSyntax => {
            Class { detail: "Host must be a host name or address, with a port or without.", ..BAD_REQUEST }
        }
        Malformed::Target => Class { detail: "The request target must be a path or an http URL.", ..BAD_REQUEST },
        Malformed::Connect => Class {
            detail: "CONNECT is not served here: a tunnel would pass every limit by. Ask for http:// instead of https://; the gateway speaks TLS to the upstream.",
            ..NOT_IMPLEMENTED
        },
        Malformed::Method => Class { detail: "The method is not understood.", ..NOT_IMPLEMENTED },
        Malformed::Expectation => EXPECTATION,
        Malformed::FieldValue => Class { detail: "A field's value must not begin or end with a blank.", ..BAD_REQUEST },
    }
}

fn unidentified(reason: IdentityReason) -> Class {
    match reason {
        IdentityReason::Ambiguous => {
            Class { detail: "The key that says who asks is given twice, or cannot be decoded.", ..BAD_REQUEST }
        }
        IdentityReason::Missing => {
            Class { detail: "The request does not say who asks: its key is missing.", ..UNAUTHENTICATED }
        }
        IdentityReason::Unknown => Class { detail: "The key that says who asks is not known.", ..UNAUTHENTICATED },
        IdentityReason::Token(_) => Class { detail: "The token that says who asks is not valid.", ..UNAUTHENTICATED },
    }
}

fn upstream(error: &ForwardError) -> Class {
    match error {
        ForwardError::Connect(_) | ForwardError::ConnectTimeout | ForwardError::Tls(_) | ForwardError::NoServer => {
            UNREACHABLE
        }
        ForwardError::Overloaded => OVERLOADED,
        ForwardError::ResponseTimeout | ForwardError::CallerDeadline => TIMEOUT,
        ForwardError::Closed
        | ForwardError::Answer(_)
        | ForwardError::Broken(_)
        | ForwardError::Malformed(_)
        | ForwardError::AnswerCoding
        | ForwardError::RefusedStream
        | ForwardError::GoingAway
        | ForwardError::Upgrade => BAD_ANSWER,
        ForwardError::Rewrite => BAD_PATH,
        ForwardError::Bridge => Class { detail: "This upgrade is not passed on to this upstream.", ..NOT_IMPLEMENTED },
        ForwardError::Body(BodyError::TooBig) => TOO_BIG,
        ForwardError::Body(BodyError::ClientIdle) => STALLED,
        ForwardError::Body(BodyError::ClientSlow) => {
            Class { detail: "The body of the request came more slowly than this gateway waits for.", ..STALLED }
        }
        ForwardError::Body(BodyError::ClientTrailers) => {
            Class { detail: "The request's trailers hold a pseudo-field.", ..BAD_REQUEST }
        }
        ForwardError::Body(_) => CALLER_GONE,
    }
}

const BAD_REQUEST: Class = Class {
    status: StatusCode::BAD_REQUEST,
    kind: "urn:problem-type:tollgate:malformed-request",
    title: "The request is malformed",
    detail: "The request is malformed.",
    grpc: INTERNAL_ERROR,
};
const BAD_PATH: Class = Class { detail: "The path of the request cannot be read safely.", ..BAD_REQUEST };
const NOT_IMPLEMENTED: Class = Class {
    status: StatusCode::NOT_IMPLEMENTED,
    kind: "urn:problem-type:tollgate:not-implemented",
    title: "This is not served here",
    detail: "This is not served here.",
    grpc: UNIMPLEMENTED,
};
const EXPECTATION: Class = Class {
    status: StatusCode::EXPECTATION_FAILED,
    kind: "urn:problem-type:tollgate:expectation-failed",
    title: "The expectation is not understood",
    detail: "The only expectation understood is `100-continue`.",
    grpc: INTERNAL_ERROR,
};
const NO_ROUTE: Class = Class {
    status: StatusCode::NOT_FOUND,
    kind: "urn:problem-type:tollgate:no-route",
    title: "No route matches",
    detail: "No route of this gateway matches the request.",
    grpc: UNIMPLEMENTED,
};
const UNLISTED: Class = Class {
    status: StatusCode::MISDIRECTED_REQUEST,
    kind: "urn:problem-type:tollgate:host-not-listed",
    title: "This host is not forwarded to",
    detail: "This gateway forwards only to the hosts that its routes name, by the scheme and port of their upstreams.",
    grpc: UNIMPLEMENTED,
};
const TRACE: Class = Class {
    status: StatusCode::METHOD_NOT_ALLOWED,
    kind: "urn:problem-type:tollgate:method-not-allowed",
    title: "The method is not allowed",
    detail: "TRACE sends back what browsers keep from scripts: it is forwarded only where a route names it.",
    grpc: UNIMPLEMENTED,
};
const LOOP: Class = Class {
    status: StatusCode::LOOP_DETECTED,
    kind: "urn:problem-type:tollgate:loop",
    title: "The request goes round in a circle",
    detail: "The request has been forwarded by this gateway before, as its Via field says.",
    grpc: INTERNAL_ERROR,
};
const UNAUTHENTICATED: Class = Class {
    status: StatusCode::UNAUTHORIZED,
    kind: "urn:problem-type:tollgate:unidentified",
    title: "Who asks is not known",
    detail: "Who asks is not known.",
    grpc: 16,
};
const DENIED: Class = Class {
    status: StatusCode::TOO_MANY_REQUESTS,
    kind: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "Request cannot be satisfied as assigned quota has been exceeded",
    detail: "The quota is used up for now. A retry after the time given is admitted.",
    grpc: RESOURCE_EXHAUSTED,
};
const CONCURRENT: Class =
    Class { detail: "As many requests as may be under way at once are under way. Retry when one has ended.", ..DENIED };
const NEVER_FITS: Class =
    Class { detail: "This request costs more than the quota can ever grant. A retry will not help.", ..DENIED };
const TOO_BIG: Class = Class {
    status: StatusCode::PAYLOAD_TOO_LARGE,
    kind: "urn:problem-type:tollgate:body-too-large",
    title: "The body is too large",
    detail: "The body of the request is larger than this route admits.",
    grpc: RESOURCE_EXHAUSTED,
};
const HEADERS_TOO_LARGE: Class = Class {
    status: StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
    kind: "urn:problem-type:tollgate:headers-too-large",
    title: "The header fields are too large",
    detail: "The header fields of the request are larger than this gateway admits.",
    grpc: RESOURCE_EXHAUSTED,
};
const STALLED: Class = Class {
    status: StatusCode::REQUEST_TIMEOUT,
    kind: "urn:problem-type:tollgate:request-timeout",
    title: "The request took too long",
    detail: "The body of the request stalled.",
    grpc: DEADLINE_EXCEEDED,
};
/// Nobody reads it: the access log tells it as 499.
const CALLER_GONE: Class = Class {
    status: StatusCode::BAD_REQUEST,
    kind: "urn:problem-type:tollgate:caller-gone",
    title: "The caller has gone",
    detail: "The request broke off.",
    grpc: 1,
};
const STORE_DOWN: Class = Class {
    status: StatusCode::SERVICE_UNAVAILABLE,
    kind: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
    title: "The quota cannot be looked up",
    detail: "The store of a limit does not answer, and the limit says that this is a refusal.",
    grpc: UNAVAILABLE,
};
const OVERLOADED: Class = Class {
    status: StatusCode::SERVICE_UNAVAILABLE,
    kind: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
    title: "There is too much to do",
    detail: "As many requests as can be taken are under way.",
    grpc: UNAVAILABLE,
};
const DRAINING: Class = Class { detail: "This gateway is going away.", ..OVERLOADED };
const UNREACHABLE: Class = Class {
    status: StatusCode::BAD_GATEWAY,
    kind: "urn:problem-type:tollgate:upstream-unreachable",
    title: "The upstream cannot be reached",
    detail: "No connection to the upstream could be made.",
    grpc: UNAVAILABLE,
};
const BAD_ANSWER: Class = Class {
    status: StatusCode::BAD_GATEWAY,
    kind: "urn:problem-type:tollgate:upstream-answer",
    title: "The upstream gave no usable answer",
    detail: "The upstream closed the connection, or its answer cannot be passed on.",
    grpc: UNAVAILABLE,
};
const TIMEOUT: Class = Class {
    status: StatusCode::GATEWAY_TIMEOUT,
    kind: "urn:problem-type:tollgate:upstream-timeout",
    title: "The upstream is too slow",
    detail: "The upstream did not answer in time.",
    grpc: DEADLINE_EXCEEDED,
};
const INTERNAL: Class = Class {
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

#[cfg(test)]
mod tests;
