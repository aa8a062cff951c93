//! The client side of one connection to a server: sends a request and receives its response, both
//! at the same time if necessary.
//!
//! No task runs it; its owner polls it. The request's body is sent while the response is awaited
//! and read. The response is read only as fast as the owner takes it.

mod idle;
#[cfg(test)]
mod tests;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, Method, StatusCode, Uri};
use http_body::{Body, Frame};
use hyper::ext::ReasonPhrase;
use tokio::io::{AsyncRead, AsyncWrite};

use tollgate_http1::responses::Head;
use tollgate_http1::write::{Content, request_head};
use tollgate_http1::{self as http1, BodyWriter, Malformed, Output, Responses, Verbatim};

use crate::buffer::{ReadBuffer, poll_flush};
pub use idle::Unanswered;

#[derive(Debug)]
pub struct Client<S, B> {
    socket: S,
    read: ReadBuffer,
    responses: Responses,
    write: Output,
    sending: Option<(B, BodyWriter)>,
    asks_head: bool,
    /// Whether the request leaves the connection usable for another.
    whole: bool,
    heard: bool,
    /// The error if the server accepts no more of the request. A response may still be readable.
    refused: Option<io::Error>,
    /// Whether the task is woken as soon as input arrives.
    listening: bool,
    reused: bool,
}

/// The reason why there is no response.
#[derive(Debug)]
pub enum Failure<E> {
    /// The connection closed, or broke, before the first byte of a response.
    Silent(Option<io::Error>),
    /// It closed, or broke, in the middle of a response.
    Broken(io::Error),
    Malformed(Malformed),
    Body(E),
}

impl<S, B> Client<S, B>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: Body<Data = Bytes> + Unpin,
{
    pub fn new(socket: S) -> Self {
        Self {
            socket,
            read: ReadBuffer::shared(),
            responses: Responses::new(),
            write: Output::new(),
            sending: None,
            asks_head: false,
            whole: true,
            heard: false,
            refused: None,
            listening: false,
            reused: false,
        }
    }

    pub const fn is_reused(&self) -> bool {
        self.reused
    }

    /// Begins an exchange. The body is framed by Content-Length if its length is known, otherwise
    /// in chunks. `kept`: the request may have to be sent again ([`Client::unanswered`]). `headers`
    /// are taken.
    pub fn ask(
        &mut self,
        method: &Method,
        target: &Uri,
        headers: &mut HeaderMap,
        body: Option<B>,
        kept: bool,
    ) {
        self.ask_with(method, target, headers, |_| (), body, kept);
    }

    /// [`Client::ask`] with more headers, which `more` writes after the others.
    pub fn ask_with(
        &mut self,
        method: &Method,
        target: &Uri,
        headers: &mut HeaderMap,
        more: impl FnOnce(&mut Vec<u8>),
        body: Option<B>,
        kept: bool,
    ) {
        self.begin(*method == Method::HEAD);
        self.write.begin(kept && body.is_none());
        let target = target.path_and_query().map_or("/", |path| path.as_str());
        let content = match &body {
            None => Content::None,
            Some(body) => body
                .size_hint()
                .exact()
                .map_or(Content::Unknown, Content::Exactly),
        };
        let writer = request_head(self.write.flat(), method, target, headers, more, content);
        self.sending = body.map(|body| (body, writer));
        // The response reuses the request's header table instead of allocating one.
        self.responses.reuse(std::mem::take(headers));
    }

    /// Allows what [`Responses::allow_verbatim`] allows for the next response.
    pub const fn allow_verbatim(&mut self) {
        self.responses.allow_verbatim();
    }

    pub fn take_verbatim(&mut self) -> Option<Verbatim> {
        self.responses.take_verbatim()
    }

    fn begin(&mut self, asks_head: bool) {
        self.asks_head = asks_head;
        self.responses.expect(asks_head);
        self.heard = false;
    }

    /// Waits for the head of the response; `on_interim` receives the interim heads before it (1xx).
    /// After a 101 the connection belongs to the caller of [`Client::into_parts`]. After an error
    /// the connection is unusable.
    pub fn poll_response(
        &mut self,
        cx: &mut Context<'_>,
        mut on_interim: impl FnMut(StatusCode, &HeaderMap),
    ) -> Poll<Result<Parts, Failure<B::Error>>> {
        if let Poll::Ready(Err(error)) = self.poll_send(cx) {
            return Poll::Ready(Err(Failure::Body(error)));
        }
        loop {
            while !self.read.is_empty()
                && let Some(head) = self
                    .responses
                    .read_head(self.read.bytes())
                    .map_err(Failure::Malformed)?
            {
                if head.is_interim() {
                    on_interim(head.parts.status, &head.parts.headers);
                    self.responses.reuse(head.parts.headers);
                    continue;
                }
                if head.switches() && !self.is_sent() {
                    // A server that has not read the whole request cannot accept its upgrade, and
                    // the rest of the request would be lost.
                    return Poll::Ready(Err(Failure::Malformed(Malformed::Unasked)));
                }
                return Poll::Ready(with_reason(head).map_err(Failure::Malformed));
            }
            // This task checked a moment ago and registered its waker: no input is there yet.
            if std::mem::take(&mut self.listening) && self.refused.is_none() {
                return Poll::Pending;
            }
            let error = match self.read.poll_fill(cx, &mut self.socket, 0) {
                Poll::Pending => match self.refused.take() {
                    None => return Poll::Pending,
                    Some(error) => Some(error),
                },
                Poll::Ready(Ok(0)) => self.refused.take(),
                Poll::Ready(Ok(_)) => {
                    self.heard = true;
                    continue;
                }
                Poll::Ready(Err(error)) => Some(error),
            };
            return Poll::Ready(Err(match error {
                error if !self.heard => Failure::Silent(error),
                Some(error) => Failure::Broken(error),
                None => Failure::Broken(io::ErrorKind::UnexpectedEof.into()),
            }));
        }
    }

    pub const fn left(&self) -> Option<u64> {
        self.responses.left()
    }

    pub fn take_whole(&mut self) -> Option<Bytes> {
        self.responses.take_whole(self.read.bytes())
    }

    pub fn is_sent(&self) -> bool {
        self.sending.is_none() && self.write.is_done()
    }

    /// Reads the next part of the response's body. `sends`: also sends the rest of the request, which
    /// otherwise another task does ([`Client::poll_send`]).
    #[inline(always)]
    pub fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        sends: bool,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure<B::Error>>>> {
        loop {
            // Pass on what was read before reading more: that is the back-pressure.
            let wanted = match self.responses.read_body(self.read.bytes()) {
                Ok(http1::Body::Data(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Ok(http1::Body::Trailers(trailers)) => {
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                Ok(http1::Body::End) => return Poll::Ready(None),
                Ok(http1::Body::Needs(bytes)) => bytes,
                Err(error) => return Poll::Ready(Some(Err(Failure::Malformed(error)))),
            };
            if sends && let Poll::Ready(Err(error)) = self.poll_send(cx) {
                return Poll::Ready(Some(Err(Failure::Body(error))));
            }
            match ready!(self.read.poll_fill(cx, &mut self.socket, wanted)) {
                Ok(0) if self.responses.end().is_ok() => {}
                Ok(0) => return Poll::Ready(Some(Err(Failure::Silent(None)))),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Some(Err(Failure::Broken(error)))),
            }
        }
    }

    /// Sends what there is of the request, independently of how much of its response is read; ready
    /// when all of it is sent, or the server accepts no more.
    pub fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), B::Error>> {
        if self.refused.is_some() {
            return Poll::Ready(Ok(()));
        }
        loop {
            let mut waits = false;
            while let Some((body, writer)) = &mut self.sending
                && self.write.left() < AHEAD
            {
                let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(cx) else {
                    waits = true;
                    break;
                };
                match frame.transpose()?.map(Frame::into_data) {
                    Some(Ok(data)) => writer.data(&mut self.write, data, body.is_end_stream()),
                    Some(Err(frame)) => writer.end(&mut self.write, frame.trailers_ref()),
                    None => writer.end(&mut self.write, None),
                }
                if writer.is_ended() {
                    // A body shorter than its announced length leaves the server waiting, so the
                    // connection cannot be reused.
                    self.whole &= !writer.is_broken();
                    self.sending = None;
                }
            }
            if self.write.is_done() {
                return if waits {
                    Poll::Pending
                } else {
                    Poll::Ready(Ok(()))
                };
            }
            if let Err(error) = ready!(poll_flush(&mut self.write, cx, &mut self.socket)) {
                self.sending = None;
                self.refused = Some(error);
                return Poll::Ready(Ok(()));
            }
            if waits {
                return Poll::Pending;
            }
        }
    }
}

fn with_reason(head: Head) -> Result<Parts, Malformed> {
    let Head { mut parts, reason } = head;
    if let Some(reason) = reason {
        let reason = ReasonPhrase::try_from(reason).map_err(|_| Malformed::StartLine)?;
        parts.extensions.insert(reason);
    }
    Ok(parts)
}

/// The largest number of bytes of a request's body that may wait to be written.
const AHEAD: usize = 64 * 1024;
