//! The request's body on its way to the upstream: streamed, counted, bounded, and held back until
//! `100 Continue`.

mod progress;

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

pub(super) use self::progress::Progress;
use super::kept_body::{KeptBody, Turn};
use super::minimum_rate::MinimumRate;
use crate::forward::body::{BodyError, FramePoll, Received};
use crate::headers;
use tollgate_net::server::Inbound;
use tollgate_policy::Guarded;

#[derive(Debug, Default)]
pub struct RequestBody(Content);

#[derive(Debug, Default)]
enum Content {
    #[default]
    Empty,
    Once(BodySource),
    Kept(Turn),
}

#[derive(Debug)]
pub(super) struct BodySource {
    incoming: Inbound,
    /// The bytes that the route still allows.
    left: u64,
    pub(super) progress: Rc<Progress>,
    received: Received,
    /// The headers that decided about the request; they are removed from its trailers.
    guarded: Arc<Guarded>,
}

impl RequestBody {
    pub const fn empty() -> Self {
        Self(Content::Empty)
    }

    /// Wraps `incoming`: passes at most `most` bytes. `gated`: none passes before [`Progress::open`]. A
    /// client slower than `min_rate` fails. Bytes are counted in `received`; trailers in `guarded` are dropped.
    pub(super) fn new(
        incoming: Inbound,
        most: Option<u64>,
        min_rate: MinimumRate,
        received: Received,
        gated: bool,
        guarded: Arc<Guarded>,
    ) -> (Self, Rc<Progress>) {
        let progress = Rc::new(Progress::new(min_rate, incoming.has_arrived(), gated));
        let source = BodySource {
            incoming,
            left: most.unwrap_or(u64::MAX),
            progress: Rc::clone(&progress),
            received,
            guarded,
        };
        (Self(Content::Once(source)), progress)
    }

    /// Keeps the bytes that are sent, so that they can be sent again; `None` if there is nothing to keep.
    pub(super) fn keep(&mut self) -> Option<Rc<KeptBody>> {
        let Content::Once(source) = std::mem::take(&mut self.0) else {
            return None;
        };
        let kept = KeptBody::new(source);
        *self = kept.again();
        Some(kept)
    }

    pub(super) const fn turn(turn: Turn) -> Self {
        Self(Content::Kept(turn))
    }
}

impl BodySource {
    pub(super) fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> FramePoll {
        let frame = self.poll_bounded(cx);
        if let Poll::Ready(Some(Err(error))) = &frame {
            self.progress.fail(error);
        }
        frame
    }

    fn poll_bounded(&mut self, cx: &mut Context<'_>) -> FramePoll {
        let progress = &self.progress;
        std::task::ready!(progress.poll_open(cx));
        let frame = match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending => return progress.wait(cx).map(|error| Some(Err(error))),
        };
        let length = frame
            .as_ref()
            .and_then(|frame| frame.as_ref().ok()?.data_ref())
            .map_or(0, Bytes::len);
        progress.came(length);
        if self.incoming.has_arrived() {
            progress.arrived.set(true);
        }
        let frame = match frame {
            None => {
                progress.arrived.set(true);
                progress.end();
                return Poll::Ready(None);
            }
            Some(Err(error)) => return Poll::Ready(Some(Err(BodyError::Client(error)))),
            Some(Ok(frame)) => frame,
        };
        if let Some(piece) = frame.data_ref() {
            self.received.add(piece.len());
            match self.left.checked_sub(piece.len() as u64) {
                Some(left) => self.left = left,
                None => return Poll::Ready(Some(Err(BodyError::TooBig))),
            }
            if self.incoming.is_end_stream() {
                progress.end();
            }
            return Poll::Ready(Some(Ok(frame)));
        }
        match frame.into_trailers() {
            Ok(mut trailers) => {
                progress.arrived.set(true);
                headers::clean_request_trailers(&mut trailers, &self.guarded);
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
            Err(frame) => Poll::Ready(Some(Ok(frame))),
        }
    }
}

impl Drop for BodySource {
    /// The connection drops the body once it needs nothing more of it, which may be before the end
    /// of the body was polled: after trailers, or after the announced number of bytes.
    fn drop(&mut self) {
        self.progress.end();
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> FramePoll {
        match &mut self.get_mut().0 {
            Content::Empty => Poll::Ready(None),
            Content::Once(source) => source.poll_frame(cx),
            Content::Kept(turn) => turn.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Content::Empty => true,
            Content::Once(source) => source.is_end_stream(),
            Content::Kept(turn) => turn.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Content::Empty => SizeHint::with_exact(0),
            Content::Once(source) => source.size_hint(),
            Content::Kept(turn) => turn.size_hint(),
        }
    }
}
