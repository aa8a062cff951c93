//! Serves HTTP/2 on one connection: its deadlines, and its shutdown in a drain.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::{Setup, count_timeout};
use crate::server::http2::gathered::{Gathered, Turns};
use crate::server::http2::state::{Hold, State, Tracked, UnderWay, Wait};
use crate::server::http2::streams::Streams;
use crate::server::http2::window::Window;
use crate::server::inbound::Inbound;
use crate::server::io::{Io, Transport};
use crate::server::respond::{Served, respond};
use crate::server::{Handler, ServerState, Settings};
use crate::timers::Deadline;
use crate::worker::Task;

impl<H: Handler> Setup<H> {
    /// Serves HTTP/2 to the end of the connection, which begins with the bytes already read (`ahead`).
    ///
    /// The future has only what serving needs: one with these arguments would keep their space for as
    /// long as the connection lasts.
    pub(super) fn http2(
        self,
        transport: Transport,
        ahead: Bytes,
    ) -> impl Future<Output = ()> + use<H> {
        let Self {
            mut connection,
            acceptor,
            settings,
            deadline,
            place,
            task,
        } = self;
        let state = Arc::new(State::default());
        let window = Window::default();
        connection.window = Some(window.clone());
        let io = Io::new(
            transport,
            ahead,
            Arc::clone(&state),
            place,
            window,
            settings.header_bytes,
        );
        let io = Gathered::new(io);
        let served = Rc::new(Served {
            handler: Rc::clone(&acceptor.handler),
            connection: Rc::new(connection),
            settings: Arc::clone(&settings),
            shared: Arc::clone(&acceptor.shared),
        });
        let requests = Arc::clone(&state);
        let service = service_fn(move |mut request: Request<Incoming>| {
            let under_way = UnderWay::begin(&requests);
            if *request.method() == Method::CONNECT {
                request.extensions_mut().insert(Hold::begin(&requests));
            }
            let served = Rc::clone(&served);
            async move {
                let request = request.map(|body| Inbound::http2(body, &under_way.0));
                let response = respond(&served, request).await;
                Ok::<_, Infallible>(response.map(|body| Tracked::new(body, under_way)))
            }
        });
        let connection = builder2(&settings, &acceptor.shared)
            .serve_connection(TokioIo::new(io.clone()), service);
        let mut turns = Turns {
            connection: Box::pin(connection),
            io,
        };
        async move {
            let mut drive = Drive {
                state: &state,
                settings: &settings,
                deadline,
                current: Wait::Head,
                task: &task,
                closing: false,
            };
            let driven = drive.run(Pin::new(&mut turns), |turns| {
                turns.get_mut().connection.as_mut().graceful_shutdown();
            });
            if let Err(wait) = driven.await {
                count_timeout(wait, &acceptor);
            }
        }
    }
}

/// Drives an HTTP/2 connection: its deadlines, and its shutdown in a drain.
struct Drive<'a> {
    state: &'a State,
    settings: &'a Settings,
    deadline: Deadline,
    /// The event for which the deadline was set.
    current: Wait,
    task: &'a Task,
    closing: bool,
}

impl Drive<'_> {
    async fn run<C: Future<Output = hyper::Result<()>>>(
        &mut self,
        mut connection: Pin<&mut C>,
        close: impl Fn(Pin<&mut C>),
    ) -> Result<(), Wait> {
        std::future::poll_fn(|context| {
            if !self.closing && self.task.poll_drain(context).is_ready() {
                self.closing = true;
                close(connection.as_mut());
            }
            // The library has refused violations of the protocol; their frames were counted.
            if connection.as_mut().poll(context).is_ready() {
                return Poll::Ready(Ok(()));
            }
            self.time();
            loop {
                if self.deadline.poll_passed(context).is_pending() {
                    return Poll::Pending;
                }
                if self.closing || !matches!(self.current, Wait::Request(_)) {
                    return Poll::Ready(Err(self.current));
                }
                // An idle connection receives GOAWAY, and time to read it.
                self.closing = true;
                close(connection.as_mut());
                self.deadline.reset(GOODBYE);
                if connection.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Ok(()));
                }
            }
        })
        .await
    }

    fn time(&mut self) {
        let wait = self.state.wait();
        if wait == self.current {
            return;
        }
        self.current = wait;
        match wait {
            Wait::Head => self.deadline.reset(self.settings.header_read),
            Wait::Request(_) => self.deadline.reset(self.settings.keep_alive),
            Wait::Reader(_) => self.deadline.reset(self.settings.body_idle),
            Wait::Handler => self.deadline.clear(),
        }
    }
}

fn builder2(settings: &Settings, shared: &Arc<ServerState>) -> http2::Builder<Streams> {
    let mut builder = http2::Builder::new(Streams::new(settings.body_idle, Arc::clone(shared)));
    builder
        .max_concurrent_streams(settings.streams)
        .max_header_list_size(u32::try_from(settings.header_bytes).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_pending_accept_reset_streams(RESETS_MAX)
        .max_local_error_reset_streams(RESETS_MAX)
        .max_send_buf_size(SEND_BUFFER);
    if settings.connect_protocol {
        builder.enable_connect_protocol();
    }
    builder
}

/// The number of bytes a client may send ahead of the upstream, per stream and per connection.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// The number of bytes of a response that the library accepts before it waits for the client, per
/// stream; see `server/http2/ahead.rs`.
const SEND_BUFFER: usize = 64 * 1024;
/// The number of streams a client may reset before they are processed, and of errors it may cause,
/// before the connection is closed (CVE-2023-44487, CVE-2025-8671).
const RESETS_MAX: usize = 64;
/// How long an idle HTTP/2 connection has to read its GOAWAY.
const GOODBYE: Duration = Duration::from_secs(2);
