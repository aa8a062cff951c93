//! The body of a request, for all versions of HTTP.

use std::any::Any;
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::{Extensions, HeaderMap};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use smallvec::SmallVec;

use super::http1::Core;
use super::http2::state::State;
use super::http2::streams::Arrived;
use super::upgrade::OnUpgrade;
use tollgate_http1::Malformed;

/// Nothing of it is read before it is polled.
#[derive(Debug)]
pub struct Inbound {
    kind: Kind,
    replay: Option<Box<Replay>>,
}

/// The beginning of a body, or all of it, that was read and is read again. Small pieces are
/// gathered, because each piece keeps the buffer alive that it was received into.
#[derive(Debug, Default)]
pub struct Replay {
    /// In the order in which they were read. It is reversed before they are read again, so that the
    /// first one is the last of the list. Most bodies are one piece.
    pieces: SmallVec<[Bytes; 1]>,
    gathered: BytesMut,
    trailers: Option<HeaderMap>,
    /// Dropped when all of it has been read again.
    holds: Option<Box<dyn Any>>,
}

impl Replay {
    /// Keeps `guard` until all of it has been read again, or its body is dropped.
    pub fn hold(&mut self, guard: impl Any) {
        self.holds = Some(Box::new(guard));
    }

    pub fn push(&mut self, frame: Frame<Bytes>) {
        match frame.into_data() {
            Ok(piece) if piece.len() < SMALL => self.gathered.extend_from_slice(&piece),
            Ok(piece) => {
                self.end();
                self.pieces.push(piece);
            }
            Err(frame) => self.trailers = frame.into_trailers().ok(),
        }
    }

    pub fn insert_after(&mut self, mark: u8, text: &'static [u8]) {
        self.end();
        let at = |piece: &Bytes| piece.iter().position(|byte| *byte == mark);
        let found = self.pieces.iter().map(at).enumerate();
        let found = found.filter_map(|(place, at)| Some((place, at?))).next();
        if let Some((place, at)) = found {
            let rest = self.pieces[place].split_off(at + 1);
            let more = [Bytes::from_static(text), rest];
            let more = more.into_iter().filter(|piece| !piece.is_empty());
            self.pieces.insert_many(place + 1, more);
        }
    }

    fn end(&mut self) {
        if !self.gathered.is_empty() {
            let piece = std::mem::take(&mut self.gathered).freeze();
            self.pieces.push(piece);
        }
    }

    fn is_done(&self) -> bool {
        self.pieces.is_empty() && self.trailers.is_none()
    }
}

/// Pieces of fewer bytes are copied.
const SMALL: usize = 4096;

#[derive(Debug)]
enum Kind {
    /// Read from the connection when polled; the number is that of its request.
    Http1(Rc<RefCell<Core>>, u32),
    /// Read by hyper, usually over HTTP/2.
    Hyper(Incoming, Option<Arrived>),
}

#[derive(Debug, thiserror::Error)]
pub enum InboundError {
    #[error("the connection ended in the middle of the body")]
    Closed,
    #[error("the connection broke")]
    Io(#[source] std::io::Error),
    #[error("the body is malformed")]
    Malformed(#[source] Malformed),
    #[error("the stream broke off")]
    Http2(#[source] hyper::Error),
}

impl Inbound {
    pub(super) fn http1(core: Rc<RefCell<Core>>, request: u32) -> Self {
        Kind::Http1(core, request).into()
    }

    /// Must be created in the first turn of its stream.
    pub(super) fn http2(incoming: Incoming, state: &Arc<State>) -> Self {
        let arrived = (!incoming.is_end_stream()).then(|| Arrived::of_stream(state));
        Kind::Hyper(incoming, arrived).into()
    }

    /// Makes what was read the beginning of what is read next.
    pub fn replay(&mut self, mut replay: Replay) {
        replay.end();
        replay.pieces.reverse();
        self.replay = Some(Box::new(replay)).filter(|replay| !replay.is_done());
    }

    /// Whether all of it has arrived from the client, even if it is still to be read (again).
    pub fn has_arrived(&self) -> bool {
        match &self.kind {
            Kind::Http1(core, request) => core.borrow().is_end(*request),
            Kind::Hyper(incoming, _) => incoming.is_end_stream(),
        }
    }

    /// Announces that the body will be read, for a response that begins before it is: a client of
    /// HTTP/1.1 that waits for a `100 Continue` receives it now.
    pub fn want(&self) {
        if let Kind::Http1(core, request) = &self.kind {
            core.borrow_mut().want(*request);
        }
    }

    /// Whether the server that reads it takes response headers from the response's body
    /// ([`Payload`](super::Payload)): our HTTP/1 server does.
    pub const fn takes_lines(&self) -> bool {
        matches!(self.kind, Kind::Http1(..))
    }

    /// The client's side of a tunnel, for a request whose response may be a 101 (over HTTP/2: an
    /// extended CONNECT with a 200); `None` if there can be none. `extensions` are the request's.
    pub fn upgrade(&self, extensions: &mut Extensions) -> Option<OnUpgrade> {
        match &self.kind {
            Kind::Http1(core, request) => core.borrow_mut().upgrade(*request).map(OnUpgrade::http1),
            Kind::Hyper(..) => extensions
                .remove::<hyper::upgrade::OnUpgrade>()
                .map(OnUpgrade::http2),
        }
    }
}

impl From<Incoming> for Inbound {
    fn from(incoming: Incoming) -> Self {
        Kind::Hyper(incoming, None).into()
    }
}

impl From<Kind> for Inbound {
    fn from(kind: Kind) -> Self {
        Self { kind, replay: None }
    }
}

impl Drop for Inbound {
    fn drop(&mut self) {
        if let Kind::Http1(core, request) = &self.kind
            && let Ok(mut core) = core.try_borrow_mut()
        {
            core.body_dropped(*request);
        }
    }
}

impl Body for Inbound {
    type Data = Bytes;
    type Error = InboundError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, InboundError>>> {
        let this = self.get_mut();
        if let Some(replay) = &mut this.replay {
            if let Some(piece) = replay.pieces.pop() {
                if replay.is_done() {
                    this.replay = None;
                }
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            // Trailers were read, so the body has ended.
            let trailers = this.replay.take().and_then(|replay| replay.trailers);
            if let Some(trailers) = trailers {
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
        }
        match &mut this.kind {
            Kind::Http1(core, request) => core.borrow_mut().poll_frame(*request, cx),
            Kind::Hyper(incoming, arrived) => {
                let frame = std::task::ready!(Pin::new(incoming).poll_frame(cx));
                if let (Some(Ok(frame)), Some(arrived)) = (&frame, arrived) {
                    arrived.add(frame.data_ref().map_or(0, Bytes::len));
                }
                Poll::Ready(frame.map(|frame| frame.map_err(InboundError::Http2)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.replay.is_none() && self.has_arrived()
    }

    fn size_hint(&self) -> SizeHint {
        let left = match &self.kind {
            Kind::Http1(core, request) => core.borrow().size_hint(*request),
            Kind::Hyper(incoming, _) => incoming.size_hint(),
        };
        match (&self.replay, left.exact()) {
            (None, _) => left,
            // Trailers need a body of unknown length.
            (Some(replay), Some(left)) if replay.trailers.is_none() => {
                let again: usize = replay.pieces.iter().map(Bytes::len).sum();
                SizeHint::with_exact(left + again as u64)
            }
            (Some(_), _) => SizeHint::default(),
        }
    }
}
