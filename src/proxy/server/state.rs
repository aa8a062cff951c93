//! What a connection is waiting for, told by its three sides: the socket, the requests, the task that drives it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};

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
    /// Writes that took something.
    writes: AtomicU32,
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
        if self.stalled.load(Ordering::Relaxed) {
            Wait::Reader(self.writes.load(Ordering::Relaxed))
        } else if self.in_flight.load(Ordering::Relaxed) > 0 {
            Wait::Handler
        } else if requests == 0 || (!http2 && self.heard.load(Ordering::Relaxed)) {
            // Later bytes of HTTP/2 may be pings; they do not put off the idle deadline, so they need none of their own.
            Wait::Head(requests)
        } else {
            Wait::Request(requests)
        }
    }

    pub(super) fn read(&self) {
        self.heard.store(true, Ordering::Relaxed);
    }

    /// Whether bytes came in since the last answer was handed over.
    pub(super) fn has_heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }

    pub(super) fn wrote(&self) {
        self.stalled.store(false, Ordering::Relaxed);
        self.writes.store(self.writes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    pub(super) fn stall(&self) {
        self.stalled.store(true, Ordering::Relaxed);
    }
}

/// A request under way, until its answer is handed over or it is dropped.
#[derive(Debug)]
pub(super) struct UnderWay(Arc<State>);

impl UnderWay {
    pub(super) fn begin(state: &Arc<State>) -> Self {
        state.in_flight.store(state.in_flight.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        state.requests.store(state.requests.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        Self(Arc::clone(state))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let left = self.0.in_flight.load(Ordering::Relaxed) - 1;
        self.0.in_flight.store(left, Ordering::Relaxed);
        if left == 0 {
            self.0.heard.store(false, Ordering::Relaxed);
        }
    }
}

/// An answer's body that keeps its request under way until it is handed over.
#[derive(Debug)]
pub(super) struct Tracked<B> {
    pub(super) body: B,
    pub(super) _under_way: UnderWay,
}

impl<B: Body + Unpin> Body for Tracked<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
