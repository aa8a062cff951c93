//! A client's TCP socket, registered with the runtime only when something has to wait for it.
//!
//! On a connection with a single request, the request is usually available when it is accepted, and
//! the response is accepted at once. Such a connection never waits, which saves the two system
//! calls of registration, and the runtime's state.

use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::{RecvFlags, recv};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::buffer::ReadBuffer;
use crate::timers::Deadline;

#[derive(Debug)]
pub(super) struct Socket {
    state: SocketState,
    /// Whether something was written since bytes were received.
    answered: bool,
    /// When watching for the client's disconnect is worth a registration.
    watch: Option<Deadline>,
}

#[derive(Debug)]
enum SocketState {
    Fresh(std::net::TcpStream),
    Registered(TcpStream),
    Lost,
}

impl Socket {
    /// `fd` as returned by `accept4`, non-blocking.
    pub(super) fn fresh(fd: OwnedFd) -> Self {
        Self {
            state: SocketState::Fresh(fd.into()),
            answered: false,
            watch: None,
        }
    }

    /// The bytes already available on a connection just accepted, if any; an end of stream is
    /// ignored here, and found again by the next read.
    pub(super) fn first(&self) -> Option<ReadBuffer> {
        let SocketState::Fresh(stream) = &self.state else {
            return None;
        };
        let mut room = [MaybeUninit::uninit(); FIRST];
        match recv(stream, &mut room, RecvFlags::empty()) {
            Ok(((came, _), _)) if !came.is_empty() => Some(ReadBuffer::of(came)),
            _ => None,
        }
    }

    fn registered(&mut self) -> io::Result<&mut TcpStream> {
        if matches!(self.state, SocketState::Fresh(_))
            && let SocketState::Fresh(stream) =
                std::mem::replace(&mut self.state, SocketState::Lost)
        {
            self.state = SocketState::Registered(TcpStream::from_std(stream)?);
            self.watch = None;
        }
        match &mut self.state {
            SocketState::Registered(stream) => Ok(stream),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Waits until there is something to read, without reading it. An error counts as readable.
    pub(super) fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.registered() {
            Ok(stream) => stream.poll_read_ready(cx).map(drop),
            Err(_) => Poll::Ready(()),
        }
    }

    /// `None`: it could not be registered, and is closed.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            SocketState::Fresh(stream) => Some(stream.as_fd()),
            SocketState::Registered(stream) => Some(stream.as_fd()),
            SocketState::Lost => None,
        }
    }

    pub(super) fn reset_when_closed(&mut self) {
        if let Some(socket) = self.descriptor() {
            let _ = SockRef::from(&socket).set_linger(Some(Duration::ZERO));
        }
    }

    pub(super) fn poll_watch(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if matches!(self.state, SocketState::Fresh(_)) && !self.answered {
            let after = || Deadline::after(WATCH_AFTER);
            return self.watch.get_or_insert_with(after).poll_passed(cx);
        }
        Poll::Ready(())
    }

    /// Writes with `fresh` while nothing had to wait.
    fn write(
        &mut self,
        fresh: impl FnOnce(&mut &std::net::TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        self.answered = true;
        let SocketState::Fresh(stream) = &self.state else {
            return Poll::Pending;
        };
        match fresh(&mut &*stream) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            result => Poll::Ready(result),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(self.registered()?).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.answered = false;
        }
        result
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(result) = self.write(|stream| stream.write(bytes)) {
            return Poll::Ready(result);
        }
        Pin::new(self.registered()?).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(result) = self.write(|stream| stream.write_vectored(slices)) {
            return Poll::Ready(result);
        }
        Pin::new(self.registered()?).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(())) // sockets have nothing to flush
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.state {
            SocketState::Fresh(stream) => Poll::Ready(stream.shutdown(Shutdown::Write)),
            _ => Pin::new(self.registered()?).poll_shutdown(cx),
        }
    }
}

const FIRST: usize = 2048;
/// How long a client waits for its response before it is watched.
const WATCH_AFTER: Duration = Duration::from_millis(20);
