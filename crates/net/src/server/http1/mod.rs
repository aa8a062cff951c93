//! The HTTP/1 server: serves one connection, with its requests one after the other.
//!
//! One future does all the work of a connection: it reads a head, polls the handler, and writes the
//! response. The body of the current request reads from the same socket when the handler polls it,
//! through [`Core`]; nothing moves between tasks. Between two requests only state is kept that
//! cannot be recreated: see [`Connection::rest`].

mod core;
mod date;

use std::cell::RefCell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Method, Request, Response, Version};
use http_body::{Body, Frame};
use hyper::ext::ReasonPhrase;

use super::bounds::Place;
use super::inbound::Inbound;
use super::interim::Queue;
use super::io::Transport;
use super::respond::{self, Refusal, Served};
use super::{Event, Handler, Payload, Unread};
use crate::buffer::ReadBuffer;
use crate::timers::{Deadline, pause, within};
use crate::worker::{Awake, Task};
use tollgate_http1::request::{BadHead, Head, Limits};
use tollgate_http1::write::{Asked, Extras, ResponseWriter, response_head};

pub(super) use core::Core;

/// A connection whose protocol is known.
pub(super) struct Opened {
    pub(super) transport: Transport,
    pub(super) place: Place,
    /// Bytes that were already read.
    pub(super) input: ReadBuffer,
    /// The deadline for the first head.
    pub(super) deadline: Deadline,
    /// The queue of interim responses.
    pub(super) interim: Queue,
}

/// Serves a connection to its end.
pub(super) fn serve<H: Handler>(
    opened: Opened,
    served: Served<H>,
    task: Task,
) -> impl Future<Output = ()> {
    let settings = &served.settings;
    let limits = Limits {
        bytes: settings.header_bytes,
        fields: settings.headers,
        target: settings.target_bytes,
    };
    // Boxed, because a future may hold its own local variables twice.
    let mut connection = Box::new(Connection {
        core: Rc::new(RefCell::new(Core::new(
            opened.transport,
            opened.place,
            opened.input,
        ))),
        interim: opened.interim,
        head: None,
        limits,
        deadline: opened.deadline,
        waits: Waits::Head,
        fresh: true,
        draining: false,
        resting: false,
        idle_left: settings.keep_alive,
        awake: None,
        served,
        task,
    });
    async move {
        loop {
            // Boxed, so that a resting connection does not pay for the space of this future.
            let stop = Box::pin(connection.work()).await;
            if stop != Stop::Rest {
                return Box::pin(connection.end(stop)).await;
            }
            if !connection.rest().await {
                return Box::pin(connection.end(Stop::Done)).await;
            }
        }
    }
}

struct Connection<H> {
    core: Rc<RefCell<Core>>,
    interim: Queue,
    /// The head that was read last, until its request is made. It is large, so it is moved as
    /// little as possible.
    head: Option<Head>,
    limits: Limits,
    deadline: Deadline,
    /// The event for which the deadline was set.
    waits: Waits,
    /// Whether no request has arrived yet.
    fresh: bool,
    /// Whether it was told to end; it may send one more response.
    draining: bool,
    /// Whether the deadline frees the connection's memory instead of ending the connection.
    resting: bool,
    /// The rest of its idle time, as of the last wake from resting or the last response.
    idle_left: Duration,
    /// The permission to keep its memory while idle.
    awake: Option<Awake>,
    served: Served<H>,
    task: Task,
}

/// The event that is awaited between two requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// The rest of a head.
    Head,
    /// A request's first byte.
    Idle,
    /// None so far.
    Unset,
}

/// The reason why a connection stops working.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// It has nothing to do at present.
    Rest,
    /// Its last response is written, the client is gone, or it was handed over.
    Done,
    /// Its last response is written, and the client may still be sending.
    Linger,
    /// A response broke off that would have ended with the connection.
    Broken,
    /// The head did not arrive in time.
    TooSlow,
    /// The client did not read the response in time.
    Unread,
    /// It was idle for too long.
    Idle,
    /// The head was refused.
    Bad(BadHead),
}

impl<H: Handler> Connection<H> {
    /// Serves requests as long as they arrive.
    async fn work(&mut self) -> Stop {
        loop {
            if let Err(stop) = std::future::poll_fn(|cx| self.poll_head(cx)).await {
                return stop;
            }
            self.awake = None;
            self.resting = false;
            self.fresh = false;
            if let Err(stop) = self.exchange().await {
                return stop;
            }
            self.waits = Waits::Unset;
            self.idle_left = self.served.settings.keep_alive;
        }
    }

    /// Reads until a head is complete and stored in [`Connection::head`].
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        let mut core = self.core.borrow_mut();
        loop {
            if !core.input.is_empty() {
                match core.read_head(self.limits) {
                    Ok(Some(head)) => {
                        self.head = Some(head);
                        return Poll::Ready(Ok(()));
                    }
                    Ok(None) => {}
                    Err(bad) => return Poll::Ready(Err(Stop::Bad(bad))),
                }
            }
            match core.poll_fill(cx, 0) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(Stop::Done)),
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => break,
            }
        }
        let heard = !core.input.is_empty();
        drop(core);
        self.poll_time(cx, heard).map(Err)
    }

    /// Called while a head is awaited; `heard` says whether part of it has arrived. Ready when that
    /// has lasted too long.
    fn poll_time(&mut self, cx: &mut Context<'_>, heard: bool) -> Poll<Stop> {
        let waits = if heard || (self.fresh && !self.draining) {
            Waits::Head
        } else {
            Waits::Idle
        };
        if waits != self.waits {
            self.waits = waits;
            if self.wait(waits) {
                return Poll::Ready(Stop::Rest);
            }
        }
        if !self.draining && self.task.poll_drain(cx).is_ready() {
            self.draining = true;
            if !heard {
                // A request that has not begun has only a short time to begin.
                self.keep_no_longer();
                self.waits = Waits::Idle;
                self.deadline.reset(self.task.worker().grace());
            }
        }
        std::task::ready!(self.deadline.poll_passed(cx));
        Poll::Ready(match self.waits {
            _ if self.resting => Stop::Rest,
            _ if self.draining && !heard => Stop::Done,
            Waits::Head => Stop::TooSlow,
            Waits::Idle | Waits::Unset => Stop::Idle,
        })
    }

    /// Sets the deadline for the awaited event; returns whether the connection should rest at once.
    fn wait(&mut self, waits: Waits) -> bool {
        self.keep_no_longer();
        let settings = &self.served.settings;
        if waits == Waits::Head {
            self.deadline.reset(settings.header_read);
        } else if self.draining {
            self.deadline.reset(self.task.worker().grace());
        } else if self.idle_left <= settings.awake {
            self.deadline.reset(self.idle_left);
        } else {
            // If many other idle connections have kept their memory, this one does not.
            self.awake = self.task.worker().stay_awake();
            self.resting = true;
            self.deadline.reset(settings.awake);
            return self.awake.is_none();
        }
        false
    }

    fn keep_no_longer(&mut self) {
        (self.resting, self.awake) = (false, None);
    }

    /// Handles one request and its response; an error ends the connection.
    async fn exchange(&mut self) -> Result<(), Stop> {
        let Some(Head {
            parts,
            persists,
            expects,
            ..
        }) = &self.head
        else {
            return Err(Stop::Done);
        };
        let (head, version, persists) = (parts.method == Method::HEAD, parts.version, *persists);
        self.interim.begin();
        let number = self
            .core
            .borrow_mut()
            .begin(*expects, version == Version::HTTP_11);
        let response = self.answer(number).await.ok_or(Stop::Done)?;
        let goes_on = persists && !self.task.worker().is_draining() && self.may_go_on().await;
        let asked = Asked {
            version,
            head,
            persists: goes_on,
        };
        let plan = self.send(response, asked).await?;
        self.finish(&plan, persists).await
    }

    /// Runs the handler for the request `number`, whose head has been read; `None`: the client is
    /// gone.
    async fn answer(&mut self, number: u32) -> Option<Response<H::Body>> {
        let Self {
            core,
            interim,
            limits,
            served,
            head,
            ..
        } = self;
        let request =
            Request::from_parts(head.take()?.parts, Inbound::http1(Rc::clone(core), number));
        let mut answer = pin!(served.handler.handle(&served.connection, request));
        std::future::poll_fn(|cx| {
            let answer = respond::poll_guarded(served, answer.as_mut(), cx);
            let mut core = core.borrow_mut();
            // Interim responses that a client does not read wait in the queue, which is bounded.
            if interim.waits() && (answer.is_ready() || core.output.is_done()) {
                interim.take(core.output.flat());
            }
            if let Poll::Ready(answer) = answer {
                return Poll::Ready(Some(answer.unwrap_or_else(|problem| problem.response())));
            }
            if !core.output.is_done() && matches!(core.poll_flush(cx), Poll::Ready(Err(_))) {
                return Poll::Ready(None);
            }
            core.poll_gone(cx, limits.bytes).map(|()| None)
        })
        .await
    }

    /// Whether another request can follow the current response. If the handler has dropped the
    /// body, only its available part is read; the rest is not awaited.
    async fn may_go_on(&mut self) -> bool {
        {
            let core = self.core.borrow();
            if core.is_read() || core.is_untold() {
                // A client that was not told to send its body may send its next request instead.
                return core.is_read();
            }
        }
        if Rc::strong_count(&self.core) > 1 {
            return true;
        }
        std::future::poll_fn(|cx| Poll::Ready(self.core.borrow_mut().drain(cx))).await
    }

    /// Writes the response.
    async fn send(
        &mut self,
        response: Response<H::Body>,
        asked: Asked,
    ) -> Result<ResponseWriter, Stop> {
        let (mut head, mut body) = response.into_parts();
        // Computed before the socket is borrowed, because the response may be the request's own
        // body.
        let exact = body.size_hint().exact();
        let verbatim = body.take_verbatim();
        let mut plan = {
            let mut core = self.core.borrow_mut();
            core.answers();
            let reason = head.extensions.get::<ReasonPhrase>();
            let extras = Extras {
                reason: reason.map(ReasonPhrase::as_bytes),
                verbatim,
                more: |out: &mut Vec<u8>| body.write_fields(out),
                date: date::write_date,
            };
            let plan = response_head(core.output.flat(), &head, extras, exact, asked);
            // The next request reuses this header table instead of allocating one.
            core.requests.reuse(std::mem::take(&mut head.headers));
            plan
        };
        drop(head);
        let mut stalled = None;
        std::future::poll_fn(|cx| self.poll_send(cx, &mut body, &mut plan, &mut stalled)).await?;
        Ok(plan)
    }

    /// `stalled`: set if the client reads nothing for now, to the number of request pieces that had
    /// arrived then.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut H::Body,
        plan: &mut ResponseWriter,
        stalled: &mut Option<u32>,
    ) -> Poll<Result<(), Stop>> {
        loop {
            let mut waits = false;
            // Gather all available pieces into one write.
            while !plan.body.is_ended() && self.core.borrow().output.left() < GATHER {
                let frame = Pin::new(&mut *body).poll_frame(cx);
                let last = body.is_end_stream();
                let output = &mut self.core.borrow_mut().output;
                match frame.map(|frame| frame.map(|frame| frame.map(Frame::into_data))) {
                    Poll::Ready(Some(Ok(Ok(piece)))) => plan.body.data(output, piece, last),
                    Poll::Ready(Some(Ok(Err(frame)))) => {
                        plan.body.end(output, frame.trailers_ref())
                    }
                    Poll::Ready(Some(Err(_))) => plan.body.fail(),
                    Poll::Ready(None) => plan.body.end(output, None),
                    Poll::Pending => {
                        waits = true;
                        break;
                    }
                }
            }
            let mut core = self.core.borrow_mut();
            let before = core.output.left();
            match core.poll_flush(cx) {
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Stop::Done)),
                Poll::Ready(Ok(())) => *stalled = None,
                Poll::Pending => {
                    if stalled.is_none() || core.output.left() < before {
                        *stalled = Some(core.pieces);
                        self.deadline.reset(self.served.settings.body_idle);
                    }
                    std::task::ready!(self.deadline.poll_passed(cx));
                    // A client that uploads before it reads is not idle: extend the deadline while
                    // request bytes arrive.
                    if stalled.replace(core.pieces) == Some(core.pieces) {
                        return Poll::Ready(Err(Stop::Unread));
                    }
                    self.deadline.reset(self.served.settings.body_idle);
                    return self.deadline.poll_passed(cx).map(|()| Err(Stop::Unread));
                }
            }
            if plan.body.is_ended() {
                return Poll::Ready(Ok(()));
            }
            if waits {
                return core
                    .poll_gone(cx, self.limits.bytes)
                    .map(|()| Err(Stop::Done));
            }
        }
    }

    /// Runs after a response: whether the connection continues. `wanted`: the client asked for
    /// that.
    async fn finish(&mut self, plan: &ResponseWriter, wanted: bool) -> Result<(), Stop> {
        if plan.body.is_broken() {
            self.core.borrow_mut().finish();
            return Err(if plan.body.ends_with_connection() {
                Stop::Broken
            } else {
                Stop::Done
            });
        }
        if plan.switches {
            self.core.borrow_mut().hand_over();
            return Err(Stop::Done);
        }
        let read = if self.core.borrow().is_read() {
            true
        } else if plan.persists {
            self.body_ends().await
        } else if !self.core.borrow().is_untold() && Rc::strong_count(&self.core) > 1 {
            // Shut down the write side, because the client may wait for that; a reader still takes
            // the bytes that it sends.
            let _ = within(
                LINGER,
                std::future::poll_fn(|cx| self.core.borrow_mut().poll_shutdown(cx)),
            )
            .await;
            self.body_ends().await
        } else {
            false
        };
        let mut core = self.core.borrow_mut();
        core.finish();
        match (plan.persists, read) {
            (true, true) => Ok(()),
            _ if core.ended => Err(Stop::Done),
            // Bytes after the last request are ignored, but may exist, perhaps only in the kernel.
            // A client that itself said `close` sends nothing more.
            (false, true) if core.input.is_empty() && !(wanted && core.has_unread()) => {
                Err(Stop::Done)
            }
            _ => Err(Stop::Linger),
        }
    }

    /// Runs after a response that began before the request's body was read: whether the body ends.
    /// While another owner holds the body, such as an upstream that responded early and reads on,
    /// only that owner reads it.
    async fn body_ends(&mut self) -> bool {
        let Self {
            core: shared,
            deadline,
            served,
            limits,
            ..
        } = self;
        let mut seen = None;
        std::future::poll_fn(|cx| {
            let mut core = shared.borrow_mut();
            if core.is_read() {
                return Poll::Ready(true);
            }
            if Rc::strong_count(shared) == 1 {
                return Poll::Ready(core.drain(cx));
            }
            if core.is_broken() || core.poll_gone(cx, limits.bytes).is_ready() {
                return Poll::Ready(false);
            }
            if seen.replace(core.pieces) != Some(core.pieces) {
                deadline.reset(served.settings.body_idle);
            }
            deadline.poll_passed(cx).map(|()| false)
        })
        .await
    }

    /// Waits, without memory, for the next request to begin; `false`: close the connection.
    async fn rest(&mut self) -> bool {
        self.resting = false;
        let stood = self
            .awake
            .take()
            .map_or(Duration::ZERO, |_| self.served.settings.awake);
        {
            let mut core = self.core.borrow_mut();
            core.input.release();
            core.output.release();
            core.requests.release();
        }
        let stats = &self.served.shared.stats;
        stats.rested.add();
        self.deadline.reset(self.idle_left.saturating_sub(stood));
        tokio::select! {
            biased;
            () = std::future::poll_fn(|cx| self.core.borrow_mut().poll_readable(cx)) => {
                // TLS has records that are not part of a request: a client that sends only those
                // stays idle.
                self.idle_left = self.deadline.left();
                self.waits = Waits::Unset;
                true
            }
            () = forsaken(&self.task) => false,
            () = &mut self.deadline => {
                stats.idle_closed.add();
                false
            }
        }
    }

    /// The first bytes of a head that receives no normal response.
    fn beginning(&self, stop: Stop) -> Vec<u8> {
        if !matches!(stop, Stop::Bad(_) | Stop::TooSlow) {
            return Vec::new();
        }
        let mut core = self.core.borrow_mut();
        let input = core.input.bytes();
        input[..input.len().min(BEGINNING)].to_vec()
    }

    /// Closes the connection.
    async fn end(&mut self, stop: Stop) {
        let began = self.beginning(stop);
        let heard = !self.core.borrow().input.is_empty();
        let ended = self.core.borrow().ended;
        let Some((mut transport, place)) = self.core.borrow_mut().take() else {
            return;
        };
        let stats = &self.served.shared.stats;
        match stop {
            Stop::Rest | Stop::Done => {}
            Stop::Linger => return linger(transport, place).await,
            Stop::Broken => return transport.reset(),
            Stop::TooSlow => {
                stats.slow_heads.add();
                let refusal = Refusal::HEAD_TIMEOUT;
                let unread = refusal.unread(&self.served.connection, &began);
                let status = unread.status.filter(|_| heard);
                let unread = Unread { status, ..unread };
                self.served.handler.observe(Event::BadHead(unread));
                // Only a client that began a request receives it: an idle one would take it for a
                // response.
                return if heard {
                    transport.dismiss(&refusal.problem.last_response())
                } else {
                    transport.close().await
                };
            }
            Stop::Unread => {
                stats.slow_reads.add();
                return;
            }
            Stop::Idle => stats.idle_closed.add(),
            Stop::Bad(bad) => {
                let (count, refusal) = match bad {
                    BadHead::Malformed if is_handshake(&began) => (&stats.malformed, Refusal::TLS),
                    BadHead::Malformed | BadHead::Version => {
                        (&stats.malformed, Refusal::for_head(bad))
                    }
                    BadHead::TooLarge | BadHead::TargetTooLong => {
                        (&stats.oversized_heads, Refusal::for_head(bad))
                    }
                };
                count.add();
                let unread = refusal.unread(&self.served.connection, &began);
                self.served.handler.observe(Event::BadHead(unread));
                transport.write_now(&refusal.problem.last_response());
                if !ended {
                    return linger(transport, place).await;
                }
            }
        }
        transport.close().await;
        drop(place);
    }
}

/// Whether bytes that are no request begin a TLS handshake (RFC 8446 5.1).
fn is_handshake(bytes: &[u8]) -> bool {
    matches!(bytes, [0x16, 0x03, ..])
}

/// Shuts down the write side, then reads and discards the client's bytes, until it ends or enough
/// have arrived. Closing with unread bytes would reset the connection, and the reset could overtake
/// our last response.
pub(super) async fn linger(mut transport: Transport, place: Place) {
    let _ = within(LINGER, transport.linger(LINGER_BYTES)).await;
    drop(place);
}

/// Ready once the worker drains and the grace period has passed in which a client may still be
/// sending a request.
async fn forsaken(task: &Task) {
    std::future::poll_fn(|context| task.poll_drain(context)).await;
    pause(task.worker().grace()).await;
}

/// The number of bytes of a refused head that are logged.
const BEGINNING: usize = 2048;
/// The number of response bytes that are gathered before a write.
const GATHER: usize = 128 << 10;
/// How long, and for how many bytes, the connection still reads from a client that has its response
/// and keeps sending.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 16 << 20;
