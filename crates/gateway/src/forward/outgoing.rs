//! Builds the request for the upstream from the client's request.

mod address;

use std::net::SocketAddr;
use std::sync::Arc;

use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderValue, PROXY_AUTHORIZATION, TE,
    TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{HeaderMap, Method, Request, Version, request};
use http_body::Body;

pub(super) use self::address::address;
use self::address::rewrite;
use super::minimum_rate::MinimumRate;
use super::request::Outgoing;
use super::request_body::RequestBody;
use super::{ForwardContext, ForwardError, Upgrade};
use crate::forward::body::BodyError;
use crate::headers::{self, HeaderSet, Origin};
use crate::proxy_defaults::protocol_name;
use tollgate_net::server::{Hold, Inbound};
use tollgate_policy::upstream::Upstream;

/// Prepares `request`: removes hop-by-hop headers, adds forwarding headers and the route's edits,
/// wraps the body.
pub(super) fn prepare(
    forwarding: ForwardContext<'_>,
    upstream: &Upstream,
    request: Request<Inbound>,
) -> Result<Box<Outgoing>, ForwardError> {
    let ForwardContext {
        connection,
        target,
        policy,
        defaults,
        ..
    } = forwarding;
    let peer = connection.peer();
    let trusted = peer.is_trusted(&policy.address);
    let most = forwarding.body_max;
    if most.is_some_and(|most| request.body().size_hint().lower() > most) {
        return Err(ForwardError::Body(BodyError::TooBig));
    }
    let (mut head, body) = request.into_parts();
    let received_as = head.version;
    let from_http2 = received_as >= Version::HTTP_2;
    let sends_body = !body.is_end_stream();
    let mut present = target.present;
    let hop = headers::strip_present(&mut head.headers, &mut present);
    let upgrade = hop.upgrade.and_then(|protocol| {
        let possible = !sends_body && !upstream.http2 && defaults.upgrades_to(&protocol);
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
            idle: defaults.upgrade_idle,
            bridged,
        })
    });
    if upgrade.is_none() && target.bridged {
        return Err(ForwardError::Bridge);
    }
    head.extensions.clear();

    if from_http2 && !upstream.http2 {
        headers::join_cookies(&mut head.headers);
    }
    let via = defaults.via.as_ref();
    let mut origin = None;
    if !(defaults.egress || trusted || upstream.http2) && forwarding.request_edits.is_empty() {
        // These headers are not read before they are written.
        let via = via.map(|via| via.of_request(received_as));
        origin = Some(Origin::of_stranger(
            &mut head.headers,
            present,
            &peer,
            target.host,
            via,
        ));
    } else if defaults.egress {
        // The upstream must not learn the client or its user, and credentials for this proxy end here.
        head.headers.remove(PROXY_AUTHORIZATION);
        headers::drop_forwarding(&mut head.headers);
    } else {
        headers::set_forwarding(&mut head.headers, present, &peer, target.host, trusted);
    }
    if let (Some(via), None) = (via, &origin) {
        head.headers.append(VIA, via.of_request(received_as));
    }
    if !forwarding.request_edits.is_empty() {
        forwarding.request_edits.apply(&mut head.headers);
        // A route may not edit the framing.
        for name in [TRANSFER_ENCODING, CONNECTION, UPGRADE] {
            head.headers.remove(name);
        }
        present = present.after_edits(&head.headers);
    }

    let gated = is_gated(&mut head, present, sends_body, upstream.http2);
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
    head.uri = rewrite(std::mem::take(&mut head.uri), forwarding.route)?;

    let client = peer
        .address
        .map(|address| SocketAddr::new(address, peer.port));
    let (body, progress) = if sends_body {
        let rate = if is_stream(&head.headers, present) {
            0
        } else {
            defaults.body_rate
        };
        let min_rate = MinimumRate::new(
            defaults.body_idle,
            rate,
            defaults.body_grace,
            connection.window.clone(),
        );
        let guarded = Arc::clone(&policy.guarded);
        let (body, progress) = RequestBody::new(
            body,
            forwarding.body_max,
            min_rate,
            forwarding.received,
            gated,
            guarded,
        );
        (body, Some(progress))
    } else {
        (RequestBody::empty(), None)
    };
    let request = Request::from_parts(head, body);
    let edits = &forwarding.route.request_headers;
    let mut outgoing = Box::new(Outgoing::new(
        request, present, edits, progress, upstream, client,
    ));
    outgoing.upgrade = upgrade;
    outgoing.origin = origin;
    // Whether a deadline of the client causes the response is read from its headers.
    outgoing.verbatim = forwarding.verbatim && outgoing.callers_deadline.is_none();
    // HTTP/1.0 has no interim responses (RFC 9110 15.2).
    if upstream.early_hints && received_as == Version::HTTP_11 {
        let edits = &forwarding.route.response_headers;
        // Headers that the route removes or replaces in the response are removed from interim
        // responses too.
        let hidden = edits
            .remove
            .iter()
            .chain(edits.set.iter().map(|(name, _)| name));
        let interim = connection.interim.as_ref();
        outgoing.interim = interim.map(|interim| interim.without(hidden));
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

const STREAMS: [&[u8]; 2] = [b"application/grpc", b"application/connect+"];

/// Whether the body is held back because the client waits for a `100 Continue`. HTTP/2 cannot pass it
/// on: there the first read of the body makes our own side send it.
fn is_gated(head: &mut request::Parts, present: HeaderSet, sends_body: bool, http2: bool) -> bool {
    let expects = present.has(HeaderSet::EXPECT);
    let gated = expects && sends_body && !http2;
    if expects && !gated {
        head.headers.remove(EXPECT);
    }
    gated
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
