//! Routes: what matches, and which limits and upstream a match means.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, Method};

/// One route of the file.
#[derive(Debug)]
pub struct Route {
    /// As the file writes it: names the route in logs and metrics.
    pub name: Arc<str>,
    /// What it matches.
    pub pattern: Pattern,
    /// Where its requests go.
    pub target: Target,
    /// Its limits, by index in [`super::Policy::rules`], with the cost here if the route overrides it.
    pub limits: Vec<RouteLimit>,
    /// A path prefix removed before forwarding.
    pub strip_prefix: Option<String>,
    /// A path prefix added before forwarding (after stripping).
    pub add_prefix: Option<String>,
    /// Changes to the forwarded request's headers.
    pub request_headers: HeaderEdits,
    /// Changes to the answer's headers.
    pub response_headers: HeaderEdits,
    /// A refusal body of its own.
    pub refusal: Option<super::RefusalBody>,
    /// The largest request body, bytes; `None`: unlimited.
    pub body_max: Option<u64>,
}

/// A limit as one route uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteLimit {
    /// Index in [`super::Policy::rules`].
    pub rule: usize,
    /// The cost on this route, when it differs.
    pub cost: Option<super::Cost>,
}

/// What a route matches: `[METHOD[|METHOD]] [HOST]/PATH` and headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Methods; empty: all.
    pub methods: Vec<Method>,
    /// The host.
    pub host: HostPattern,
    /// Path segments.
    pub path: Vec<Segment>,
    /// Headers that must be present, with a value or with any.
    pub headers: Vec<(HeaderName, Option<HeaderValue>)>,
}

/// The host a route matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// Every host.
    Any,
    /// This one, lower case.
    Exact(String),
    /// `*.example.com`: one or more labels before this suffix (`example.com`).
    Wildcard(String),
}

/// One segment of a path pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// These characters, decoded.
    Literal(String),
    /// `{name}`: any one segment.
    Capture(String),
    /// `**`: the rest, nothing included. Only last.
    Rest,
}

/// Where a route's requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An upstream, by index in [`super::Policy::upstreams`].
    Upstream(usize),
    /// `builtin:echo`.
    Echo,
    /// A fixed answer.
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

/// Text with `{…}` placeholders of the request: `{tier}`, `{caller}`, `{route}`, `{address}`, `{host}`, `{path:NAME}`,
/// `{identity:NAME}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Its pieces in order.
    pub pieces: Vec<Piece>,
}

/// A piece of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// As written.
    Text(String),
    /// Filled from the request.
    Placeholder(Placeholder),
}

/// What a placeholder stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placeholder {
    /// The caller's tier.
    Tier,
    /// The known caller's name.
    Caller,
    /// The route's name.
    Route,
    /// The caller's address.
    Address,
    /// The host asked for.
    Host,
    /// A captured path segment.
    Path(String),
    /// An identity's key, by index.
    Identity(usize),
}

/// Finds the most specific route.
#[derive(Debug, Default)]
pub struct Router {}
