//! The socket of a connection: plain or encrypted, TCP or Unix.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::UnixStream;
use tokio_rustls::server::TlsStream;

use super::bounds::ConnectionSlot;
use super::http2::frames::{FrameEvent, Frames};
use super::http2::state::State;
use super::http2::trailers::Trailers;
use super::http2::window::Window;
use super::socket::Socket;
use crate::buffer::ReadBuffer;
use crate::delegate_io;
use crate::timers::within;

#[derive(Debug)]
pub(super) enum Plain {
    Tcp(Socket),
    Unix(UnixStream),
}

impl Plain {
    /// The bytes already available on a connection just accepted.
    pub(super) fn first(&self) -> Option<ReadBuffer> {
        match self {
            Self::Tcp(socket) => socket.first(),
            Self::Unix(_) => None,
        }
    }

    /// Waits until there is something to read, without reading it. An error counts as readable.
    pub(super) fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Tcp(socket) => socket.poll_readable(cx),
            Self::Unix(stream) => stream.poll_read_ready(cx).map(drop),
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Tcp(socket) => socket.descriptor(),
            Self::Unix(stream) => Some(stream.as_fd()),
        }
    }

    /// Copies unread bytes without consuming them; returns how many.
    pub(super) fn peek(&self, room: &mut [u8]) -> usize {
        let peek = |socket| recv(socket, room, RecvFlags::PEEK | RecvFlags::DONTWAIT);
        let peeked = self.descriptor().map(peek);
        peeked.map_or(0, |peeked| peeked.map_or(0, |(length, _)| length))
    }

    /// Whether the kernel has unread bytes, of which the runtime may not know yet.
    fn has_unread(&self) -> bool {
        self.peek(&mut [0]) > 0
    }

    /// Writes `bytes` if the socket accepts them at once, then closes. Bytes that the peer already
    /// sent are read first, because closing with unread bytes would reset the connection and
    /// discard the response.
    pub(super) fn dismiss(self, bytes: &[u8]) {
        if let Some(socket) = self.descriptor() {
            let _ = recv(socket, &mut [0; 4096], RecvFlags::DONTWAIT);
            let _ = send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }
}

delegate_io!(Plain: Tcp, Unix);

#[derive(Debug)]
pub(super) enum Transport {
    Plain(Plain),
    Tls(Box<TlsStream<Plain>>),
}

impl Transport {
    fn plain(&mut self) -> &mut Plain {
        match self {
            Self::Plain(plain) => plain,
            Self::Tls(stream) => stream.get_mut().0,
        }
    }

    /// Waits until there is something to read, without reading it. An error counts as readable.
    pub(super) fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.plain().poll_readable(cx)
    }

    pub(super) fn has_unread(&self) -> bool {
        match self {
            Self::Plain(plain) => plain.has_unread(),
            Self::Tls(stream) => stream.get_ref().0.has_unread(),
        }
    }

    /// Ready when it is time to check whether a client that waits for its response is still there.
    /// The check is delayed a little if the socket is not registered with the runtime for another reason.
    pub(super) fn poll_watch(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Plain(Plain::Tcp(socket)) => socket.poll_watch(cx),
            _ => Poll::Ready(()),
        }
    }

    /// Writes `bytes` if the socket accepts them at once: a few hundred on a connection that ends.
    /// A partial write is acceptable.
    pub(super) fn write_now(&mut self, bytes: &[u8]) {
        let mut context = Context::from_waker(std::task::Waker::noop());
        let _ = Pin::new(&mut *self).poll_write(&mut context, bytes);
        let _ = Pin::new(self).poll_flush(&mut context);
    }

    pub(super) fn dismiss(mut self, bytes: &[u8]) {
        if let Self::Plain(plain) = self {
            return plain.dismiss(bytes);
        }
        self.write_now(bytes);
        let _ =
            Pin::new(&mut self).poll_shutdown(&mut Context::from_waker(std::task::Waker::noop()));
    }

    /// Closes. Without encryption no shutdown is sent first: closing the socket ends the
    /// connection, and a shutdown would be one more system call.
    pub(super) async fn close(mut self) {
        if matches!(self, Self::Tls(_)) {
            let _ = within(GOODBYE, AsyncWriteExt::shutdown(&mut self)).await;
        }
    }

    /// Closes with a reset, so that an incomplete response is not taken for a complete one.
    pub(super) fn reset(mut self) {
        if let Plain::Tcp(socket) = self.plain() {
            socket.reset_when_closed();
        }
    }

    /// Shuts down the write side, then discards input until it ends or `most` bytes have arrived.
    pub(super) async fn linger(&mut self, most: usize) {
        let _ = AsyncWriteExt::shutdown(self).await;
        let mut scratch = vec![0; 4096]; // not part of the task, whose size every idle connection pays
        let mut read = 0;
        while read < most {
            match AsyncReadExt::read(self, &mut scratch).await {
                Ok(0) | Err(_) => break,
                Ok(length) => read += length,
            }
        }
    }
}

delegate_io!(Transport: Plain, Tls);

/// The transport of an HTTP/2 connection; it follows the frames, and reports to [`State`].
#[derive(Debug)]
pub(super) struct Io {
    transport: Transport,
    /// Bytes to be read first: those of before the protocol was known, or held back.
    ahead: Bytes,
    state: Arc<State>,
    place: ConnectionSlot,
    sent: Frames,
    trailers: Trailers,
    window: Window,
}

impl Io {
    pub(super) fn new(
        transport: Transport,
        ahead: Bytes,
        state: Arc<State>,
        place: ConnectionSlot,
        window: Window,
        header_bytes: usize,
    ) -> Self {
        let (mut trailers, mut ahead) = (Trailers::new(header_bytes), Vec::from(ahead));
        let instead = trailers.pass(&mut ahead, |bytes| window.took(bytes));
        Self {
            transport,
            ahead: instead.unwrap_or(ahead).into(),
            state,
            place,
            sent: Frames::default(),
            trailers,
            window,
        }
    }

    /// Follows the part of `slices` that was written.
    fn follow(&mut self, slices: &[io::IoSlice<'_>], result: &Poll<io::Result<usize>>) {
        let Poll::Ready(Ok(written)) = result else {
            return;
        };
        let mut left = *written;
        for slice in slices {
            let taken = left.min(slice.len());
            self.sent.follow(&slice[..taken], |event| match event {
                FrameEvent::Refused(code) => self.place.shared().stats.http2_error(code),
                FrameEvent::Granted(bytes) => self.window.granted(bytes),
            });
            left -= taken;
        }
    }

    fn note(&self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &result {
            Poll::Ready(_) => self.state.wrote(),
            Poll::Pending => self.state.stall(),
        }
        result
    }
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.ahead.is_empty() {
            let before = buf.filled().len();
            std::task::ready!(Pin::new(&mut this.transport).poll_read(cx, buf))?;
            let came = &mut buf.filled_mut()[before..];
            if came.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let took = |bytes| this.window.took(bytes);
            let Some(instead) = this.trailers.pass(came, took) else {
                return Poll::Ready(Ok(()));
            };
            buf.set_filled(before);
            this.ahead = instead.into();
        }
        let length = this.ahead.len().min(buf.remaining());
        buf.put_slice(&this.ahead.split_to(length));
        if this.ahead.is_empty() {
            this.ahead = Bytes::new(); // gives the buffer back
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.transport).poll_write(cx, bytes);
        self.follow(&[io::IoSlice::new(bytes)], &result);
        self.note(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.transport).poll_write_vectored(cx, slices);
        self.follow(slices, &result);
        self.note(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.transport).poll_flush(cx);
        if result.is_pending() {
            self.state.stall();
        }
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The socket is closed right after this, which ends it in the same way.
        if matches!(self.transport, Transport::Plain(_)) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.transport).poll_shutdown(cx)
    }
}

/// How long the end of an encrypted connection may take to be sent.
const GOODBYE: Duration = Duration::from_secs(2);
