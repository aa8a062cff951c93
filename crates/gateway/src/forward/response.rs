//! Returns the upstream's response to the client.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, SEC_WEBSOCKET_ACCEPT};
use http::response::Parts;
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;

use super::http2_pool::Place;
use super::request::Outgoing;
use super::stall::Stall;
use super::tunnel::Tunnel;
use super::upload::Upload;
use super::{ForwardError, Forwarded, SWITCHING, Upgrade};
use crate::body::{BodyError, ResponseBody};
use crate::headers;
use crate::pool::{Connection, Slot};
use crate::proxy_defaults::protocol_name;
use tollgate_http1::head::Framing;
use tollgate_limit::Micros;
use tollgate_net::timers::{Deadline, Expiry};

/// A body from an HTTP/1 upstream. It drives its connection, which returns to its pool if the
/// exchange ends cleanly and is closed otherwise.
#[derive(Debug)]
pub struct UpstreamHttp1 {
    exchange: Exchange,
    bounds: Bounds,
    broken: Broken,
}

/// The state of the exchange to which a body belongs.
#[derive(Debug)]
enum Exchange {
    /// The request has been sent.
    Answering(Lease),
    /// The request is still being sent.
    Uploading(Upload, Slot),
    /// The body has ended.
    Over,
}

/// The timeouts of a body: between two pieces, and in total.
#[derive(Debug)]
pub(super) struct Bounds {
    idle: Expiry,
    /// Used while the request is still being sent.
    stall: Option<Stall>,
    total: Option<Deadline>,
}

impl Bounds {
    /// The remaining timeouts of `outgoing`.
    pub(super) fn of(outgoing: &Outgoing) -> Self {
        let stall = outgoing.stall().filter(Stall::is_uploading);
        Self {
            idle: Expiry::after(outgoing.timeouts.idle.into()),
            stall,
            total: outgoing.total_of_response(),
        }
    }

    /// Ready when the upstream has accepted nothing of the rest of the request for too long, even
    /// if it sends its response meanwhile.
    fn poll_stalled(&mut self, cx: &Context<'_>) -> Poll<BodyError> {
        match &mut self.stall {
            Some(stall) => stall.poll(cx).map(|()| BodyError::UpstreamIdle),
            None => Poll::Pending,
        }
    }

    fn poll(&mut self, cx: &Context<'_>) -> Poll<BodyError> {
        if let Some(total) = &mut self.total
            && total.poll_passed(cx).is_ready()
        {
            return Poll::Ready(BodyError::UpstreamSlow);
        }
        self.idle.poll(cx).map(|()| BodyError::UpstreamIdle)
    }
}

/// The error of a body, delayed by one poll so that the preceding bytes are flushed to the client
/// first.
#[derive(Debug, Default)]
struct Broken(Option<BodyError>);

impl Broken {
    fn hold(
        &mut self,
        error: BodyError,
        cx: &Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.0 = Some(error);
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// A connection in use, and its slot.
#[derive(Debug)]
pub(super) struct Lease {
    /// The connection.
    pub(super) connection: Box<Connection>,
    /// Its slot among the connections in use.
    pub(super) slot: Slot,
}

impl Lease {
    /// Returns the connection to the pool if it is ready for the next request, and closes it
    /// otherwise.
    pub(super) fn end(mut self) {
        if self.connection.is_reusable() {
            self.slot.pool().put(self.connection);
        }
    }
}

impl UpstreamHttp1 {
    /// The body of the response whose head arrived on the leased connection.
    pub(super) fn new(bounds: Bounds, lease: Lease) -> Self {
        let exchange = if lease.connection.is_sent() {
            Exchange::Answering(lease)
        } else {
            Exchange::Uploading(Upload::begin(lease.connection), lease.slot)
        };
        Self {
            exchange,
            bounds,
            broken: Broken(None),
        }
    }

    fn end(&mut self) {
        match std::mem::replace(&mut self.exchange, Exchange::Over) {
            Exchange::Answering(lease) => lease.end(),
            Exchange::Uploading(upload, slot) => {
                if let Some(connection) = upload.end() {
                    Lease { connection, slot }.end();
                }
            }
            Exchange::Over => {}
        }
    }

    /// The number of remaining bytes, if known.
    fn left(&self) -> Option<u64> {
        match &self.exchange {
            Exchange::Answering(lease) => lease.connection.left(),
            Exchange::Uploading(upload, _) => upload.left(),
            Exchange::Over => Some(0),
        }
    }
}

impl Body for UpstreamHttp1 {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if let Some(error) = this.broken.0.take() {
            return Poll::Ready(Some(Err(error)));
        }
        if let Poll::Ready(error) = this.bounds.poll_stalled(cx) {
            this.exchange = Exchange::Over;
            return Poll::Ready(Some(Err(error)));
        }
        let frame = match &mut this.exchange {
            Exchange::Answering(lease) => lease.connection.poll_body(cx),
            Exchange::Uploading(upload, _) => upload.poll_body(cx),
            Exchange::Over => return Poll::Ready(None),
        };
        let Poll::Ready(frame) = frame else {
            let error = std::task::ready!(this.bounds.poll(cx));
            this.exchange = Exchange::Over;
            return Poll::Ready(Some(Err(error)));
        };
        this.bounds.idle.reset();
        let ended = this.left() == Some(0);
        match pass(frame.map(|frame| frame.map_err(BodyError::from))) {
            Some(Err(error)) => {
                this.exchange = Exchange::Over;
                this.broken.hold(error, cx)
            }
            frame => {
                // A client that knows the length does not poll again after the last piece.
                if ended {
                    this.end();
                }
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.broken.0.is_none() && matches!(self.exchange, Exchange::Over)
    }

    fn size_hint(&self) -> SizeHint {
        match self.left() {
            Some(left) => SizeHint::with_exact(left),
            None => SizeHint::default(),
        }
    }
}

/// A body from an HTTP/2 upstream; dropping it resets its stream.
#[derive(Debug)]
pub struct UpstreamHttp2 {
    incoming: Incoming,
    bounds: Bounds,
    broken: Broken,
    _slot: Slot,
    _place: Place,
}

impl UpstreamHttp2 {
    /// The body `incoming` of a response.
    pub(super) const fn new(incoming: Incoming, bounds: Bounds, slot: Slot, place: Place) -> Self {
        Self {
            incoming,
            bounds,
            broken: Broken(None),
            _slot: slot,
            _place: place,
        }
    }
}

impl Body for UpstreamHttp2 {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if let Some(error) = this.broken.0.take() {
            return Poll::Ready(Some(Err(error)));
        }
        if let Poll::Ready(error) = this.bounds.poll_stalled(cx) {
            return Poll::Ready(Some(Err(error)));
        }
        match Pin::new(&mut this.incoming).poll_frame(cx) {
            Poll::Ready(frame) => {
                this.bounds.idle.reset();
                match pass(frame.map(|frame| frame.map_err(BodyError::Upstream))) {
                    Some(Err(error)) => this.broken.hold(error, cx),
                    outcome => Poll::Ready(outcome),
                }
            }
            Poll::Pending => {
                let error = std::task::ready!(this.bounds.poll(cx));
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.broken.0.is_none() && self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// Builds the client's response from the upstream's: checks and strips its head, wraps its body. A
/// 101 becomes a tunnel.
///
/// # Errors
/// If its framing is invalid, or if it switches protocols without a request to do so.
pub(super) fn pass_back(
    head: Parts,
    mut lease: Lease,
    outgoing: &mut Outgoing,
) -> Result<Forwarded, ForwardError> {
    let mut head = head;
    let hop = sanitise(&mut head)?;
    let bridged = outgoing
        .upgrade
        .as_ref()
        .is_some_and(|asked| asked.bridged.is_some());
    if bridged && head.status.is_success() {
        // For a client that sent CONNECT, this would open a tunnel.
        return Err(ForwardError::Upgrade);
    }
    if head.status == SWITCHING {
        let asked = outgoing.upgrade.take().filter(|asked| {
            let named = |value| protocol_name(value).to_ascii_lowercase();
            hop.upgrade
                .as_ref()
                .is_some_and(|switched| named(switched) == named(&asked.protocol))
        });
        let Upgrade {
            client,
            protocol,
            idle,
            bridged,
        } = asked.ok_or(ForwardError::Upgrade)?;
        let (socket, early) = lease.connection.into_parts();
        let websocket = protocol_name(&protocol).eq_ignore_ascii_case(b"websocket");
        if bridged.is_some() {
            head.status = StatusCode::OK;
            head.headers.remove(SEC_WEBSOCKET_ACCEPT);
        } else {
            headers::announce_upgrade(&mut head.headers, hop.upgrade.unwrap_or(protocol));
        }
        let tunnel = Tunnel {
            client,
            upstream: socket,
            early,
            idle,
            websocket,
            slot: lease.slot,
            hold: bridged,
        };
        let blame = outgoing.clients_part().in_response(&head);
        let response = Response::from_parts(head, ResponseBody::Empty);
        return Ok(Forwarded {
            response,
            verbatim: None,
            tunnel: Some(Box::new(tunnel)),
            blame,
            waited: Micros::ZERO,
            callers_deadline: None,
        });
    }
    let verbatim = lease.connection.take_verbatim();
    let body = if lease.connection.left() == Some(0) {
        lease.end();
        ResponseBody::Empty
    } else if let Some(whole) = lease.connection.take_whole() {
        // The whole body arrived with the head, so the connection is free before the client has
        // received a byte.
        lease.end();
        ResponseBody::Bytes(whole)
    } else {
        ResponseBody::Http1(Box::new(UpstreamHttp1::new(Bounds::of(outgoing), lease)))
    };
    Ok(Forwarded {
        blame: outgoing.clients_part().in_response(&head),
        waited: outgoing.clients_part().waited(),
        callers_deadline: outgoing.callers_deadline_for(&body),
        response: Response::from_parts(head, body),
        verbatim,
        tunnel: None,
    })
}

/// Checks and strips the head of a response.
///
/// # Errors
/// If its Transfer-Encoding is not exactly one `chunked`.
pub(super) fn sanitise(head: &mut Parts) -> Result<headers::Hop, ForwardError> {
    let mut present = headers::HeaderSet::of(&head.headers);
    if present.has(headers::HeaderSet::TRANSFER_ENCODING) {
        Framing::of(&head.headers).map_err(|_| ForwardError::ResponseCoding)?;
        // Both headers together are used for request smuggling, and hyper's encoder refuses them
        // (RFC 9112 6.3).
        head.headers.remove(CONTENT_LENGTH);
    }
    // With this header an HTTP/2 client would wait for a body, or the stream would be reset (RFC
    // 9110 8.6).
    if present.has(headers::HeaderSet::CONTENT_LENGTH)
        && matches!(head.status, StatusCode::NO_CONTENT | SWITCHING)
    {
        head.headers.remove(CONTENT_LENGTH);
    }
    let hop = headers::strip_present(&mut head.headers, &mut present);
    head.extensions.remove::<OnUpgrade>();
    Ok(hop)
}

/// Filters a piece of an upstream's body for the client.
fn pass(frame: Option<Result<Frame<Bytes>, BodyError>>) -> Option<Result<Frame<Bytes>, BodyError>> {
    let frame = match frame? {
        Ok(frame) => frame,
        Err(error) => return Some(Err(error)),
    };
    if frame.is_data() {
        return Some(Ok(frame));
    }
    Some(match frame.into_trailers() {
        Ok(mut trailers) => match headers::clean_trailers(&mut trailers) {
            Ok(()) => Ok(Frame::trailers(trailers)),
            Err(_) => Err(BodyError::Trailers),
        },
        Err(frame) => Ok(frame),
    })
}
