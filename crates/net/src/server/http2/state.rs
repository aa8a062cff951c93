//! What an HTTP/2 connection is waiting for, by its socket, its streams and its driving task.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Buf;
use http_body::{Body, Frame, SizeHint};

use super::ahead::{Ahead, Unsent};
use super::streams::Piece;

/// Shared by the socket (which must be `Send` for upgrades), the response bodies and the driving
/// task. All of them live on one thread, so plain loads and stores suffice; the atomics exist only
/// for the types.
#[derive(Debug, Default)]
pub(crate) struct State {
    in_flight: AtomicU32,
    requests: AtomicU32,
    /// Whether the client accepts no bytes: the last write found the socket full.
    stalled: AtomicBool,
    /// Counts accepted writes, arrived pieces of requests, and requested pieces of responses.
    progress: AtomicU32,
    /// The number of responses whose streams have no window left, so that no piece is requested.
    blocked: AtomicU32,
}

/// The event that a connection waits for. A change sets a new deadline; the numbers distinguish
/// events of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Request(u32),
    Head,
    /// For the client to accept bytes.
    Reader(u32),
    Handler,
}

impl State {
    pub(crate) fn wait(&self) -> Wait {
        let requests = self.requests.load(Ordering::Relaxed);
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        let blocked = in_flight > 0 && self.blocked.load(Ordering::Relaxed) == in_flight;
        if blocked || self.stalled.load(Ordering::Relaxed) {
            Wait::Reader(self.progress.load(Ordering::Relaxed))
        } else if in_flight > 0 {
            Wait::Handler
        } else if requests == 0 {
            // Later bytes may be pings, which do not extend the idle deadline.
            Wait::Head
        } else {
            Wait::Request(requests)
        }
    }

    pub(crate) fn wrote(&self) {
        self.stalled.store(false, Ordering::Relaxed);
        step(&self.progress);
    }

    pub(crate) fn came(&self) {
        step(&self.progress);
    }

    pub(crate) fn stall(&self) {
        self.stalled.store(true, Ordering::Relaxed);
    }
}

/// Counts a request as in progress until its response is handed over or it is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay(pub(crate) Arc<State>);

impl UnderWay {
    pub(crate) fn begin(state: &Arc<State>) -> Self {
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

/// Keeps a request in progress while its tunnel over HTTP/2 is open.
#[derive(Clone, Debug)]
pub struct Hold(#[expect(dead_code, reason = "it is there to be dropped")] Arc<UnderWay>);

impl Hold {
    pub(crate) fn begin(state: &Arc<State>) -> Self {
        Self(Arc::new(UnderWay::begin(state)))
    }
}

/// A response body that keeps its request in progress until it is handed over.
#[derive(Debug)]
pub(crate) struct Tracked<B> {
    body: B,
    /// Whether it is counted in [`State::blocked`].
    blocked: bool,
    ahead: Ahead,
    under_way: UnderWay,
}

impl<B> Tracked<B> {
    pub(crate) fn new(body: B, under_way: UnderWay) -> Self {
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
        // The connection still waits for the client.
        ready!(self.ahead.poll_room(context));
        let frame = Pin::new(&mut self.body).poll_frame(context);
        let state = &self.under_way.0;
        step(&state.progress);
        // Until the next piece is requested, the connection waits for the client.
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

// No read-modify-write instructions are needed: only one thread accesses these.

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
