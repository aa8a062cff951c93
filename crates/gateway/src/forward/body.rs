//! The body type of every response: a closed enum, so that no request pays for a box or a virtual
//! call. [`Guarded`] adds what is done at a body's end.

mod guarded;
mod usage_event;

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::{RequestBody, UpstreamHttp1, UpstreamHttp2};
use tollgate_http1::Malformed;
use tollgate_net::client::Failure;
use tollgate_net::server::InboundError;

pub use guarded::{BodyOutcome, Guard, Guarded};

/// The body of every response. Streaming bodies are boxed, because a response is moved through many
/// calls and most bodies are not streamed.
#[derive(Debug)]
pub enum ResponseBody {
    /// Available bytes, or none: a refusal, a fixed response, or an upstream's response that arrived
    /// completely.
    Bytes(Bytes),
    /// Streamed from an HTTP/1 upstream, whose connection it drives.
    Http1(Box<UpstreamHttp1>),
    Http2(Box<UpstreamHttp2>),
    /// The body of the request, from `builtin:echo`.
    Echo(Box<RequestBody>),
}

const _: () = assert!(size_of::<ResponseBody>() <= 40);

/// The reason why a body was cut short. The peer notices: HTTP/1 closes the connection, HTTP/2
/// resets the stream.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the upstream's response broke off")]
    Upstream(#[from] hyper::Error),
    #[error("the upstream's response broke off")]
    UpstreamBroken(#[source] io::Error),
    #[error("the upstream's response is malformed")]
    UpstreamMalformed(#[source] Malformed),
    #[error("the upstream closed its connection in the middle of its response")]
    UpstreamClosed,
    #[error("the upstream sent nothing for too long")]
    UpstreamIdle,
    #[error("the upstream's response took too long in total")]
    UpstreamSlow,
    #[error("the request's body broke off")]
    Client(#[source] InboundError),
    #[error("the request's body is malformed")]
    ClientMalformed,
    #[error("the client left in the middle of its body")]
    ClientGone,
    #[error("the request's body is too large")]
    TooBig,
    #[error("the request's body stalled")]
    ClientIdle,
    #[error("the request's body is too slow")]
    ClientSlow,
}

tollgate_policy::labels! {
    BodyError {
        Self::Upstream(_) | Self::UpstreamBroken(_) | Self::UpstreamMalformed(_) => "upstream_broke_off",
        Self::UpstreamClosed => "upstream_closed",
        Self::UpstreamIdle => "upstream_idle",
        Self::UpstreamSlow => "upstream_slow",
        Self::Client(_) => "client_broke_off",
        Self::ClientMalformed => "client_malformed",
        Self::ClientGone => "client_gone",
        Self::TooBig => "too_big",
        Self::ClientIdle => "client_idle",
        Self::ClientSlow => "client_slow",
    }
}

pub(crate) type FramePoll = Poll<Option<Result<Frame<Bytes>, BodyError>>>;

impl BodyError {
    /// The error to report for a request whose body failed: if the body broke off, the client is gone.
    pub(crate) const fn of_request(&self) -> Self {
        match self {
            Self::TooBig => Self::TooBig,
            Self::ClientIdle => Self::ClientIdle,
            Self::ClientSlow => Self::ClientSlow,
            Self::ClientMalformed | Self::Client(InboundError::Malformed(_)) => {
                Self::ClientMalformed
            }
            _ => Self::ClientGone,
        }
    }
}

impl From<Failure<BodyError>> for BodyError {
    fn from(failure: Failure<BodyError>) -> Self {
        match failure {
            Failure::Silent(None) => Self::UpstreamClosed,
            Failure::Silent(Some(error)) | Failure::Broken(error) => Self::UpstreamBroken(error),
            Failure::Malformed(error) => Self::UpstreamMalformed(error),
            Failure::Body(error) => error.of_request(),
        }
    }
}

impl ResponseBody {
    pub const EMPTY: Self = Self::Bytes(Bytes::new());

    /// Whether its end has still to arrive from the upstream.
    pub(crate) const fn is_streamed(&self) -> bool {
        matches!(self, Self::Http1(_) | Self::Http2(_))
    }
}

impl From<Bytes> for ResponseBody {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<String> for ResponseBody {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> FramePoll {
        match self.get_mut() {
            Self::Bytes(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Bytes(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Http1(body) => Pin::new(&mut **body).poll_frame(cx),
            Self::Http2(body) => Pin::new(&mut **body).poll_frame(cx),
            Self::Echo(body) => Pin::new(&mut **body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.is_empty(),
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(body) => body.is_end_stream(),
            Self::Echo(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Bytes(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Http1(body) => body.size_hint(),
            Self::Http2(body) => body.size_hint(),
            Self::Echo(body) => body.size_hint(),
        }
    }
}

/// The number of received bytes of a request's body, shared by its reader and its log. Clones share
/// the count; the default counts nothing, for requests without a body.
#[derive(Clone, Debug, Default)]
pub struct Received(Option<Rc<Cell<u64>>>);

impl Received {
    pub(crate) fn from(bytes: u64) -> Self {
        Self(Some(Rc::new(Cell::new(bytes))))
    }

    pub(crate) fn add(&self, more: usize) {
        if let Some(count) = &self.0 {
            count.set(count.get().saturating_add(more as u64));
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |count| count.get())
    }
}
