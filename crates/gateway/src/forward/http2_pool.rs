//! The HTTP/2 connections to one server: opens as many as the server's limit on concurrent streams
//! requires, and retires stuck ones.

mod heard;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use hyper::client::conn::http2;
use hyper_util::rt::TokioIo;

pub(super) use self::heard::{Ear, Heard};
use super::connect::{Connector, Opened};
use super::{ForwardError, LocalExecutor, RequestBody, Stream};
use tollgate_net::client::Client;
use tollgate_net::timers::within;

/// A connection, run by a task of its own; also asked for the server's limit on streams. `None` if
/// it has ended: it is dropped then, because only that tells the senders that no more requests are accepted.
type Connection =
    Rc<RefCell<Option<Pin<Box<http2::Connection<TokioIo<Heard>, RequestBody, LocalExecutor>>>>>>;

/// The HTTP/2 connections to one server, on one worker.
///
/// Before a server's settings arrive, its limit on streams is unknown. Until then the connection
/// carries one stream, and later requests wait for the settings: streams above the server's limit
/// would wait inside the library and could not be moved.
pub(super) struct Http2Pool {
    open: RefCell<Vec<Rc<Http2Connection>>>,
    /// The largest number of connections that accept streams.
    most: usize,
    /// Held while a connection is opened: other requests wait for it, instead of opening one each.
    opening: tokio::sync::Mutex<()>,
    /// Whether the server agreed on HTTP/1.1 on the last connect.
    pub(super) prefers_http1: Cell<bool>,
    failures: Cell<u64>,
    /// The number of sweeps that an idle connection survives.
    age_max: u64,
    turn: Cell<u64>,
}

pub(super) enum Placed {
    Stream(StreamSlot),
    /// A new HTTP/1.1 connection, because the server does not support HTTP/2.
    Http1(Box<Client<Stream, RequestBody>>),
}

#[derive(Debug)]
struct Http2Connection {
    sender: http2::SendRequest<RequestBody>,
    connection: Connection,
    streams: Cell<usize>,
    ear: Rc<Ear>,
    retired: Cell<bool>,
    /// Whether a stream has reported that it broke.
    broken: Cell<bool>,
    /// The number of the sweep since which it has had no stream.
    since: Cell<u64>,
}

impl Http2Connection {
    fn is_open(&self) -> bool {
        !self.retired.get() && !self.sender.is_closed()
    }

    /// Whether the server accepts one more stream (RFC 9113 5.1.2).
    fn has_room(&self) -> bool {
        let most = self
            .connection
            .borrow()
            .as_ref()
            .map_or(0, |connection| connection.current_max_send_streams());
        self.streams.get() < most
    }

    /// Whether it should be closed: it has no open stream, and the server accepts none.
    fn is_useless(&self) -> bool {
        self.streams.get() == 0 && !self.has_room()
    }
}

impl Http2Pool {
    /// A pool without a connection; an idle one survives `age_max` sweeps, and at most `most` of
    /// them accept streams at once.
    pub(super) fn new(age_max: u64, most: usize) -> Self {
        Self {
            open: RefCell::default(),
            most,
            opening: tokio::sync::Mutex::new(()),
            prefers_http1: Cell::new(false),
            failures: Cell::new(0),
            age_max,
            turn: Cell::new(0),
        }
    }

    /// Returns a place for one stream on a connection with room; opens one with `connector` if
    /// there is none.
    /// A request that waited for another's failed attempt does not start one more.
    pub(super) async fn place(&self, connector: &Connector) -> Result<Placed, ForwardError> {
        if self.prefers_http1.get() {
            // Such connections are not shared, so no request has to wait for another's.
            return self.open(connector).await;
        }
        let failures = self.failures.get();
        // Waiting through several attempts of other requests is no failure of the server.
        let turn = within(connector.timeout, self.opening.lock()).await;
        let _opening = turn.map_err(|_| ForwardError::Overloaded)?;
        if let Some(place) = self.free() {
            return Ok(Placed::Stream(place));
        }
        if self.failures.get() != failures {
            return Err(ForwardError::Connect(io::Error::other(
                "the attempt this request waited for failed",
            )));
        }
        let failed = || self.failures.set(failures.wrapping_add(1));
        if let Some(place) = self.settled(connector).await.inspect_err(|_| failed())? {
            return Ok(Placed::Stream(place));
        }
        self.open(connector).await.inspect_err(|_| failed())
    }

    /// Returns a place for the first stream of a connection that is opened for it.
    pub(super) async fn fresh(&self, connector: &Connector) -> Result<Placed, ForwardError> {
        let turn = within(connector.timeout, self.opening.lock()).await;
        let _opening = turn.map_err(|_| ForwardError::Overloaded)?;
        self.open
            .borrow_mut()
            .retain(|lane| lane.is_open() && !lane.is_useless());
        self.open(connector).await
    }

    /// Opens a connection, whose first stream belongs to the client's request.
    async fn open(&self, connector: &Connector) -> Result<Placed, ForwardError> {
        if self.open.borrow().len() >= self.most {
            return Err(ForwardError::Overloaded);
        }
        let opened = Box::pin(connector.http2()).await?;
        self.prefers_http1.set(matches!(opened, Opened::Http1(_)));
        let (sender, connection, ear) = match opened {
            Opened::Http2(opened) => *opened,
            Opened::Http1(connection) => return Ok(Placed::Http1(connection)),
        };
        let connection: Connection = Rc::new(RefCell::new(Some(Box::pin(connection))));
        let driven = Rc::clone(&connection);
        tokio::task::spawn_local(async move {
            // Each stream receives the error of the connection by itself.
            std::future::poll_fn(|cx| {
                let connection = &mut *driven.borrow_mut();
                connection.as_mut().map_or(Poll::Ready(()), |connection| {
                    connection.as_mut().poll(cx).map(|_| ())
                })
            })
            .await;
            let ended = driven.take();
            drop(ended);
        });
        let lane = Rc::new(Http2Connection {
            sender,
            connection,
            streams: Cell::new(0),
            ear,
            retired: Cell::new(false),
            broken: Cell::new(false),
            since: Cell::new(self.turn.get()),
        });
        self.open.borrow_mut().push(Rc::clone(&lane));
        Ok(Placed::Stream(StreamSlot::on(lane)))
    }

    /// Returns a place on the connection opened last, if the server's settings are pending and turn
    /// out to leave room.
    async fn settled(&self, connector: &Connector) -> Result<Option<StreamSlot>, ForwardError> {
        let fresh = self
            .open
            .borrow()
            .iter()
            .find(|lane| !lane.ear.is_settled())
            .map(Rc::clone);
        let Some(lane) = fresh else { return Ok(None) };
        if within(connector.timeout, lane.ear.settled()).await.is_err() {
            lane.retired.set(true);
            return Err(ForwardError::ConnectTimeout);
        }
        Ok(self.free())
    }

    /// Returns a place on the first connection with room, so that later ones become idle and are
    /// closed when load drops.
    pub(super) fn free(&self) -> Option<StreamSlot> {
        let mut open = self.open.borrow_mut();
        open.retain(|lane| lane.is_open() && !lane.is_useless());
        open.iter()
            .find(|lane| lane.has_room())
            .map(|lane| StreamSlot::on(Rc::clone(lane)))
    }

    /// Closes connections that have been idle for too long. Called once a second.
    pub(super) fn sweep(&self) {
        let turn = self.turn.get() + 1;
        self.turn.set(turn);
        self.open.borrow_mut().retain(|lane| {
            if lane.streams.get() > 0 {
                lane.since.set(turn);
            }
            lane.is_open() && !lane.is_useless() && turn - lane.since.get() <= self.age_max
        });
    }
}

/// A place for one stream, returned to the pool when dropped.
#[derive(Debug)]
pub(super) struct StreamSlot {
    lane: Rc<Http2Connection>,
    heard: u64,
}

impl StreamSlot {
    fn on(lane: Rc<Http2Connection>) -> Self {
        lane.streams.set(lane.streams.get() + 1);
        let heard = lane.ear.heard.get();
        Self { lane, heard }
    }

    pub(super) fn sender(&self) -> http2::SendRequest<RequestBody> {
        self.lane.sender.clone()
    }

    /// Whether no byte was received on the connection since this place was taken: it is stuck, not slow.
    pub(super) fn is_silent(&self) -> bool {
        self.lane.ear.heard.get() == self.heard
    }

    /// Records that the connection broke; returns whether this is the first report. Each of its
    /// streams sends one, and they are one failure of the server.
    pub(super) fn report_break(&self) -> bool {
        !self.lane.broken.replace(true)
    }

    /// Makes the connection accept no more streams; its open streams continue.
    pub(super) fn retire(&self) {
        self.lane.retired.set(true);
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.lane.streams.set(self.lane.streams.get() - 1);
    }
}

#[cfg(test)]
mod tests;
