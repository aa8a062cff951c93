//! The stream under an HTTP/2 connection: counts its reads, and survives failing writes.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::forward::Stream;

#[derive(Debug, Default)]
pub(in crate::forward) struct Ear {
    pub(super) heard: Cell<u64>,
    gone: Cell<bool>,
    /// Notified at the first read, or when the connection is gone.
    first: tokio::sync::Notify,
}

impl Ear {
    /// Waits until the server has sent its first bytes, which are its settings (RFC 9113 3.4), or
    /// is gone.
    pub(super) async fn settled(&self) {
        while !self.is_settled() {
            self.first.notified().await;
        }
    }

    pub(super) const fn is_settled(&self) -> bool {
        self.heard.get() > 0 || self.gone.get()
    }
}

/// A stream that counts the reads that bring bytes.
///
/// The server may have closed the connection while the gateway still writes, and may have said
/// before which streams it has not processed. A failing write therefore does not end the
/// connection: the bytes to write are dropped, and the connection ends with its reads, once
/// everything that the server sent is read.
#[derive(Debug)]
pub(in crate::forward) struct Heard {
    stream: Stream,
    ear: Rc<Ear>,
    deaf: bool,
}

impl Heard {
    /// Wraps `stream`; also returns the record of its reads.
    pub(in crate::forward) fn new(stream: Stream) -> (Self, Rc<Ear>) {
        let ear = Rc::<Ear>::default();
        let heard = Self {
            stream,
            ear: Rc::clone(&ear),
            deaf: false,
        };
        (heard, ear)
    }

    /// Writes by `write`, until that fails; from then on `dropped` is what was written.
    fn write_while_heard<T>(
        &mut self,
        dropped: T,
        write: impl FnOnce(Pin<&mut Stream>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if !self.deaf {
            let outcome = write(Pin::new(&mut self.stream));
            if !matches!(outcome, Poll::Ready(Err(_))) {
                return outcome;
            }
            self.deaf = true;
        }
        Poll::Ready(Ok(dropped))
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        self.ear.gone.set(true);
        self.ear.first.notify_one();
    }
}

impl AsyncRead for Heard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            let heard = self.ear.heard.get();
            self.ear.heard.set(heard.wrapping_add(1));
            if heard == 0 {
                self.ear.first.notify_one();
            }
        }
        outcome
    }
}

impl AsyncWrite for Heard {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write_while_heard(bytes.len(), |stream| stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let bytes = slices.iter().map(|slice| slice.len()).sum();
        self.write_while_heard(bytes, |stream| stream.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write_while_heard((), |stream| stream.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
