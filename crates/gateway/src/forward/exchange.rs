//! One request and its response on one connection, or two connections when the first proves stale.

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
use super::server::ServerState;
use super::{ForwardError, Forwarded, SWITCHING, outgoing};
use crate::body::{BodyError, ResponseBody};
use crate::headers::strip_hop_by_hop;
use crate::pool::{Connection, Slot};
use tollgate_limiter::Cause;
use tollgate_net::client::Failure;
use tollgate_policy::upstream::HostPolicy;

/// Why an exchange over HTTP/2 failed, and whether the request may go out again.
enum Http2Failure {
    /// The connection took no more streams, and nothing of it was sent: here it is back.
    Unsent(Box<Request<RequestBody>>),
    /// It failed for good.
    Final(ForwardError),
}

/// Sends `outgoing` to `server`.
///
/// # Errors
/// Why there is no response. After an error of connecting the request is still there, and may go to another server.
pub(super) async fn exchange(
    server: &Rc<ServerState>,
    outgoing: &mut Outgoing,
) -> Result<Forwarded, ForwardError> {
    let slot = server.pool.slot().await?;
    if server.speaks_http2 && !server.lanes.prefers_http1() {
        // Boxed: HTTP/1 does not pay for the room that this takes.
        return Box::pin(http2(server, outgoing, slot)).await;
    }
    let idle = std::future::poll_fn(|cx| Poll::Ready(slot.pool().take(cx))).await;
    let connection = match idle {
        Some(connection) => connection,
        // It may speak HTTP/2 by now.
        None if server.speaks_http2 => return Box::pin(http2(server, outgoing, slot)).await,
        // Boxed: a request that finds a connection, as most do, does not pay for the room that connecting takes.
        None => Box::pin(server.connector.http1(outgoing.client)).await?,
    };
    http1(server, outgoing, slot, connection).await
}

async fn http1(
    server: &Rc<ServerState>,
    outgoing: &mut Outgoing,
    slot: Slot,
    connection: Box<Connection>,
) -> Result<Forwarded, ForwardError> {
    let mut connection = connection;
    // In place: a request is large, and moving it is not free.
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
    // One more: it came without a Host.
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
                outgoing.answered();
                return pass_back(head, Lease { connection, slot }, outgoing);
            }
            Err(Stop::Failed(failure)) => failure,
            Err(Stop::Late(error)) => return Err(error),
        };
        // Bytes of a response that broke off are a response: only silence is staleness.
        let stale = connection.is_reused() && matches!(failure, Failure::Silent(_));
        let Some(request) = connection.unanswered().filter(|_| stale) else {
            return Err(failure.into());
        };
        // The server cannot have read what its system did not take. Whatever it did take may have been read, and acted
        // upon: to send that again is another attempt.
        let attempted = !request.is_untouched();
        if attempted && !(outgoing.follows_closed && outgoing.attempts > 1) {
            return Err(failure.into());
        }
        connection = match Box::pin(server.connector.http1(outgoing.client)).await {
            Ok(fresh) => fresh,
            Err(error) => {
                // Another server may have it. Where there is a copy, it serves every attempt, and the headers behind it stay
                // to be written.
                if !outgoing.has_copy() {
                    let request = request
                        .read_back()
                        .map(|request| request.map(|()| RequestBody::empty()));
                    // Read back with the others.
                    outgoing.origin = None;
                    outgoing.request =
                        request.and_then(|request| unaddressed(server, request, named));
                }
                return Err(error);
            }
        };
        if attempted {
            outgoing.attempts -= 1;
        }
        connection.ask_again(request);
    }
}

/// What a server has promised not to have processed, because it closes the connection, goes out on another connection
/// whatever it is. That is no attempt, and speaks against no server: the request was never taken up.
async fn http2(
    server: &Rc<ServerState>,
    outgoing: &mut Outgoing,
    slot: Slot,
) -> Result<Forwarded, ForwardError> {
    let mut placed = server.lanes.place(&server.connector).await?;
    let mut moves = 0;
    let (response, place) = loop {
        let place = match placed {
            Placed::Stream(place) => place,
            Placed::Http1(connection) => return http1(server, outgoing, slot, connection).await,
        };
        let request = outgoing.request.take().ok_or(ForwardError::Closed)?;
        let fields = request.headers().len();
        let request = addressed(server, request)?;
        // One less: its Host is the authority now.
        let named = request.headers().len() < fields;
        match converse_http2(&place, request, outgoing).await {
            Ok(response) => break (response, place),
            Err(Http2Failure::Unsent(request)) => {
                outgoing.request = unaddressed(server, *request, named)
            }
            Err(Http2Failure::Final(ForwardError::GoingAway)) if outgoing.has_copy() => {
                outgoing.restore()
            }
            Err(Http2Failure::Final(error)) => {
                // No other request shall wait on a connection that says nothing, or is about to close. That it said
                // nothing in the little time that a client gives says nothing of it.
                let stuck = matches!(error, ForwardError::ResponseTimeout) && place.is_silent();
                if stuck || matches!(error, ForwardError::GoingAway) {
                    place.retire();
                }
                return Err(error);
            }
        }
        place.retire();
        moves += 1;
        placed = match moves {
            1..MOVES_SHARED => server.lanes.place(&server.connector).await?,
            // Others would take the few streams that such a server takes over a connection: now the first is its own.
            MOVES_SHARED..MOVES_MOST => server.lanes.fresh(&server.connector).await?,
            _ => return Err(ForwardError::GoingAway),
        };
    };
    outgoing.answered();
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
        response: Response::from_parts(head, body),
        verbatim: None,
        tunnel: None,
        cause: Cause::Upstream,
    })
}

async fn converse_http2(
    place: &Place,
    request: Request<RequestBody>,
    outgoing: &mut Outgoing,
) -> Result<Response<Incoming>, Http2Failure> {
    let mut sender = place.sender();
    let mut answer = pin!(sender.try_send_request(request));
    let mut patience = ResponseTimeout::new(outgoing);
    std::future::poll_fn(|cx| {
        if let Poll::Ready(outcome) = answer.as_mut().poll(cx) {
            return Poll::Ready(outcome.map_err(failure));
        }
        patience
            .poll(cx)
            .map(|error| Err(Http2Failure::Final(error)))
    })
    .await
}

/// Why a conversation over HTTP/1 ended without a response.
enum Stop {
    Failed(Failure<BodyError>),
    Late(ForwardError),
}

/// Waits for the head of the response to what `connection` was asked. The body's gate opens when the upstream says `100
/// Continue`; its other interim responses are passed on where that is wanted.
async fn converse(connection: &mut Connection, outgoing: &mut Outgoing) -> Result<Parts, Stop> {
    let (gate, interim) = (outgoing.gate.clone(), outgoing.interim.clone());
    let mut patience = ResponseTimeout::new(outgoing);
    std::future::poll_fn(|cx| {
        let answer = connection.poll_answer(cx, |status, headers| {
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
        match answer {
            Poll::Ready(answer) => Poll::Ready(answer.map_err(Stop::Failed)),
            Poll::Pending => patience.poll(cx).map(|error| Err(Stop::Late(error))),
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
    if let Some(refused) = unprocessed(&error) {
        return Http2Failure::Final(refused);
    }
    Http2Failure::Final(ForwardError::Answer(error))
}

/// HTTP/2's two ways to say that a request was not looked at, and may be sent again whatever it is (RFC 9113 8.7).
fn unprocessed(error: &hyper::Error) -> Option<ForwardError> {
    let error = std::error::Error::source(error)?.downcast_ref::<h2::Error>()?;
    if error.is_go_away() && error.is_remote() {
        // Told only to streams above the last one that the server took up.
        return Some(ForwardError::GoingAway);
    }
    (error.reason() == Some(h2::Reason::REFUSED_STREAM)).then_some(ForwardError::RefusedStream)
}

/// The error of our own request body that brought a connection down, if one did.
fn body_error(error: &hyper::Error) -> Option<BodyError> {
    let source = std::error::Error::source(error)?.downcast_ref::<BodyError>()?;
    Some(match source {
        BodyError::TooBig => BodyError::TooBig,
        BodyError::ClientIdle => BodyError::ClientIdle,
        BodyError::ClientSlow => BodyError::ClientSlow,
        BodyError::ClientTrailers => BodyError::ClientTrailers,
        _ => BodyError::ClientGone,
    })
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

/// `request`, which was pointed at `server`, as it was before; `named`: it came with a Host.
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

/// How often a request goes to another connection that others share, and in all, because its connection closes.
const MOVES_SHARED: u32 = 3;
const MOVES_MOST: u32 = 6;
