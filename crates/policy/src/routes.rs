//! Routes: which requests match, and the limits and target of a match. The router finds the match.

pub(crate) mod edits;
pub mod method;
pub mod path;
pub mod pattern;
pub(crate) mod responses;
pub mod router;
pub mod template;

use std::sync::Arc;

use http::{HeaderName, HeaderValue, Method};

use super::claims::prices::PriceIndex;

pub use crate::errors::ParseError;
pub use pattern::{HostPattern, Pattern, Segment};
pub use router::{Captures, Match, Router};
pub use template::{Piece, Placeholder, Template};

#[derive(Debug)]
pub struct Route {
    /// Its text in the file: the route's name in logs and metrics.
    pub name: Arc<str>,
    pub pattern: Pattern,
    pub target: Target,
    /// Its limits, by index in [`super::Policy::rules`], with the cost if the route overrides it.
    pub limits: Vec<RouteLimit>,
    /// The targets of requests that these limits refuse, in the order in which they are tried.
    pub over_limit: Vec<OverLimit>,
    pub strip_prefix: Option<String>,
    pub add_prefix: Option<String>,
    pub request_headers: HeaderEdits,
    pub response_headers: HeaderEdits,
    pub refusal: Option<super::RefusalBody>,
    /// The largest request body, bytes; `None`: unlimited.
    pub body_max: Option<u64>,
}

impl Route {
    /// The limits that a request to one of its targets is charged on; 0 is its own target, 1 the
    /// first of `over_limit`.
    pub fn limits_of(&self, target: usize) -> &[RouteLimit] {
        match self.over_limit(target) {
            Some(over) => &over.limits,
            None => &self.limits,
        }
    }

    /// The target with this number, unless it is the route's own.
    pub fn over_limit(&self, target: usize) -> Option<&OverLimit> {
        self.over_limit.get(target.checked_sub(1)?)
    }

    /// The limits of all of its targets, those of its own target first. A limit of several targets
    /// is there several times.
    pub fn all_limits(&self) -> impl Iterator<Item = &RouteLimit> {
        (0..=self.over_limit.len()).flat_map(|target| self.limits_of(target))
    }

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteLimit {
    pub rule: usize,
    /// The cost on this route, if it differs.
    pub cost: Option<super::Cost>,
}

/// A target that takes requests which limits of the target before it refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverLimit {
    /// The limits whose refusal passes a request on to this target, by index in
    /// [`super::Policy::rules`]. Any other limit refuses a request for all targets.
    pub instead_of: Vec<usize>,
    /// The upstream, by index in [`super::Policy::upstreams`].
    pub upstream: usize,
    /// The limits that its requests are charged on: its own, and those of the target before it that
    /// it does not replace.
    pub limits: Vec<RouteLimit>,
    /// The price of the model that it serves, whatever model the request asks for; `None`: its
    /// responses name their model.
    pub model: Option<PriceIndex>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Upstream(usize),
    Echo,
    /// The service that the policy was read for: it responds to every admitted request itself.
    Service,
    Fixed {
        status: u16,
        body: String,
        content_type: HeaderValue,
    },
    Redirect {
        /// Its status: 301, 302, 303, 307 or 308.
        status: u16,
        location: Template,
    },
}

impl Target {
    pub const fn upstream(&self) -> Option<usize> {
        match self {
            Self::Upstream(upstream) => Some(*upstream),
            _ => None,
        }
    }

    /// Whether it is a response of the gateway that is no success: a redirect or an error.
    pub const fn turns_away(&self) -> bool {
        match self {
            Self::Redirect { .. } => true,
            Self::Fixed { status, .. } => *status < 200 || *status > 299,
            Self::Upstream(_) | Self::Echo | Self::Service => false,
        }
    }
}

/// Changes to headers: removals first, then settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderEdits {
    pub remove: Vec<HeaderName>,
    pub set: Vec<(HeaderName, Template)>,
}

impl HeaderEdits {
    pub const fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty()
    }

    /// Whether they set this header to a text that no request changes.
    pub fn fixes(&self, name: &HeaderName) -> bool {
        let last = self.set.iter().rfind(|(own, _)| own == name);
        last.is_some_and(|(_, template)| template.placeholders().next().is_none())
    }
}
