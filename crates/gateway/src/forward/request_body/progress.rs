//! The state of a request's body on its way, as the exchange with the upstream sees it.

use std::cell::{Cell, RefCell};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::body::BodyError;
use crate::forward::minimum_rate::MinimumRate;

/// The state of a body that has been passed to the connection, as the exchange sees it.
#[derive(Debug)]
pub(in crate::forward) struct Progress {
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
    failure: RefCell<Option<BodyError>>,
}

impl Progress {
    /// Nothing has been sent of a body that has to arrive at `pace`. `arrived`: all of it is here;
    /// `gated`: it is held back until the upstream asks for it.
    pub(super) fn new(pace: MinimumRate, arrived: bool, gated: bool) -> Self {
        Self {
            pace: RefCell::new(pace),
            pieces: Cell::default(),
            ended: Cell::default(),
            arrived: Cell::new(arrived),
            waiting: Cell::default(),
            waited: Cell::default(),
            has_response: Cell::default(),
            gated: Cell::new(gated),
            at_end: RefCell::default(),
            failure: RefCell::default(),
        }
    }

    /// The number of pieces sent so far; it stands still when the body does.
    pub(in crate::forward) fn pieces(&self) -> u64 {
        self.pieces.get()
    }

    /// Whether the gateway waits for the client's next piece.
    pub(in crate::forward) fn waiting(&self) -> bool {
        self.waiting.get()
    }

    /// Whether the gateway ever waited for the client, so that part of the total time is the
    /// client's.
    pub(in crate::forward) fn was_waited_for(&self) -> bool {
        self.waited.get()
    }

    /// How long the gateway waited for the client in all.
    pub(in crate::forward) fn waited(&self) -> Duration {
        self.pace.borrow().waited()
    }

    /// Whether the client sends so slowly that the upstream may have given up because of that.
    pub(in crate::forward) fn is_slow(&self) -> bool {
        self.pace.borrow().is_slow()
    }

    /// Called while the client's next piece is awaited; ready with the error if that has lasted too
    /// long.
    pub(super) fn wait(&self, cx: &Context<'_>) -> Poll<BodyError> {
        self.waiting.set(true);
        self.waited.set(true);
        self.pace.borrow_mut().poll(cx, self.has_response.get())
    }

    /// Records that the next piece, of this many bytes, came from the client and is sent.
    pub(super) fn came(&self, bytes: usize) {
        self.pace.borrow_mut().came(bytes);
        self.waiting.set(false);
        self.piece();
    }

    /// Records that the response has begun.
    pub(in crate::forward) fn response_began(&self) {
        self.has_response.set(true);
    }

    /// Whether it is held back until the upstream asks for it.
    pub(in crate::forward) fn gated(&self) -> bool {
        self.gated.get()
    }

    /// Records that it is no longer held back.
    pub(super) fn ungate(&self) {
        self.gated.set(false);
    }

    /// Registers `waker` to be woken when the whole body has been sent.
    pub(in crate::forward) fn wake_at_end(&self, waker: &Waker) {
        let mut known = self.at_end.borrow_mut();
        if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *known = Some(waker.clone());
        }
    }

    /// Records that the body is sent again from its beginning.
    pub(in crate::forward) fn restart(&self) {
        self.ended.set(false);
        self.waiting.set(false);
    }

    /// Records that another piece was sent.
    pub(in crate::forward) fn piece(&self) {
        self.pieces.set(self.pieces.get().wrapping_add(1));
    }

    /// Records that the whole body has been sent.
    pub(in crate::forward) fn end(&self) {
        self.ended.set(true);
        if let Some(waker) = self.at_end.take() {
            waker.wake();
        }
    }

    /// Whether the whole body has been sent, or no more of it will be.
    pub(in crate::forward) fn ended(&self) -> bool {
        self.ended.get()
    }

    /// Records that all of it has arrived from the client.
    pub(in crate::forward) fn arrive(&self) {
        self.arrived.set(true);
    }

    /// Whether all of it has arrived from the client, so that the client is not what the upstream
    /// waits for.
    pub(in crate::forward) fn has_arrived(&self) -> bool {
        self.arrived.get()
    }

    /// Records that the body failed. The library for HTTP/2 resets the stream then, and does not
    /// return the reason.
    pub(super) fn fail(&self, error: &BodyError) {
        *self.failure.borrow_mut() = Some(error.of_request());
    }

    /// Takes the reason why the body failed, if it did.
    pub(in crate::forward) fn take_failure(&self) -> Option<BodyError> {
        self.failure.take()
    }
}
