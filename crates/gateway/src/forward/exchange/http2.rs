//! Sends one request and receives its response on a stream of one HTTP/2 connection, or on another
//! connection if the first closes.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use http::{Request, Response};
use http_body::Body as _;
use hyper::body::Incoming;

use super::http1::http1;
use super::opening;
use crate::forward::body::ResponseBody;
use crate::forward::error::protocol_error;
use crate::forward::http2_pool::{Placed, StreamSlot};
use crate::forward::pool::Slot;
use crate::forward::request::Outgoing;
use crate::forward::request_body::{Progress, RequestBody};
use crate::forward::response::{Bounds, UpstreamHttp2, sanitise};
use crate::forward::response_timeout::ResponseTimeout;
use crate::forward::retry::{self, Again};
use crate::forward::server::ServerState;
use crate::forward::upstreams::UpstreamState;
use crate::forward::{ForwardError, Forwarded, SWITCHING, outgoing};

/// The reason why an exchange over HTTP/2 failed, and whether the request may be sent again.
enum Http2Failure {
    /// The connection accepted no more streams and nothing was sent.
    Unsent,
    Final(ForwardError),
}

/// Sends a request again on another connection if the server promised, by closing the connection
/// without an error, not to have processed it. This is allowed for every request, does not count as an attempt, and
/// is no failure of the server.
pub(super) async fn http2(
    upstream: &UpstreamState,
    server: &Rc<ServerState>,
    outgoing: &mut Outgoing,
    slot: Slot,
) -> Result<Forwarded, ForwardError> {
    let (mut placed, mut slot) = opening::place(server, outgoing, slot, false).await?;
    let mut moves = 0;
    let (response, place) = loop {
        let place = match placed {
            Placed::Stream(place) => place,
            Placed::Http1(connection) => {
                return http1(upstream, server, outgoing, slot, connection).await;
            }
        };
        let mut request = outgoing.request.take().ok_or(ForwardError::Closed)?;
        outgoing::address(&mut request, &server.host, &server.server, true)?;
        let was_sent = std::mem::replace(&mut outgoing.was_sent, true);
        match converse_http2(&place, request, outgoing).await {
            Ok(response) => break (response, place),
            Err(Http2Failure::Unsent) => {
                outgoing.restore();
                outgoing.was_sent = was_sent;
            }
            Err(Http2Failure::Final(ForwardError::GoingAway))
                if retry::decide(&retry::AttemptOutcome::Unprocessed, upstream, outgoing)
                    != Again::No =>
            {
                outgoing.restore()
            }
            Err(Http2Failure::Final(error)) => {
                // Do not put another request on a connection that is silent or about to close.
                // Silence during the short time that a client allowed says nothing about the connection.
                let stuck =
                    matches!(error, ForwardError::ResponseTimeout { .. }) && place.is_silent();
                let breaks = breaks_connection(&error);
                if stuck || breaks || matches!(error, ForwardError::GoingAway) {
                    place.retire();
                }
                let error = outgoing.clients_part().in_failure(error);
                let counts = !matches!(
                    error,
                    ForwardError::ClientDeadline { .. } | ForwardError::Provoked(_)
                );
                // All streams of the connection report that it broke; the server failed once. A
                // stream whose client may have caused that does not report it in the others' place.
                let is_known = breaks && counts && !place.report_break();
                return Err(match error {
                    ForwardError::Response(error) if is_known => ForwardError::Aborted(error),
                    error => error,
                });
            }
        }
        place.retire();
        moves += 1;
        if moves >= MOVES_MOST {
            return Err(ForwardError::GoingAway);
        }
        // Other requests would take the few streams that some servers allow per connection, so in the
        // end a connection is opened whose first stream is for this request.
        let fresh = moves >= MOVES_SHARED;
        (placed, slot) = opening::place(server, outgoing, slot, fresh).await?;
    };
    outgoing.response_began();
    let (mut head, incoming) = response.into_parts();
    if head.status == SWITCHING {
        return Err(ForwardError::Upgrade);
    }
    sanitise(&mut head)?;
    let body = if incoming.is_end_stream() {
        ResponseBody::EMPTY
    } else {
        ResponseBody::Http2(Box::new(UpstreamHttp2 {
            incoming,
            bounds: Bounds::of(outgoing),
            _slot: slot,
            _place: place,
        }))
    };
    Ok(outgoing.forwarded(head, body, None))
}

async fn converse_http2(
    place: &StreamSlot,
    request: Request<RequestBody>,
    outgoing: &mut Outgoing,
) -> Result<Response<Incoming>, Http2Failure> {
    let mut sender = place.sender();
    let mut response = pin!(sender.try_send_request(request));
    let mut timeout = ResponseTimeout::new(outgoing);
    std::future::poll_fn(|cx| {
        if let Poll::Ready(outcome) = response.as_mut().poll(cx) {
            return Poll::Ready(outcome.map_err(|mut error| match error.take_message() {
                Some(_) => Http2Failure::Unsent,
                None => {
                    let progress = timeout.outgoing.progress.as_deref();
                    Http2Failure::Final(classify(error.into_error(), progress))
                }
            }));
        }
        timeout
            .poll(cx)
            .map(|error| Err(Http2Failure::Final(error)))
    })
    .await
}

/// `progress` is that of the request's body, if it has one.
fn classify(error: hyper::Error, progress: Option<&Progress>) -> ForwardError {
    let Some(protocols) = protocol_error(&error) else {
        return ForwardError::Response(error);
    };
    if !protocols.is_remote() {
        // If the request's body fails, the library resets the stream.
        let is_ours = protocols.is_reset() && !protocols.is_library();
        let body = progress
            .filter(|_| is_ours)
            .and_then(|progress| progress.failure.take());
        return body.map_or(ForwardError::Response(error), ForwardError::Body);
    }
    // A GOAWAY and REFUSED_STREAM promise that the request was not processed (RFC 9113 8.7). A
    // GOAWAY reaches only streams above the last one that the server processed. One with an error
    // promises the same, but the request may be the reason: it would end every connection that it
    // is sent on.
    match (protocols.is_go_away(), protocols.reason()) {
        (true, Some(h2::Reason::NO_ERROR)) => ForwardError::GoingAway,
        (true, Some(_)) => ForwardError::Aborted(error),
        (false, Some(h2::Reason::REFUSED_STREAM)) => ForwardError::RefusedStream,
        _ => ForwardError::Response(error),
    }
}

/// Whether the connection broke with the stream that failed for this reason. A server that leaves in
/// order breaks nothing: the streams that it still serves may break later.
fn breaks_connection(error: &ForwardError) -> bool {
    match error {
        ForwardError::Aborted(_) => true,
        ForwardError::Response(error) => !protocol_error(error).is_some_and(h2::Error::is_reset),
        _ => false,
    }
}

/// How often a request moves to another shared connection, and how often it moves at all, because
/// its connection closes.
const MOVES_SHARED: u32 = 3;
const MOVES_MOST: u32 = 6;
