//! What a connection is waiting for, told by its three sides: the socket, the requests, the task that drives it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};

use bytes::Buf;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;

use super::streams::Piece;

/// Shared by the socket (which must be `Send` for upgrades), the answers' bodies and the driving task. All of them
/// live on one thread, so plain loads and stores do; the atomics only satisfy the types.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Requests whose answer is not yet handed over in full.
    in_flight: AtomicU32,
    /// Requests so far.
    requests: AtomicU32,
    /// Bytes came in since the last answer was handed over.
    heard: AtomicBool,
    /// The caller takes nothing: the last write found the socket full.
    stalled: AtomicBool,
    /// Writes that took something, and pieces of answers that were asked for.
    progress: AtomicU32,
    /// Answers whose next piece nobody asked for yet: over HTTP/2 their streams have no window left.
    blocked: AtomicU32,
    /// The last request came with a body.
    with_body: AtomicBool,
    /// An answer was handed over, and is not yet written in full.
    unwritten: AtomicBool,
    /// The caller will send no more.
    ended: AtomicBool,
    /// The protocol library has let go of the socket: what it still carries is a tunnel.
    let_go: AtomicBool,
    /// The last read found nothing.
    dry: AtomicBool,
    /// The protocol library is asked whether it is done, and is not to close the socket over the answer.
    asking: AtomicBool,
    /// Interim answers that are yet to be written, and whether there are any.
    interim: Mutex<Vec<u8>>,
    interjects: AtomicBool,
}

/// What a connection is waiting for. A change means another deadline; the numbers make two of a kind differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// A request's first byte.
    Request(u32),
    /// The rest of a request's head.
    Head(u32),
    /// The caller to take bytes.
    Reader(u32),
    /// The handler.
    Handler,
}

impl State {
    pub(super) fn wait(&self, http2: bool) -> Wait {
        let requests = self.requests.load(Ordering::Relaxed);
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        let blocked = http2 && in_flight > 0 && self.blocked.load(Ordering::Relaxed) == in_flight;
        if blocked || self.stalled.load(Ordering::Relaxed) {
            Wait::Reader(self.progress.load(Ordering::Relaxed))
        } else if in_flight > 0 {
            Wait::Handler
        } else if requests == 0 || (!http2 && self.heard.load(Ordering::Relaxed)) {
            // Later bytes of HTTP/2 may be pings; they do not put off the idle deadline, so they need none of their own.
            Wait::Head(requests)
        } else {
            Wait::Request(requests)
        }
    }

    /// Has `head`, an interim answer, written before anything else; dropped when what was handed over before is not yet
    /// written, or when more than `most` bytes would wait.
    pub(super) fn interject(&self, head: &[u8], most: usize) {
        let mut interim = self.interim.lock();
        if self.unwritten.load(Ordering::Relaxed) || interim.len() + head.len() > most {
            return;
        }
        interim.extend_from_slice(head);
        self.interjects.store(true, Ordering::Relaxed);
    }

    /// Whether interim answers are to be written.
    pub(super) fn interjects(&self) -> bool {
        self.interjects.load(Ordering::Relaxed)
    }

    /// The interim answers to be written.
    pub(super) fn take_interim(&self) -> Vec<u8> {
        self.interjects.store(false, Ordering::Relaxed);
        std::mem::take(&mut self.interim.lock())
    }

    /// Puts back what could not be written.
    pub(super) fn keep_interim(&self, rest: Vec<u8>) {
        self.interjects.store(!rest.is_empty(), Ordering::Relaxed);
        *self.interim.lock() = rest;
    }

    pub(super) fn read(&self) {
        self.heard.store(true, Ordering::Relaxed);
        self.dry.store(false, Ordering::Relaxed);
    }

    /// A read found nothing.
    pub(super) fn dry(&self) {
        self.dry.store(true, Ordering::Relaxed);
    }

    /// Whether bytes came in since the last answer was handed over.
    pub(super) fn has_heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }

    /// A write took bytes: all that it was given, or some.
    pub(super) fn wrote(&self, all: bool) {
        self.stalled.store(false, Ordering::Relaxed);
        if all {
            self.unwritten.store(false, Ordering::Relaxed);
        }
        step(&self.progress);
    }

    /// Whether what is written now is no handler's answer.
    pub(super) fn unasked(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) == 0 && !self.unwritten.load(Ordering::Relaxed)
    }

    /// Whether a request is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) > 0
    }

    /// The protocol library has let go of the socket.
    pub(super) fn let_go(&self) {
        self.let_go.store(true, Ordering::Relaxed);
    }

    /// Whether one end of a tunnel is told at once when the other has ended.
    pub(super) fn is_let_go(&self) -> bool {
        self.let_go.load(Ordering::Relaxed)
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Whether the last request was answered in full, and no byte of the next one has come. The rest of its body may
    /// still be coming ([`State::may_be_sending`]).
    pub(super) fn at_rest(&self) -> bool {
        self.dry.load(Ordering::Relaxed) && !self.unwritten.load(Ordering::Relaxed)
    }

    /// Whether the protocol library is only asked whether it is done.
    pub(super) fn asking(&self) -> bool {
        self.asking.load(Ordering::Relaxed)
    }

    pub(super) fn ask(&self, asking: bool) {
        self.asking.store(asking, Ordering::Relaxed);
    }

    /// The last request's body has been read to its end.
    pub(super) fn body_ended(&self) {
        self.with_body.store(false, Ordering::Relaxed);
    }

    /// Whether the caller may still be sending a body that nobody reads.
    pub(super) fn may_be_sending(&self) -> bool {
        self.with_body.load(Ordering::Relaxed) && !self.has_ended()
    }

    pub(super) fn stall(&self) {
        self.stalled.store(true, Ordering::Relaxed);
    }
}

/// A request under way, until its answer is handed over or it is dropped.
#[derive(Debug)]
pub(super) struct UnderWay(Arc<State>);

impl UnderWay {
    pub(super) fn begin(state: &Arc<State>, with_body: bool) -> Self {
        step(&state.in_flight);
        step(&state.requests);
        state.with_body.store(with_body, Ordering::Relaxed);
        Self(Arc::clone(state))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.unwritten.store(true, Ordering::Relaxed);
        if step_back(&self.0.in_flight) == 0 {
            self.0.heard.store(false, Ordering::Relaxed);
        }
    }
}

/// Keeps a request under way for as long as what it asked for, a tunnel over HTTP/2, is carried.
#[derive(Clone, Debug)]
pub struct Hold(#[expect(dead_code, reason = "it is there to be dropped")] Arc<UnderWay>);

impl Hold {
    pub(super) fn begin(state: &Arc<State>) -> Self {
        Self(Arc::new(UnderWay::begin(state, false)))
    }
}

/// An answer's body that keeps its request under way until it is handed over.
#[derive(Debug)]
pub(super) struct Tracked<B> {
    body: B,
    /// Counted in [`State::blocked`].
    blocked: bool,
    under_way: UnderWay,
}

impl<B> Tracked<B> {
    pub(super) fn new(body: B, under_way: UnderWay) -> Self {
        Self { body, blocked: false, under_way }
    }
}

impl<B: Body + Unpin> Body for Tracked<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        let state = &self.under_way.0;
        step(&state.progress);
        // A piece handed over: until the next is asked for, the caller is what is waited for.
        let blocked = frame.is_ready();
        match &frame {
            Poll::Ready(Some(Ok(frame))) => Piece::Given(frame.data_ref().map_or(0, Buf::remaining)),
            Poll::Ready(_) => Piece::Given(0),
            Poll::Pending => Piece::Awaited,
        }
        .tell();
        match (self.blocked, blocked) {
            (false, true) => _ = step(&state.blocked),
            (true, false) => _ = step_back(&state.blocked),
            _ => {}
        }
        self.blocked = blocked;
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for Tracked<B> {
    fn drop(&mut self) {
        if self.blocked {
            step_back(&self.under_way.0.blocked);
        }
    }
}

// Not read-modify-write instructions: only one thread ever touches these.

fn step(counter: &AtomicU32) -> u32 {
    let value = counter.load(Ordering::Relaxed).wrapping_add(1);
    counter.store(value, Ordering::Relaxed);
    value
}

fn step_back(counter: &AtomicU32) -> u32 {
    let value = counter.load(Ordering::Relaxed).wrapping_sub(1);
    counter.store(value, Ordering::Relaxed);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_does_not_rest_while_it_carries_a_tunnel() {
        let state = Arc::new(State::default());
        let (request, hold) = (UnderWay::begin(&state, false), Hold::begin(&state));
        drop(request);
        let carried = hold.clone();
        drop(hold);
        assert_eq!(state.wait(true), Wait::Handler, "its stream is no request any more, but not over");
        drop(carried);
        assert_eq!(state.wait(true), Wait::Request(2));
    }
}
