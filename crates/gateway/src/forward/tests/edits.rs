//! The edits of a route, as a policy fills them for a request, and what is not subject to them.

use std::sync::Arc;

use http::HeaderName;

use super::origin::{OK, Origin};
use super::relay::{gateway_on, route, upstream};
use tollgate_policy::identity::address::AddressPolicy;
use tollgate_policy::routes::template::Template;
use tollgate_policy::routes::{HeaderEdits, Route};
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

/// What an upstream receives by a route with these edits.
fn received(remove: &[&'static str], set: &[(&'static str, &str)]) -> String {
    let origin = Origin::responding(OK);
    let mut route = route();
    let name = |name: &'static str| HeaderName::from_static(name);
    route.request_headers = HeaderEdits {
        remove: remove.iter().map(|removed| name(removed)).collect(),
        set: (set.iter())
            .map(|(set, value)| {
                let value = Template::parse(value, |_| None).expect("a template");
                (name(set), value)
            })
            .collect(),
    };
    let gateway = gateway_on(upstream(origin.address), route);
    let response = gateway.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(response.status, 200);
    origin.records()[0].to_ascii_lowercase()
}

#[test]
fn edits_of_a_route_apply_to_the_forwarding_headers() {
    let seen = received(&["x-forwarded-proto"], &[("x-forwarded-for", "unknown")]);
    assert!(seen.contains("x-forwarded-for: unknown\r\n"), "{seen}");
    assert_eq!(seen.matches("x-forwarded-for").count(), 1, "{seen}");
    assert!(!seen.contains("x-forwarded-proto"), "{seen}");
    assert!(seen.contains("x-forwarded-host"), "{seen}");
}

#[test]
fn edits_of_a_route_do_not_change_the_framing() {
    let framing = [
        ("transfer-encoding", "chunked"),
        ("connection", "upgrade"),
        ("upgrade", "h2c"),
    ];
    let seen = received(&[], &framing);
    for (name, _) in framing {
        assert!(!seen.contains(name), "{seen}");
    }
}
