//! A caller's TCP socket, which the runtime learns of only once something has to wait for it.
//!
//! A connection that asks once and is closed has its request there when it is accepted, or soon after, and takes the answer
//! at once: it never waits, and the two system calls that register a socket and take it back are saved, with what the
//! runtime keeps for it.

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::buffer::ReadBuffer;
use crate::timers::Deadline;

/// A connected socket in non-blocking mode.
#[derive(Debug)]
pub(super) struct Socket {
    way: Way,
    /// Something was written since bytes came in.
    answered: bool,
    /// When a wait for the caller to hang up is worth a registration.
    watch: Option<Deadline>,
}

#[derive(Debug)]
enum Way {
    Fresh(std::net::TcpStream),
    Registered(TcpStream),
    /// Registering failed, and has closed it.
    Lost,
}

impl Socket {
    /// `fd` as `accept4` gave it, non-blocking.
    pub(super) fn fresh(fd: OwnedFd) -> Self {
        Self {
            way: Way::Fresh(fd.into()),
            answered: false,
            watch: None,
        }
    }

    /// What is there already of a connection just accepted, if anything; an end is nothing, and is met again.
    pub(super) fn first(&self) -> Option<ReadBuffer> {
        let Way::Fresh(stream) = &self.way else {
            return None;
        };
        let mut room = [MaybeUninit::uninit(); FIRST];
        match recv(stream, &mut room, RecvFlags::empty()) {
            Ok(((came, _), _)) if !came.is_empty() => Some(ReadBuffer::of(came)),
            _ => None,
        }
    }

    fn registered(&mut self) -> io::Result<&mut TcpStream> {
        if matches!(self.way, Way::Fresh(_))
            && let Way::Fresh(stream) = std::mem::replace(&mut self.way, Way::Lost)
        {
            self.way = Way::Registered(TcpStream::from_std(stream)?);
            self.watch = None;
        }
        match &mut self.way {
            Way::Registered(stream) => Ok(stream),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Waits until there is something to read, without reading it. An error is something to read, too.
    pub(super) fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.registered() {
            Ok(stream) => stream.poll_read_ready(cx).map(drop),
            Err(_) => Poll::Ready(()),
        }
    }

    /// Has the other side see a reset, and no end in order, when it is closed.
    pub(super) fn reset_when_closed(&mut self) {
        let _ = match &self.way {
            Way::Fresh(stream) => socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)),
            Way::Registered(stream) => {
                socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO))
            }
            Way::Lost => Ok(()),
        };
    }

    /// Ready when it is time to look whether a caller that waits for its answer is still there.
    pub(super) fn poll_watch(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if matches!(self.way, Way::Fresh(_)) && !self.answered {
            let watch = self
                .watch
                .get_or_insert_with(|| Deadline::after(WATCH_AFTER));
            return watch.poll_passed(cx);
        }
        Poll::Ready(())
    }

    /// Whether something came that was not read.
    pub(super) fn has_unread(&self) -> bool {
        match &self.way {
            Way::Fresh(stream) => peek(stream),
            Way::Registered(stream) => peek(stream),
            Way::Lost => false,
        }
    }

    /// Copies what came and was not read; how many bytes that are.
    pub(super) fn peek(&self, room: &mut [u8]) -> usize {
        match &self.way {
            Way::Fresh(stream) => look_ahead(stream, room),
            Way::Registered(stream) => look_ahead(stream, room),
            Way::Lost => 0,
        }
    }

    /// Writes `bytes` if the socket takes them at once, after what the peer already sent is read.
    pub(super) fn dismiss(self, bytes: &[u8]) {
        let mut scratch = [0; 4096];
        match self.way {
            Way::Fresh(mut stream) => {
                let _ = stream.read(&mut scratch);
                let _ = stream.write(bytes);
            }
            Way::Registered(stream) => {
                let _ = stream.try_read(&mut scratch);
                let _ = stream.try_write(bytes);
            }
            Way::Lost => {}
        }
    }

    /// Writes by `fresh` while nothing had to wait.
    fn write(
        &mut self,
        fresh: impl FnOnce(&mut &std::net::TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        self.answered = true;
        let Way::Fresh(stream) = &self.way else {
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
        match &self.way {
            Way::Fresh(stream) => Poll::Ready(stream.shutdown(Shutdown::Write)),
            _ => Pin::new(self.registered()?).poll_shutdown(cx),
        }
    }
}

/// Whether there is a byte to read of `socket`.
pub(super) fn peek(socket: impl AsFd) -> bool {
    let mut room = [MaybeUninit::uninit(); 1];
    matches!(recv(socket, &mut room, RecvFlags::PEEK | RecvFlags::DONTWAIT), Ok(((came, _), _)) if !came.is_empty())
}

/// Copies what came over `socket` and leaves it to be read; how many bytes that are.
pub(super) fn look_ahead(socket: impl AsFd, room: &mut [u8]) -> usize {
    recv(socket, room, RecvFlags::PEEK | RecvFlags::DONTWAIT).map_or(0, |(length, _)| length)
}

/// Enough for a usual request's head.
const FIRST: usize = 2048;
/// How long a caller waits for its answer before it is watched. One or two ticks of the worker's wheel.
const WATCH_AFTER: Duration = Duration::ZERO;
