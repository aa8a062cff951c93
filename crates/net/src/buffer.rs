//! The read buffer of a connection, and the function that flushes its output.

use std::cell::Cell;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tollgate_http1::Output;
use tollgate_http1::output::SLICES;

/// Bytes that were read and not yet taken.
///
/// Bytes are taken as slices of the buffer; when those are dropped, their memory is used again. The
/// size of a read adapts to the amount that arrives.
#[derive(Debug)]
pub struct ReadBuffer {
    bytes: BytesMut,
    room: usize,
    largest: usize,
    /// Whether the last read left most of its space empty.
    scant: bool,
    /// Whether the memory returns to the thread while the buffer is empty.
    shared: bool,
}

impl Default for ReadBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl ReadBuffer {
    pub fn new() -> Self {
        Self {
            bytes: BytesMut::new(),
            room: LEAST_ROOM,
            largest: 0,
            scant: false,
            shared: false,
        }
    }

    /// Creates a buffer that has memory only while it holds bytes. Such buffers share the block
    /// that was read into last, which is still in the processor's cache.
    pub fn shared() -> Self {
        Self {
            shared: true,
            ..Self::new()
        }
    }

    pub fn of(bytes: &[u8]) -> Self {
        Self {
            bytes: BytesMut::from(bytes),
            ..Self::new()
        }
    }

    /// Reads once, for at least `wanted` bytes if that many are known to come; returns how many
    /// were read. 0: the peer has ended.
    ///
    /// A read that leaves space has told the runtime that the socket is empty.
    pub fn poll_fill<S>(
        &mut self,
        cx: &mut Context<'_>,
        socket: &mut S,
        wanted: u64,
    ) -> Poll<io::Result<usize>>
    where
        S: AsyncRead + Unpin,
    {
        if self.shared && self.bytes.capacity() == 0 {
            self.bytes = SPARE.take();
        }
        let known = usize::try_from(wanted).unwrap_or(MOST_ROOM).min(MOST_ROOM);
        let spare = self.bytes.capacity() - self.bytes.len();
        if spare < known || spare < self.room / 4 * 3 {
            let room = known.max(self.room);
            self.bytes.reserve(room);
            // Memory that slices of the buffer no longer use becomes part of it again.
            self.largest = self.largest.max(self.bytes.len() + room);
        }
        let room = self.bytes.capacity() - self.bytes.len();
        let Poll::Ready(read) = pin!(socket.read_buf(&mut self.bytes)).poll(cx) else {
            self.lend();
            return Poll::Pending;
        };
        let read = read?;
        if read == room {
            self.room = self.room.saturating_mul(4).min(MOST_ROOM);
            self.scant = false;
        } else if read < self.room / 4 {
            // Do not shrink after a single small read.
            if std::mem::replace(&mut self.scant, true) {
                self.room = (self.room / 2).max(LEAST_ROOM);
            }
        } else {
            self.scant = false;
        }
        Poll::Ready(Ok(read))
    }

    /// Watches a socket on which nothing may arrive: ready if there are bytes, an end, or an error;
    /// otherwise the task is woken when there are. One byte of the input is lost.
    pub fn poll_silence<S>(cx: &mut Context<'_>, socket: &mut S) -> Poll<()>
    where
        S: AsyncRead + Unpin,
    {
        let mut byte = [0];
        let read = std::future::poll_fn(|cx| {
            Pin::new(&mut *socket).poll_read(cx, &mut ReadBuf::new(&mut byte))
        });
        // Unconstrained, because a task that has used up its budget would always see no input.
        pin!(tokio::task::unconstrained(read)).poll(cx).map(|_| ())
    }

    pub const fn bytes(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the memory of an empty shared buffer to the thread. Slices taken from it may still
    /// be in use; the next read detects that.
    pub fn lend(&mut self) {
        if self.shared && self.bytes.is_empty() && self.bytes.capacity() > 0 {
            let (mine, other) = (std::mem::take(&mut self.bytes), SPARE.take());
            SPARE.set(if other.capacity() > mine.capacity() {
                other
            } else {
                mine
            });
        }
    }

    /// Whether it has no memory, and so no bytes.
    pub fn has_no_memory(&self) -> bool {
        self.bytes.capacity() == 0
    }

    /// Whether it has had memory for a read of the smallest size, and never for a larger one.
    pub fn is_of_usual_size(&self) -> bool {
        // Part of a message is in it while the next part is read.
        (LEAST_ROOM..=2 * LEAST_ROOM).contains(&self.largest) && self.room == LEAST_ROOM
    }

    /// Frees its memory, and the memory that it lent; the buffer must be empty.
    pub fn release(&mut self) {
        if self.bytes.is_empty() {
            *self = Self {
                shared: self.shared,
                ..Self::new()
            };
            if self.shared {
                SPARE.take();
            }
        }
    }
}

thread_local! {
    /// The memory into which shared buffers read next. One block is enough, because it is taken and
    /// returned within one call.
    static SPARE: Cell<BytesMut> = Cell::default();
}

/// Writes `output` until it is empty.
pub fn poll_flush<S>(
    output: &mut Output,
    cx: &mut Context<'_>,
    socket: &mut S,
) -> Poll<io::Result<()>>
where
    S: AsyncWrite + Unpin,
{
    while output.left() > 0 {
        let write = match output.single() {
            Some(bytes) => Pin::new(&mut *socket).poll_write(cx, bytes),
            None => {
                let mut slices = [IoSlice::new(&[]); SLICES];
                let count = output.slices(&mut slices);
                Pin::new(&mut *socket).poll_write_vectored(cx, &slices[..count])
            }
        };
        let wrote = std::task::ready!(write)?;
        if wrote == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        output.wrote(wrote);
    }
    if output.is_unflushed() {
        std::task::ready!(Pin::new(socket).poll_flush(cx))?;
        output.flushed();
    }
    Poll::Ready(Ok(()))
}

/// The sizes of a read: the smallest fits most messages, the largest fits 64 KiB of body (a common
/// write size) and a head. Input that arrives faster than it is taken waits in the kernel.
const LEAST_ROOM: usize = 8 * 1024;
const MOST_ROOM: usize = 66 * 1024;

#[cfg(test)]
mod tests;
