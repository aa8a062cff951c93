//! Gathers the writes of an HTTP/2 connection until the end of its turn.
//!
//! The protocol library flushes before each piece of a body of which it can hold only one, so each
//! of several ready responses would cost a system call. With this transport they are written together.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A transport that holds small writes back until [`Gathered::poll_out`]. All clones are the same
/// transport; only one thread uses them, and the lock exists only for the types.
#[derive(Debug)]
pub(crate) struct Gathered<T>(Arc<Mutex<Inner<T>>>);

#[derive(Debug)]
struct Inner<T> {
    io: T,
    /// The bytes held back, and how many of them were written.
    kept: Vec<u8>,
    written: usize,
    unflushed: bool,
}

impl<T> Clone for Gathered<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: AsyncWrite + Unpin> Gathered<T> {
    pub(crate) fn new(io: T) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            io,
            kept: Vec::new(),
            written: 0,
            unflushed: false,
        })))
    }

    pub(crate) fn poll_out(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().poll_out(cx)
    }
}

impl<T: AsyncWrite + Unpin> Inner<T> {
    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_kept(cx))?;
        if self.unflushed {
            ready!(Pin::new(&mut self.io).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_kept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.kept.len() {
            self.unflushed = true;
            match ready!(Pin::new(&mut self.io).poll_write(cx, &self.kept[self.written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                taken => self.written += taken,
            }
        }
        if self.kept.capacity() > KEPT_IDLE {
            self.kept = Vec::new(); // an idle connection pays for little
        }
        self.kept.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Gathered<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Gathered<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut inner = self.0.lock();
        let length = slices.iter().map(|slice| slice.len()).sum::<usize>();
        if inner.kept.len() + length > KEPT_MOST {
            ready!(inner.poll_kept(cx))?;
        }
        if length > KEPT_MOST {
            inner.unflushed = true;
            return Pin::new(&mut inner.io).poll_write_vectored(cx, slices);
        }
        slices
            .iter()
            .for_each(|slice| inner.kept.extend_from_slice(slice));
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.0.lock();
        ready!(inner.poll_out(cx))?;
        Pin::new(&mut inner.io).poll_shutdown(cx)
    }
}

/// A connection whose writes are sent at the end of each of its turns.
pub(crate) struct Turns<C, T> {
    pub(crate) connection: Pin<Box<C>>,
    pub(crate) io: Gathered<T>,
}

impl<C, E, T> Future for Turns<C, T>
where
    C: Future<Output = Result<(), E>>,
    T: AsyncWrite + Unpin,
{
    type Output = Result<(), E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = self.connection.as_mut().poll(cx);
        match self.io.poll_out(cx) {
            // The peer is gone, so no more bytes need be written.
            Poll::Ready(Err(_)) if result.is_pending() => Poll::Ready(Ok(())),
            _ => result,
        }
    }
}

/// The largest number of bytes held back; a frame of a large body is sent by itself.
const KEPT_MOST: usize = 16 << 10;
/// The buffer capacity that an idle connection keeps.
const KEPT_IDLE: usize = 2 << 10;

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn small_writes_leave_together_and_in_order_with_large_ones() {
        let (near, mut far) = tokio::io::duplex(100);
        let mut gathered = Gathered::new(near);
        let cx = &mut Context::from_waker(Waker::noop());
        let mut heard = [0; 64];
        let mut expected = Vec::new();
        for round in 0..3u8 {
            for piece in [vec![round; 5], vec![round + 10; 7]] {
                gathered.write_all(&piece).await.expect("kept");
                gathered.flush().await.expect("kept");
                expected.extend(piece);
            }
            let nothing = Pin::new(&mut far).poll_read(cx, &mut ReadBuf::new(&mut heard));
            assert!(nothing.is_pending(), "the turn is not over");
            assert!(gathered.poll_out(cx).is_ready());
            far.read_exact(&mut heard[..12]).await.expect("written");
            assert_eq!(heard[..12], expected[..]);
            expected.clear();
        }
        // More than the other side takes at once, kept back or not.
        for length in [5, KEPT_MOST, 7, KEPT_MOST + 1, 3] {
            expected.extend(std::iter::repeat_n(
                u8::try_from(length % 251).expect("small"),
                length,
            ));
        }
        let all = expected.clone();
        let writing = tokio::spawn(async move {
            for piece in all.chunk_by(|one, other| one == other) {
                gathered.write_all(piece).await.expect("written");
            }
            std::future::poll_fn(|cx| gathered.poll_out(cx))
                .await
                .expect("written");
            gathered.shutdown().await.expect("ended");
        });
        let mut got = Vec::new();
        far.read_to_end(&mut got).await.expect("read");
        writing.await.expect("no panic");
        assert!(got == expected, "{} of {} bytes", got.len(), expected.len());
    }
}
