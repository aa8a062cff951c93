//! A connection that has changed its protocol; its bytes are passed on uninterpreted.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

use super::bounds::ConnectionSlot;
use super::io::Transport;
use crate::delegate_io;

/// The client's side of a tunnel, available as soon as the response that accepts it has been sent.
#[derive(Debug)]
pub struct OnUpgrade(Pending);

#[derive(Debug)]
enum Pending {
    Http1(oneshot::Receiver<Upgraded>),
    Http2(hyper::upgrade::OnUpgrade),
}

impl OnUpgrade {
    pub(super) const fn http1(receiver: oneshot::Receiver<Upgraded>) -> Self {
        Self(Pending::Http1(receiver))
    }

    pub(super) const fn http2(pending: hyper::upgrade::OnUpgrade) -> Self {
        Self(Pending::Http2(pending))
    }
}

impl Future for OnUpgrade {
    /// `None`: the client left before that.
    type Output = Option<Upgraded>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Upgraded>> {
        match &mut self.0 {
            Pending::Http1(receiver) => Pin::new(receiver).poll(cx).map(Result::ok),
            Pending::Http2(pending) => Pin::new(pending).poll(cx).map(|side| {
                Some(Upgraded {
                    side: Side::Http2(TokioIo::new(side.ok()?)),
                    ahead: Bytes::new(),
                    place: None,
                })
            }),
        }
    }
}

#[derive(Debug)]
pub struct Upgraded {
    side: Side,
    /// Bytes that the client sent directly after its request.
    ahead: Bytes,
    /// Counts a connection of HTTP/1 as open until this is dropped; one of HTTP/2 stays open itself.
    place: Option<ConnectionSlot>,
}

#[derive(Debug)]
enum Side {
    Http1(Transport),
    Http2(TokioIo<hyper::upgrade::Upgraded>),
}

delegate_io!(Side: Http1, Http2);

impl Upgraded {
    pub(super) const fn http1(transport: Transport, ahead: Bytes, place: ConnectionSlot) -> Self {
        Self {
            side: Side::Http1(transport),
            ahead,
            place: Some(place),
        }
    }

    /// The stream, the bytes that come before those of the stream, and what must be kept as long as it.
    pub fn into_parts(self) -> (impl AsyncRead + AsyncWrite + Unpin, Bytes, impl Sized) {
        (self.side, self.ahead, self.place)
    }
}
