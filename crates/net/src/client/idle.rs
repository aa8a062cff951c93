//! A connection between two exchanges: whether it may serve another one, and what it keeps until then.

use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};

use super::Client;
use crate::buffer::ReadBuffer;

impl<S, B> Client<S, B>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: Body<Data = Bytes> + Unpin,
{
    /// Whether the next request can be sent: the last exchange is complete in both directions.
    /// Bytes after the response were not requested, and make the connection unusable.
    pub fn is_reusable(&mut self) -> bool {
        if !(self.responses.persists()
            && self.whole
            && self.refused.is_none()
            && !self.responses.is_under_way()
            && self.read.is_empty())
        {
            return false;
        }
        // The end of the request may be known only after another poll.
        self.is_sent()
            || (matches!(
                self.poll_send(&mut Context::from_waker(Waker::noop())),
                Poll::Ready(Ok(()))
            ) && self.whole
                && self.refused.is_none())
    }

    /// For how many seconds the server keeps the connection while it is idle, if its last response
    /// said so.
    pub const fn idle_timeout(&self) -> Option<u64> {
        self.responses.idle_timeout()
    }

    /// Records that the next request is not its first.
    pub fn reuse(&mut self) {
        self.reused = true;
        self.read.lend();
    }

    /// Checks whether an idle connection is unusable, because it closed or received unrequested
    /// bytes. The task is woken when that happens.
    pub fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(ReadBuffer::poll_silence(cx, &mut self.socket));
        Poll::Ready(())
    }

    /// [`Client::poll_idle`] for the task that is about to send a request: whether it may.
    pub fn is_silent(&mut self, cx: &mut Context<'_>) -> bool {
        self.listening = self.poll_idle(cx).is_pending();
        self.listening
    }

    /// Frees the memory of an idle connection.
    pub fn release(&mut self) {
        self.read.release();
        self.write.release();
        self.responses.release();
    }

    /// The socket, and the bytes that were read from it and not taken.
    pub fn into_parts(mut self) -> (S, Bytes) {
        (self.socket, self.read.bytes().split().freeze())
    }
}
