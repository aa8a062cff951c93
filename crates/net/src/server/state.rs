//! What an HTTP/2 connection is waiting for, told by its three sides: the socket, the streams, the task that drives it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Buf;
use http_body::{Body, Frame, SizeHint};

use super::ahead::{Ahead, Unsent};
use super::streams::Piece;

/// Shared by the socket (which must be `Send` for upgrades), the answers' bodies and the driving task. All of them
/// live on one thread, so plain loads and stores do; the atomics only satisfy the types.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Requests whose answer is not yet handed over in full.
    in_flight: AtomicU32,
    /// Requests so far.
    requests: AtomicU32,
    /// The caller takes nothing: the last write found the socket full.
    stalled: AtomicBool,
    /// Writes that took something, pieces of requests that came, and pieces of answers that were asked for.
    progress: AtomicU32,
    /// Answers whose next piece nobody asked for yet: their streams have no window left.
    blocked: AtomicU32,
}

/// What a connection is waiting for. A change means another deadline; the numbers make two of a kind differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// A request's first byte.
    Request(u32),
    /// The first request's head.
    Head,
    /// The caller to take bytes.
    Reader(u32),
    /// The handler.
    Handler,
}

impl State {
    pub(super) fn wait(&self) -> Wait {
        let requests = self.requests.load(Ordering::Relaxed);
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        let blocked = in_flight > 0 && self.blocked.load(Ordering::Relaxed) == in_flight;
        if blocked || self.stalled.load(Ordering::Relaxed) {
            Wait::Reader(self.progress.load(Ordering::Relaxed))
        } else if in_flight > 0 {
            Wait::Handler
        } else if requests == 0 {
            // Later bytes may be pings; they do not put off the idle deadline, so they need none of their own.
            Wait::Head
        } else {
            Wait::Request(requests)
        }
    }

    /// A write took bytes.
    pub(super) fn wrote(&self) {
        self.stalled.store(false, Ordering::Relaxed);
        step(&self.progress);
    }

    /// A piece of a request came.
    pub(super) fn came(&self) {
        step(&self.progress);
    }

    /// The socket takes no bytes for now.
    pub(super) fn stall(&self) {
        self.stalled.store(true, Ordering::Relaxed);
    }
}

/// A request under way, until its answer is handed over or it is dropped.
#[derive(Debug)]
pub(super) struct UnderWay(pub(super) Arc<State>);

impl UnderWay {
    pub(super) fn begin(state: &Arc<State>) -> Self {
        step(&state.in_flight);
        step(&state.requests);
        Self(Arc::clone(state))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        step_back(&self.0.in_flight);
    }
}

/// Keeps a request under way for as long as what it asked for, a tunnel over HTTP/2, is carried.
#[derive(Clone, Debug)]
pub struct Hold(#[expect(dead_code, reason = "it is there to be dropped")] Arc<UnderWay>);

impl Hold {
    pub(super) fn begin(state: &Arc<State>) -> Self {
        Self(Arc::new(UnderWay::begin(state)))
    }
}

/// An answer's body that keeps its request under way until it is handed over.
#[derive(Debug)]
pub(super) struct Tracked<B> {
    body: B,
    /// Counted in [`State::blocked`].
    blocked: bool,
    ahead: Ahead,
    under_way: UnderWay,
}

impl<B> Tracked<B> {
    pub(super) fn new(body: B, under_way: UnderWay) -> Self {
        Self {
            body,
            blocked: false,
            ahead: Ahead::default(),
            under_way,
        }
    }
}

impl<B: Body + Unpin> Body for Tracked<B> {
    type Data = Unsent<B::Data>;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        // Its caller is still what is waited for.
        ready!(self.ahead.poll_room(context));
        let frame = Pin::new(&mut self.body).poll_frame(context);
        let state = &self.under_way.0;
        step(&state.progress);
        // A piece handed over: until the next is asked for, the caller is what is waited for.
        let blocked = frame.is_ready();
        match &frame {
            Poll::Ready(Some(Ok(frame))) => {
                Piece::Given(frame.data_ref().map_or(0, Buf::remaining))
            }
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
        let ahead = &self.ahead;
        frame.map(|frame| {
            frame.map(|frame| frame.map(|frame| frame.map_data(|data| ahead.count(data))))
        })
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
        let (request, hold) = (UnderWay::begin(&state), Hold::begin(&state));
        drop(request);
        let carried = hold.clone();
        drop(hold);
        assert_eq!(
            state.wait(),
            Wait::Handler,
            "its stream is no request any more, but not over"
        );
        drop(carried);
        assert_eq!(state.wait(), Wait::Request(2));
    }
}
