//! What a connection reads into and writes from.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

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

/// What is to be written, in its order: short things copied one behind the other, long ones as they are.
#[derive(Debug, Default)]
pub struct WriteBuffer {
    flat: Vec<u8>,
    /// Bytes of `flat` that have been written.
    written: usize,
    /// What stands between two parts of `flat`: how much of that comes before it, and the bytes.
    queue: VecDeque<(usize, Bytes)>,
    /// Bytes of `queue` that are not written yet.
    queued: usize,
    /// What has been written is kept, to be written once more.
    kept: bool,
    /// The transport may hold back what it took.
    unflushed: bool,
}

impl WriteBuffer {
    /// Without memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a message, forgetting what was written. It is `kept` until the next begins: [`WriteBuffer::rewind`].
    pub fn begin(&mut self, kept: bool) {
        self.flat.clear();
        self.queue.clear();
        (self.written, self.queued) = (0, 0);
        self.kept = kept;
    }

    /// Where the next bytes are written to that are to be copied.
    pub fn flat(&mut self) -> &mut Vec<u8> {
        if !self.kept && self.written == self.flat.len() && self.queue.is_empty() {
            self.flat.clear();
            self.written = 0;
        }
        &mut self.flat
    }

    /// Appends `bytes`, copied if they are few.
    pub fn push(&mut self, bytes: Bytes) {
        if bytes.len() <= COPIED {
            self.flat().extend_from_slice(&bytes);
        } else {
            self.queued += bytes.len();
            let behind = self.flat().len();
            self.queue.push_back((behind, bytes));
        }
    }

    /// Bytes not written yet.
    pub fn left(&self) -> usize {
        self.flat.len() - self.written + self.queued
    }

    /// Whether everything has been written, and the transport has sent it off.
    pub fn is_done(&self) -> bool {
        self.left() == 0 && !self.unflushed
    }

    /// Whether nothing of a message that is kept has been written.
    pub const fn is_untouched(&self) -> bool {
        self.kept && self.written == 0
    }

    /// Everything that was written since [`WriteBuffer::begin`] is to be written once more. Only what was copied can be,
    /// and only if it was to be kept; whether that is so.
    pub fn rewind(&mut self) -> bool {
        if self.kept && self.queue.is_empty() {
            self.written = 0;
        }
        self.kept && self.queue.is_empty()
    }

    /// Writes until nothing is left.
    ///
    /// # Errors
    /// The socket's.
    pub fn poll_flush<S>(&mut self, cx: &mut Context<'_>, socket: &mut S) -> Poll<io::Result<()>>
    where
        S: AsyncWrite + Unpin,
    {
        while self.left() > 0 {
            let wrote = std::task::ready!(self.poll_write(cx, socket))?;
            if wrote == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(wrote);
            self.unflushed = true;
        }
        if self.unflushed {
            std::task::ready!(Pin::new(socket).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write<S>(&self, cx: &mut Context<'_>, socket: &mut S) -> Poll<io::Result<usize>>
    where
        S: AsyncWrite + Unpin,
    {
        let socket = Pin::new(socket);
        if self.queue.is_empty() {
            return socket.poll_write(cx, &self.flat[self.written..]);
        }
        let mut slices = [IoSlice::new(&[]); SLICES];
        let (mut count, mut at, mut whole) = (0, self.written, true);
        for (behind, bytes) in &self.queue {
            if count + 2 > SLICES {
                whole = false;
                break;
            }
            if *behind > at {
                slices[count] = IoSlice::new(&self.flat[at..*behind]);
                count += 1;
                at = *behind;
            }
            slices[count] = IoSlice::new(bytes);
            count += 1;
        }
        if whole && count < SLICES && at < self.flat.len() {
            slices[count] = IoSlice::new(&self.flat[at..]);
            count += 1;
        }
        socket.poll_write_vectored(cx, &slices[..count])
    }

    fn advance(&mut self, wrote: usize) {
        let mut left = wrote;
        while left > 0 {
            let until = self.queue.front().map_or(self.flat.len(), |first| first.0);
            let flat = left.min(until - self.written);
            self.written += flat;
            left -= flat;
            if let Some((_, bytes)) = self.queue.front_mut()
                && left > 0
            {
                let piece = left.min(bytes.len());
                bytes::Buf::advance(bytes, piece);
                self.queued -= piece;
                left -= piece;
                if bytes.is_empty() {
                    self.queue.pop_front();
                }
            } else if flat == 0 {
                debug_assert!(left == 0, "no socket writes more than it was given");
                break;
            }
        }
        // A long body's chunk sizes and short pieces must not pile up behind it.
        if !self.kept && self.written >= LEAST_ROOM {
            self.flat.drain(..self.written);
            for (behind, _) in &mut self.queue {
                *behind -= self.written;
            }
            self.written = 0;
        }
    }

    /// Gives its memory back; to be called when everything is written.
    pub fn release(&mut self) {
        if self.left() == 0 {
            *self = Self::default();
        }
    }
}

/// Room of a read: enough for most messages, and the most there is (64 KiB, in which much is sent, and a head). What comes
/// faster than it is taken waits in the kernel.
const LEAST_ROOM: usize = 8 * 1024;
const MOST_ROOM: usize = 66 * 1024;
/// Pieces this short are cheaper to copy than to write as one more slice.
pub const COPIED: usize = 2 * 1024;
/// Slices of one write.
const SLICES: usize = 32;

#[cfg(test)]
mod tests;
