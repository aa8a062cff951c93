//! A connection between two exchanges: whether it may serve another one, what it keeps until then, and
//! how a request without a response moves to another connection.

use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};

use super::Client;
use crate::buffer::ReadBuffer;
use tollgate_http1::Output;

/// A request that was sent completely and may be sent again.
#[derive(Debug)]
pub struct Unanswered {
    write: Output,
    asks_head: bool,
    untouched: bool,
}

impl Unanswered {
    /// Whether the socket accepted no byte of it, so that the server cannot have read any. A byte
    /// that went into a TLS session counts as accepted.
    pub const fn is_untouched(&self) -> bool {
        self.untouched
    }
}

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

    /// For how many seconds the server keeps the idle connection, if it said so last.
    pub const fn idle_timeout(&self) -> Option<u64> {
        self.responses.idle_timeout()
    }

    pub fn reuse(&mut self) {
        self.reused = true;
        self.read.lend();
    }

    /// Checks whether an idle connection is unusable, because it closed or received unrequested
    /// bytes. The task is woken when that happens.
    pub fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ReadBuffer::poll_silence(cx, &mut self.socket)
    }

    /// [`Client::poll_idle`] for the task that is about to send a request: whether it may.
    pub fn is_silent(&mut self, cx: &mut Context<'_>) -> bool {
        self.listening = self.poll_idle(cx).is_pending();
        self.listening
    }

    pub fn release(&mut self) {
        self.read.release();
        self.write.release();
        self.responses.release();
    }

    pub fn into_parts(mut self) -> (S, Bytes) {
        (self.socket, self.read.bytes().split().freeze())
    }

    pub fn ask_again(&mut self, request: Unanswered) {
        self.begin(request.asks_head);
        self.write = request.write;
    }

    /// The request, to be sent again elsewhere, if it was kept and no response has begun.
    pub fn unanswered(mut self) -> Option<Unanswered> {
        let untouched = self.write.is_untouched();
        let asks_head = self.asks_head;
        (!self.heard && self.write.rewind()).then_some(Unanswered {
            write: self.write,
            asks_head,
            untouched,
        })
    }
}
