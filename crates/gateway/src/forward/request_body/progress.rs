//! The state of a request's body on its way, as the exchange with the upstream sees it.

use std::cell::{Cell, RefCell};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::forward::body::BodyError;
use crate::forward::minimum_rate::MinimumRate;

/// The state of a body that has been passed to the connection, as the exchange sees it.
#[derive(Debug)]
pub(in crate::forward) struct Progress {
    /// How long to wait for the body. Stored here, so that the request does not become larger.
    min_rate: RefCell<MinimumRate>,
    /// How many pieces were sent; it stands still when the body does.
    pub(in crate::forward) pieces: Cell<u64>,
    pub(in crate::forward) ended: Cell<bool>,
    /// Whether all of it has arrived from the client, so that the client is not what the upstream
    /// waits for.
    pub(in crate::forward) arrived: Cell<bool>,
    pub(in crate::forward) waiting: Cell<bool>,
    /// Whether it ever did, so that part of the total time is the client's.
    pub(in crate::forward) waited: Cell<bool>,
    pub(in crate::forward) has_response: Cell<bool>,
    /// Whether it is held back until the upstream asks for it.
    pub(in crate::forward) gated: Cell<bool>,
    at_opening: RefCell<Option<Waker>>,
    at_end: RefCell<Option<Waker>>,
    /// The reason why it failed. The library for HTTP/2 resets the stream then, and does not return
    /// the reason.
    pub(in crate::forward) failure: RefCell<Option<BodyError>>,
}

impl Progress {
    /// Nothing has been sent of a body that has to arrive at `min_rate`. `arrived`: all of it is here;
    /// `gated`: it is held back until the upstream asks for it.
    pub(super) fn new(min_rate: MinimumRate, arrived: bool, gated: bool) -> Self {
        Self {
            min_rate: RefCell::new(min_rate),
            pieces: Cell::default(),
            ended: Cell::default(),
            arrived: Cell::new(arrived),
            waiting: Cell::default(),
            waited: Cell::default(),
            has_response: Cell::default(),
            gated: Cell::new(gated),
            at_opening: RefCell::default(),
            at_end: RefCell::default(),
            failure: RefCell::default(),
        }
    }

    /// Lets a body go that was held back.
    pub(in crate::forward) fn open(&self) {
        self.gated.set(false);
        if let Some(waker) = self.at_opening.take() {
            waker.wake();
        }
    }

    pub(super) fn poll_open(&self, cx: &Context<'_>) -> Poll<()> {
        if !self.gated.get() {
            return Poll::Ready(());
        }
        self.at_opening.replace(Some(cx.waker().clone()));
        Poll::Pending
    }

    pub(in crate::forward) fn waited(&self) -> Duration {
        self.min_rate.borrow().waited()
    }

    /// Whether the client sends so slowly that the upstream may have given up because of that.
    pub(in crate::forward) fn is_slow(&self) -> bool {
        self.min_rate.borrow().is_slow()
    }

    /// Called while the client's next piece is awaited; ready with the error if that has lasted too long.
    pub(super) fn wait(&self, cx: &Context<'_>) -> Poll<BodyError> {
        self.waiting.set(true);
        self.waited.set(true);
        self.min_rate.borrow_mut().poll(cx, self.has_response.get())
    }

    /// Records that the next piece, of this many bytes, came from the client and is sent.
    pub(super) fn came(&self, bytes: usize) {
        self.min_rate.borrow_mut().came(bytes);
        self.waiting.set(false);
        self.piece();
    }

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

    pub(in crate::forward) fn piece(&self) {
        self.pieces.set(self.pieces.get().wrapping_add(1));
    }

    pub(in crate::forward) fn end(&self) {
        self.ended.set(true);
        if let Some(waker) = self.at_end.take() {
            waker.wake();
        }
    }

    pub(super) fn fail(&self, error: &BodyError) {
        *self.failure.borrow_mut() = Some(error.of_request());
    }
}
