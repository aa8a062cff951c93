//! A connection's socket and buffers, shared by the task that serves it and the body of the request under way.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::io::AsyncWrite;
use tokio::sync::oneshot;

use crate::buffer::{self, ReadBuffer};
use crate::server::bounds::Place;
use crate::server::inbound::InboundError;
use crate::server::io::Transport;
use crate::server::upgrade::Upgraded;
use tollgate_http1::request::{BadHead, Head, Limits};
use tollgate_http1::{Body, Output, Requests};

/// Borrowed for the length of one call only, never while somebody else's code runs.
#[derive(Debug)]
pub(in crate::server) struct Core {
    /// Gone when the connection has ended or was handed over: a body that lives on finds nothing here.
    transport: Option<(Transport, Place)>,
    pub(super) input: ReadBuffer,
    pub(super) output: Output,
    /// Which request the body is of: the body of another is over.
    request: u32,
    pub(super) requests: Requests,
    /// The caller waits to be told that it may send the body.
    expects: bool,
    /// It never was told, and so may send the body or not.
    untold: bool,
    /// The answer has begun: what is to be written is not the body's reader's to write.
    answering: bool,
    /// The caller has sent all that it will.
    pub(super) ended: bool,
    /// Pieces of bodies read so far: a number that stands still when a body does.
    pub(super) pieces: u32,
    /// Whoever reads the body waits for more of it, and sees the caller leave.
    reader_waits: bool,
    /// The task that does, or last did.
    reader: Option<Waker>,
    /// The task that serves the connection, where it waits and the body is not over.
    driver: Option<Waker>,
    upgradable: bool,
    upgrade: Option<oneshot::Sender<Upgraded>>,
}

impl Core {
    pub(super) fn new(transport: Transport, place: Place, input: ReadBuffer) -> Self {
        Self {
            transport: Some((transport, place)),
            input,
            output: Output::new(),
            request: 0,
            requests: Requests::new(),
            expects: false,
            untold: false,
            answering: false,
            ended: false,
            pieces: 0,
            reader_waits: false,
            reader: None,
            driver: None,
            upgradable: false,
            upgrade: None,
        }
    }

    /// Reads the next request's head.
    pub(super) fn read_head(&mut self, limits: Limits) -> Result<Option<Head>, BadHead> {
        self.requests.read_head(self.input.bytes(), limits)
    }

    /// The request begins whose head was read last; its number.
    pub(super) fn begin(&mut self, expects: bool, upgradable: bool) -> u32 {
        self.request = self.request.wrapping_add(1);
        (self.expects, self.untold, self.upgradable) = (expects, false, upgradable);
        (self.answering, self.reader_waits) = (false, false);
        self.request
    }

    /// The answer begins: from now on nothing else is written.
    pub(super) fn answers(&mut self) {
        self.untold = std::mem::take(&mut self.expects);
        self.answering = true;
    }

    /// The request's answer is over, and with it whatever is left of its body.
    pub(super) fn finish(&mut self) {
        self.upgrade = None;
        self.driver = None;
        self.requests.abandon_body();
        self.wake_reader();
        self.reader = None;
    }

    /// Whether no more of the body comes, although it has not come to its end.
    pub(super) fn is_broken(&self) -> bool {
        self.requests.body_state().is_broken()
    }

    /// Nobody holds the body of the request `number` any more.
    pub(in crate::server) fn forsake(&mut self, number: u32) {
        if number == self.request && !self.is_read() {
            self.reader_waits = false;
            if let Some(driver) = self.driver.take() {
                driver.wake();
            }
        }
    }

    /// Whether the request has been read whole.
    pub(super) fn is_read(&self) -> bool {
        self.requests.body_state().is_done()
    }

    /// Whether the caller was not told to send the body.
    pub(super) fn is_untold(&self) -> bool {
        self.expects || self.untold
    }

    /// Reads and forgets what is there of the body and small; whether it has come to its end. Only where nobody else holds
    /// the body: to another reader it would look whole.
    pub(super) fn drain(&mut self, cx: &mut Context<'_>) -> bool {
        if self.is_read() {
            return true;
        }
        if self.is_untold() {
            return false;
        }
        let mut left = DRAIN_MAX;
        while !self.is_read() {
            match self.poll_frame(self.request, cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    let length = frame.data_ref().map_or(0, Bytes::len);
                    let Some(less) = left.checked_sub(length) else {
                        return false;
                    };
                    left = less;
                }
                Poll::Ready(None) => {}
                Poll::Ready(Some(Err(_))) | Poll::Pending => return false,
            }
        }
        true
    }

    /// The body of the request `number` will be read, though its answer may begin before that: a caller that waits to be
    /// told so is told now.
    pub(in crate::server) fn want(&mut self, number: u32) {
        if number == self.request && !self.answering && std::mem::take(&mut self.expects) {
            self.output.flat().extend_from_slice(CONTINUE);
        }
    }

    /// The next piece of the body of the request `number`.
    pub(in crate::server) fn poll_frame(
        &mut self,
        number: u32,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, InboundError>>> {
        if number != self.request {
            return Poll::Ready(Some(Err(InboundError::Closed)));
        }
        if self.is_read() {
            return Poll::Ready(None);
        }
        loop {
            if self.is_broken() {
                return Poll::Ready(Some(Err(InboundError::Closed)));
            }
            let wanted = match self.requests.body().read(self.input.bytes()) {
                Ok(Body::Data(piece)) => {
                    self.took(cx);
                    return Poll::Ready(Some(Ok(Frame::data(piece))));
                }
                Ok(Body::Trailers(trailers)) => {
                    self.took(cx);
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                Ok(Body::End) => {
                    self.took(cx);
                    return Poll::Ready(None);
                }
                Ok(Body::Needs(0)) => 0,
                // With the first byte behind it: that tells whether the client has ended, or goes on.
                Ok(Body::Needs(bytes)) => bytes.saturating_add(1),
                Err(error) => {
                    self.took(cx);
                    return Poll::Ready(Some(Err(InboundError::Malformed(error))));
                }
            };
            if std::mem::take(&mut self.expects) {
                self.output.flat().extend_from_slice(CONTINUE);
            }
            // What the socket did not take when it was written goes out here, as the caller may be waiting for it: whoever
            // the socket tells that there is room may be this task.
            if !self.answering
                && !self.output.is_done()
                && let Poll::Ready(Err(error)) = self.poll_flush(cx)
            {
                self.requests.abandon_body();
                self.took(cx);
                return Poll::Ready(Some(Err(InboundError::Io(error))));
            }
            let Poll::Ready(read) = self.poll_fill(cx, wanted) else {
                self.reader_waits = true;
                match &mut self.reader {
                    Some(known) => known.clone_from(cx.waker()),
                    none => *none = Some(cx.waker().clone()),
                }
                return Poll::Pending;
            };
            self.reader_waits = false;
            match read {
                Ok(0) => {
                    self.requests.abandon_body();
                    self.took(cx);
                    return Poll::Ready(Some(Err(InboundError::Closed)));
                }
                Ok(_) => {}
                Err(error) => {
                    self.requests.abandon_body();
                    self.took(cx);
                    return Poll::Ready(Some(Err(InboundError::Io(error))));
                }
            }
        }
    }

    /// Whether the body of the request `number` has been read whole.
    pub(in crate::server) fn is_end(&self, number: u32) -> bool {
        number == self.request && self.is_read()
    }

    /// What is known of how much is left of it.
    pub(in crate::server) fn size_hint(&self, number: u32) -> SizeHint {
        match self.requests.body_state().left() {
            Some(left) if number == self.request => SizeHint::with_exact(left),
            _ => SizeHint::default(),
        }
    }

    /// The caller's side of a tunnel, if the request `number` is answered by a 101.
    pub(in crate::server) fn upgrade(
        &mut self,
        number: u32,
    ) -> Option<oneshot::Receiver<Upgraded>> {
        if number != self.request || !self.upgradable || !self.is_read() {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        self.upgrade = Some(sender);
        Some(receiver)
    }

    /// Hands the socket over to whoever asked for it by [`Core::upgrade`].
    pub(super) fn hand_over(&mut self) {
        if let (Some(sender), Some((transport, place))) =
            (self.upgrade.take(), self.transport.take())
        {
            let ahead = self.input.bytes().split().freeze();
            // Whoever waited for it may be gone: then the socket closes.
            let _ = sender.send(Upgraded::new(transport, ahead, place));
        }
    }

    /// Takes the socket out: whoever still holds on to the body has lost it.
    pub(super) fn take(&mut self) -> Option<(Transport, Place)> {
        self.wake_reader();
        self.transport.take()
    }

    /// Whether the caller has sent something that was not read; asks the kernel.
    pub(super) fn has_unread(&self) -> bool {
        self.transport
            .as_ref()
            .is_some_and(|(transport, _)| transport.has_unread())
    }

    /// Waits for something to read, without reading it.
    pub(super) fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.transport {
            Some((transport, _)) => transport.poll_readable(cx),
            None => Poll::Ready(()),
        }
    }

    /// Reads once; `wanted`: so many bytes are known to come.
    pub(super) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        wanted: u64,
    ) -> Poll<io::Result<usize>> {
        let Some((transport, _)) = &mut self.transport else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        let read = self.input.poll_fill(cx, transport, wanted);
        self.ended |= matches!(read, Poll::Ready(Ok(0) | Err(_)));
        read
    }

    /// Writes what is to be written.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some((transport, _)) = &mut self.transport else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        buffer::poll_flush(&mut self.output, cx, transport)
    }

    /// Says that nothing more will be written.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some((transport, _)) = &mut self.transport else {
            return Poll::Ready(Ok(()));
        };
        Pin::new(transport).poll_shutdown(cx)
    }

    /// Ready when the caller has gone. What it sends ahead is read meanwhile, since its end stands behind that; beyond
    /// `most` bytes it waits in the kernel.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<()> {
        if !self.is_read() {
            // The socket tells one task only that there is something to read. This one learns from the body's reader when
            // that has taken something, and then looks again who is to watch.
            match &mut self.driver {
                Some(known) => known.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            // Who waits for more of the body sees the caller leave. Who was never told to send it may never do.
            if self.reader_waits && !self.untold {
                return Poll::Pending;
            }
        }
        while self.input.len() < most {
            let Some((transport, _)) = &mut self.transport else {
                return Poll::Ready(());
            };
            std::task::ready!(transport.poll_watch(cx));
            match std::task::ready!(self.poll_fill(cx, 0)) {
                Ok(0) | Err(_) => return Poll::Ready(()),
                Ok(_) => self.wake_reader(),
            }
        }
        Poll::Pending
    }

    /// Tells the body's reader, if it waits, that it need not. Its task may be this one, and is then to run again, too.
    fn wake_reader(&mut self) {
        if std::mem::take(&mut self.reader_waits)
            && let Some(reader) = &self.reader
        {
            reader.wake_by_ref();
        }
    }

    /// The body's reader has got on: the task that serves the connection has to look again.
    fn took(&mut self, cx: &Context<'_>) {
        self.pieces = self.pieces.wrapping_add(1);
        if let Some(driver) = self.driver.take_if(|driver| !driver.will_wake(cx.waker())) {
            driver.wake();
        }
    }
}

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// Bytes of a body that nobody wanted which are worth reading to keep the connection.
const DRAIN_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests;
