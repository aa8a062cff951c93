//! What a request must be before the limits are asked: well-formed, routed, and allowed by its route in form.

use http::{HeaderValue, Method, Request};
use http_body::Body;

use super::own::allow;
use super::request_context::RequestContext;
use super::snapshot::Snapshot;
use crate::framing::{self, Malformed, RequestTarget};
use crate::headers::{HeaderSet, RequestHeaders};
use crate::rejection::Rejection;
use tollgate_policy::route::{HostPattern, Route, Target};
use tollgate_policy::upstream::ServerAddress;
use tollgate_policy::{Descriptor, Policy};

/// Gives the request its one form, which routes and upstreams see; refuses what has none.
pub(super) fn normalise<B>(
    snapshot: &Snapshot,
    request: &mut Request<B>,
    headers: &RequestHeaders,
    context: &mut RequestContext,
) -> Result<RequestTarget, Rejection> {
    let conduct = &snapshot.conduct;
    if conduct
        .requests
        .is_some_and(|most| !context.takes_place(most))
    {
        return Err(Rejection::Overloaded);
    }
    let target = framing::normalise(request, headers)?;
    let passed = |via: &crate::proxy_defaults::Via| via.has_passed(request.headers());
    if target.via && conduct.via.as_ref().is_some_and(passed) {
        return Err(Rejection::Loop);
    }
    let underscored = target.present.has(HeaderSet::UNDERSCORED);
    snapshot
        .policy
        .drop_lookalikes(underscored, request.headers_mut());
    Ok(target)
}

/// Refuses what the route does not take, whoever asks.
pub(super) fn check_route<B: Body>(
    snapshot: &Snapshot,
    route: &Route,
    target: &RequestTarget,
    request: &Request<B>,
) -> Result<(), Rejection> {
    let policy = &snapshot.policy;
    if policy.egress && !is_listed(policy, route, target) {
        return Err(Rejection::Unlisted);
    }
    if target.bridged && !matches!(route.target, Target::Upstream(_)) {
        return Err(Malformed::Connect.into());
    }
    if *request.method() == Method::TRACE {
        check_trace(route, request.body().is_end_stream())?;
    }
    let length = request.body().size_hint().exact();
    let too_big = |most| length.is_some_and(|length| length > most);
    if snapshot.body_max(route).is_some_and(too_big) {
        return Err(Rejection::TooBig);
    }
    Ok(())
}

/// Why no route takes a request.
#[cold]
pub(super) fn unrouted(policy: &Policy, described: &Descriptor<'_>) -> Rejection {
    if policy.is_unlisted(described) {
        return Rejection::Unlisted;
    }
    match allow(&policy.other_methods(described)) {
        Some(allow) => Rejection::Method { allow },
        None => Rejection::NoRoute,
    }
}

/// Whether an outgoing request may go where `route` leads. A route without a host takes requests that are addressed to the
/// gateway itself, not those that name a URL. The port that a URL or `Host` names must be one of the upstream's, and what
/// the client asks to be encrypted must be.
fn is_listed(policy: &Policy, route: &Route, target: &RequestTarget) -> bool {
    if route.pattern.host == HostPattern::Any {
        return target.absolute.is_none();
    }
    let Target::Upstream(upstream) = &route.target else {
        return true;
    };
    let servers = &policy.upstreams[*upstream].servers;
    let at = |port: u16| {
        servers
            .iter()
            .any(|server| matches!(server.address, ServerAddress::Tcp(_, known) if known == port))
    };
    // (The authority of an absolute form is its Host.)
    let port = target
        .host
        .as_ref()
        .and_then(port_of)
        .is_none_or(|port| matches!(port, 80 | 443) || at(port));
    let encrypted = target.absolute.is_none_or(|absolute| !absolute.https)
        || servers.iter().all(|server| server.tls.is_some());
    port && encrypted
}

/// The port that a Host names; its syntax has been checked.
fn port_of(host: &HeaderValue) -> Option<u16> {
    let (name, port) = host.to_str().ok()?.trim().rsplit_once(':')?;
    // (An address in brackets has colons of its own.)
    if name.starts_with('[') && !name.ends_with(']') {
        None
    } else {
        port.parse().ok()
    }
}

/// TRACE goes on only where the route names it, and without a body (RFC 9110 9.3.8).
fn check_trace(route: &Route, without_body: bool) -> Result<(), Rejection> {
    if !route.pattern.methods.contains(&Method::TRACE) {
        return Err(Rejection::Trace);
    }
    if without_body {
        Ok(())
    } else {
        Err(Malformed::Method.into())
    }
}
