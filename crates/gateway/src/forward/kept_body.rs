//! A request's body of which the beginning is kept while no response has begun, so that it can be sent again to where
//! nobody has processed it: on another HTTP/2 connection, after GOAWAY or REFUSED_STREAM.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};

use super::request_body::{RequestBody, Source};
use crate::body::BodyError;

/// The body, and what of it went out.
#[derive(Debug)]
pub(super) struct KeptBody {
    source: RefCell<Source>,
    sent: RefCell<Sent>,
    /// The turn that may read it. Bodies of earlier turns belong to streams that have ended, and get nothing.
    turn: Cell<u32>,
}

#[derive(Debug, Default)]
struct Sent {
    /// Copied: a piece may be a small part of a large buffer, which it would hold.
    bytes: Vec<u8>,
    trailers: Option<HeaderMap>,
    /// More went out than is kept.
    lost: bool,
}

/// The body as one attempt sends it.
#[derive(Debug)]
pub(super) struct Turn {
    kept: Rc<KeptBody>,
    turn: u32,
    /// Bytes of what is kept that this turn has sent.
    at: usize,
}

impl KeptBody {
    /// Nothing of `source` has gone out.
    pub(super) fn new(source: Source) -> Rc<Self> {
        Rc::new(Self { source: RefCell::new(source), sent: RefCell::default(), turn: Cell::new(0) })
    }

    /// The body from its beginning. Bodies made before get nothing more.
    pub(super) fn again(self: &Rc<Self>) -> RequestBody {
        let turn = self.turn.get() + 1;
        self.turn.set(turn);
        self.source.borrow().progress().restart();
        RequestBody::turn(Turn { kept: Rc::clone(self), turn, at: 0 })
    }

    /// Whether it can be sent from its beginning.
    pub(super) fn is_whole(&self) -> bool {
        !self.sent.borrow().lost
    }

    /// It is not sent again: nothing more is kept.
    pub(super) fn forget(&self) {
        *self.sent.borrow_mut() = Sent { lost: true, ..Sent::default() };
    }
}

impl Sent {
    fn keep(&mut self, frame: &Frame<Bytes>) {
        if self.lost {
            return;
        }
        if let Some(piece) = frame.data_ref() {
            if self.bytes.len() + piece.len() > KEPT_MOST {
                *self = Self { lost: true, ..Self::default() };
            } else {
                self.bytes.extend_from_slice(piece);
            }
        } else if let Some(trailers) = frame.trailers_ref() {
            self.trailers = Some(trailers.clone());
        }
    }
}

impl Turn {
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.turn != self.kept.turn.get() {
            return Poll::Ready(Some(Err(BodyError::ClientGone)));
        }
        let mut source = self.kept.source.borrow_mut();
        let mut sent = self.kept.sent.borrow_mut();
        if self.at < sent.bytes.len() {
            let piece = Bytes::copy_from_slice(&sent.bytes[self.at..]);
            self.at = sent.bytes.len();
            source.progress().piece();
            if source.is_end_stream() && sent.trailers.is_none() {
                source.progress().end();
            }
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if source.is_end_stream()
            && let Some(trailers) = sent.trailers.as_ref().filter(|_| self.at < usize::MAX)
        {
            self.at = usize::MAX;
            source.progress().end();
            return Poll::Ready(Some(Ok(Frame::trailers(trailers.clone()))));
        }
        let frame = source.poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            sent.keep(frame);
            self.at = if frame.is_trailers() { usize::MAX } else { sent.bytes.len() };
        }
        frame
    }

    pub(super) fn is_end_stream(&self) -> bool {
        let sent = self.kept.sent.borrow();
        let replayed = self.at >= sent.bytes.len() && (sent.trailers.is_none() || self.at == usize::MAX);
        replayed && self.kept.source.borrow().is_end_stream()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let replayed = self.kept.sent.borrow().bytes.len().saturating_sub(self.at) as u64;
        match self.kept.source.borrow().size_hint().exact() {
            Some(left) => SizeHint::with_exact(left + replayed),
            None => SizeHint::default(),
        }
    }
}

/// Bytes of a body that are kept: most bodies are shorter, and a request holds no more memory than this for it.
const KEPT_MOST: usize = 64 * 1024;
