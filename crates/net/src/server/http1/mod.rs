//! The HTTP/1 server: serves one connection, with its requests one after the other.
//!
//! One future does all the work of a connection: it reads a head, polls the handler, and writes the
//! response. The body of the current request reads from the same socket when the handler polls it,
//! through [`Core`]; nothing moves between tasks. Between two requests only state is kept that
//! cannot be recreated: see [`Connection::rest`].

mod core;
mod date;
mod ending;
mod sending;
mod spare;
mod waiting;

use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use http::{Method, Request, Response, Version};

use super::Handler;
use super::bounds::ConnectionSlot;
use super::inbound::Inbound;
use super::interim::Queue;
use super::io::Transport;
use super::respond::{self, Served};
use crate::buffer::ReadBuffer;
use crate::timers::Deadline;
use crate::worker::{Awake, Task};
use tollgate_http1::request::{BadHead, Head, Limits};
use tollgate_http1::write::ResponseForm;
use waiting::Waits;

pub(super) use core::Core;
pub(super) use ending::linger;

pub(super) struct Opened {
    pub(super) transport: Transport,
    pub(super) place: ConnectionSlot,
    pub(super) input: ReadBuffer,
    pub(super) deadline: Deadline,
    pub(super) interim: Queue,
}

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
    let mut connection = Box::new(Connection {
        core: Rc::new(RefCell::new(Core::new(
            opened.transport,
            opened.place,
            opened.input,
        ))),
        interim: opened.interim,
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
            let work = Box::write(Box::new_uninit(), connection.work());
            let stop = Box::into_pin(work).await;
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
    limits: Limits,
    deadline: Deadline,
    /// The event for which the deadline was set.
    waits: Waits,
    fresh: bool,
    /// Whether it was told to end; it may send one more response.
    draining: bool,
    /// Whether the deadline frees the connection's memory instead of ending the connection.
    resting: bool,
    /// The rest of its idle time, as of the last wake from resting or the last response.
    idle_left: Duration,
    /// The permission to stay ready for its next request while idle.
    awake: Option<Awake>,
    served: Served<H>,
    task: Task,
}

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
    TooSlow,
    Unread,
    Idle,
    Bad(BadHead),
}

impl<H: Handler> Connection<H> {
    async fn work(&mut self) -> Stop {
        // The head that was read last, until its request is made. It is large: so it is moved as
        // little as possible, and a resting connection has no space for it.
        let mut head = None;
        loop {
            if let Err(stop) = std::future::poll_fn(|cx| self.poll_head(cx, &mut head)).await {
                return stop;
            }
            self.awake = None;
            self.resting = false;
            self.fresh = false;
            if let Err(stop) = self.exchange(&mut head).await {
                return stop;
            }
            self.waits = Waits::Unset;
            self.idle_left = self.served.settings.keep_alive;
        }
    }

    /// Handles one request and its response; an error ends the connection.
    async fn exchange(&mut self, head: &mut Option<Head>) -> Result<(), Stop> {
        let Some(Head {
            parts,
            persists,
            expects,
            ..
        }) = head
        else {
            return Err(Stop::Done);
        };
        let (is_head, version) = (parts.method == Method::HEAD, parts.version);
        let persists = *persists;
        self.interim.begin();
        let upgradable = version == Version::HTTP_11;
        let number = self.core.borrow_mut().begin(*expects, upgradable);
        let response = self.respond(number, head).await.ok_or(Stop::Done)?;
        let goes_on = persists && !self.task.worker().is_draining() && self.may_go_on().await;
        let asked = ResponseForm {
            version,
            head: is_head,
            persists: goes_on,
        };
        let plan = self.send(response, asked).await?;
        self.finish(&plan, persists).await
    }

    /// Runs the handler for the request `number`, and takes its head; `None`: the client is gone.
    async fn respond(&mut self, number: u32, head: &mut Option<Head>) -> Option<Response<H::Body>> {
        let Self {
            core,
            interim,
            limits,
            served,
            ..
        } = self;
        let request =
            Request::from_parts(head.take()?.parts, Inbound::http1(Rc::clone(core), number));
        let mut response = pin!(served.handler.handle(&served.connection, request));
        std::future::poll_fn(|cx| {
            let ready = respond::poll_guarded(served, response.as_mut(), cx);
            let mut core = core.borrow_mut();
            // Interim responses that a client does not read wait in the queue, which is bounded.
            if interim.waits() && (ready.is_ready() || core.output.is_done()) {
                interim.take(core.output.flat());
            }
            if let Poll::Ready(response) = ready {
                return Poll::Ready(Some(response.unwrap_or_else(|problem| problem.response())));
            }
            if !core.output.is_done() && matches!(core.poll_flush(cx), Poll::Ready(Err(_))) {
                return Poll::Ready(None);
            }
            core.poll_gone(cx, limits.bytes).map(|()| None)
        })
        .await
    }
}
