//! Checks a request before the limits are asked: that it is well-formed, has a route, and has a
//! form the route allows.

use http::{HeaderName, HeaderValue, Method, Request};

use super::own::allow;
use super::request_context::RequestContext;
use super::snapshot::Snapshot;
use crate::framing::{self, Malformed, RequestTarget};
use crate::headers::{HeaderSet, RequestHeaders, listed};
use crate::rejection::Rejection;
use tollgate_policy::routes::{HostPattern, Route, Target};
use tollgate_policy::upstream::ServerAddress;
use tollgate_policy::{Descriptor, Policy};

/// Normalises a request that arrived at this gateway ([`normalise_target`]). Refuses it where too
/// many requests are in progress, or where this gateway has forwarded it before.
pub(crate) fn normalise<B>(
    snapshot: &Snapshot,
    request: &mut Request<B>,
    headers: &RequestHeaders,
    context: &mut RequestContext,
) -> Result<RequestTarget, Rejection> {
    let defaults = &snapshot.defaults;
    if defaults
        .requests
        .is_some_and(|most| !context.takes_place(most))
    {
        return Err(Rejection::Overloaded);
    }
    let target = normalise_target(&snapshot.policy, request, headers)?;
    let passed = |via: &crate::proxy_defaults::Via| via.has_passed(request.headers());
    if target.via && defaults.via.as_ref().is_some_and(passed) {
        return Err(Rejection::Loop);
    }
    Ok(target)
}

/// Normalises the request target to the form that routes and upstreams see, and drops headers that
/// look like those that decide about a request. Refuses a target that has no such form, and headers
/// that the upstream could read otherwise than this gateway.
pub(crate) fn normalise_target<B>(
    policy: &Policy,
    request: &mut Request<B>,
    headers: &RequestHeaders,
) -> Result<RequestTarget, Rejection> {
    let target = framing::normalise(request, headers)?;
    let must_arrive = |name: &HeaderName| policy.guarded.must_arrive(name);
    if target.present.has(HeaderSet::CONNECTION)
        && listed(request.headers()).iter().any(must_arrive)
    {
        return Err(Malformed::ConnectionOption.into());
    }
    let unusual = target.present.has(HeaderSet::UNUSUAL);
    policy.drop_lookalikes(unusual, request.headers_mut());
    if policy.guarded.have_no_one_value(request.headers()) {
        return Err(Malformed::StatedTwice.into());
    }
    Ok(target)
}

pub(crate) fn check_route(
    snapshot: &Snapshot,
    route: &Route,
    target: &RequestTarget,
    method: &Method,
    length: Option<u64>,
) -> Result<(), Rejection> {
    let policy = &snapshot.policy;
    if policy.egress && !is_listed(policy, route, target) {
        return Err(Rejection::Unlisted);
    }
    if target.bridged && !matches!(route.target, Target::Upstream(_)) {
        return Err(Malformed::Connect.into());
    }
    if *method == Method::TRACE {
        check_trace(route, length == Some(0))?;
    }
    check_length(snapshot, [route], length)
}

/// Refuses a body that is known to be longer than each of the `routes` accepts.
pub(crate) fn check_length<'r>(
    snapshot: &Snapshot,
    routes: impl IntoIterator<Item = &'r Route>,
    length: Option<u64>,
) -> Result<(), Rejection> {
    let Some(length) = length else {
        return Ok(());
    };
    let takes = |route| snapshot.body_max(route).is_none_or(|most| length <= most);
    if routes.into_iter().any(takes) {
        Ok(())
    } else {
        Err(Rejection::TooBig)
    }
}

#[cold]
pub(crate) fn unrouted(policy: &Policy, described: &Descriptor<'_>) -> Rejection {
    if policy.is_unlisted(described) {
        return Rejection::Unlisted;
    }
    match allow(&policy.other_methods(described)) {
        Some(allow) => Rejection::Method { allow },
        None => Rejection::NoRoute,
    }
}

/// Returns whether an outgoing request may go to the upstream of `route`. A route without a host
/// accepts requests addressed to the gateway itself, not requests that name a URL. The port of a
/// URL or `Host` must be one of the upstream's ports, and if the client asks for encryption the
/// upstream must use it.
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
    // The authority of an absolute-form target is its Host.
    let port = target
        .host
        .as_ref()
        .and_then(port_of)
        .is_none_or(|port| matches!(port, 80 | 443) || at(port));
    let encrypted = target.absolute.is_none_or(|absolute| !absolute.https)
        || servers.iter().all(|server| server.tls.is_some());
    port && encrypted
}

/// Returns the port of a Host; its syntax has already been checked.
fn port_of(host: &HeaderValue) -> Option<u16> {
    let (name, port) = host.to_str().ok()?.trim().rsplit_once(':')?;
    // An address in brackets contains colons of its own.
    if name.starts_with('[') && !name.ends_with(']') {
        None
    } else {
        port.parse().ok()
    }
}

/// Refuses TRACE unless the route names it and the request has no body (RFC 9110 9.3.8).
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
