//! The edits of a route, as a policy fills them for a request.

use std::sync::Arc;

use tollgate_policy::address::AddressPolicy;
use tollgate_policy::route::Route;
use tollgate_policy::upstream::Upstream;
use tollgate_policy::{
    BodySettings, Domains, FilledEdits, Identified, Match, Peer, Policy, PolicyParts, Reset,
    Responses,
};

/// A policy with this one route to this one upstream.
pub(super) fn policy(upstream: &Arc<Upstream>, route: Route) -> Policy {
    let parts = PolicyParts {
        address: AddressPolicy::default(),
        identities: Vec::new(),
        rules: Vec::new(),
        upstreams: vec![Arc::clone(upstream)],
        domains: Domains::default(),
        routes: vec![route],
        responses: Responses {
            headers: Vec::new(),
            reset: Reset::Seconds,
            refusal: None,
        },
        egress: false,
        keeps_slashes: false,
        body: BodySettings::default(),
    };
    Policy::build(parts).expect("one route is valid")
}

/// The edits of the headers of `request` by the route of `policy`.
pub(super) fn filled<'p, B>(
    policy: &'p Policy,
    request: &http::Request<B>,
    peer: Peer,
) -> FilledEdits<'p> {
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    let Ok(described) = policy.describe(None, method, uri, headers, peer, None) else {
        return FilledEdits::default();
    };
    let matched = Match {
        route: 0,
        captures: Default::default(),
    };
    let edits = &policy.routes[0].request_headers;
    policy.edits(edits, &matched, &Identified::default(), &described)
}
