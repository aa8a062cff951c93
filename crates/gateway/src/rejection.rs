//! The reasons for which the gateway refuses a request, and the [`Problem`] that each one sends.
//!
//! [`tollgate_response`] writes the response.

use http::{HeaderValue, Response, StatusCode};

use super::forward::ForwardError;
use super::forward::body::{BodyError, ResponseBody};
use super::framing::Malformed;
use tollgate_limit::Micros;
use tollgate_limiter::{Cause, Unavailable};
use tollgate_net::server::UnreadReason;
use tollgate_policy::identity::jwt::JwtError;
use tollgate_policy::identity::{IdentityReason, IdentityRefusal};
use tollgate_policy::{BodyFlaw, BodyRefusal};
use tollgate_response::problem::PROBLEM_JSON;
use tollgate_response::{ALLOWED, Denial, Form, Problem, Reason, Refusal, RefusalForm, Refused};

#[derive(Debug)]
pub enum Rejection {
    /// The request can be read in more than one way, or asks for an unsupported feature.
    Malformed(Malformed),
    /// The path, the host, the method or the client cannot be read in one way.
    Unmatchable(tollgate_policy::Malformed),
    NoRoute,
    /// Routes match, but only for other methods.
    Method {
        allow: HeaderValue,
    },
    Unlisted,
    /// TRACE, and no route names it.
    Trace,
    Loop,
    /// The caller is not identified, but the route requires it.
    Unidentified {
        refusal: IdentityRefusal,
        /// The challenge (`WWW-Authenticate`) of a 401 response.
        challenge: Option<HeaderValue>,
    },
    Denied(Refused),
    TooBig,
    /// The request's body is too large to find out which route takes it.
    TooBigToRoute,
    /// The body cannot be read for the values that decide about the request.
    Body(BodyFlaw),
    /// A store did not respond, and its limit is configured to refuse in that case.
    StoreDown(Unavailable),
    Overloaded,
    /// The bodies that are held for decisions take all of their memory.
    HeldBodies,
    Upstream(ForwardError),
    Internal,
}

tollgate_policy::labels! {
    Rejection {
        Self::Unmatchable(_) => "bad_path",
        Self::NoRoute => "no_route",
        Self::Method { .. } => "method_not_allowed",
        Self::Unlisted => "host_not_listed",
        Self::Trace => "trace",
        Self::Loop => "loop",
        Self::TooBig | Self::TooBigToRoute => "too_big",
        Self::StoreDown(_) => "store_down",
        Self::Overloaded => "overloaded",
        Self::HeldBodies => "held_bodies",
        Self::Internal => "internal",
    } and {
        Self::Malformed(why) => why.label(),
        Self::Denied(refused) => refused.label(),
        Self::Body(why) => why.label(),
        Self::Unidentified { refusal, .. } => refusal.reason.label(),
        Self::Upstream(error) => error.label(),
    }
}

impl Rejection {
    /// The response, without quota headers. `id` is the id of the decision, which is also in the
    /// log; `own` is the form that the route or the file chooses, used if a limit or its store refuses.
    pub fn response(
        &self,
        form: &RefusalForm,
        own: Option<Form<'_>>,
        id: &str,
    ) -> Response<ResponseBody> {
        self.refusal()
            .response(form, own, id)
            .map(ResponseBody::from)
    }

    /// Builds the same response as [`Rejection::response`] for most refusals by limits over HTTP/1,
    /// but without a header table; [`tollgate_response::write_headers`] writes the headers with the
    /// head, and is given the content type from here. `None` if the response needs more than that.
    /// `prepared` is the beginning of the document, used if only one limit refuses.
    pub fn response_without_table(
        &self,
        form: &RefusalForm,
        own: Option<Form<'_>>,
        prepared: Option<&Denial>,
        id: &str,
    ) -> Option<(Response<ResponseBody>, HeaderValue)> {
        if !form.is_plain() {
            return None;
        }
        let (status, content_type, body) = match (self, prepared) {
            (
                Self::Denied(Refused {
                    never_fits: false,
                    blocked: false,
                    reserved: false,
                    retry_after: Some(wait),
                    budgets,
                    ..
                }),
                Some(prepared),
            ) if own.is_none() && budgets.is_empty() => {
                (self.status(), PROBLEM_JSON, prepared.document(*wait, id))
            }
            (Self::Denied(_) | Self::Overloaded, _) => self.refusal().contents(own, id),
            _ => return None,
        };
        let mut response = Response::new(body.into());
        *response.status_mut() = status;
        Some((response, content_type))
    }

    /// The status of the response (for a gRPC call: the status that it would have without gRPC).
    pub fn status(&self) -> StatusCode {
        self.problem().status
    }

    /// Whether the client left before it could be told anything.
    pub const fn is_unreceived(&self) -> bool {
        matches!(
            self,
            Self::Upstream(ForwardError::Body(BodyError::ClientGone))
        )
    }

    /// The party that caused the rejection: what the upstream did not cause earns no credit.
    pub fn cause(&self) -> Cause {
        match self {
            Self::Upstream(error) => error.blame().cause,
            _ => Cause::Gateway,
        }
    }

    /// The wait after which a retry makes sense: exact for a limit, estimated for failures of the
    /// gateway or an upstream.
    pub fn retry_after(&self) -> Option<Micros> {
        match self {
            Self::Denied(refused) if !refused.never_fits => refused.retry_after,
            Self::Unidentified { refusal, .. }
                if refusal.reason == IdentityReason::Token(JwtError::NoKeys) =>
            {
                Some(Micros::from_secs(1))
            }
            Self::StoreDown(_)
            | Self::Overloaded
            | Self::HeldBodies
            | Self::Upstream(ForwardError::Overloaded) => Some(Micros::from_secs(1)),
            _ => None,
        }
    }

    fn refusal(&self) -> Refusal<'_> {
        let reason = match self {
            Self::Denied(refused) => Reason::Denied(refused),
            Self::StoreDown(unavailable) => Reason::StoreDown(&unavailable.limit),
            Self::Unidentified { challenge, .. } => Reason::Unidentified(challenge.as_ref()),
            _ => Reason::Other,
        };
        let allow = match self {
            Self::Trace => Some(&ALLOWED),
            Self::Method { allow } => Some(allow),
            _ => None,
        };
        // If framing or target can be read in two ways, the following bytes may not be a real
        // request, so close the connection. Also close it if a body is malformed, or did not end in
        // time, instead of waiting for its end (RFC 9110 15.5.9).
        let closes = matches!(
            self,
            Self::Malformed(_)
                | Self::Upstream(ForwardError::Body(
                    BodyError::ClientIdle | BodyError::ClientSlow | BodyError::ClientMalformed
                ))
        );
        let detail = match self {
            Self::Unidentified { refusal, .. } => refusal.lacking.as_deref(),
            _ => None,
        };
        Refusal {
            detail,
            retry_after: self.retry_after(),
            allow,
            closes,
            ..Refusal::new(self.problem(), self.label(), reason)
        }
    }

    fn problem(&self) -> Problem {
        match self {
            Self::Malformed(why) => malformed(*why),
            Self::Unmatchable(why) => Problem::unmatchable(*why),
            Self::NoRoute => Problem::NO_ROUTE,
            Self::Method { .. } => Problem::METHOD,
            Self::Unlisted => Problem::UNLISTED,
            Self::Trace => Problem::TRACE,
            Self::Loop => Problem::LOOP,
            Self::Unidentified { refusal, .. } => Problem::unidentified(refusal.reason),
            Self::Denied(refused) => refused.problem(),
            Self::TooBig => Problem::BODY_TOO_LARGE,
            Self::TooBigToRoute => Problem::BODY_TOO_LARGE_TO_ROUTE,
            Self::Body(why) => body(*why),
            Self::StoreDown(_) => Problem::STORE_DOWN,
            Self::Overloaded | Self::HeldBodies => Problem::OVERLOADED,
            Self::Upstream(error) => upstream(error),
            Self::Internal => Problem::INTERNAL,
        }
    }
}

const fn malformed(why: Malformed) -> Problem {
    match why {
        Malformed::TransferEncoding => Problem::TRANSFER_ENCODING,
        Malformed::TransferCoding => Problem::TRANSFER_CODING,
        Malformed::Host => Problem::HOST,
        Malformed::HostSyntax => Problem::HOST_SYNTAX,
        Malformed::Target => Problem::TARGET,
        Malformed::Connect => Problem::CONNECT,
        Malformed::Method => Problem::METHOD_UNKNOWN,
        Malformed::MethodCase => Problem::METHOD_CASE,
        Malformed::Expectation => Problem::EXPECTATION,
        Malformed::Expectations => Problem::EXPECTATIONS,
        Malformed::FieldValue => Problem::HEADER_VALUE,
        Malformed::ConnectionOption => Problem::CONNECTION_OPTION,
        Malformed::StatedTwice => Problem::STATED_TWICE,
    }
}

const fn body(why: BodyFlaw) -> Problem {
    match why {
        BodyFlaw::Malformed => Problem::BODY_MALFORMED,
        BodyFlaw::Ambiguous => Problem::BODY_AMBIGUOUS,
        BodyFlaw::Operation(why) => Problem::operation(why),
        BodyFlaw::Mixed => Problem::BODY_MIXED,
        BodyFlaw::TooManyCalls => Problem::BATCH_TOO_LONG,
        BodyFlaw::Charset => Problem::BODY_CHARSET,
        BodyFlaw::Compressed => Problem::BODY_COMPRESSED,
    }
}

const fn upstream(error: &ForwardError) -> Problem {
    match error {
        ForwardError::Connect(_)
        | ForwardError::ConnectTimeout
        | ForwardError::Tls(_)
        | ForwardError::NoServer => Problem::UPSTREAM_UNREACHABLE,
        ForwardError::Overloaded => Problem::OVERLOADED,
        ForwardError::ResponseTimeout { .. }
        | ForwardError::UploadTimeout
        | ForwardError::ClientDeadline { .. }
        | ForwardError::TotalTimeout
        | ForwardError::SlowUpload => Problem::UPSTREAM_TIMEOUT,
        ForwardError::Closed
        | ForwardError::Response(_)
        | ForwardError::Aborted(_)
        | ForwardError::Broken(_)
        | ForwardError::Malformed(_)
        | ForwardError::ResponseCoding
        | ForwardError::RefusedStream
        | ForwardError::GoingAway
        | ForwardError::Upgrade => Problem::UPSTREAM_RESPONSE,
        ForwardError::Provoked(error) => upstream(error),
        ForwardError::Rewrite => Problem::PATH,
        ForwardError::Bridge => Problem::UPGRADE,
        ForwardError::Body(BodyError::TooBig) => Problem::BODY_TOO_LARGE,
        ForwardError::Body(BodyError::ClientIdle) => Problem::BODY_STALLED,
        ForwardError::Body(BodyError::ClientSlow) => Problem::BODY_SLOW,
        ForwardError::Body(BodyError::ClientMalformed) => Problem::NOT_HTTP,
        ForwardError::Body(_) => Problem::CLIENT_GONE,
    }
}

impl From<Malformed> for Rejection {
    fn from(why: Malformed) -> Self {
        Self::Malformed(why)
    }
}

impl From<BodyFlaw> for Rejection {
    fn from(why: BodyFlaw) -> Self {
        Self::Body(why)
    }
}

impl From<BodyRefusal> for Rejection {
    fn from(why: BodyRefusal) -> Self {
        match why {
            BodyRefusal::Flaw(flaw) => Self::Body(flaw),
            BodyRefusal::TooLong => Self::TooBigToRoute,
        }
    }
}

impl From<ForwardError> for Rejection {
    fn from(error: ForwardError) -> Self {
        Self::Upstream(error)
    }
}

/// Every word that the access log and the metrics give as the reason of a rejection, of a failure
/// of an upstream, or of input that is no request.
pub fn reasons() -> impl Iterator<Item = &'static str> {
    let lists = [
        Rejection::LABELS,
        Refused::LABELS,
        IdentityReason::LABELS,
        JwtError::LABELS,
        BodyFlaw::LABELS,
        Malformed::LABELS,
        ForwardError::LABELS,
        BodyError::LABELS,
        UnreadReason::LABELS,
        &[CLIENT_LEFT, PANIC],
    ];
    lists.into_iter().flatten().copied()
}

pub(crate) const CLIENT_LEFT: &str = "client_left";
pub(crate) const PANIC: &str = "panic";

#[cfg(test)]
mod tests;
