//! Runs the streams of an HTTP/2 connection, each with a bound on how long its caller may take nothing of its answer.
//!
//! A stream whose window is shut holds an upstream's connection. The connection's own deadline does not see it while
//! other streams move, or pings do.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::Shared;
use super::state::State;
use crate::timers::Deadline;

/// Spawns the streams of an HTTP/2 connection on its worker.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    idle: Duration,
    shared: Arc<Shared>,
}

impl Streams {
    /// A caller may leave a piece of its answer for `idle`, and a second more for each kibibyte of it.
    pub(super) const fn new(idle: Duration, shared: Arc<Shared>) -> Self {
        Self { idle, shared }
    }
}

impl<F: Future<Output: 'static> + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, future: F) {
        // Boxed first: the runtime moves a task's future several times, and this one is large.
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

/// One stream: its request's handler and its answer on the way.
struct Stream<F> {
    future: Pin<Box<F>>,
    /// When the piece handed over last must have been taken.
    deadline: Option<Deadline>,
    begun: bool,
    /// What comes of its request's body, if it has one.
    upload: Option<Arrived>,
    /// How much of that had come when the deadline was set.
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
        // Who sends everything before it reads anything is not idle meanwhile, if it sends at the rate it would have to read.
        if arrived - this.seen >= LEAST_RATE * this.streams.idle.as_secs().max(1) {
            this.seen = arrived;
            deadline.reset(this.streams.idle);
            std::task::ready!(deadline.poll_passed(context));
        }
        // Ended here, the stream is reset.
        this.streams.shared.stats.slow_reads.add();
        Poll::Ready(())
    }
}

/// How many bytes of a request's body have come: told by the body, read by its stream.
#[derive(Clone, Debug)]
pub(super) struct Arrived {
    bytes: Rc<Cell<u64>>,
    /// Of the connection.
    state: Arc<State>,
}

impl Arrived {
    /// For the request of the stream whose first turn it is.
    pub(super) fn of_stream(state: &Arc<State>) -> Self {
        let arrived = Self {
            bytes: Rc::default(),
            state: Arc::clone(state),
        };
        ARRIVED.set(Some(arrived.clone()));
        arrived
    }

    pub(super) fn add(&self, bytes: usize) {
        self.bytes
            .set(self.bytes.get().saturating_add(bytes as u64));
        self.state.came();
    }

    fn bytes(&self) -> u64 {
        self.bytes.get()
    }
}

/// What became of the answer's body in this turn of its stream.
#[derive(Clone, Copy)]
pub(super) enum Piece {
    /// Nobody asked for more.
    Unasked,
    /// More was asked for, and is awaited from the handler.
    Awaited,
    /// A piece of this many bytes was given: until the next is asked for, the caller is what is waited for.
    Given(usize),
}

impl Piece {
    /// Tells the stream whose turn it is.
    pub(super) fn tell(self) {
        PIECE.set(self);
    }
}

/// Bytes a second that a caller must take of a piece, or send meanwhile.
const LEAST_RATE: u64 = 1024;

thread_local! {
    /// Bodies tell it and streams read it, within one poll: the library between them carries nothing of ours.
    static PIECE: Cell<Piece> = const { Cell::new(Piece::Unasked) };
    /// The same, of a request's body, within the first poll.
    static ARRIVED: Cell<Option<Arrived>> = const { Cell::new(None) };
}
