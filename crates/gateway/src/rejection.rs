//! Why the gateway answers a request itself, and with what: the only place that chooses a status code (`class` has them all).
//!
//! A [`Rejection`] becomes a problem document (RFC 9457) or, for a gRPC call, a trailers-only answer that a gRPC
//! client understands. Every answer can be read by a browser's script and by no cache.

mod challenge;
mod class;
mod render;

use std::sync::Arc;

use http::header::{CONTENT_TYPE, ORIGIN};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use smallvec::SmallVec;

use self::class::Class;
use super::body::ResponseBody;
use super::forward::ForwardError;
use super::framing::Malformed;
use super::headers::HeaderSet;
use tollgate_limit::Micros;
use tollgate_limiter::Cause;
use tollgate_policy::RefusalBody;
use tollgate_policy::identity::IdentityRefusal;

pub use challenge::challenge;
pub use render::{ALLOWED, Denial, escape_json_char, write_fields};

/// Why the gateway answers a request itself.
#[derive(Debug)]
pub enum Rejection {
    /// The request can be read in more than one way, or asks for what is not served.
    Malformed(Malformed),
    /// The path cannot be decoded, or names what no path may.
    BadPath,
    /// No route matches.
    NoRoute,
    /// Routes match, for other methods.
    Method {
        /// Those methods, as `Allow` lists them.
        allow: HeaderValue,
    },
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
        /// What would satisfy it (`WWW-Authenticate`), where the answer is 401.
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
    takes_lines: bool,
    /// Boxed, as most requests have nothing of it.
    rare: Option<Box<Rare>>,
}

/// What few requests have that decides how they are refused.
#[derive(Clone, Debug, Default)]
struct Rare {
    /// The content type of a gRPC call.
    grpc: Option<HeaderValue>,
    origin: Option<HeaderValue>,
}

impl Asked {
    /// From `request`, whose headers are `present`. `takes_lines`: the server that read it adds lines to a response's head
    /// when it writes it.
    pub fn of<B>(request: &Request<B>, present: HeaderSet, takes_lines: bool) -> Self {
        let rare = present.has(HeaderSet::CONTENT_TYPE) || present.has(HeaderSet::ORIGIN);
        Self {
            head: *request.method() == Method::HEAD,
            http1: request.version() < Version::HTTP_2,
            takes_lines,
            rare: if rare {
                Rare::of(request.method(), request.headers())
            } else {
                None
            },
        }
    }

    fn grpc(&self) -> Option<&HeaderValue> {
        self.rare.as_ref()?.grpc.as_ref()
    }

    fn origin(&self) -> Option<&HeaderValue> {
        self.rare.as_ref()?.origin.as_ref()
    }
}

impl Rare {
    fn of(method: &Method, headers: &HeaderMap) -> Option<Box<Self>> {
        // To whoever sent a CONNECT a 200 is an open tunnel, whatever stands in it.
        let kind = headers
            .get(CONTENT_TYPE)
            .filter(|_| *method != Method::CONNECT);
        let grpc = kind.filter(|value| value.as_bytes().starts_with(b"application/grpc"));
        let origin = headers.get(ORIGIN);
        (grpc.is_some() || origin.is_some()).then(|| {
            Box::new(Self {
                grpc: grpc.cloned(),
                origin: origin.cloned(),
            })
        })
    }
}

impl Asked {
    /// Whether it wants no body.
    pub const fn is_head(&self) -> bool {
        self.head
    }

    /// Whether headers may be written as lines behind the response's table of headers.
    pub const fn takes_lines(&self) -> bool {
        self.takes_lines
    }
}

impl Rejection {
    /// The answer. `id` is the decision's, which the log carries too; `own` the refusal body of the route or the file,
    /// used where a limit or its store refuses. Quota fields are added by the caller.
    pub fn respond(
        &self,
        asked: &Asked,
        own: Option<&RefusalBody>,
        id: &str,
    ) -> Response<ResponseBody> {
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
        let plain = asked.takes_lines && !asked.head && asked.rare.is_none() && own.is_none();
        if !plain {
            return None;
        }
        let body = match (self, prepared) {
            (
                Self::Denied(Refused {
                    never_fits: false,
                    retry_after: Some(wait),
                    ..
                }),
                Some(prepared),
            ) => prepared.document(*wait, id),
            (Self::Denied(_) | Self::Overloaded, _) => {
                render::problem(self, &self.class(), id).into()
            }
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

    /// Who brought it about. Without a wildcard: what is new has to say so.
    pub fn cause(&self) -> Cause {
        match self {
            Self::Upstream(error) => error.cause(),
            Self::CallerGone => Cause::Client,
            Self::Malformed(_)
            | Self::BadPath
            | Self::NoRoute
            | Self::Method { .. }
            | Self::Unlisted
            | Self::Trace
            | Self::Loop
            | Self::Unidentified { .. }
            | Self::Denied(_)
            | Self::TooBig
            | Self::HeadersTooLarge
            | Self::StoreDown { .. }
            | Self::Overloaded
            | Self::Draining
            | Self::Internal => Cause::Gateway,
        }
    }

    /// A fixed word for metrics and logs.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Malformed(why) => why.label(),
            Self::BadPath => "bad_path",
            Self::NoRoute => "no_route",
            Self::Method { .. } => "method_not_allowed",
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
            Self::StoreDown { .. }
            | Self::Overloaded
            | Self::Draining
            | Self::Upstream(ForwardError::Overloaded) => Some(Micros::from_secs(1)),
            _ => None,
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Malformed(why) => class::malformed(*why),
            Self::BadPath => class::BAD_PATH,
            Self::NoRoute => class::NO_ROUTE,
            Self::Method { .. } => class::METHOD,
            Self::Unlisted => class::UNLISTED,
            Self::Trace => class::TRACE,
            Self::Loop => class::LOOP,
            Self::Unidentified { refusal, .. } => class::unidentified(refusal.reason),
            Self::Denied(refused) if refused.never_fits => class::NEVER_FITS,
            Self::Denied(refused) if refused.retry_after.is_none() => class::CONCURRENT,
            Self::Denied(_) => class::DENIED,
            Self::CallerGone => class::CALLER_GONE,
            Self::TooBig => class::TOO_BIG,
            Self::HeadersTooLarge => class::HEADERS_TOO_LARGE,
            Self::StoreDown { .. } => class::STORE_DOWN,
            Self::Overloaded => class::OVERLOADED,
            Self::Draining => class::DRAINING,
            Self::Upstream(error) => class::upstream(error),
            Self::Internal => class::INTERNAL,
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

#[cfg(test)]
mod tests;
