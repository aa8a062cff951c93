//! A connection that has changed its protocol; its bytes are passed on uninterpreted.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
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
    type Output = Option<Caller>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Caller>> {
        match &mut self.0 {
            Pending::Http1(receiver) => Pin::new(receiver)
                .poll(cx)
                .map(|upgraded| upgraded.ok().map(Caller::Http1)),
            Pending::Http2(pending) => Pin::new(pending)
                .poll(cx)
                .map(|upgraded| upgraded.ok().map(|side| Caller::Http2(TokioIo::new(side)))),
        }
    }
}

#[derive(Debug)]
pub enum Caller {
    Http1(Upgraded),
    Http2(TokioIo<hyper::upgrade::Upgraded>),
}

#[derive(Debug)]
pub struct Upgraded {
    transport: Transport,
    /// Bytes that the client sent directly after its request.
    ahead: Bytes,
    /// Counts the connection as open until this is dropped.
    _place: ConnectionSlot,
}

impl Upgraded {
    pub(super) const fn new(transport: Transport, ahead: Bytes, place: ConnectionSlot) -> Self {
        Self {
            transport,
            ahead,
            _place: place,
        }
    }
}

delegate_io!(Caller: Http1, Http2);

impl AsyncRead for Upgraded {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.ahead.is_empty() {
            return Pin::new(&mut this.transport).poll_read(cx, buf);
        }
        let length = this.ahead.len().min(buf.remaining());
        buf.put_slice(&this.ahead.split_to(length));
        if this.ahead.is_empty() {
            this.ahead = Bytes::new(); // gives the buffer back
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Upgraded {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().transport).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().transport).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().transport).poll_shutdown(cx)
    }
}
