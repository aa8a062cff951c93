//! One direction of a tunnel. It holds a buffer only while a piece is written, so an idle tunnel uses none.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::frames::Frames;

#[derive(Debug)]
pub(super) struct Direction {
    /// Bytes that were read and not yet written.
    pending: Bytes,
    pub(super) read: u64,
    /// The WebSocket frame boundaries; `None` if the bytes are not inspected.
    frames: Option<Frames>,
    /// Whether the close frame was inserted: later bytes are not passed on.
    left: bool,
    /// Whether bytes were written since the last flush.
    unflushed: bool,
    ended: bool,
    /// Whether the writer was shut down after that.
    done: bool,
}

impl Direction {
    /// A direction from which `early` was already read.
    pub(super) fn new(mut frames: Option<Frames>, early: Bytes) -> Self {
        if let Some(frames) = &mut frames {
            frames.follow(&early, false);
        }
        let read = early.len() as u64;
        Self {
            pending: early,
            read,
            frames,
            left: false,
            unflushed: false,
            ended: false,
            done: false,
        }
    }

    /// Copies the available bytes; ready when `from` has ended and `to` was shut down. Once
    /// `leaving`, only the rest of the current message and a close frame are passed on, and `from`
    /// is read until it closes too.
    pub(super) fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
        leaving: bool,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        loop {
            if self.done {
                return Poll::Ready(Ok(()));
            }
            while self.pending.has_remaining() {
                let written = ready!(Pin::new(&mut *to).poll_write(cx, &self.pending))?;
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.unflushed = true;
                self.pending.advance(written);
            }
            // An idle direction holds no memory.
            self.pending = Bytes::new();
            if leaving && !self.left && self.say_goodbye() {
                continue;
            }
            if self.ended {
                ready!(Pin::new(&mut *to).poll_flush(cx))?;
                ready!(Pin::new(&mut *to).poll_shutdown(cx))?;
                self.done = true;
                continue;
            }
            match SCRATCH.with_borrow_mut(|scratch| self.poll_piece(cx, scratch, from, leaving)) {
                Poll::Ready(outcome) => outcome?,
                Poll::Pending => {
                    if self.unflushed {
                        ready!(Pin::new(&mut *to).poll_flush(cx))?;
                        self.unflushed = false;
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    /// Reads one piece, which is written next.
    fn poll_piece<R: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut Vec<u8>,
        from: &mut R,
        leaving: bool,
    ) -> Poll<io::Result<()>> {
        scratch.resize(PIECE, 0);
        let mut piece = ReadBuf::new(scratch);
        ready!(Pin::new(from).poll_read(cx, &mut piece))?;
        let mut rest = piece.filled();
        self.read += rest.len() as u64;
        self.ended = rest.is_empty();
        if let Some(frames) = &mut self.frames {
            let passed = frames.follow(rest, leaving && !self.left);
            rest = if self.left { &[] } else { &rest[..passed] };
            // This close frame responds to ours, or crossed it.
            self.ended |= self.left && frames.closed;
        }
        self.pending = Bytes::copy_from_slice(rest);
        Poll::Ready(Ok(()))
    }

    /// Inserts a close frame in place of the next bytes if a message has just ended; returns
    /// whether it did.
    fn say_goodbye(&mut self) -> bool {
        let Some(frames) = &self.frames else {
            return false;
        };
        // A side that has already closed does not send a second close frame.
        if self.ended || frames.closed || !frames.between_messages() {
            return false;
        }
        self.pending = frames.going_away();
        self.left = true;
        true
    }
}

const PIECE: usize = 16 << 10;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}
