//! Requests that do not go on from here: to hosts that are not listed, TRACE, and those whose `Max-Forwards` is used up.

use http::header::{ALLOW, CONTENT_TYPE, HOST, MAX_FORWARDS, USER_AGENT, VIA};
use http::{HeaderValue, Method, Request, Response};

use crate::body::ResponseBody;
use crate::framing::{Malformed, RequestTarget};
use crate::rejection::{ALLOWED, Rejection};
use tollgate_policy::route::{HostPattern, Route, Target};
use tollgate_policy::upstream::ServerAddress;
use tollgate_policy::{Descriptor, Policy};

/// Why no route takes a request.
#[cold]
pub(super) fn unrouted(policy: &Policy, described: &Descriptor<'_>) -> Rejection {
    if policy.is_unlisted(described) {
        return Rejection::Unlisted;
    }
    match listed(&policy.other_methods(described)) {
        Some(allow) => Rejection::Method { allow },
        None => Rejection::NoRoute,
    }
}

/// Methods as `Allow` lists them; `None`: there are none.
fn listed(methods: &[Method]) -> Option<HeaderValue> {
    let words: Vec<&str> = methods.iter().map(Method::as_str).collect();
    HeaderValue::from_str(&words.join(", "))
        .ok()
        .filter(|_| !methods.is_empty())
}

/// Whether a request that goes out may go where `route` leads: a route without a host stands for the service that the gateway
/// is called by, not for whatever a URL names; no other port is meant than the one that is asked, whether a URL or `Host`
/// names it; and what was to be encrypted is.
pub(super) fn is_listed(policy: &Policy, route: &Route, form: &RequestTarget) -> bool {
    if route.pattern.host == HostPattern::Any {
        return form.absolute.is_none();
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
    let port = form
        .host
        .as_ref()
        .and_then(port_of)
        .is_none_or(|port| matches!(port, 80 | 443) || at(port));
    let encrypted = form.absolute.is_none_or(|absolute| !absolute.https)
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
pub(super) fn check_trace(route: &Route, without_body: bool) -> Result<(), Rejection> {
    if !route.pattern.methods.contains(&Method::TRACE) {
        return Err(Rejection::Trace);
    }
    if without_body {
        Ok(())
    } else {
        Err(Malformed::Method.into())
    }
}

/// The answer of the last recipient of OPTIONS or TRACE (RFC 9110 7.6.2).
#[cold]
pub(super) fn last<B>(request: &Request<B>, route: &Route) -> Response<ResponseBody> {
    if *request.method() == Method::TRACE {
        let mut response = Response::new(ResponseBody::from(reflection(request)));
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("message/http"));
        return response;
    }
    let mut response = Response::new(ResponseBody::Empty);
    response
        .headers_mut()
        .insert(ALLOW, listed(&route.pattern.methods).unwrap_or(ALLOWED));
    response
}

/// The request as it came, but for every field that may be a secret.
fn reflection<B>(request: &Request<B>) -> String {
    let target = request
        .uri()
        .path_and_query()
        .map_or("/", |target| target.as_str());
    let mut text = format!("TRACE {target} {:?}\r\n", request.version());
    for name in [HOST, MAX_FORWARDS, USER_AGENT, VIA] {
        for value in request
            .headers()
            .get_all(&name)
            .iter()
            .filter_map(|value| value.to_str().ok())
        {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    text + "\r\n"
}
