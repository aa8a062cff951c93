//! Runs the streams of an HTTP/2 connection, each with a limit on how long its client may accept
//! nothing of its response.
//!
//! A stream whose window is closed keeps an upstream connection in use. The connection's own
//! deadline does not detect it while other streams or pings are active.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::state::State;
use crate::server::ServerState;
use crate::timers::Deadline;

/// Spawns the streams of an HTTP/2 connection on its worker.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    idle: Duration,
    shared: Arc<ServerState>,
}

impl Streams {
    /// A client may leave a piece unread for `idle`, plus one second for each kibibyte of it.
    pub(crate) const fn new(idle: Duration, shared: Arc<ServerState>) -> Self {
        Self { idle, shared }
    }
}

impl<F: Future<Output: 'static> + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, future: F) {
        let future = Box::pin(future);
        let (deadline, upload) = (None, None);
        tokio::task::spawn_local(Stream {
            future,
            deadline,
            begun: false,
            upload,
            seen: 0,
            streams: self.clone(),
        });
    }
}

/// One stream: the handler of its request, then its response.
struct Stream<F> {
    future: Pin<Box<F>>,
    /// The deadline for the client to read the last piece.
    deadline: Option<Deadline>,
    begun: bool,
    /// The progress of its request's body, if it has one.
    upload: Option<Arrived>,
    /// The progress when the deadline was set.
    seen: u64,
    streams: Streams,
}

impl<F: Future> Future for Stream<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        PIECE.set(Piece::Unasked);
        if this.future.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        if !std::mem::replace(&mut this.begun, true) {
            this.upload = ARRIVED.take();
        }
        let arrived = this.upload.as_ref().map_or(0, Arrived::bytes);
        match PIECE.get() {
            Piece::Unasked => {}
            Piece::Awaited => this.deadline = None,
            Piece::Given(length) => {
                let span =
                    this.streams.idle + Duration::from_millis(length as u64 * 1_000 / LEAST_RATE);
                this.deadline
                    .get_or_insert_with(Deadline::never)
                    .reset(span);
                this.seen = arrived;
            }
        }
        let Some(deadline) = &mut this.deadline else {
            return Poll::Pending;
        };
        std::task::ready!(deadline.poll_passed(context));
        // A client is not idle that uploads at the rate at which it would have to read.
        if arrived - this.seen >= LEAST_RATE * this.streams.idle.as_secs().max(1) {
            this.seen = arrived;
            deadline.reset(this.streams.idle);
            std::task::ready!(deadline.poll_passed(context));
        }
        // Ending the future resets the stream.
        this.streams.shared.stats.slow_reads.add();
        Poll::Ready(())
    }
}

/// The number of received bytes of a request's body: written by the body, read by its stream.
#[derive(Clone, Debug)]
pub(crate) struct Arrived {
    bytes: Rc<Cell<u64>>,
    state: Arc<State>,
}

impl Arrived {
    /// For the request of the stream whose first turn is running.
    pub(crate) fn of_stream(state: &Arc<State>) -> Self {
        let arrived = Self {
            bytes: Rc::default(),
            state: Arc::clone(state),
        };
        ARRIVED.set(Some(arrived.clone()));
        arrived
    }

    pub(crate) fn add(&self, bytes: usize) {
        self.bytes
            .set(self.bytes.get().saturating_add(bytes as u64));
        self.state.came();
    }

    fn bytes(&self) -> u64 {
        self.bytes.get()
    }
}

/// The state of the response's body in this turn of its stream.
#[derive(Clone, Copy)]
pub(crate) enum Piece {
    /// The library did not ask for more.
    Unasked,
    /// The library asked for more, and the handler has not produced it yet.
    Awaited,
    /// A piece of this many bytes was returned; the client must take it.
    Given(usize),
}

impl Piece {
    /// Reports it to the stream whose turn is running.
    pub(crate) fn tell(self) {
        PIECE.set(self);
    }
}

/// The rate in bytes a second at which a client must read a piece, or upload meanwhile.
const LEAST_RATE: u64 = 1024;

thread_local! {
    /// Bodies write it and streams read it within one poll: the library carries no data of ours.
    static PIECE: Cell<Piece> = const { Cell::new(Piece::Unasked) };
    static ARRIVED: Cell<Option<Arrived>> = const { Cell::new(None) };
}
