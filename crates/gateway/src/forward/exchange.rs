//! Sends one request and receives its response on one connection, or on a second one if the first
//! proves stale.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use http::response::Parts;
use http::{Request, Response, StatusCode, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;

use super::http2_pool::{Place, Placed};
use super::request::Outgoing;
use super::request_body::RequestBody;
use super::response::{Bounds, Lease, UpstreamHttp2, pass_back, sanitise};
use super::response_timeout::ResponseTimeout;
use super::retry::{self, Again};
use super::server::ServerState;
use super::upstreams::UpstreamState;
use super::{ForwardError, Forwarded, SWITCHING, outgoing};
use crate::body::{BodyError, ResponseBody};
use crate::headers::strip_hop_by_hop;
use crate::pool::{Connection, Slot};
use tollgate_net::client::Failure;
use tollgate_policy::upstream::HostPolicy;

/// The reason why an exchange over HTTP/2 failed, and whether the request may be sent again.
enum Http2Failure {
    /// The connection accepted no more streams and nothing was sent; the request is returned.
    Unsent(Box<Request<RequestBody>>),
    /// The failure is final.
    Final(ForwardError),
}

/// Sends `outgoing` to `server`.
///
/// # Errors
/// The reason why there is no response. After a connect error the request is still in `outgoing`,
/// and may be sent to another server.
pub(super) async fn exchange(
    upstream: &UpstreamState,
    server: &Rc<ServerState>,
    outgoing: &mut Outgoing,
) -> Result<Forwarded, ForwardError> {
    let slot = server.pool.slot().await?;
    if server.speaks_http2 && !server.lanes.prefers_http1() {
        // Boxed, so that HTTP/1 does not pay for the space of this future.
        return Box::pin(http2(upstream, server, outgoing, slot)).await;
    }
    let idle = std::future::poll_fn(|cx| Poll::Ready(slot.pool().take(cx))).await;
    let connection = match idle {
        Some(connection) => connection,
        // The server may have changed to HTTP/2 by now.
        None if server.speaks_http2 => {
            return Box::pin(http2(upstream, server, outgoing, slot)).await;
        }
        // Boxed, so that a request that finds an open connection, as most do, does not pay for the
        // space of connecting.
        None => Box::pin(server.connector.http1(outgoing.client)).await?,
    };
    http1(upstream, server, outgoing, slot, connection).await
}

async fn http1(
    upstream: &UpstreamState,
    server: &Rc<ServerState>,
    outgoing: &mut Outgoing,
    slot: Slot,
    connection: Box<Connection>,
) -> Result<Forwarded, ForwardError> {
    let mut connection = connection;
    // Changed in place, because a request is large and moving it is expensive.
    let request = outgoing.request.as_mut().ok_or(ForwardError::Closed)?;
    if request.version() == Version::HTTP_2 {
        outgoing::downgrade(request);
    }
    let fields = request.headers().len();
    if !(outgoing.hosted && server.server.base_path.is_empty() && server.host == HostPolicy::Keep) {
        let target = std::mem::take(request.uri_mut());
        let target = outgoing::address(
            target,
            request.headers_mut(),
            &server.host,
            &server.server,
            false,
        )?;
        *request.uri_mut() = target;
    }
    // One header was added: the request came without a Host.
    let named = request.headers().len() == fields;
    let mut headers = std::mem::take(request.headers_mut());
    let body = outgoing
        .progress
        .is_some()
        .then(|| std::mem::take(request.body_mut()));
    // Only a reused connection can be stale, and a body is not kept.
    let kept = connection.is_reused() && body.is_none();
    let origin = outgoing.origin.as_ref();
    let more = |out: &mut Vec<u8>| origin.into_iter().for_each(|origin| origin.write(out));
    connection.ask_with(
        request.method(),
        request.uri(),
        &mut headers,
        more,
        body,
        kept,
    );
    if outgoing.verbatim {
        connection.allow_verbatim();
    }
    outgoing.request = None;
    loop {
        let failure = match converse(&mut connection, outgoing).await {
            Ok(head) => {
                outgoing.response_began();
                return pass_back(head, Lease { connection, slot }, outgoing);
            }
            Err(Stop::Failed(failure)) => failure,
            Err(Stop::Late(error)) => return Err(error),
        };
        // A partial response counts as a response: only silence shows that a connection was stale.
        let stale = connection.is_reused() && matches!(failure, Failure::Silent(_));
        let Some(request) = connection.unanswered().filter(|_| stale) else {
            return Err(failure.into());
        };
        let closed = retry::Outcome::Closed {
            untouched: request.is_untouched(),
        };
        let attempted = match retry::decide(&closed, upstream, outgoing) {
            Again::No => return Err(failure.into()),
            Again::SameAttempt => false,
            Again::NextAttempt => true,
        };
        // Counted before connecting: if that fails, another server may receive the request.
        if attempted {
            outgoing.attempts -= 1;
        }
        connection = match Box::pin(server.connector.http1(outgoing.client)).await {
            Ok(fresh) => fresh,
            Err(error) => {
                outgoing.counted = attempted;
                // Another server may receive the request. If there is a copy, every attempt uses
                // it, and the extra headers are still to be written.
                if !outgoing.has_copy() {
                    let request = request
                        .read_back()
                        .map(|request| request.map(|()| RequestBody::empty()));
                    // These headers are read back with the others.
                    outgoing.origin = None;
                    outgoing.request =
                        request.and_then(|request| unaddressed(server, request, named));
                }
                return Err(error);
            }
        };
        connection.ask_again(request);
    }
}

/// Sends a request again on another connection if the server promised, by closing the connection
/// without an error, not to have processed it. This is allowed for every request, does not count as an attempt, and
/// is no failure of the server.
async fn http2(
    upstream: &UpstreamState,
    server: &Rc<ServerState>,
    outgoing: &mut Outgoing,
    slot: Slot,
) -> Result<Forwarded, ForwardError> {
    let mut placed = server.lanes.place(&server.connector).await?;
    let mut moves = 0;
    let (response, place) = loop {
        let place = match placed {
            Placed::Stream(place) => place,
            Placed::Http1(connection) => {
                return http1(upstream, server, outgoing, slot, connection).await;
            }
        };
        let request = outgoing.request.take().ok_or(ForwardError::Closed)?;
        let fields = request.headers().len();
        let request = addressed(server, request)?;
        // One header fewer: the Host became the authority.
        let named = request.headers().len() < fields;
        match converse_http2(&place, request, outgoing).await {
            Ok(response) => break (response, place),
            Err(Http2Failure::Unsent(request)) => {
                outgoing.request = unaddressed(server, *request, named)
            }
            Err(Http2Failure::Final(ForwardError::GoingAway))
                if retry::decide(&retry::Outcome::Unprocessed, upstream, outgoing) != Again::No =>
            {
                outgoing.restore()
            }
            Err(Http2Failure::Final(error)) => {
                // Do not put another request on a connection that is silent or about to close.
                // Silence during the short time that a client allowed says nothing about the
                // connection.
                let stuck = matches!(error, ForwardError::ResponseTimeout) && place.is_silent();
                let ended = ends_connection(&error);
                let known = place.is_retired();
                if stuck || ended {
                    place.retire();
                }
                return Err(match error {
                    ForwardError::Response(error) if ended && known => ForwardError::Aborted(error),
                    error => error,
                });
            }
        }
        place.retire();
        moves += 1;
        placed = match moves {
            1..MOVES_SHARED => server.lanes.place(&server.connector).await?,
            // Other requests would take the few streams that such a server allows per connection,
            // so open a connection whose first stream is for this request.
            MOVES_SHARED..MOVES_MOST => server.lanes.fresh(&server.connector).await?,
            _ => return Err(ForwardError::GoingAway),
        };
    };
    outgoing.response_began();
    let (mut head, incoming) = response.into_parts();
    if head.status == SWITCHING {
        return Err(ForwardError::Upgrade);
    }
    sanitise(&mut head)?;
    let body = if incoming.is_end_stream() {
        ResponseBody::Empty
    } else {
        ResponseBody::Http2(Box::new(UpstreamHttp2::new(
            incoming,
            Bounds::take(outgoing),
            slot,
            place,
        )))
    };
    Ok(Forwarded {
        cause: outgoing.cause_of_response(&head),
        response: Response::from_parts(head, body),
        verbatim: None,
        tunnel: None,
    })
}

async fn converse_http2(
    place: &Place,
    request: Request<RequestBody>,
    outgoing: &mut Outgoing,
) -> Result<Response<Incoming>, Http2Failure> {
    let mut sender = place.sender();
    let mut response = pin!(sender.try_send_request(request));
    let mut timeout = ResponseTimeout::new(outgoing);
    std::future::poll_fn(|cx| {
        if let Poll::Ready(outcome) = response.as_mut().poll(cx) {
            return Poll::Ready(outcome.map_err(failure));
        }
        timeout
            .poll(cx)
            .map(|error| Err(Http2Failure::Final(error)))
    })
    .await
}

/// The reason why an exchange over HTTP/1 ended without a response.
enum Stop {
    Failed(Failure<BodyError>),
    Late(ForwardError),
}

/// Waits for the head of the response on `connection`. The body's gate opens when the upstream
/// sends `100 Continue`; its other interim responses are passed on if that is wanted.
async fn converse(connection: &mut Connection, outgoing: &mut Outgoing) -> Result<Parts, Stop> {
    let (gate, interim) = (outgoing.gate.clone(), outgoing.interim.clone());
    let progress = outgoing.progress.clone();
    let mut timeout = ResponseTimeout::new(outgoing);
    std::future::poll_fn(|cx| {
        let response = connection.poll_response(cx, |status, headers| {
            if status == StatusCode::CONTINUE {
                if let Some(gate) = &gate {
                    gate.open();
                }
            } else if let Some(interim) = &interim {
                let mut headers = headers.clone();
                strip_hop_by_hop(&mut headers);
                interim.send(status, headers);
            }
        });
        if let Some(progress) = &progress
            && connection.is_sent()
        {
            // With the announced number of bytes a request over HTTP/1 is complete, also if the
            // client has not ended its stream.
            progress.arrive();
        }
        match response {
            Poll::Ready(response) => Poll::Ready(response.map_err(Stop::Failed)),
            Poll::Pending => timeout.poll(cx).map(|error| Err(Stop::Late(error))),
        }
    })
    .await
}

fn failure(error: TrySendError<Request<RequestBody>>) -> Http2Failure {
    let mut error = error;
    match error.take_message() {
        Some(request) => Http2Failure::Unsent(Box::new(request)),
        None => classify(error.into_error()),
    }
}

fn classify(error: hyper::Error) -> Http2Failure {
    if let Some(broken) = body_error(&error) {
        return Http2Failure::Final(ForwardError::Body(broken));
    }
    let reason = std::error::Error::source(&error)
        .and_then(|source| source.downcast_ref::<h2::Error>())
        .filter(|error| error.is_remote())
        .and_then(|error| error.reason().map(|reason| (error.is_go_away(), reason)));
    // A GOAWAY and REFUSED_STREAM promise that the request was not processed (RFC 9113 8.7). A
    // GOAWAY reaches only streams above the last one that the server processed. One with an error
    // promises the same, but the request may be the reason: it would end every connection that it
    // is sent on.
    Http2Failure::Final(match reason {
        Some((true, h2::Reason::NO_ERROR)) => ForwardError::GoingAway,
        Some((true, _)) => ForwardError::Aborted(error),
        Some((false, h2::Reason::REFUSED_STREAM)) => ForwardError::RefusedStream,
        _ => ForwardError::Response(error),
    })
}

/// Whether the connection ends with the stream that failed for this reason.
fn ends_connection(error: &ForwardError) -> bool {
    match error {
        ForwardError::GoingAway | ForwardError::Aborted(_) => true,
        ForwardError::Response(error) => !std::error::Error::source(error)
            .and_then(|source| source.downcast_ref::<h2::Error>())
            .is_some_and(h2::Error::is_reset),
        _ => false,
    }
}

/// The error of our own request body, if that is what ended the connection.
fn body_error(error: &hyper::Error) -> Option<BodyError> {
    let source = std::error::Error::source(error)?.downcast_ref::<BodyError>()?;
    Some(source.of_request())
}

/// Points `request` at `server`.
fn addressed(
    server: &ServerState,
    request: Request<RequestBody>,
) -> Result<Request<RequestBody>, ForwardError> {
    let mut request = request;
    let uri = std::mem::take(request.uri_mut());
    *request.uri_mut() = outgoing::address(
        uri,
        request.headers_mut(),
        &server.host,
        &server.server,
        true,
    )?;
    Ok(request)
}

/// Restores `request`, which was pointed at `server`; `named` says that it came with a Host.
fn unaddressed(
    server: &ServerState,
    request: Request<RequestBody>,
    named: bool,
) -> Option<Request<RequestBody>> {
    let mut request = request;
    let uri = std::mem::take(request.uri_mut());
    *request.uri_mut() = outgoing::unaddress(uri, request.headers_mut(), &server.server, named)?;
    Some(request)
}

/// How often a request moves to another shared connection, and how often it moves at all, because
/// its connection closes.
const MOVES_SHARED: u32 = 3;
const MOVES_MOST: u32 = 6;
