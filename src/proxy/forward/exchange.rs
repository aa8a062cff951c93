//! One request and its answer on one connection, or two connections when the first proves stale.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use http::{Request, Response, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;

use super::answer::{Bounds, Lease, UpstreamHttp2, answer, sanitise};
use super::lanes::Place;
use super::patience::Patience;
use super::request::{Outgoing, Replay};
use super::request_body::RequestBody;
use super::server::ServerState;
use super::{ForwardError, Forwarded, SWITCHING, outgoing};
use crate::proxy::body::{BodyError, ResponseBody};
use crate::proxy::pool::{Pair, Slot};

/// Why an exchange failed, and whether the request may go out again.
enum Failure {
    /// Nothing of it was sent: here it is back.
    Unsent(Box<Request<RequestBody>>),
    /// The connection closed before a byte of an answer.
    Silent(ForwardError),
    /// It failed for good.
    Final(ForwardError),
}

/// Sends `outgoing` to `server`.
///
/// # Errors
/// Why there is no answer. After an error of connecting the request is still there, and may go to another server.
pub(super) async fn exchange(server: &Rc<ServerState>, outgoing: &mut Outgoing) -> Result<Forwarded, ForwardError> {
    let slot = server.pool.slot().await?;
    if is_http2(outgoing) { http2(server, outgoing, slot).await } else { http1(server, outgoing, slot).await }
}

fn is_http2(outgoing: &Outgoing) -> bool {
    outgoing.request.as_ref().is_some_and(|request| request.version() == Version::HTTP_2)
}

async fn http1(server: &Rc<ServerState>, outgoing: &mut Outgoing, slot: Slot) -> Result<Forwarded, ForwardError> {
    let idempotent = outgoing.idempotent;
    let mut pair = match reuse(&slot, idempotent).await {
        Some(pair) => pair,
        // Boxed: a request that finds a connection, as most do, does not pay for the room that connecting takes.
        None => Box::pin(server.connector.http1(outgoing.client)).await?,
    };
    let request = outgoing.request.take().expect("a prepared request is sent once");
    let mut request = addressed(server, request, false)?;
    loop {
        // Only a reused connection can be stale; only what has no body and no effect of its own is sent twice.
        let replay = (pair.reused && idempotent && outgoing.progress.is_none()).then(|| Replay::of(&request));
        watch_interim(&mut request, outgoing);
        request = match converse(&mut pair, request, outgoing).await {
            Ok(response) => {
                outgoing.answered();
                return answer(response, Lease { pair, slot }, outgoing).await;
            }
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Unsent(request)) if pair.reused => *request,
            Err(Failure::Unsent(_)) => return Err(ForwardError::Closed),
            Err(Failure::Silent(error)) => {
                // Bytes of an answer that broke off are an answer: only silence is staleness.
                let silent = pair.reused && pair.connection.into_parts().read_buf.is_empty();
                match replay.filter(|_| silent) {
                    Some(replay) => replay.request(),
                    None => return Err(error),
                }
            }
        };
        pair = Box::pin(server.connector.http1(outgoing.client)).await?;
    }
}

async fn http2(server: &Rc<ServerState>, outgoing: &mut Outgoing, slot: Slot) -> Result<Forwarded, ForwardError> {
    let mut place = server.lanes.place(&server.connector).await?;
    let request = outgoing.request.take().expect("a prepared request is sent once");
    let mut request = addressed(server, request, true)?;
    let response = loop {
        request = match converse_http2(&place, request, outgoing).await {
            Ok(response) => break response,
            Err(Failure::Final(error) | Failure::Silent(error)) => {
                // No other request shall wait on a connection that says nothing, or is about to close. That it said
                // nothing in the little time that a caller gives says nothing of it.
                let stuck = matches!(error, ForwardError::ResponseTimeout) && place.is_silent();
                if stuck || matches!(error, ForwardError::GoingAway) {
                    place.retire();
                }
                return Err(error);
            }
            Err(Failure::Unsent(request)) if place.reused => *request,
            Err(Failure::Unsent(_)) => return Err(ForwardError::Closed),
        };
        // The connection took no more streams: nothing was sent.
        place.retire();
        place = server.lanes.place(&server.connector).await?;
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
        ResponseBody::Http2(UpstreamHttp2::new(incoming, Bounds::take(outgoing), slot, place))
    };
    Ok(Forwarded { response: Response::from_parts(head, body), tunnel: None })
}

async fn converse_http2(
    place: &Place,
    request: Request<RequestBody>,
    outgoing: &mut Outgoing,
) -> Result<Response<Incoming>, Failure> {
    let mut sender = place.sender();
    let mut answer = pin!(sender.try_send_request(request));
    let mut patience = Patience::new(outgoing);
    std::future::poll_fn(|cx| {
        if let Poll::Ready(outcome) = answer.as_mut().poll(cx) {
            return Poll::Ready(outcome.map_err(failure));
        }
        patience.poll(cx).map(|error| Err(Failure::Final(error)))
    })
    .await
}

/// A pooled connection that has not closed, as far as can be told. One that was idle for long is looked at first,
/// and so is every one that is to carry what must not be sent twice.
async fn reuse(slot: &Slot, idempotent: bool) -> Option<Box<Pair>> {
    while let Some((mut pair, idle_long)) = slot.pool().take() {
        if !idle_long && idempotent {
            return Some(pair);
        }
        let alive = std::future::poll_fn(|cx| Poll::Ready(pair.poll(cx).is_pending() && pair.is_ready())).await;
        if alive {
            return Some(pair);
        }
    }
    None
}

/// Sends one request on `pair` and waits for the head of its answer, driving the connection.
async fn converse(
    pair: &mut Pair,
    request: Request<RequestBody>,
    outgoing: &mut Outgoing,
) -> Result<Response<Incoming>, Failure> {
    // Outside the runtime's budget, which would put it off and count on a waker.
    let mut answer = pin!(tokio::task::unconstrained(pair.send(request)));
    let mut patience = Patience::new(outgoing);
    std::future::poll_fn(|cx| {
        let closed = pair.poll(cx);
        if let Poll::Ready(outcome) = answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Poll::Ready(outcome.map_err(failure));
        }
        match closed {
            Poll::Ready(Ok(())) => Poll::Ready(Err(Failure::Silent(ForwardError::Closed))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(classify(error))),
            Poll::Pending => patience.poll(cx).map(|error| Err(Failure::Final(error))),
        }
    })
    .await
}

fn failure(error: TrySendError<Request<RequestBody>>) -> Failure {
    let mut error = error;
    match error.take_message() {
        Some(request) => Failure::Unsent(Box::new(request)),
        None => classify(error.into_error()),
    }
}

fn classify(error: hyper::Error) -> Failure {
    if let Some(broken) = body_error(&error) {
        return Failure::Final(ForwardError::Body(broken));
    }
    if let Some(refused) = unprocessed(&error) {
        return Failure::Final(refused);
    }
    // A reset may take the place of a plain end.
    if error.is_incomplete_message() || error.is_canceled() || error.is_closed() || is_io(&error) {
        return Failure::Silent(ForwardError::Answer(error));
    }
    Failure::Final(ForwardError::Answer(error))
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

fn is_io(error: &hyper::Error) -> bool {
    std::error::Error::source(error).is_some_and(<dyn std::error::Error + 'static>::is::<std::io::Error>)
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

/// Opens the body's gate when the upstream says `100 Continue`, and passes its other interim answers on where that is wanted.
fn watch_interim(request: &mut Request<RequestBody>, outgoing: &Outgoing) {
    let (gate, interim) = (outgoing.gate.clone(), outgoing.interim.clone());
    if gate.is_none() && interim.is_none() {
        return;
    }
    hyper::ext::on_informational(request, move |informational| {
        if informational.status() == http::StatusCode::CONTINUE {
            if let Some(gate) = &gate {
                gate.open();
            }
        } else if let Some(interim) = &interim {
            interim.send(informational.status(), informational.headers());
        }
    });
}

/// Points `request` at `server`.
fn addressed(
    server: &ServerState,
    request: Request<RequestBody>,
    http2: bool,
) -> Result<Request<RequestBody>, ForwardError> {
    let mut request = request;
    let uri = std::mem::take(request.uri_mut());
    *request.uri_mut() = outgoing::address(uri, request.headers_mut(), &server.host, &server.server, http2)?;
    Ok(request)
}
