//! The request's body on its way to the upstream: streamed, counted, bounded, and held back until
//! `100 Continue`.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::kept_body::{KeptBody, Turn};
use super::minimum_rate::MinimumRate;
use crate::body::{BodyError, Received};
use crate::headers;
use tollgate_net::server::Inbound;
use tollgate_policy::Guarded;

/// The body of a forwarded request.
#[derive(Debug, Default)]
pub struct RequestBody {
    content: Option<Content>,
}

#[derive(Debug)]
enum Content {
    /// A body that is sent once.
    Once(Source),
    /// A body that may have to be sent again.
    Kept(Turn),
}

#[derive(Debug)]
pub(super) struct Source {
    incoming: Inbound,
    /// The bytes that the route still allows.
    left: u64,
    progress: Rc<Progress>,
    received: Received,
    gate: Option<Arc<Gate>>,
    /// The headers that decided about the request; they are removed from its trailers.
    guarded: Arc<Guarded>,
}

/// The state of a body that has been passed to the connection, as the exchange sees it.
#[derive(Debug)]
pub(super) struct Progress {
    /// How long to wait for the body. Stored here, so that the request does not become larger.
    pace: RefCell<MinimumRate>,
    pieces: Cell<u64>,
    ended: Cell<bool>,
    /// Whether all of it has arrived from the client.
    arrived: Cell<bool>,
    waiting: Cell<bool>,
    waited: Cell<bool>,
    has_response: Cell<bool>,
    /// Whether it is held back until the upstream asks for it.
    gated: Cell<bool>,
    /// The task to wake at its end.
    at_end: RefCell<Option<Waker>>,
}

impl Progress {
    /// The number of pieces sent so far; it stands still when the body does.
    pub(super) fn pieces(&self) -> u64 {
        self.pieces.get()
    }

    /// Whether the gateway waits for the client's next piece.
    pub(super) fn waiting(&self) -> bool {
        self.waiting.get()
    }

    /// Whether the gateway ever waited for the client, so that part of the total time is the
    /// client's.
    pub(super) fn was_waited_for(&self) -> bool {
        self.waited.get()
    }

    /// Records that the response has begun.
    pub(super) fn response_began(&self) {
        self.has_response.set(true);
    }

    /// Whether it is held back until the upstream asks for it.
    pub(super) fn gated(&self) -> bool {
        self.gated.get()
    }

    /// Registers `waker` to be woken when the whole body has been sent.
    pub(super) fn wake_at_end(&self, waker: &Waker) {
        let mut known = self.at_end.borrow_mut();
        if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *known = Some(waker.clone());
        }
    }

    /// Records that the body is sent again from its beginning.
    pub(super) fn restart(&self) {
        self.ended.set(false);
        self.waiting.set(false);
    }

    /// Records that another piece was sent.
    pub(super) fn piece(&self) {
        self.pieces.set(self.pieces.get().wrapping_add(1));
    }

    /// Records that the whole body has been sent.
    pub(super) fn end(&self) {
        self.ended.set(true);
        if let Some(waker) = self.at_end.take() {
            waker.wake();
        }
    }

    /// Whether the whole body has been sent, or no more of it will be.
    pub(super) fn ended(&self) -> bool {
        self.ended.get()
    }

    /// Records that all of it has arrived from the client.
    pub(super) fn arrive(&self) {
        self.arrived.set(true);
    }

    /// Whether all of it has arrived from the client, so that the client is not what the upstream
    /// waits for.
    pub(super) fn has_arrived(&self) -> bool {
        self.arrived.get()
    }
}

/// Holds a body back until the upstream asks for it.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<(bool, Option<Waker>)>,
}

impl Gate {
    /// Lets the body through.
    pub(super) fn open(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = true;
        if let Some(waker) = state.1.take() {
            waker.wake();
        }
    }

    fn poll_open(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.0 {
            return Poll::Ready(());
        }
        state.1 = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl RequestBody {
    /// No body.
    pub const fn empty() -> Self {
        Self { content: None }
    }

    /// Wraps `incoming`: passes at most `most` bytes, and none before `gate` opens. A client slower
    /// than `pace` fails. Bytes are counted in `received`; trailers in `guarded` are dropped.
    pub(super) fn new(
        incoming: Inbound,
        most: Option<u64>,
        pace: MinimumRate,
        received: Received,
        gate: Option<Arc<Gate>>,
        guarded: Arc<Guarded>,
    ) -> (Self, Rc<Progress>) {
        let progress = Rc::new(Progress {
            pace: RefCell::new(pace),
            pieces: Cell::default(),
            ended: Cell::default(),
            arrived: Cell::new(incoming.has_arrived()),
            waiting: Cell::default(),
            waited: Cell::default(),
            has_response: Cell::default(),
            gated: Cell::new(gate.is_some()),
            at_end: RefCell::default(),
        });
        let source = Source {
            incoming,
            left: most.unwrap_or(u64::MAX),
            progress: Rc::clone(&progress),
            received,
            gate,
            guarded,
        };
        (
            Self {
                content: Some(Content::Once(source)),
            },
            progress,
        )
    }

    /// Keeps the bytes that are sent, so that they can be sent again; `None` if there is nothing to
    /// keep.
    pub(super) fn keep(&mut self) -> Option<Rc<KeptBody>> {
        let Some(Content::Once(source)) = self.content.take() else {
            return None;
        };
        let kept = KeptBody::new(source);
        *self = kept.again();
        Some(kept)
    }

    /// Another turn of a kept body.
    pub(super) const fn turn(turn: Turn) -> Self {
        Self {
            content: Some(Content::Kept(turn)),
        }
    }
}

impl Source {
    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(gate) = &self.gate {
            std::task::ready!(gate.poll_open(cx));
            self.gate = None;
            self.progress.gated.set(false);
        }
        let progress = &self.progress;
        let frame = match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                progress.waiting.set(true);
                progress.waited.set(true);
                return progress
                    .pace
                    .borrow_mut()
                    .poll(cx, progress.has_response.get())
                    .map(|error| Some(Err(error)));
            }
        };
        let length = frame
            .as_ref()
            .and_then(|frame| frame.as_ref().ok()?.data_ref())
            .map_or(0, Bytes::len);
        progress.pace.borrow_mut().came(length);
        progress.waiting.set(false);
        progress.piece();
        if self.incoming.has_arrived() {
            progress.arrive();
        }
        let frame = match frame {
            None => {
                progress.arrive();
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
                progress.arrive();
                if headers::clean_request_trailers(&mut trailers, &self.guarded).is_err() {
                    return Poll::Ready(Some(Err(BodyError::ClientTrailers)));
                }
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
            Err(frame) => Poll::Ready(Some(Ok(frame))),
        }
    }
}

impl Drop for Source {
    /// The connection drops the body once it needs nothing more of it, which may be before the end
    /// of the body was polled: after trailers, or after the announced number of bytes.
    fn drop(&mut self) {
        self.progress.end();
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.get_mut().content {
            None => Poll::Ready(None),
            Some(Content::Once(source)) => source.poll_frame(cx),
            Some(Content::Kept(turn)) => turn.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            None => true,
            Some(Content::Once(source)) => source.is_end_stream(),
            Some(Content::Kept(turn)) => turn.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            None => SizeHint::with_exact(0),
            Some(Content::Once(source)) => source.size_hint(),
            Some(Content::Kept(turn)) => turn.size_hint(),
        }
    }
}
