//! What a connection reads into, and how it writes what is to be written.

use std::cell::Cell;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tollgate_http1::Output;
use tollgate_http1::output::SLICES;

/// Bytes that were read and not taken yet.
///
/// What is taken out of it are slices of it; as soon as they are dropped their room is used again. How much is read at
/// once follows what comes: much into much room, little into little.
#[derive(Debug)]
pub struct ReadBuffer {
    bytes: BytesMut,
    /// Room for the next read.
    room: usize,
    /// The last read left most of its room empty.
    scant: bool,
    /// While it is empty its memory is anybody's on this thread.
    shared: bool,
}

impl Default for ReadBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl ReadBuffer {
    /// Without memory.
    pub fn new() -> Self {
        Self {
            bytes: BytesMut::new(),
            room: LEAST_ROOM,
            scant: false,
            shared: false,
        }
    }

    /// One that has memory only while there is something in it: what the last of its kind read into is in the
    /// processor's cache, and what each of many has of its own is not.
    pub fn shared() -> Self {
        Self {
            shared: true,
            ..Self::new()
        }
    }

    /// Bytes that were read already.
    pub fn of(bytes: &[u8]) -> Self {
        Self {
            bytes: BytesMut::from(bytes),
            ..Self::new()
        }
    }

    /// Reads once, `wanted` bytes or more if that many are known to come; how many it were. 0: the other side has ended.
    ///
    /// A read that leaves room has told the runtime that the socket is empty.
    ///
    /// # Errors
    /// The socket's.
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
            self.bytes.reserve(known.max(self.room));
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
            // One small read after large ones says little.
            if std::mem::replace(&mut self.scant, true) {
                self.room = (self.room / 2).max(LEAST_ROOM);
            }
        } else {
            self.scant = false;
        }
        Poll::Ready(Ok(read))
    }

    /// Looks whether something came, for a socket that nothing may come from: ready when there are bytes, or an end, or
    /// an error. The task is woken when there is something. A byte of what comes is lost.
    pub fn poll_silence<S>(cx: &mut Context<'_>, socket: &mut S) -> Poll<()>
    where
        S: AsyncRead + Unpin,
    {
        let mut byte = [0];
        let read = std::future::poll_fn(|cx| {
            Pin::new(&mut *socket).poll_read(cx, &mut ReadBuf::new(&mut byte))
        });
        // A task that has used up its turn would be told that nothing came, whatever did.
        pin!(tokio::task::unconstrained(read)).poll(cx).map(|_| ())
    }

    /// The bytes, to take some from the front.
    pub const fn bytes(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }

    /// Bytes at hand.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Leaves its memory to others, if it is one that shares and empty. What was taken out of it may still be in use: that
    /// is seen when it is read into again.
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

    /// Gives its memory back, and what is lent of it; to be called when it is empty.
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
    /// What buffers that share read into next. One is enough: it is taken and left within a moment.
    static SPARE: Cell<BytesMut> = Cell::default();
}

/// Writes `output` until nothing is left of it.
///
/// # Errors
/// The socket's.
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

/// Room of a read: enough for most messages, and the most there is (64 KiB, in which much is sent, and a head). What comes
/// faster than it is taken waits in the kernel.
const LEAST_ROOM: usize = 8 * 1024;
const MOST_ROOM: usize = 66 * 1024;

#[cfg(test)]
mod tests;
