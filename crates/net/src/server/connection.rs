//! Serves one connection from its first byte to its last.

mod http2;

use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use tokio_rustls::server::TlsStream;

use super::accept::{Acceptor, Caller};
use super::bounds::ConnectionSlot;
use super::http1;
use super::http2::state::Wait;
use super::interim::Queue;
use super::io::{Plain, Transport};
use super::proxy_protocol;
use super::respond::{Served, UnreadReason};
use super::{ConnInfo, Event, Handler, Settings, TlsInfo, Unread};
use crate::buffer::ReadBuffer;
use crate::timers::{Deadline, within};
use crate::tls::{ACME_TLS, ServerTls};
use crate::worker::Task;

/// Serves one connection; its errors do not affect others.
///
/// Every idle connection pays for the inline size of this task.
pub(super) fn serve<H: Handler>(
    caller: Caller,
    acceptor: &Rc<Acceptor<H>>,
) -> impl Future<Output = ()> + use<H> {
    let Caller {
        stream,
        peer,
        settings,
        place,
        task,
    } = caller;
    let acceptor = Rc::clone(acceptor);
    let deadline = Deadline::after(settings.header_read);
    let connection = ConnInfo {
        peer,
        unnamed: false,
        listener: Arc::clone(&acceptor.address),
        tls: None,
        http2: false,
        interim: None,
        window: None,
    };
    let mut stream = stream;
    let mut setup = Setup {
        connection,
        acceptor,
        settings,
        deadline,
        place,
        task,
    };
    async move {
        let _watch = Watch::begin(Rc::clone(&setup.acceptor));
        if setup.settings.proxy_protocol && !Box::pin(setup.proxy_header(&mut stream)).await {
            return;
        }
        if let Some(tls) = &setup.acceptor.tls {
            let tls = Arc::clone(tls);
            return Box::pin(setup.encrypted(stream, &tls)).await;
        }
        let Some((http2, mut input)) = setup.first_bytes(&mut stream).await else {
            return;
        };
        let transport = Transport::Plain(stream);
        setup.connection.http2 = http2;
        if http2 {
            let ahead = input.bytes().split().freeze();
            drop(input);
            Box::pin(setup.http2(transport, ahead)).await;
        } else {
            setup.http1(transport, input).await;
        }
    }
}

struct Setup<H> {
    connection: ConnInfo,
    acceptor: Rc<Acceptor<H>>,
    settings: Arc<Settings>,
    deadline: Deadline,
    place: ConnectionSlot,
    task: Task,
}

impl<H: Handler> Setup<H> {
    /// Reads the PROXY protocol header; returns whether the connection may continue.
    async fn proxy_header(&mut self, stream: &mut Plain) -> bool {
        let handler = &self.acceptor.handler;
        // A Unix socket has no address; the mode of its file decides who may connect.
        let peer = self.connection.peer;
        if peer.is_some_and(|peer| !self.settings.trusts(peer.ip())) {
            handler.observe(Event::Refused("proxy_header"));
            return false;
        }
        match within(self.settings.header_read, proxy_protocol::read(stream)).await {
            Ok(Ok(Some(source))) => self.connection.peer = Some(source),
            Ok(Ok(None)) => self.connection.unnamed = true,
            Ok(Err(error)) => {
                handler.observe(Event::Refused("proxy_header"));
                tracing::debug!(?peer, %error, "wrong PROXY protocol header");
                return false;
            }
            Err(_) => {
                count_timeout(Wait::Head, &self.acceptor);
                return false;
            }
        }
        let counted = self
            .connection
            .peer
            .map_or(Ok(()), |peer| self.place.from(peer.ip(), &self.settings));
        if let Err(full) = counted {
            handler.observe(Event::Refused(full.label()));
        }
        counted.is_ok()
    }

    /// Reads the client's first bytes and decides whether they are HTTP/2. `None`: the client is
    /// gone, or sent too little in time.
    async fn first_bytes(&mut self, stream: &mut Plain) -> Option<(bool, ReadBuffer)> {
        // Usually a request's first bytes arrive together, and are already there.
        let mut input = stream.first().unwrap_or_default();
        if let Some(http2) = speaks_http2(input.bytes()) {
            return Some((http2, input));
        }
        // A client that has sent nothing yet costs no buffer.
        let mut readable = false;
        let mut grace = None;
        std::future::poll_fn(|cx| {
            if !readable && stream.poll_readable(cx).is_ready() {
                readable = true;
            }
            if readable {
                while let Poll::Ready(read) = input.poll_fill(cx, stream, 0) {
                    if matches!(read, Ok(0) | Err(_)) {
                        return Poll::Ready(None);
                    }
                    if let Some(http2) = speaks_http2(input.bytes()) {
                        return Poll::Ready(Some(http2));
                    }
                }
            }
            if self.deadline.poll_passed(cx).is_ready() {
                count_timeout(Wait::Head, &self.acceptor);
                return Poll::Ready(None);
            }
            // During a drain the client has only a short time to begin.
            if self.task.poll_drain(cx).is_ready() {
                let span = self.task.worker().grace();
                return grace
                    .get_or_insert_with(|| Deadline::after(span))
                    .poll_passed(cx)
                    .map(|()| None);
            }
            Poll::Pending
        })
        .await
        .map(|http2| (http2, input))
    }

    async fn encrypted(mut self, mut stream: Plain, tls: &ServerTls) {
        let Self {
            acceptor, settings, ..
        } = &self;
        let handshake = async move {
            match clear_text(&mut stream).await {
                Some(head) => Handshake::Clear(stream, head),
                None => Handshake::Over(tls.accept(stream).await.map(Box::new)),
            }
        };
        let stream = match within(settings.tls_handshake, handshake).await {
            Ok(Handshake::Over(Ok(stream))) => stream,
            Ok(Handshake::Over(Err(error))) => {
                acceptor.handler.observe(Event::Refused("handshake"));
                tracing::debug!(peer = ?self.connection.peer, %error, "TLS handshake failed");
                return;
            }
            Ok(Handshake::Clear(stream, head)) => {
                let reason = UnreadReason::PlainHttp;
                let unread = reason.unread(&self.connection, &head);
                acceptor.handler.observe(Event::BadHead(unread));
                let mut transport = Transport::Plain(stream);
                transport.write_now(&reason.problem().last_response());
                return http1::linger(transport, self.place).await;
            }
            Err(_) => {
                acceptor.handler.observe(Event::Refused("handshake"));
                return;
            }
        };
        let (_, session) = stream.get_ref();
        if session.alpn_protocol() == Some(ACME_TLS) {
            return;
        }
        self.connection.http2 = session.alpn_protocol() == Some(b"h2");
        self.connection.tls = Some(TlsInfo {
            server_name: session.server_name().map(Arc::from),
            client_subject: crate::tls::client_subject(session),
        });
        let transport = Transport::Tls(stream);
        self.deadline.reset(self.settings.header_read);
        if self.connection.http2 {
            return self.http2(transport, Bytes::new()).await;
        }
        self.http1(transport, ReadBuffer::new()).await;
    }

    fn http1(self, transport: Transport, input: ReadBuffer) -> impl Future<Output = ()> {
        let interim = Queue::default();
        let connection = ConnInfo {
            interim: Some(interim.interim()),
            ..self.connection
        };
        let served = Served {
            handler: Rc::clone(&self.acceptor.handler),
            connection: Rc::new(connection),
            settings: self.settings,
            shared: Arc::clone(&self.acceptor.shared),
        };
        let opened = http1::Opened {
            transport,
            place: self.place,
            input,
            deadline: self.deadline,
            interim,
        };
        http1::serve(opened, served, self.task)
    }
}

enum Handshake {
    Over(io::Result<Box<TlsStream<Plain>>>),
    /// There was no handshake: the connection begins like a plain-text request.
    Clear(Plain, Vec<u8>),
}

/// Returns the first bytes, without consuming them, if they are a plain-text request: a TLS record
/// does not begin with a letter.
async fn clear_text(stream: &mut Plain) -> Option<Vec<u8>> {
    let mut first = [0];
    if stream.peek(&mut first) == 0 {
        std::future::poll_fn(|cx| stream.poll_readable(cx)).await;
        stream.peek(&mut first);
    }
    if !first[0].is_ascii_alphabetic() {
        return None;
    }
    let mut head = vec![0; CLEAR_TEXT];
    let length = stream.peek(&mut head);
    head.truncate(length);
    Some(head)
}

/// Whether a connection that begins with `bytes` is HTTP/2; `None`: too few bytes to decide.
fn speaks_http2(bytes: &[u8]) -> Option<bool> {
    let compared = bytes.len().min(PREFACE.len());
    if bytes[..compared] != PREFACE[..compared] {
        Some(false)
    } else {
        (compared == PREFACE.len()).then_some(true)
    }
}

fn count_timeout<H: Handler>(wait: Wait, acceptor: &Acceptor<H>) {
    let stats = &acceptor.shared.stats;
    match wait {
        Wait::Head => {
            // The client sent nothing, or too little to recognise the protocol.
            let unread = Unread {
                reason: UnreadReason::SlowHead.label(),
                status: None,
                client: None,
                head: &[],
            };
            acceptor.handler.observe(Event::BadHead(unread));
        }
        Wait::Reader(_) => stats.slow_reads.add(),
        Wait::Request(_) | Wait::Handler => stats.idle_closed.add(),
    }
}

/// Reports a connection, and whether it panicked, which ends only its own task.
struct Watch<H: Handler>(Rc<Acceptor<H>>);

impl<H: Handler> Watch<H> {
    fn begin(acceptor: Rc<Acceptor<H>>) -> Self {
        acceptor.handler.observe(Event::Opened);
        Self(acceptor)
    }
}

impl<H: Handler> Drop for Watch<H> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.handler.observe(Event::Panicked);
        }
    }
}

/// The number of bytes of a plain-text request that are logged.
const CLEAR_TEXT: usize = 1024;
/// The first bytes of an HTTP/2 connection (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
