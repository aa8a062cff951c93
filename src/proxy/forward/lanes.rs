//! HTTP/2 connections to one server: as many as its bound on concurrent streams makes necessary, none of them stuck.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use hyper::client::conn::http2;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connect::Connector;
use super::{ForwardError, LocalExecutor, RequestBody, Stream};

/// A connection, run by a task of its own and asked for the server's bound on streams; `None`: it has ended. It is
/// dropped then, since only that tells the senders that nobody takes requests any more.
type Connection = Rc<RefCell<Option<Pin<Box<http2::Connection<TokioIo<Heard>, RequestBody, LocalExecutor>>>>>>;

/// The HTTP/2 connections to one server, on one worker.
#[derive(Debug)]
pub(super) struct Lanes {
    open: RefCell<Vec<Rc<Lane>>>,
    /// Held while a connection is opened: others wait for it rather than open one each.
    opening: tokio::sync::Mutex<()>,
    /// Failed attempts to open one.
    failures: Cell<u64>,
    /// Sweeps an idle connection survives.
    age_max: u64,
    turn: Cell<u64>,
}

/// One connection.
struct Lane {
    sender: http2::SendRequest<RequestBody>,
    connection: Connection,
    /// Streams of ours that are open.
    streams: Cell<usize>,
    /// Reads that brought something.
    heard: Rc<Cell<u64>>,
    /// Takes no more streams.
    retired: Cell<bool>,
    /// The sweep since which it has had no stream.
    since: Cell<u64>,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("streams", &self.streams).field("retired", &self.retired).finish_non_exhaustive()
    }
}

impl Lane {
    fn is_open(&self) -> bool {
        !self.retired.get() && !self.sender.is_closed()
    }

    /// Whether the server takes one more stream (RFC 9113 5.1.2).
    fn has_room(&self) -> bool {
        let most = self.connection.borrow().as_ref().map_or(0, |connection| connection.current_max_send_streams());
        self.streams.get() < most
    }
}

impl Lanes {
    /// No connection yet; an idle one survives `age_max` sweeps.
    pub(super) fn new(age_max: u64) -> Self {
        Self {
            open: RefCell::default(),
            opening: tokio::sync::Mutex::new(()),
            failures: Cell::new(0),
            age_max,
            turn: Cell::new(0),
        }
    }

    /// A place for one stream, on a connection that has room; one is opened by `connector` if there is none.
    ///
    /// # Errors
    /// When none can be opened. Who waited for another's failing attempt does not make one more.
    pub(super) async fn place(&self, connector: &Connector) -> Result<Place, ForwardError> {
        if let Some(place) = self.free() {
            return Ok(place);
        }
        let failures = self.failures.get();
        let _opening = self.opening.lock().await;
        if let Some(place) = self.free() {
            return Ok(place);
        }
        if self.failures.get() != failures {
            return Err(ForwardError::Connect(io::Error::other("the attempt this request waited for failed")));
        }
        let opened = Box::pin(connector.http2()).await;
        let (sender, connection, heard) = opened.inspect_err(|_| self.failures.set(failures.wrapping_add(1)))?;
        let connection: Connection = Rc::new(RefCell::new(Some(Box::pin(connection))));
        let driven = Rc::clone(&connection);
        tokio::task::spawn_local(async move {
            // Every stream learns of the connection's failure itself.
            std::future::poll_fn(|cx| {
                let connection = &mut *driven.borrow_mut();
                connection.as_mut().map_or(Poll::Ready(()), |connection| connection.as_mut().poll(cx).map(|_| ()))
            })
            .await;
            let ended = driven.take();
            drop(ended);
        });
        let lane = Rc::new(Lane {
            sender,
            connection,
            streams: Cell::new(0),
            heard,
            retired: Cell::new(false),
            since: Cell::new(self.turn.get()),
        });
        self.open.borrow_mut().push(Rc::clone(&lane));
        Ok(Place::on(lane, false))
    }

    /// The first that has room: those behind it fall idle, and are closed, when there is less to do.
    fn free(&self) -> Option<Place> {
        let mut open = self.open.borrow_mut();
        open.retain(|lane| lane.is_open());
        open.iter().find(|lane| lane.has_room()).map(|lane| Place::on(Rc::clone(lane), true))
    }

    /// Closes what has been idle for too long. Called once a second.
    pub(super) fn sweep(&self) {
        let turn = self.turn.get() + 1;
        self.turn.set(turn);
        self.open.borrow_mut().retain(|lane| {
            if lane.streams.get() > 0 {
                lane.since.set(turn);
            }
            lane.is_open() && turn - lane.since.get() <= self.age_max
        });
    }
}

/// A place for one stream, given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    lane: Rc<Lane>,
    /// Whether the connection was there before.
    pub(super) reused: bool,
    heard: u64,
}

impl Place {
    fn on(lane: Rc<Lane>, reused: bool) -> Self {
        lane.streams.set(lane.streams.get() + 1);
        let heard = lane.heard.get();
        Self { lane, reused, heard }
    }

    /// A handle to send the stream's request with.
    pub(super) fn sender(&self) -> http2::SendRequest<RequestBody> {
        self.lane.sender.clone()
    }

    /// Whether nothing at all came over the connection since this place was taken: it is stuck, not slow.
    pub(super) fn is_silent(&self) -> bool {
        self.lane.heard.get() == self.heard
    }

    /// Has the connection take no more streams; those it has go on.
    pub(super) fn retire(&self) {
        self.lane.retired.set(true);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.lane.streams.set(self.lane.streams.get() - 1);
    }
}

/// A stream that counts the reads that bring something.
#[derive(Debug)]
pub(super) struct Heard {
    stream: Stream,
    count: Rc<Cell<u64>>,
}

impl Heard {
    /// `stream`, and its count.
    pub(super) fn new(stream: Stream) -> (Self, Rc<Cell<u64>>) {
        let count = Rc::new(Cell::new(0));
        (Self { stream, count: Rc::clone(&count) }, count)
    }
}

impl AsyncRead for Heard {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.count.set(self.count.get().wrapping_add(1));
        }
        outcome
    }
}

impl AsyncWrite for Heard {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
