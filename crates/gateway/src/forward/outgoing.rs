//! Builds the request for the upstream from the client's request.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::BytesMut;
use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderValue, PROXY_AUTHORIZATION, TE,
    TRANSFER_ENCODING, UPGRADE,
};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Method, Request, Uri, Version, request};
use http_body::Body;

use super::minimum_rate::MinimumRate;
use super::request::Outgoing;
use super::request_body::{Gate, RequestBody};
use super::{ForwardContext, ForwardError, Upgrade};
use crate::body::BodyError;
use crate::framing::Bridged;
use crate::headers::{self, HeaderSet, Origin};
use crate::proxy_defaults::protocol_name;
use tollgate_net::server::{Hold, Inbound};
use tollgate_policy::path::normalise_with_slashes;
use tollgate_policy::route::Route;
use tollgate_policy::upstream::{HostPolicy, Server, Upstream};

/// Prepares `request`: removes hop-by-hop headers, adds forwarding headers and the route's edits,
/// wraps the body.
///
/// # Errors
/// If the path cannot be rewritten as the route requires.
pub(super) fn prepare(
    passage: ForwardContext<'_>,
    upstream: &Upstream,
    request: Request<Inbound>,
) -> Result<Box<Outgoing>, ForwardError> {
    let conduct = passage.conduct;
    let most = passage.body_max;
    if most.is_some_and(|most| request.body().size_hint().lower() > most) {
        return Err(ForwardError::Body(BodyError::TooBig));
    }
    let (mut head, body) = request.into_parts();
    let received_as = head.version;
    let from_http2 = received_as >= Version::HTTP_2;
    let sends_body = !body.is_end_stream();
    let mut present = passage.present;
    let hop = headers::strip_present(&mut head.headers, &mut present);
    let upgrade = hop.upgrade.and_then(|protocol| {
        let possible = !sends_body && !upstream.http2 && conduct.upgrades_to(&protocol);
        // A WebSocket is requested by GET (RFC 6455 4.1).
        let fits = head.method == Method::GET
            || !protocol_name(&protocol).eq_ignore_ascii_case(b"websocket");
        let client = if possible && fits {
            body.upgrade(&mut head.extensions)
        } else {
            None
        };
        let bridged = head.extensions.remove::<Hold>();
        client.map(|client| Upgrade {
            client,
            protocol,
            idle: conduct.upgrade_idle,
            bridged,
        })
    });
    if upgrade.is_none() && from_http2 && head.extensions.get::<Bridged>().is_some() {
        return Err(ForwardError::Bridge);
    }
    head.extensions.clear();

    if from_http2 && !upstream.http2 {
        headers::join_cookies(&mut head.headers);
    }
    let via = conduct.via.as_ref();
    let mut origin = None;
    if !(conduct.egress || passage.trusted || upstream.http2) && passage.request_edits.is_empty() {
        // These headers are not read before they are written.
        let via = via.map(|via| via.of_request(received_as).clone());
        origin = Some(Origin::of_stranger(
            &mut head.headers,
            present,
            &passage.peer,
            passage.host,
            via,
        ));
    } else if conduct.egress {
        // The upstream must not learn the client or its user, and credentials for this proxy end
        // here.
        head.headers.remove(PROXY_AUTHORIZATION);
        headers::drop_forwarding(&mut head.headers);
    } else {
        headers::set_forwarding(
            &mut head.headers,
            present,
            &passage.peer,
            passage.host,
            passage.trusted,
        );
    }
    if let (Some(via), None) = (via, &origin) {
        via.add_to_request(&mut head.headers, received_as);
    }
    if !passage.request_edits.is_empty() {
        passage.request_edits.apply(&mut head.headers);
        // A route may not edit the framing.
        for name in [TRANSFER_ENCODING, CONNECTION, UPGRADE] {
            head.headers.remove(name);
        }
        present = HeaderSet::of(&head.headers);
    }

    let gate = gate(&mut head, present, sends_body, upstream.http2);
    frame(
        &mut head,
        present,
        sends_body,
        body.size_hint().exact(),
        upstream.http2,
    );
    if let Some(upgrade) = &upgrade {
        headers::announce_upgrade(&mut head.headers, upgrade.protocol.clone());
    } else if hop.trailers {
        head.headers
            .insert(TE, HeaderValue::from_static("trailers"));
        if !upstream.http2 {
            head.headers
                .insert(CONNECTION, HeaderValue::from_static("te"));
        }
    }
    head.version = if upstream.http2 {
        Version::HTTP_2
    } else {
        Version::HTTP_11
    };
    head.uri = rewrite(std::mem::take(&mut head.uri), passage.route)?;

    let client = passage
        .peer
        .address
        .map(|address| SocketAddr::new(address, passage.peer.port));
    let (body, progress) = if sends_body {
        let rate = if is_stream(&head.headers, present) {
            0
        } else {
            conduct.body_rate
        };
        let pace = MinimumRate::new(
            conduct.body_idle,
            rate,
            conduct.body_grace,
            passage.window.cloned(),
        );
        let guarded = Arc::clone(passage.guarded);
        let (body, progress) = RequestBody::new(
            body,
            passage.body_max,
            pace,
            passage.received,
            gate.clone(),
            guarded,
        );
        (body, Some(progress))
    } else {
        (RequestBody::empty(), None)
    };
    // Boxed, because it is passed through many functions.
    let request = Request::from_parts(head, body);
    let mut outgoing = Box::new(Outgoing::new(
        request, present, progress, gate, upgrade, upstream, client,
    ));
    outgoing.origin = origin;
    outgoing.verbatim = passage.verbatim;
    // HTTP/1.0 has no interim responses (RFC 9110 15.2).
    if upstream.early_hints && received_as == Version::HTTP_11 {
        let edits = &passage.route.response_headers;
        // Headers that the route removes or replaces in the response are removed from interim
        // responses too.
        let hidden = edits
            .remove
            .iter()
            .chain(edits.set.iter().map(|(name, _)| name));
        outgoing.interim = passage.interim.map(|interim| interim.without(hidden));
    }
    Ok(outgoing)
}

/// Whether a request's body is a stream of messages that are sent at any time.
fn is_stream(headers: &HeaderMap, present: HeaderSet) -> bool {
    let kind = if present.has(HeaderSet::CONTENT_TYPE) {
        headers.get(CONTENT_TYPE)
    } else {
        None
    };
    kind.is_some_and(|kind| {
        STREAMS
            .iter()
            .any(|stream| kind.as_bytes().starts_with(stream))
    })
}

/// gRPC, and Connect's streams.
const STREAMS: [&[u8]; 2] = [b"application/grpc", b"application/connect+"];

/// Holds the body back if the client waits for a `100 Continue`. HTTP/2 cannot pass it on: there
/// the first read of the body makes our own side send it.
fn gate(
    head: &mut request::Parts,
    present: HeaderSet,
    sends_body: bool,
    http2: bool,
) -> Option<Arc<Gate>> {
    if !present.has(HeaderSet::EXPECT) {
        return None;
    }
    if !sends_body || http2 {
        head.headers.remove(EXPECT);
        return None;
    }
    Some(Arc::default())
}

/// Leaves the framing to the encoder: the client's headers are not copied, except a length that
/// matches the known one.
fn frame(
    head: &mut request::Parts,
    present: HeaderSet,
    sends_body: bool,
    length: Option<u64>,
    http2: bool,
) {
    // The HTTP/1 writer decides the framing, and skips these headers.
    if !http2 {
        return;
    }
    let said = present.has(HeaderSet::CONTENT_LENGTH);
    if said && sends_body && length.is_some_and(|length| says(&head.headers, length)) {
        return;
    }
    if said {
        head.headers.remove(CONTENT_LENGTH);
    }
    if !sends_body {
        // Without Content-Length some servers wait for a body, or refuse.
        if said || matches!(head.method, Method::POST | Method::PUT | Method::PATCH) {
            head.headers
                .insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
    } else if let Some(length) = length {
        head.headers
            .insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
}

/// Converts a request that was prepared for HTTP/2, and not yet pointed at a server, for an
/// HTTP/1.1 server.
pub(super) fn downgrade(request: &mut Request<RequestBody>) {
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    headers::join_cookies(headers);
    if headers.contains_key(TE) {
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
}

/// Whether `headers` contain `length` exactly once, in canonical form.
fn says(headers: &HeaderMap, length: u64) -> bool {
    let mut lines = headers.get_all(CONTENT_LENGTH).iter();
    let first = lines.next();
    first.is_some_and(|line| line.as_bytes() == itoa::Buffer::new().format(length).as_bytes())
        && lines.next().is_none()
}

/// Points a prepared request at `server`: sets its Host or `:authority` and its base path.
///
/// # Errors
/// If the requested host is not a valid authority.
pub(super) fn address(
    uri: Uri,
    headers: &mut HeaderMap,
    host: &HostPolicy,
    server: &Server,
    http2: bool,
) -> Result<Uri, ForwardError> {
    let authority = match host {
        HostPolicy::Keep => None,
        HostPolicy::Upstream => Some(&server.authority),
        HostPolicy::Fixed(authority) => Some(authority),
    };
    let path = if server.base_path.is_empty() {
        uri.into_parts().path_and_query
    } else {
        let mut text = BytesMut::with_capacity(server.base_path.len() + uri.path().len() + 32);
        text.extend_from_slice(server.base_path.as_bytes());
        text.extend_from_slice(
            uri.path_and_query()
                .map_or("/", PathAndQuery::as_str)
                .as_bytes(),
        );
        Some(PathAndQuery::from_maybe_shared(text.freeze()).map_err(|_| ForwardError::Rewrite)?)
    };
    let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
    if !http2 {
        if let Some(authority) =
            authority.or_else(|| (!headers.contains_key(HOST)).then_some(&server.authority))
        {
            let value =
                HeaderValue::from_str(authority.as_str()).map_err(|_| ForwardError::Rewrite)?;
            headers.insert(HOST, value);
        }
        return Ok(Uri::from(path));
    }
    let asked = headers.remove(HOST);
    let authority = match (authority, asked) {
        (Some(authority), _) => authority.clone(),
        (None, Some(host)) => {
            Authority::try_from(host.as_bytes()).map_err(|_| ForwardError::Rewrite)?
        }
        (None, None) => server.authority.clone(),
    };
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(if server.tls.is_some() {
        Scheme::HTTPS
    } else {
        Scheme::HTTP
    });
    parts.authority = Some(authority);
    parts.path_and_query = Some(path);
    Uri::from_parts(parts).map_err(|_| ForwardError::Rewrite)
}

/// Reverts [`address`] for `server`, so that the request can be pointed at another one; `named`
/// says that it came with a Host. A Host that the policy sets may stay: the policy sets it again.
pub(super) fn unaddress(
    uri: Uri,
    headers: &mut HeaderMap,
    server: &Server,
    named: bool,
) -> Option<Uri> {
    let parts = uri.into_parts();
    if !named {
        headers.remove(HOST);
    } else if let Some(authority) = parts.authority {
        headers.insert(HOST, HeaderValue::from_str(authority.as_str()).ok()?);
    }
    let whole = parts.path_and_query?;
    if server.base_path.is_empty() {
        return Some(Uri::from(whole));
    }
    let own = whole.as_str().strip_prefix(server.base_path.as_str())?;
    PathAndQuery::try_from(own).map(Uri::from).ok()
}

/// The target with the route's prefix replaced; all other bytes are unchanged.
fn rewrite(uri: Uri, route: &Route) -> Result<Uri, ForwardError> {
    if route.strip_prefix.is_none() && route.add_prefix.is_none() {
        return Ok(uri);
    }
    let whole = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let (path, query) = whole
        .split_once('?')
        .map_or((whole, None), |(path, query)| (path, Some(query)));
    let strip = route
        .strip_prefix
        .as_deref()
        .unwrap_or_default()
        .trim_end_matches('/');
    let add = route
        .add_prefix
        .as_deref()
        .unwrap_or_default()
        .trim_end_matches('/');
    if strip.is_empty() && add.is_empty() || path == "*" {
        return Ok(uri);
    }
    let rest = strip_encoded(path, strip).ok_or(ForwardError::Rewrite)?;
    // `/v1/../v1/a` is `/v1/a` to the router; without its first segment it would leave the
    // directory it is mapped to. The router has refused all other faults in the whole path; a slash
    // that it keeps is no fault.
    if !strip.is_empty() && normalise_with_slashes(rest).is_err() {
        return Err(ForwardError::Rewrite);
    }
    let mut text = BytesMut::with_capacity(add.len() + whole.len() + 1);
    text.extend_from_slice(add.as_bytes());
    if !rest.starts_with('/') {
        text.extend_from_slice(b"/");
    }
    text.extend_from_slice(rest.as_bytes());
    if let Some(query) = query {
        text.extend_from_slice(b"?");
        text.extend_from_slice(query.as_bytes());
    }
    PathAndQuery::from_maybe_shared(text.freeze())
        .map(Uri::from)
        .map_err(|_| ForwardError::Rewrite)
}

/// Returns the rest of the encoded `path` after `prefix`. The prefix is compared with the decoded
/// path, up to the end of a segment; slashes are collapsed as in the route matcher. `None` if the
/// path spells the prefix in a way that cannot be cut (dot segments within it).
fn strip_encoded<'p>(path: &'p str, prefix: &str) -> Option<&'p str> {
    let bytes = path.as_bytes();
    let mut at = 0;
    let mut previous = 0;
    for &wanted in prefix.as_bytes() {
        while previous == b'/' && bytes.get(at) == Some(&b'/') {
            at += 1;
        }
        let (byte, next) = decoded(bytes, at)?;
        // An encoded slash is a character, not the separator in the prefix.
        let encoded_slash = byte == b'/' && next > at + 1;
        if byte != wanted || encoded_slash {
            return None;
        }
        previous = byte;
        at = next;
    }
    match bytes.get(at) {
        None | Some(b'/') => path.get(at..),
        Some(_) => None,
    }
}

fn decoded(bytes: &[u8], at: usize) -> Option<(u8, usize)> {
    let byte = *bytes.get(at)?;
    if byte != b'%' {
        return Some((byte, at + 1));
    }
    let high = char::from(*bytes.get(at + 1)?).to_digit(16)?;
    let low = char::from(*bytes.get(at + 2)?).to_digit(16)?;
    u8::try_from(high * 16 + low)
        .ok()
        .map(|byte| (byte, at + 3))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{route, server};
    use super::*;

    #[test]
    fn a_request_pointed_at_one_server_can_be_pointed_at_another() {
        let mut one = server(([127, 0, 0, 1], 1).into());
        one.base_path = "/one".to_owned();
        let two = server(([127, 0, 0, 1], 2).into());
        for host in [HostPolicy::Keep, HostPolicy::Upstream] {
            for (http2, named) in [(false, false), (false, true), (true, false), (true, true)] {
                let mut headers = HeaderMap::new();
                if named {
                    headers.insert(HOST, HeaderValue::from_static("Asked:80"));
                }
                let plain = headers.clone();
                let at = |server, uri, headers: &mut HeaderMap| {
                    address(uri, headers, &host, server, http2)
                };
                let there = at(&one, Uri::from_static("/x?y"), &mut headers).expect("an address");
                assert_eq!(there.path(), "/one/x");
                let back = unaddress(there, &mut headers, &one, named).expect("as it was");
                let elsewhere = at(&two, back, &mut headers).expect("an address");
                let mut afresh = plain;
                let expected = at(&two, Uri::from_static("/x?y"), &mut afresh).expect("an address");
                assert_eq!(
                    (elsewhere, headers),
                    (expected, afresh),
                    "{host:?} {http2} {named}"
                );
            }
        }
    }

    #[test]
    fn a_prefix_is_cut_as_it_decodes_and_the_rest_stays_as_it_is() {
        assert_eq!(strip_encoded("/v1/a%2Fb//c", "/v1"), Some("/a%2Fb//c"));
        assert_eq!(strip_encoded("/%761/a", "/v1"), Some("/a"));
        assert_eq!(strip_encoded("//v1/a", "/v1"), Some("/a"));
        assert_eq!(strip_encoded("/v1", "/v1"), Some(""));
        assert_eq!(strip_encoded("/v12", "/v1"), None);
        assert_eq!(strip_encoded("/a%2Fb/c", "/a/b"), None);
        assert_eq!(strip_encoded("/x/../v1/a", "/v1"), None);
    }

    #[test]
    fn nothing_climbs_out_of_where_a_path_is_put() {
        let route = Route {
            strip_prefix: Some("/v1".into()),
            add_prefix: Some("/public".into()),
            ..route()
        };
        let sent = |path: &str| {
            rewrite(path.parse().expect("a path"), &route)
                .ok()
                .map(|uri| uri.to_string())
        };
        assert_eq!(
            sent("/v1/a/../b?c=%2F").as_deref(),
            Some("/public/a/../b?c=%2F")
        );
        assert_eq!(
            sent("/v1/a%2Fb/../c").as_deref(),
            Some("/public/a%2Fb/../c"),
            "one segment and its parent"
        );
        assert_eq!(sent("/v1").as_deref(), Some("/public/"));
        for climbing in [
            "/v1/../v1/x",
            "/v1/a%2Fb/../../v1/x",
            "/v1/%2e%2e/v1/x",
            "/v1/a%5cb/../../v1/x",
        ] {
            assert_eq!(sent(climbing), None, "{climbing}");
        }
    }
}
