//! gRPC over HTTP/2: messages with their lengths, and the status at the end.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::{Body, Frame};
use prost::Message;
use tollgate_net::server::{Inbound, Payload};
use tollgate_net::timers::Deadline;

use crate::health::Watching;
use crate::reflection;

/// How long a message may take to arrive.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// The largest message of a peer that need not be trusted.
pub(crate) const MESSAGE_MAX: usize = 64 * 1024;
/// The flag and the length before each message.
const PREFIX: usize = 5;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    code: u8,
    message: &'static str,
}

impl Status {
    pub(crate) const fn invalid(message: &'static str) -> Self {
        Self { code: 3, message }
    }

    pub(crate) const fn not_found(message: &'static str) -> Self {
        Self { code: 5, message }
    }

    pub(crate) const fn deadline_exceeded(message: &'static str) -> Self {
        Self { code: 4, message }
    }

    pub(crate) const fn permission_denied(message: &'static str) -> Self {
        Self { code: 7, message }
    }

    pub(crate) const fn unavailable(message: &'static str) -> Self {
        Self { code: 14, message }
    }

    pub(crate) const fn exhausted(message: &'static str) -> Self {
        Self { code: 8, message }
    }

    pub(crate) const fn unimplemented(message: &'static str) -> Self {
        Self { code: 12, message }
    }

    fn write(self, headers: &mut HeaderMap) {
        headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(self.code)));
        // Words of this crate: visible ASCII without `%`.
        headers.insert(GRPC_MESSAGE, HeaderValue::from_static(self.message));
    }

    /// The call's response, without messages.
    pub(crate) fn response(self) -> Response<ReplyBody> {
        let mut response = reply(ReplyBody(Kind::Done));
        self.write(response.headers_mut());
        response
    }
}

pub(crate) fn message(message: &impl Message) -> Response<ReplyBody> {
    reply(ReplyBody(Kind::Message(framed(message))))
}

/// The response with a message for each change of the health.
pub(crate) fn watching(watching: Watching) -> Response<ReplyBody> {
    reply(ReplyBody(Kind::Health(watching)))
}

pub(crate) fn reflecting(requests: Requests) -> Response<ReplyBody> {
    reply(ReplyBody(Kind::Reflection(Box::new(requests))))
}

fn reply(body: ReplyBody) -> Response<ReplyBody> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// Refuses what is no gRPC call.
/// The error is the response to it.
pub(crate) fn check<B>(request: &Request<B>) -> Result<(), Response<ReplyBody>> {
    let kind = request.headers().get(CONTENT_TYPE);
    let is_grpc = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    let status = if request.version() != Version::HTTP_2 {
        StatusCode::HTTP_VERSION_NOT_SUPPORTED
    } else if !is_grpc {
        StatusCode::UNSUPPORTED_MEDIA_TYPE
    } else if request.method() != Method::POST {
        StatusCode::METHOD_NOT_ALLOWED
    } else {
        return Ok(());
    };
    let mut response = Response::new(ReplyBody(Kind::Done));
    *response.status_mut() = status;
    Err(response)
}

/// The messages of a request. Each must arrive within [`READ_WITHIN`].
#[derive(Debug)]
pub(crate) struct Requests<B = Inbound> {
    body: B,
    max: usize,
    buffer: BytesMut,
    ended: bool,
    /// When the next message must be whole; `None`: no reader has had to wait for it.
    due: Option<Deadline>,
}

impl<B: Body<Data = Bytes> + Unpin> Requests<B> {
    pub(crate) fn new(body: B, max: usize) -> Self {
        Self {
            body,
            max,
            buffer: BytesMut::new(),
            ended: false,
            due: None,
        }
    }

    /// Reads the only message of a call.
    pub(crate) async fn one<M: Message + Default>(mut self) -> Result<M, Status> {
        let message = std::future::poll_fn(|cx| self.poll_next(cx)).await;
        message.unwrap_or(Err(Status::invalid("the call has no message")))
    }

    /// The next message; `None`: there are no more.
    pub(crate) fn poll_next<M: Message + Default>(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<M, Status>>> {
        loop {
            match self.take() {
                Ok(None) if self.ended && self.buffer.is_empty() => return Poll::Ready(None),
                Ok(None) if self.ended => {
                    let broken = Status::invalid("the message is not complete");
                    self.buffer.clear();
                    return Poll::Ready(Some(Err(broken)));
                }
                Ok(None) => {}
                Ok(Some(bytes)) => {
                    self.due = None;
                    let message = M::decode(bytes);
                    let wrong = |_| Status::invalid("the message cannot be decoded");
                    return Poll::Ready(Some(message.map_err(wrong)));
                }
                Err(status) => return Poll::Ready(Some(Err(self.fail(status)))),
            }
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Poll::Ready(Some(Err(_)) | None) => self.ended = true,
                Poll::Pending => {
                    let due = self.due.get_or_insert_with(|| Deadline::after(READ_WITHIN));
                    ready!(Pin::new(due).poll(cx));
                    let late = Status::deadline_exceeded("no message arrived within 10 seconds");
                    return Poll::Ready(Some(Err(self.fail(late))));
                }
            }
        }
    }

    fn fail(&mut self, status: Status) -> Status {
        self.buffer.clear();
        self.ended = true;
        status
    }

    /// Takes a whole message out of the buffer.
    fn take(&mut self) -> Result<Option<Bytes>, Status> {
        let [compressed, length @ ..] = match self.buffer.first_chunk::<PREFIX>() {
            Some(prefix) => *prefix,
            None => return Ok(None),
        };
        if compressed != 0 {
            return Err(Status::unimplemented("compressed messages are not read"));
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > self.max {
            return Err(Status::exhausted("the message is too long"));
        }
        if self.buffer.len() < PREFIX + length {
            return Ok(None);
        }
        self.buffer.advance(PREFIX);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }
}

fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message
        .encode(&mut framed)
        .expect("the buffer has the length of the message");
    framed.freeze()
}

/// The body of a response: messages, then the status in the trailers.
#[derive(Debug)]
pub struct ReplyBody(Kind);

#[derive(Debug)]
enum Kind {
    /// Nothing; the status is in the head.
    Done,
    /// A message of our own server about a call that it refused.
    Plain(Bytes),
    Message(Bytes),
    Ended,
    Health(Watching),
    Reflection(Box<Requests>),
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let kind = &mut self.get_mut().0;
        // What ends a stream of messages is the status.
        let status = match kind {
            Kind::Done => return Poll::Ready(None),
            Kind::Plain(bytes) => {
                let frame = Frame::data(std::mem::take(bytes));
                *kind = Kind::Done;
                return Poll::Ready(Some(Ok(frame)));
            }
            Kind::Message(bytes) => {
                let frame = Frame::data(std::mem::take(bytes));
                *kind = Kind::Ended;
                return Poll::Ready(Some(Ok(frame)));
            }
            Kind::Ended => None,
            Kind::Health(watching) => match ready!(watching.poll_next(cx)) {
                Some(health) => return Poll::Ready(Some(Ok(Frame::data(framed(&health))))),
                None => Some(Status::unavailable("the gateway drains")),
            },
            Kind::Reflection(requests) => match ready!(requests.poll_next(cx)) {
                Some(Ok(request)) => {
                    let response = reflection::respond(request);
                    return Poll::Ready(Some(Ok(Frame::data(framed(&response)))));
                }
                Some(Err(status)) => Some(status),
                None => None,
            },
        };
        *kind = Kind::Done;
        let mut trailers = HeaderMap::with_capacity(2);
        match status {
            None => _ = trailers.insert(GRPC_STATUS, HeaderValue::from_static("0")),
            Some(status) => status.write(&mut trailers),
        }
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, Kind::Done)
    }
}

impl Payload for ReplyBody {}

impl From<Bytes> for ReplyBody {
    fn from(bytes: Bytes) -> Self {
        Self(if bytes.is_empty() {
            Kind::Done
        } else {
            Kind::Plain(bytes)
        })
    }
}

#[cfg(test)]
mod tests;
