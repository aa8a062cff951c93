//! Returns the upstream's response to the client.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, SEC_WEBSOCKET_ACCEPT};
use http::response::Parts;
use http::{HeaderValue, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;

use super::http2_pool::StreamSlot;
use super::request::Outgoing;
use super::response_timeout::Stall;
use super::tunnel::Tunnel;
use super::upload::Upload;
use super::{ForwardError, Forwarded, SWITCHING};
use crate::forward::body::{BodyError, FramePoll, ResponseBody};
use crate::forward::pool::{Connection, Slot};
use crate::headers;
use crate::proxy_defaults::protocol_name;
use tollgate_http1::head::Framing;
use tollgate_net::timers::{Deadline, Expiry};

/// A body from an HTTP/1 upstream. It drives its connection, which returns to its pool if the
/// exchange ends cleanly and is closed otherwise.
#[derive(Debug)]
pub struct UpstreamHttp1 {
    exchange: Exchange,
    bounds: Bounds,
}

/// The state of the exchange to which a body belongs.
#[derive(Debug)]
enum Exchange {
    Answering(Lease),
    Uploading(Upload, Slot),
    Over,
}

/// The timeouts of a body (between two pieces, and in total), and its error.
#[derive(Debug)]
pub(super) struct Bounds {
    idle: Expiry,
    stall: Option<Stall>,
    total: Option<Deadline>,
    /// The error is delayed by one poll, so that the preceding bytes are flushed to the client first.
    held: Option<BodyError>,
    is_over: bool,
}

impl Bounds {
    pub(super) fn of(outgoing: &Outgoing) -> Self {
        Self {
            idle: Expiry::after(outgoing.timeouts.idle.into()),
            stall: outgoing.stall().filter(Stall::is_uploading),
            total: outgoing.total_of_response(),
            held: None,
            is_over: false,
        }
    }

    /// Polls the next frame, filtered for the client. An error, also that of a timeout, is final.
    fn watch<E: Into<BodyError>>(
        &mut self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, E>>>,
    ) -> FramePoll {
        if let Some(error) = self.held.take() {
            return Poll::Ready(Some(Err(error)));
        }
        // The upstream may accept nothing of the rest of the request while it sends its response.
        if let Some(stall) = &mut self.stall
            && stall.poll(cx).is_ready()
        {
            return self.fail(BodyError::UpstreamIdle);
        }
        let Poll::Ready(frame) = poll(cx) else {
            if let Some(total) = &mut self.total
                && total.poll_passed(cx).is_ready()
            {
                return self.fail(BodyError::UpstreamSlow);
            }
            std::task::ready!(self.idle.poll(cx));
            return self.fail(BodyError::UpstreamIdle);
        };
        self.idle.reset();
        match frame {
            Some(Err(error)) => {
                (self.held, self.is_over) = (Some(error.into()), true);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Some(Ok(frame)) => Poll::Ready(Some(Ok(clean(frame)))),
            None => Poll::Ready(None),
        }
    }

    fn fail(&mut self, error: BodyError) -> FramePoll {
        self.is_over = true;
        Poll::Ready(Some(Err(error)))
    }
}

#[derive(Debug)]
pub(super) struct Lease {
    pub(super) connection: Box<Connection>,
    pub(super) slot: Slot,
}

impl Lease {
    /// Returns the connection to the pool if it is ready for the next request, and closes it otherwise.
    pub(super) fn end(mut self) {
        if self.connection.is_reusable() {
            self.slot.pool.put(self.connection);
        }
    }
}

impl UpstreamHttp1 {
    pub(super) fn new(bounds: Bounds, lease: Lease) -> Self {
        let exchange = if lease.connection.is_sent() {
            Exchange::Answering(lease)
        } else {
            Exchange::Uploading(Upload::begin(lease.connection), lease.slot)
        };
        Self { exchange, bounds }
    }
}

impl Exchange {
    fn end(&mut self) {
        match std::mem::replace(self, Self::Over) {
            Self::Answering(lease) => lease.end(),
            Self::Uploading(upload, slot) => {
                if let Some(connection) = upload.end() {
                    Lease { connection, slot }.end();
                }
            }
            Self::Over => {}
        }
    }

    fn left(&self) -> Option<u64> {
        match self {
            Self::Answering(lease) => lease.connection.left(),
            Self::Uploading(upload, _) => upload.left(),
            Self::Over => Some(0),
        }
    }
}

impl Body for UpstreamHttp1 {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> FramePoll {
        let Self { exchange, bounds } = self.get_mut();
        let frame = bounds.watch(cx, |cx| match exchange {
            Exchange::Answering(lease) => lease.connection.poll_body(cx, true),
            Exchange::Uploading(upload, _) => upload.poll_body(cx),
            Exchange::Over => Poll::Ready(None),
        });
        if bounds.is_over {
            *exchange = Exchange::Over;
        } else if frame.is_ready() && exchange.left() == Some(0) {
            // A client that knows the length does not poll again after the last piece.
            exchange.end();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.bounds.held.is_none() && matches!(self.exchange, Exchange::Over)
    }

    fn size_hint(&self) -> SizeHint {
        match self.exchange.left() {
            Some(left) => SizeHint::with_exact(left),
            None => SizeHint::default(),
        }
    }
}

/// A body from an HTTP/2 upstream; dropping it resets its stream.
#[derive(Debug)]
pub struct UpstreamHttp2 {
    pub(super) incoming: Incoming,
    pub(super) bounds: Bounds,
    pub(super) _slot: Slot,
    pub(super) _place: StreamSlot,
}

impl Body for UpstreamHttp2 {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> FramePoll {
        let Self {
            incoming, bounds, ..
        } = self.get_mut();
        bounds.watch(cx, |cx| Pin::new(incoming).poll_frame(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.bounds.held.is_none() && self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// Builds the client's response from the upstream's: checks and strips its head, wraps its body. A
/// 101 becomes a tunnel.
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
        let named = |value: &HeaderValue| protocol_name(value).to_ascii_lowercase();
        let switched = hop.upgrade.as_ref().map(named);
        let asked = outgoing.upgrade.take();
        let upgrade = asked.filter(|asked| switched == Some(named(&asked.protocol)));
        let upgrade = upgrade.ok_or(ForwardError::Upgrade)?;
        if bridged {
            head.status = StatusCode::OK;
            head.headers.remove(SEC_WEBSOCKET_ACCEPT);
        } else {
            let protocol = hop.upgrade.unwrap_or_else(|| upgrade.protocol.clone());
            headers::announce_upgrade(&mut head.headers, protocol);
        }
        let (upstream, early) = lease.connection.into_parts();
        let tunnel = Tunnel {
            upgrade,
            upstream,
            early,
            slot: lease.slot,
        };
        let mut forwarded = outgoing.forwarded(head, ResponseBody::EMPTY, None);
        forwarded.tunnel = Some(Box::new(tunnel));
        return Ok(forwarded);
    }
    let verbatim = lease.connection.take_verbatim();
    let body = if lease.connection.left() == Some(0) {
        lease.end();
        ResponseBody::EMPTY
    } else if let Some(whole) = lease.connection.take_whole() {
        // The whole body arrived with the head, so the connection is free before the client has
        // received a byte.
        lease.end();
        ResponseBody::Bytes(whole)
    } else {
        ResponseBody::Http1(Box::new(UpstreamHttp1::new(Bounds::of(outgoing), lease)))
    };
    Ok(outgoing.forwarded(head, body, verbatim))
}

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

fn clean(frame: Frame<Bytes>) -> Frame<Bytes> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            headers::clean_trailers(&mut trailers);
            Frame::trailers(trailers)
        }
        Err(frame) => frame,
    }
}
