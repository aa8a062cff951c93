//! One connection from its first byte to its last.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, Request};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncReadExt;

use super::accept::{Caller, Door};
use super::bounds::Place;
use super::interim::Interim;
use super::io::{Io, Plain, Transport};
use super::proxy_protocol;
use super::respond::{Served, TOO_SLOW, respond};
use super::state::{Hold, State, Tracked, UnderWay, Wait};
use super::stats::Stats;
use super::streams::Streams;
use super::window::Window;
use super::{ConnInfo, Event, Handler, Settings, Shared, TlsInfo};
use crate::proxy::timers::{Deadline, pause, within};
use crate::proxy::worker::{Awake, Task};

/// Serves one connection. Whatever happens to it stays with it.
pub(super) async fn serve<H: Handler>(caller: Caller, door: &Rc<Door<H>>) {
    let Caller { stream, peer, settings, place, task } = caller;
    let watch = Watch::begin(door);
    let deadline = Deadline::after(settings.header_read);
    let connection = ConnInfo {
        peer,
        direct: peer,
        listener: Arc::clone(&door.address),
        tls: None,
        http2: false,
        interim: None,
        window: None,
    };
    let mut setup = Setup { stream, connection, door, settings, deadline, place, task: &task };
    if setup.settings.proxy_protocol && !setup.told().await {
        return;
    }
    match &door.tls {
        None => setup.plain().await,
        Some(tls) => Box::pin(setup.encrypted(tls.acceptor())).await,
    }
    drop(watch);
}

/// A connection before its protocol is known.
struct Setup<'a, H> {
    stream: Plain,
    connection: ConnInfo,
    door: &'a Rc<Door<H>>,
    settings: Arc<Settings>,
    deadline: Deadline,
    place: Place,
    task: &'a Task,
}

impl<H: Handler> Setup<'_, H> {
    /// Reads the PROXY protocol header; whether the connection may go on.
    async fn told(&mut self) -> bool {
        let (stats, handler) = (&self.door.shared.stats, &self.door.handler);
        // A Unix socket has no address; who may open it is a matter of its file's mode.
        if self.connection.direct.is_some_and(|direct| !self.settings.trusts(direct.ip())) {
            stats.proxy_header_failures.add();
            handler.observe(Event::Refused("proxy_header"));
            return false;
        }
        match within(self.settings.header_read, proxy_protocol::read(&mut self.stream)).await {
            Ok(Ok(Some(source))) => self.connection.peer = Some(source),
            Ok(Ok(None)) => {}
            Ok(Err(error)) => {
                stats.proxy_header_failures.add();
                handler.observe(Event::Refused("proxy_header"));
                tracing::debug!(peer = ?self.connection.direct, %error, "wrong PROXY protocol header");
                return false;
            }
            Err(_) => {
                count_timeout(Wait::Head(0), self.door);
                return false;
            }
        }
        let counted = self.connection.peer.map_or(Ok(()), |peer| self.place.from(peer.ip(), &self.settings));
        if counted.is_err() {
            stats.refused_address.add();
            handler.observe(Event::Refused("connections_per_address"));
        }
        counted.is_ok()
    }

    async fn plain(mut self) {
        // Usually a request's first bytes come together, and are there already.
        let first = self.stream.first().unwrap_or_default();
        let (http2, ahead) = match speaks_http2(&first) {
            Some(http2) => (http2, first),
            None => match Box::pin(self.made_out(first)).await {
                Some(made_out) => made_out,
                None => return,
            },
        };
        self.connection.http2 = http2;
        let Self { stream, connection, door, settings, deadline, place, task } = self;
        let way = Way { transport: Transport::Plain(stream), ahead, place };
        speak(way, connection, door, settings, deadline, task).await;
    }

    /// Reads until the protocol is known after `first`: whether it is HTTP/2, and what was read.
    async fn made_out(&mut self, first: Bytes) -> Option<(bool, Bytes)> {
        // A caller that has said nothing yet costs no buffer.
        tokio::select! {
            biased;
            () = self.stream.readable() => {}
            () = &mut self.deadline => {
                count_timeout(Wait::Head(0), self.door);
                return None;
            }
            () = forsaken(self.task) => return None,
        }
        let mut ahead = BytesMut::with_capacity(READ_AHEAD);
        ahead.extend_from_slice(&first);
        loop {
            let read = tokio::select! {
                biased;
                read = self.stream.read_buf(&mut ahead) => read,
                () = &mut self.deadline => {
                    count_timeout(Wait::Head(0), self.door);
                    return None;
                }
                () = forsaken(self.task) => return None,
            };
            if matches!(read, Ok(0) | Err(_)) {
                return None;
            }
            if let Some(http2) = speaks_http2(&ahead) {
                return Some((http2, ahead.freeze()));
            }
        }
    }

    async fn encrypted(self, acceptor: tokio_rustls::TlsAcceptor) {
        let Self { stream, mut connection, door, settings, mut deadline, place, task } = self;
        let stats = &door.shared.stats;
        let stream = match within(settings.tls_handshake, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                stats.handshake_failures.add();
                door.handler.observe(Event::Refused("handshake"));
                tracing::debug!(peer = ?connection.peer, %error, "TLS handshake failed");
                return;
            }
            Err(_) => {
                stats.handshake_failures.add();
                door.handler.observe(Event::Refused("handshake"));
                return;
            }
        };
        let (_, session) = stream.get_ref();
        connection.http2 = session.alpn_protocol() == Some(b"h2");
        connection.tls = Some(TlsInfo {
            server_name: session.server_name().map(Arc::from),
            client_subject: crate::proxy::tls::client_subject(session),
        });
        let transport = Transport::Tls(Box::new(stream));
        deadline.reset(settings.header_read);
        let way = Way { transport, ahead: Bytes::new(), place };
        speak(way, connection, door, settings, deadline, task).await;
    }
}

/// Whether a connection that begins with `bytes` speaks HTTP/2; `None`: too few to know.
fn speaks_http2(bytes: &[u8]) -> Option<bool> {
    let compared = bytes.len().min(PREFACE.len());
    if bytes[..compared] != PREFACE[..compared] { Some(false) } else { (compared == PREFACE.len()).then_some(true) }
}

/// What a connection is spoken over, once that is known.
struct Way {
    transport: Transport,
    ahead: Bytes,
    place: Place,
}

async fn speak<H: Handler>(
    way: Way,
    mut connection: ConnInfo,
    door: &Rc<Door<H>>,
    settings: Arc<Settings>,
    deadline: Deadline,
    task: &Task,
) {
    let http2 = connection.http2;
    let state = Arc::new(State::default());
    connection.interim = (!http2).then(|| Interim::new(&state));
    connection.window = http2.then(Window::new);
    let io = Io::new(way.transport, way.ahead, Arc::clone(&state), way.place, connection.window.clone());
    let io = TokioIo::new(io);
    let served = Rc::new(Served {
        handler: Rc::clone(&door.handler),
        connection: Rc::new(connection),
        settings: Arc::clone(&settings),
        shared: Arc::clone(&door.shared),
        worker: Rc::clone(task.worker()),
    });
    let requests = Arc::clone(&state);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let under_way = UnderWay::begin(&requests, !request.body().is_end_stream());
        if *request.method() == Method::CONNECT {
            request.extensions_mut().insert(Hold::begin(&requests));
        }
        let served = Rc::clone(&served);
        async move {
            let answer = respond(&served, request).await;
            Ok::<_, Infallible>(answer.map(|body| Tracked::new(body, under_way)))
        }
    });
    let mut drive = Drive {
        state: &state,
        http2,
        settings: &settings,
        deadline,
        current: Wait::Head(0),
        task,
        closing: false,
        draining: false,
        resting: false,
        idle_left: settings.keep_alive,
        awake: None,
    };
    if http2 {
        let mut connection = Box::pin(builder2(&settings, &door.shared).serve_connection(io, service));
        match drive.run(connection.as_mut()).await {
            Ok(()) | Err(End::Idle) => {}
            Err(End::Failed(error)) => count_failure(&error, door),
            Err(End::TooLate(wait)) => count_timeout(wait, door),
        }
        return;
    }
    let mut parts = (io, service);
    loop {
        let (io, service) = parts;
        // Boxed, so that a connection that rests does not pay for what it does not use.
        let mut connection = Box::new(builder1(&settings).serve_connection(io, service).with_upgrades());
        let outcome = drive.run(Pin::new(&mut *connection)).await;
        if outcome.is_ok() {
            state.let_go();
        }
        match outcome {
            Ok(()) if state.may_be_sending() => return Box::pin(linger(*connection)).await,
            Ok(()) => return,
            Err(End::Failed(error)) => {
                count_failure(&error, door);
                if error.is_parse() && !state.has_ended() {
                    Box::pin(linger(*connection)).await;
                }
                return;
            }
            Err(End::TooLate(wait)) => {
                count_timeout(wait, door);
                // Said only to a caller that began a request: to an idle one it would look like an answer.
                if matches!(wait, Wait::Head(_))
                    && state.has_heard()
                    && let Some(parts) = connection.into_parts()
                {
                    parts.io.into_inner().dismiss(TOO_SLOW);
                }
                return;
            }
            Err(End::Idle) => {}
        }
        let Some(http1::Parts { mut io, read_buf, service, .. }) = connection.into_parts() else { return };
        io.inner_mut().unread(&read_buf);
        drop(read_buf); // and its whole buffer, however little it holds
        if !drive.rest(io.inner_mut(), &door.shared.stats).await {
            return;
        }
        parts = (io, service);
    }
}

/// Closes so that the last answer arrives.
async fn linger<S>(connection: http1::UpgradeableConnection<TokioIo<Io>, S>)
where
    S: HttpService<Incoming, ResBody: 'static, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
    <S::ResBody as Body>::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    // `None`: upgraded, and no longer ours.
    if let Some(parts) = connection.into_parts() {
        let _ = within(LINGER, parts.io.into_inner().linger(LINGER_BYTES)).await;
    }
}

/// Why a connection ended badly.
enum End {
    Failed(hyper::Error),
    TooLate(Wait),
    /// It did not end: it has nothing to do for now, and can give its buffers back.
    Idle,
}

/// Drives a connection: its deadlines, and its part in a drain.
struct Drive<'a> {
    state: &'a State,
    http2: bool,
    settings: &'a Settings,
    deadline: Deadline,
    /// What the deadline was set for.
    current: Wait,
    task: &'a Task,
    closing: bool,
    /// It is told to end, and may answer once more.
    draining: bool,
    /// The deadline, when it passes, means that the connection gives its buffers back, not that it ends.
    resting: bool,
    /// How much longer the connection may be idle, as of when it last woke from resting or had answered.
    idle_left: Duration,
    /// The leave to keep the buffers while idle.
    awake: Option<Awake>,
}

impl Drive<'_> {
    async fn run<C: Graceful>(&mut self, mut connection: Pin<&mut C>) -> Result<(), End> {
        std::future::poll_fn(|context| {
            if !self.draining && !self.closing && self.task.poll_drain(context).is_ready() {
                self.draining = true;
                if self.http2 {
                    self.closing = true;
                    connection.as_mut().close();
                } else {
                    // One more answer, which says that the connection closes: see `respond`.
                    self.resting = false;
                    self.awake = None;
                    self.wait_for_last(self.state.wait(false));
                }
            }
            if let Poll::Ready(result) = connection.as_mut().poll(context) {
                return Poll::Ready(result.map_err(End::Failed));
            }
            self.time();
            let mut rests = self.rests_at_once();
            loop {
                if !rests && self.deadline.poll_passed(context).is_pending() {
                    return Poll::Pending;
                }
                if self.closing || !matches!(self.current, Wait::Request(_)) {
                    return Poll::Ready(Err(End::TooLate(self.current)));
                }
                if !self.http2 && !self.resting {
                    return Poll::Ready(Err(End::TooLate(self.current)));
                }
                if !self.http2 {
                    rests = false;
                    match self.prove_idle(connection.as_mut(), context) {
                        Poll::Ready(Ok(())) => return Poll::Ready(Err(End::Idle)),
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(End::Failed(error))),
                        // Then it ends with what is under way.
                        Poll::Pending => {
                            (self.closing, self.resting, self.awake) = (true, false, None);
                            self.deadline.reset(self.settings.keep_alive);
                            continue;
                        }
                    }
                }
                // An idle HTTP/2 connection is told that it goes, and given time to hear it.
                self.closing = true;
                connection.as_mut().close();
                self.deadline.reset(GOODBYE);
                if let Poll::Ready(result) = connection.as_mut().poll(context) {
                    return Poll::Ready(result.map_err(End::Failed));
                }
            }
        })
        .await
    }

    /// Makes sure that nothing of a request is under way. What had no body has ended with its answer; whether a body
    /// has been read to its end only the library knows: told to close, it is done at once if it waits for the next
    /// request, and the socket stays open all the same.
    fn prove_idle<C: Graceful>(
        &self,
        mut connection: Pin<&mut C>,
        context: &mut Context<'_>,
    ) -> Poll<hyper::Result<()>> {
        if !self.state.may_be_sending() {
            return Poll::Ready(Ok(()));
        }
        self.state.ask(true);
        connection.as_mut().close();
        let outcome = connection.poll(context);
        self.state.ask(false);
        if outcome.is_ready() {
            self.state.body_ended();
        }
        outcome
    }

    /// Waits, without buffers, for the next request to begin; `false`: the connection is to be closed.
    async fn rest(&mut self, io: &mut Io, stats: &Stats) -> bool {
        self.resting = false;
        let stood = self.awake.take().map_or(Duration::ZERO, |_| self.settings.awake);
        if io.has_ahead() {
            return true; // the next request has begun
        }
        stats.rested.add();
        self.deadline.reset(self.idle_left.saturating_sub(stood));
        tokio::select! {
            biased;
            () = io.readable() => {
                // TLS has records that are no part of a request: whoever sends only those stays idle.
                self.idle_left = self.deadline.left();
                true
            }
            () = forsaken(self.task) => false,
            () = &mut self.deadline => {
                stats.idle_closed.add();
                false
            }
        }
    }

    /// Whether the connection is to give its buffers back now, since it is idle and many others that are have kept
    /// theirs. If it need not, it keeps them for a while.
    fn rests_at_once(&mut self) -> bool {
        let idle = matches!(self.current, Wait::Request(_))
            && !self.http2
            && !self.closing
            && !self.draining
            && self.state.at_rest();
        if self.resting || !idle || self.idle_left <= self.settings.awake {
            return false;
        }
        self.resting = true;
        self.awake = self.task.worker().stay_awake();
        if self.awake.is_some() {
            self.deadline.reset(self.settings.awake);
        }
        self.awake.is_none()
    }

    /// Sets the deadline of a connection that may answer once more: what is not under way yet has not long to begin.
    fn wait_for_last(&mut self, wait: Wait) {
        self.current = wait;
        if matches!(wait, Wait::Request(_)) || (matches!(wait, Wait::Head(_)) && !self.state.has_heard()) {
            self.deadline.reset(self.task.worker().grace());
        }
    }

    /// Sets the deadline anew if the connection waits for something else than before.
    fn time(&mut self) {
        let wait = self.state.wait(self.http2);
        if wait == self.current {
            return;
        }
        self.current = wait;
        self.resting = false;
        self.awake = None;
        match wait {
            Wait::Head(_) => self.deadline.reset(self.settings.header_read),
            Wait::Request(_) if self.draining => self.deadline.reset(self.task.worker().grace()),
            Wait::Request(_) => {
                self.idle_left = self.settings.keep_alive;
                self.deadline.reset(self.settings.keep_alive);
            }
            Wait::Reader(_) => self.deadline.reset(self.settings.body_idle),
            Wait::Handler => self.deadline.clear(),
        }
    }
}

/// A connection that can be told to close after what is under way.
trait Graceful: Future<Output = hyper::Result<()>> {
    fn close(self: Pin<&mut Self>);
}

impl<I, S, B> Graceful for http1::UpgradeableConnection<I, S>
where
    Self: Future<Output = hyper::Result<()>>,
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn close(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<I, S, B, E> Graceful for http2::Connection<I, S, E>
where
    Self: Future<Output = hyper::Result<()>>,
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    E: hyper::rt::bounds::Http2ServerConnExec<S::Future, B>,
{
    fn close(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

fn builder1(settings: &Settings) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(settings.header_bytes.max(LEAST_BUFFER));
    // Told a number of its own, even this one, the library sets its arrays up anew for every request.
    if settings.headers != USUAL_HEADERS {
        builder.max_headers(settings.headers);
    }
    builder
}

fn builder2(settings: &Settings, shared: &Arc<Shared>) -> http2::Builder<Streams> {
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

fn count_timeout<H: Handler>(wait: Wait, door: &Door<H>) {
    let stats = &door.shared.stats;
    match wait {
        Wait::Head(_) => {
            stats.slow_heads.add();
            door.handler.observe(Event::BadHead("slow_head"));
        }
        Wait::Reader(_) => stats.slow_reads.add(),
        Wait::Request(_) | Wait::Handler => stats.idle_closed.add(),
    }
}

fn count_failure<H: Handler>(error: &hyper::Error, door: &Door<H>) {
    if error.is_parse_too_large() {
        door.shared.stats.oversized_heads.add();
        door.handler.observe(Event::BadHead("head_too_large"));
    } else if error.is_parse() {
        door.shared.stats.malformed.add();
        door.handler.observe(Event::BadHead("malformed"));
    }
}

async fn drained(task: &Task) {
    std::future::poll_fn(|context| task.poll_drain(context)).await;
}

/// Ready once the worker drains and the time is over in which a caller may still be sending what it asks.
async fn forsaken(task: &Task) {
    drained(task).await;
    pause(task.worker().grace()).await;
}

/// Tells that a connection was there, and whether it panicked outside a handler: then its task ends, and nothing else.
struct Watch<'a, H: Handler>(&'a Door<H>);

impl<'a, H: Handler> Watch<'a, H> {
    fn begin(door: &'a Door<H>) -> Self {
        door.handler.observe(Event::Opened);
        Self(door)
    }
}

impl<H: Handler> Drop for Watch<'_, H> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.shared.stats.panics.add();
            self.0.handler.observe(Event::Panicked);
        }
    }
}

/// What an HTTP/2 connection begins with (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Enough for a usual request's head.
const READ_AHEAD: usize = 2048;
/// The fields that hyper accepts in a head when it is told nothing.
const USUAL_HEADERS: usize = 100;
/// hyper accepts no smaller buffer.
const LEAST_BUFFER: usize = 8192;
/// Bytes a caller may send ahead of the upstream per stream, and over a whole connection.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Bytes an answer may run ahead of its caller per stream.
const SEND_BUFFER: usize = 256 * 1024;
/// Streams a caller may reset before they were taken up, and errors it may make, before the connection goes
/// (CVE-2023-44487, CVE-2025-8671).
const RESETS_MAX: usize = 64;
/// How long, and for how many bytes, a caller is listened to that has its answer and goes on sending.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 16 << 20;
/// What an idle HTTP/2 connection gets to hear that it goes.
const GOODBYE: Duration = Duration::from_secs(2);
