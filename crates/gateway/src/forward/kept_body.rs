//! A request body whose beginning is kept until the response begins, so that it can be sent again
//! if the server has not processed it: on another HTTP/2 connection, after GOAWAY or REFUSED_STREAM.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};

use super::request_body::{BodySource, RequestBody};
use crate::forward::body::{BodyError, FramePoll};

#[derive(Debug)]
pub(super) struct KeptBody {
    source: RefCell<BodySource>,
    sent: RefCell<Sent>,
    /// The number of the turn that may read it. Bodies of earlier turns belong to streams that have
    /// ended, and read nothing.
    turn: Cell<u32>,
}

#[derive(Debug, Default)]
struct Sent {
    /// Copied, because a piece may be a small part of a large buffer and would keep that alive.
    bytes: Vec<u8>,
    trailers: Option<HeaderMap>,
    /// Nothing more is kept: too much was sent, or the body will not be sent again.
    lost: bool,
    /// How many of the kept bytes the present turn has sent.
    at: usize,
    trailed: bool,
}

/// The body as one attempt sends it.
#[derive(Debug)]
pub(super) struct Turn {
    kept: Rc<KeptBody>,
    turn: u32,
}

impl KeptBody {
    pub(super) fn new(source: BodySource) -> Rc<Self> {
        Rc::new(Self {
            source: RefCell::new(source),
            sent: RefCell::default(),
            turn: Cell::new(0),
        })
    }

    /// Returns the body from its beginning. Bodies returned earlier read nothing more.
    pub(super) fn again(self: &Rc<Self>) -> RequestBody {
        let turn = self.turn.get() + 1;
        self.turn.set(turn);
        self.source.borrow().progress.restart();
        self.sent.borrow_mut().restart();
        RequestBody::turn(Turn {
            kept: Rc::clone(self),
            turn,
        })
    }

    pub(super) fn is_whole(&self) -> bool {
        !self.sent.borrow().lost
    }

    /// Stops keeping, because the body will not be sent again. Bytes that the present turn has
    /// still to send are kept until then, because a response may begin before the server has room
    /// for the body.
    pub(super) fn forget(&self) {
        self.sent.borrow_mut().forget();
    }
}

impl Sent {
    const fn restart(&mut self) {
        (self.at, self.trailed) = (0, false);
    }

    fn forget(&mut self) {
        self.lost = true;
        self.release();
    }

    /// Keeps a frame that comes from the source. All bytes kept earlier have been sent by then.
    fn keep(&mut self, frame: &Frame<Bytes>) {
        if let Some(piece) = frame.data_ref() {
            self.lost |= self.bytes.len() + piece.len() > KEPT_MOST;
            if !self.lost {
                self.bytes.extend_from_slice(piece);
            }
            self.at = self.bytes.len();
        } else if let Some(trailers) = frame.trailers_ref() {
            self.trailed = true;
            if !self.lost {
                self.trailers = Some(trailers.clone());
            }
        }
        self.release();
    }

    fn release(&mut self) {
        if self.lost && self.at >= self.bytes.len() {
            (self.bytes, self.at) = (Vec::new(), 0);
        }
        if self.lost && self.trailed {
            self.trailers = None;
        }
    }

    /// Returns the next kept frame that the present turn has not sent, and whether it is the last.
    fn replay(&mut self) -> Option<(Frame<Bytes>, bool)> {
        let frame = if self.at < self.bytes.len() {
            let piece = Bytes::copy_from_slice(&self.bytes[self.at..]);
            self.at = self.bytes.len();
            Frame::data(piece)
        } else {
            // After trailers the source yields nothing more.
            let trailers = self.trailers.clone().filter(|_| !self.trailed)?;
            self.trailed = true;
            Frame::trailers(trailers)
        };
        self.release();
        Some((frame, self.is_replayed()))
    }

    /// Whether the present turn has sent everything that is kept.
    const fn is_replayed(&self) -> bool {
        self.at >= self.bytes.len() && (self.trailers.is_none() || self.trailed)
    }
}

impl Turn {
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> FramePoll {
        if self.turn != self.kept.turn.get() {
            return Poll::Ready(Some(Err(BodyError::ClientGone)));
        }
        let mut source = self.kept.source.borrow_mut();
        let mut sent = self.kept.sent.borrow_mut();
        if let Some((frame, last)) = sent.replay() {
            source.progress.piece();
            if last && source.is_end_stream() {
                source.progress.end();
            }
            return Poll::Ready(Some(Ok(frame)));
        }
        let frame = source.poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            sent.keep(frame);
        }
        frame
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.turn == self.kept.turn.get()
            && self.kept.sent.borrow().is_replayed()
            && self.kept.source.borrow().is_end_stream()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let sent = self.kept.sent.borrow();
        let replayed = sent.bytes.len().saturating_sub(sent.at) as u64;
        match self.kept.source.borrow().size_hint().exact() {
            Some(left) if self.turn == self.kept.turn.get() => {
                SizeHint::with_exact(left + replayed)
            }
            _ => SizeHint::default(),
        }
    }
}

impl Drop for Turn {
    /// Like the drop of a body that is sent once. Another turn may follow, and begins anew.
    fn drop(&mut self) {
        if self.turn == self.kept.turn.get() {
            self.kept.source.borrow().progress.end();
        }
    }
}

/// The largest number of bytes that are kept: most bodies are shorter, and a request uses no more
/// memory than this for it.
const KEPT_MOST: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn data(piece: &'static str) -> Frame<Bytes> {
        Frame::data(Bytes::from_static(piece.as_bytes()))
    }

    #[test]
    fn kept_body_forgotten_before_its_turn_sent_it_is_replayed_whole_and_then_given_up() {
        let trailers =
            HeaderMap::from_iter([(http::header::ETAG, http::HeaderValue::from_static("x"))]);
        for trailed in [false, true] {
            let mut sent = Sent::default();
            sent.keep(&data("hello"));
            sent.keep(&data(" world"));
            if trailed {
                sent.keep(&Frame::trailers(trailers.clone()));
            }
            sent.restart();
            sent.forget();
            assert!(sent.lost && !sent.is_replayed());
            let (frame, last) = sent.replay().expect("the beginning");
            assert_eq!(
                (frame.into_data().expect("data"), last),
                (Bytes::from_static(b"hello world"), !trailed)
            );
            assert_eq!(sent.bytes.capacity(), 0);
            if trailed {
                assert!(!sent.is_replayed());
                let (frame, last) = sent.replay().expect("the trailers");
                assert_eq!(
                    (frame.into_trailers().expect("trailers"), last),
                    (trailers.clone(), true)
                );
            }
            assert!(sent.replay().is_none() && sent.is_replayed() && sent.trailers.is_none());
            sent.keep(&data("more"));
            assert!(
                sent.bytes.is_empty() && sent.is_replayed(),
                "nothing more is kept"
            );
        }
    }

    #[test]
    fn kept_body_forgotten_once_it_is_sent_is_given_up_at_once() {
        let mut sent = Sent::default();
        sent.keep(&data("hello"));
        sent.forget();
        assert!(sent.bytes.capacity() == 0 && sent.is_replayed());
    }
}
