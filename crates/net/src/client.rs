//! One connection to a server, as its client: a request goes out, its answer comes in, both at the same time if need be.
//!
//! No task runs it: whoever holds it polls it. While the answer is awaited, and while its body is read, the request's
//! body goes on; what the server says comes in only as fast as it is taken.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use http::response::Parts;
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body::{Body, Frame};
use hyper::ext::ReasonPhrase;
use tokio::io::{AsyncRead, AsyncWrite};

use tollgate_http1::request::{Limits, Reader};
use tollgate_http1::responses::Head;
use tollgate_http1::write::{Content, request_head};
use tollgate_http1::{self as http1, BodyWriter, Malformed, Output, Responses, Verbatim};

use crate::buffer::{ReadBuffer, poll_flush};

/// A connection to a server.
#[derive(Debug)]
pub struct Client<S, B> {
    socket: S,
    read: ReadBuffer,
    responses: Responses,
    write: Output,
    /// The request's body on its way.
    sending: Option<(B, BodyWriter)>,
    asks_head: bool,
    /// Whether the request leaves the connection fit for another.
    whole: bool,
    /// Bytes of an answer have come.
    heard: bool,
    /// The server takes no more of the request. What it had to say may be there.
    refused: Option<io::Error>,
    /// The task is woken as soon as something comes.
    listening: bool,
    reused: bool,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Failure<E> {
    /// The connection closed, or broke, before a byte of an answer.
    Silent(Option<io::Error>),
    /// It closed, or broke, in the middle of one.
    Broken(io::Error),
    /// It is none.
    Malformed(Malformed),
    /// The request's body failed.
    Body(E),
}

/// A request that was sent whole and may be sent again.
#[derive(Debug)]
pub struct Unanswered {
    write: Output,
    asks_head: bool,
    untouched: bool,
}

impl Unanswered {
    /// Whether the socket took no byte of it, so that nobody can have read any. A byte that went into a TLS session
    /// counts as taken.
    pub const fn is_untouched(&self) -> bool {
        self.untouched
    }

    /// The request as it was asked for, read back from what was written of it. A copy would cost every request; reading
    /// back costs only the few that another server must take.
    pub fn read_back(mut self) -> Option<Request<()>> {
        let limits = Limits {
            bytes: usize::MAX,
            fields: usize::MAX,
            target: usize::MAX,
        };
        let mut written = BytesMut::from(&self.write.flat()[..]);
        let head = Reader::new().read(&mut written, limits).ok()??;
        Some(Request::from_parts(head.parts, ()))
    }
}

impl<S, B> Client<S, B>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: Body<Data = Bytes> + Unpin,
{
    /// A fresh connection.
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

    /// Whether it has served a request before.
    pub const fn is_reused(&self) -> bool {
        self.reused
    }

    /// Begins an exchange. The body is framed by Content-Length where its length is known, else in chunks. `kept`: it may have to be sent again ([`Client::unanswered`]).
    ///
    /// `headers` are taken.
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

    /// [`Client::ask`], with more fields, which `more` writes behind the others.
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
        // The response's headers go where the request's were: no table is set up anew.
        self.responses.reuse(std::mem::take(headers));
    }

    /// The answer's fields need not be taken apart: where nothing in them has to be looked at, they are not among the
    /// head's but [`Client::take_verbatim`].
    pub const fn allow_verbatim(&mut self) {
        self.responses.allow_verbatim();
    }

    /// The answer's fields, if they were not taken apart; those in the head come behind them.
    pub fn take_verbatim(&mut self) -> Option<Verbatim> {
        self.responses.take_verbatim()
    }

    /// Begins an exchange with what an earlier connection left unanswered.
    pub fn ask_again(&mut self, request: Unanswered) {
        self.begin(request.asks_head);
        self.write = request.write;
    }

    /// The request, to be sent again on another connection, if it was to be kept and no byte of an answer has come.
    pub fn unanswered(mut self) -> Option<Unanswered> {
        let untouched = self.write.is_untouched();
        let asks_head = self.asks_head;
        (!self.heard && self.write.rewind()).then_some(Unanswered {
            write: self.write,
            asks_head,
            untouched,
        })
    }

    fn begin(&mut self, asks_head: bool) {
        self.asks_head = asks_head;
        self.responses.expect(asks_head);
        self.heard = false;
    }

    /// Waits for the head of the answer; `on_interim` is told of those before it (1xx). Behind a 101 the connection is
    /// nobody's any more: [`Client::into_parts`].
    ///
    /// # Errors
    /// Why there is none. The connection is of no more use then.
    pub fn poll_answer(
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
                    // Who has not heard the request whole cannot agree to it, and its rest would be lost.
                    return Poll::Ready(Err(Failure::Malformed(Malformed::Unasked)));
                }
                return Poll::Ready(with_reason(head).map_err(Failure::Malformed));
            }
            // Looked at a moment ago, on this very task: there is nothing yet, and it will be woken.
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

    /// Bytes of the answer's body that are to come, if that is known.
    pub const fn left(&self) -> Option<u64> {
        self.responses.left()
    }

    /// The whole body of an answer whose length is known, if it has come with its head.
    pub fn take_whole(&mut self) -> Option<Bytes> {
        self.responses.take_whole(self.read.bytes())
    }

    /// The next piece of the answer's body.
    ///
    /// # Errors
    /// Why it breaks off.
    pub fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure<B::Error>>>> {
        self.poll_receive(cx, true)
    }

    /// [`Client::poll_body`] where the request goes out by [`Client::poll_upload`], polled by another task.
    ///
    /// # Errors
    /// Why it breaks off.
    pub fn poll_body_alone(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure<B::Error>>>> {
        self.poll_receive(cx, false)
    }

    /// Sends what is left of the request, whatever is taken of its answer; ready when all of it has gone, or the server
    /// takes no more.
    ///
    /// # Errors
    /// The body's.
    pub fn poll_upload(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), B::Error>> {
        self.poll_send(cx)
    }

    /// Whether the request has gone out whole.
    pub fn is_sent(&self) -> bool {
        self.sending.is_none() && self.write.is_done()
    }

    #[inline(always)]
    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        sends: bool,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure<B::Error>>>> {
        loop {
            // What was read is passed on before more is: that is the back-pressure.
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

    /// Sends what there is of the request; ready when all of it has gone, or the server takes no more.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), B::Error>> {
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
                    // What comes short of its length has the server wait for the rest in vain.
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

    /// Whether it can take the next request, everything of the last exchange having gone and come. Whatever stands behind
    /// the answer was not asked for, and speaks against it.
    pub fn is_reusable(&mut self) -> bool {
        if !(self.responses.persists()
            && self.whole
            && self.refused.is_none()
            && !self.responses.is_under_way()
            && self.read.is_empty())
        {
            return false;
        }
        // The end of the request may only have to be seen.
        self.is_sent()
            || (matches!(
                self.poll_send(&mut Context::from_waker(Waker::noop())),
                Poll::Ready(Ok(()))
            ) && self.whole
                && self.refused.is_none())
    }

    /// Says that the next request is not its first.
    pub fn reuse(&mut self) {
        self.reused = true;
        self.read.lend();
    }

    /// Looks whether an idle connection is of use no more: it closed, or something came that nobody asked for. The task is
    /// woken when it comes to that.
    pub fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(ReadBuffer::poll_silence(cx, &mut self.socket));
        Poll::Ready(())
    }

    /// [`Client::poll_idle`] by the task that is about to ask: whether it may.
    pub fn is_silent(&mut self, cx: &mut Context<'_>) -> bool {
        self.listening = self.poll_idle(cx).is_pending();
        self.listening
    }

    /// Gives the memory of an idle connection back.
    pub fn release(&mut self) {
        self.read.release();
        self.write.release();
        self.responses.release();
    }

    /// The socket, and what was read of it and not taken.
    pub fn into_parts(mut self) -> (S, Bytes) {
        (self.socket, self.read.bytes().split().freeze())
    }
}

/// The parts of `head`, its reason phrase among their extensions.
fn with_reason(head: Head) -> Result<Parts, Malformed> {
    let Head { mut parts, reason } = head;
    if let Some(reason) = reason {
        let reason = ReasonPhrase::try_from(reason).map_err(|_| Malformed::StartLine)?;
        parts.extensions.insert(reason);
    }
    Ok(parts)
}

/// Bytes of a request's body that may wait to be written.
const AHEAD: usize = 64 * 1024;

#[cfg(test)]
mod tests;
