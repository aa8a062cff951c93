//! Determines what applies to a request: its route, identities and limits. A [`Policy`] is an
//! immutable compiled snapshot that a request holds from start to end; it forwards nothing and
//! stores no buckets.

#![forbid(unsafe_code)]

pub mod body;
mod build;
pub mod claims;
pub mod descriptor;
mod errors;
pub mod expiry;
pub mod explain;
pub mod identity;
mod labels;
pub mod routes;
pub mod upstream;

use std::cell::Cell;
use std::sync::Arc;

use http::{HeaderMap, Method, Uri};

use claims::plan::Plan;
use descriptor::requested_host;
use identity::Identity;
use identity::address::{AddressPolicy, fold};
use routes::{Route, Router, method, path};
use tollgate_limit::Limit;
use upstream::Upstream;

pub use body::{
    BodyAdmission, BodyFacts, BodyFlaw, BodyReading, BodyRefusal, BodySettings, BoundedReading,
    OperationFlaw, UnreadBody, Wanted, WantedFacts,
};
pub use build::PolicyParts;
pub use claims::admission::{Claimed, sent};
pub use claims::count::{Count, StatusMatch, is_charged, is_selection};
pub use claims::domains::Domains;
pub use claims::lookup::{KnownBucket, LookupError, Sought};
pub use claims::plan::TARGETS_MAX;
pub use claims::rule::{BodyCost, Cost, Rule, Scope, ScopePart, Settle, SettleFrom};
pub use claims::{Charge, Claims, Identified, SentBody, TooManyBuckets};
pub use descriptor::{Descriptor, Peer};
pub use errors::{BuildError, Part};
pub use explain::Explanation;
pub use identity::lookalikes::{Guarded, drop_lookalikes, is_unusual, looks_like};
pub use identity::{IdentityReason, IdentityRefusal};
pub use routes::edits::FilledEdits;
pub use routes::path::Malformed;
pub use routes::responses::{
    Dialect, REFUSAL_PLACEHOLDERS, RefusalBody, Reset, Responses, Template,
};
pub use routes::router::{Match, RouteSearch};
pub use upstream::UpstreamTimeouts;

/// All rules for requests, compiled from the file.
#[derive(Debug)]
pub struct Policy {
    pub address: AddressPolicy,
    /// Identities by index ([`Scope::Identities`] refers to them).
    pub identities: Vec<Identity>,
    /// Every variant of every limit; `limits[i].index == i`.
    pub limits: Vec<Arc<Limit>>,
    pub rules: Vec<Rule>,
    pub upstreams: Vec<Arc<Upstream>>,
    pub routes: Vec<Route>,
    /// The rules for descriptors of a rate limit service.
    pub domains: Domains,
    pub responses: Responses,
    pub egress: bool,
    /// Whether an encoded slash is a character of its segment; otherwise such a path is refused.
    pub keeps_slashes: bool,
    /// The headers that decide how a request is limited, routed or served.
    pub guarded: Arc<Guarded>,
    /// How bodies are read for what identities, routes and costs ask.
    pub body: BodySettings,
    pub wanted: Arc<Wanted>,
    router: Router,
    plans: Vec<Plan>,
}

impl Policy {
    /// The facts of a request, with its path normalised and its client's address determined.
    /// `host`: the requested host in its normal form (lower case, without port or trailing dot);
    /// `None`: it is determined here.
    /// An error says that the request cannot be matched safely: 400.
    pub fn describe<'r>(
        &self,
        host: Option<&'r str>,
        method: &'r Method,
        uri: &'r Uri,
        headers: &'r HeaderMap,
        peer: Peer,
        client_certificate: Option<&'r str>,
    ) -> Result<Descriptor<'r>, Malformed> {
        if !method::is_in_capitals(method.as_str()) {
            return Err(Malformed::Method);
        }
        Ok(Descriptor {
            method,
            host: host.map_or_else(|| requested_host(uri, headers), |host| Ok(host.into()))?,
            path: if self.keeps_slashes {
                path::normalise_with_slashes(uri.path())?
            } else {
                path::normalise(uri.path())?
            },
            target_path: path::with_one_slash(uri.path()),
            query: uri.query(),
            headers,
            peer,
            client: if peer.unnamed {
                peer.address.map(fold)
            } else {
                self.address.client(peer.address, headers)?
            },
            client_certificate,
            application: None,
            body: Cell::new(None),
            is_body_elsewhere: false,
            assumed: None,
        })
    }

    /// The most specific route for a request; `None`: 404, or 405 if there are
    /// [`Policy::other_methods`].
    ///
    /// A CORS preflight asks about another request, so it takes that request's route, unless a
    /// route lists `OPTIONS`.
    pub fn route<'d>(&self, request: &'d Descriptor<'_>) -> Option<Match<'d>> {
        self.find_route(request).matched
    }

    /// Like [`Policy::route`], with the routes that need the body for the decision, if it was not
    /// read: see [`Policy::asked`].
    pub fn find_route<'d>(&self, request: &'d Descriptor<'_>) -> RouteSearch<'d> {
        let (host, path) = (&request.host, &request.path);
        let find = |method| {
            self.router
                .find(method, host, path, request.headers, request.body.get())
        };
        let Some(asked) = self.preflight(request) else {
            return find(request.method);
        };
        let own = find(request.method);
        let listed = |own: &Match<'_>| {
            self.routes[own.route]
                .pattern
                .methods
                .contains(request.method)
        };
        if own.matched.as_ref().is_some_and(listed) {
            return own;
        }
        let other = find(&asked);
        if other.matched.is_some() { other } else { own }
    }

    /// What is asked of the body of a request with this look-up: by the routes that may take it,
    /// their limits and their templates.
    pub fn asked(&self, found: &RouteSearch<'_>) -> WantedFacts {
        let own = found.matched.as_ref().map(|matched| matched.route);
        let asking = found
            .asking
            .iter()
            .fold(WantedFacts::default(), |asked, &route| {
                asked.and(self.plans[route].asked.for_routes())
            });
        own.map_or(asking, |route| asking.and(self.plans[route].asked))
    }

    /// The methods with which some route would take an untaken request, in order; empty: no route
    /// would take it with any method.
    pub fn other_methods(&self, request: &Descriptor<'_>) -> Vec<Method> {
        let mut methods = self
            .router
            .methods(&request.host, &request.path, request.headers);
        // A route for GET also responds to HEAD.
        if methods.contains(&Method::GET) {
            methods.push(Method::HEAD);
        }
        methods.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
        methods.dedup();
        methods
    }

    /// Whether an untaken request asks for a host that no route names, in egress mode.
    pub fn is_unlisted(&self, request: &Descriptor<'_>) -> bool {
        self.egress
            && !self
                .routes
                .iter()
                .any(|route| route.pattern.host.matches(&request.host))
    }

    /// The method a CORS preflight asks about. `None` for any other request, and for a request with
    /// a key, because a browser sends no key with a preflight.
    pub fn preflight(&self, request: &Descriptor<'_>) -> Option<Method> {
        let asked = request.preflight()?;
        let keyed =
            build::key_headers(&self.identities).any(|name| request.headers.contains_key(name));
        (!keyed).then_some(asked)
    }

    /// Removes headers that some upstreams confuse with a guarded one: CGI and similar interfaces
    /// read `x_api_key` as `x-api-key`, so a caller could be limited by one key, price or condition
    /// and served by another. `unusual`: whether a header name has other characters than letters,
    /// digits and hyphens.
    pub fn drop_lookalikes(&self, unusual: bool, headers: &mut HeaderMap) {
        if unusual || self.guarded.is_unusual() {
            self.guarded.drop_lookalikes(headers);
        }
    }
}

#[cfg(test)]
mod tests;

/// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
