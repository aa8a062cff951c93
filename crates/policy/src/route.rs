//! Routes: which requests match, and the limits and target of a match. The router finds the match.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, Method};

pub use super::pattern::{HostPattern, ParseError, Pattern, Segment};
pub use super::router::{Captures, Match, Router};
pub use super::template::{Piece, Placeholder, Template};

/// One route of the file.
#[derive(Debug)]
pub struct Route {
    /// Its text in the file: the route's name in logs and metrics.
    pub name: Arc<str>,
    /// What it matches.
    pub pattern: Pattern,
    /// The target of its requests.
    pub target: Target,
    /// Its limits, by index in [`super::Policy::rules`], with the cost if the route overrides it.
    pub limits: Vec<RouteLimit>,
    /// A path prefix removed before forwarding.
    pub strip_prefix: Option<String>,
    /// A path prefix added before forwarding (after stripping).
    pub add_prefix: Option<String>,
    /// Changes to the forwarded request's headers.
    pub request_headers: HeaderEdits,
    /// Changes to the response's headers.
    pub response_headers: HeaderEdits,
    /// The route's own refusal body.
    pub refusal: Option<super::RefusalBody>,
    /// The largest request body, bytes; `None`: unlimited.
    pub body_max: Option<u64>,
}

impl Route {
    /// The method of a request as a part of a bucket's key. The classes are the methods that the
    /// route lists and the standard names; every other method is `other`. HEAD counts as GET,
    /// because a route for GET also takes HEAD.
    pub fn method_class<'m>(&self, method: &'m Method) -> &'m str {
        const STANDARD: [Method; 7] = [
            Method::GET,
            Method::POST,
            Method::PUT,
            Method::DELETE,
            Method::PATCH,
            Method::OPTIONS,
            Method::CONNECT,
        ];
        if *method == Method::HEAD {
            "GET"
        } else if STANDARD.contains(method) || self.pattern.methods.contains(method) {
            method.as_str()
        } else {
            "other"
        }
    }
}

/// A limit as one route uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteLimit {
    /// Index in [`super::Policy::rules`].
    pub rule: usize,
    /// The cost on this route, if it differs.
    pub cost: Option<super::Cost>,
}

/// The target of a route's requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An upstream, by index in [`super::Policy::upstreams`].
    Upstream(usize),
    /// `builtin:echo`.
    Echo,
    /// The service that the policy was read for: it responds to every admitted request itself.
    Service,
    /// A fixed response.
    Fixed {
        /// Its status.
        status: u16,
        /// Its body.
        body: String,
        /// Its content type.
        content_type: HeaderValue,
    },
    /// A redirect.
    Redirect {
        /// Its status: 301, 302, 303, 307 or 308.
        status: u16,
        /// Its Location, a template.
        location: Template,
    },
}

/// Changes to headers: removals first, then settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderEdits {
    /// Headers to remove.
    pub remove: Vec<HeaderName>,
    /// Headers to set, replacing what is there.
    pub set: Vec<(HeaderName, Template)>,
}

impl HeaderEdits {
    /// Whether nothing changes.
    pub const fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty()
    }
}
