//! The socket and buffers of a connection, shared by the task that serves it and the body of the
//! current request.

use std::io;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::io::AsyncWrite;
use tokio::sync::oneshot;

use super::spare;
use crate::buffer::{self, ReadBuffer};
use crate::server::bounds::Place;
use crate::server::inbound::InboundError;
use crate::server::io::Transport;
use crate::server::upgrade::Upgraded;
use tollgate_http1::request::{BadHead, Head, Limits};
use tollgate_http1::{Body, Output, Requests};

/// Borrowed only within one call, never while other code runs.
#[derive(Debug)]
pub(in crate::server) struct Core {
    /// `None` when the connection has ended or was handed over; a body that outlives it reads
    /// nothing.
    transport: Option<(Transport, Place)>,
    pub(super) input: ReadBuffer,
    pub(super) output: Output,
    /// The number of the current request; bodies of earlier requests have ended.
    request: u32,
    pub(super) requests: Requests,
    /// Whether the client waits for a `100 Continue` before it sends the body.
    expects: bool,
    /// Whether none was sent, so that the client may send the body or not.
    untold: bool,
    /// Whether the response has begun, so that the reader of the body must not write output.
    responding: bool,
    /// Whether the client has ended its side.
    pub(super) ended: bool,
    /// The number of body pieces read so far; it stands still when a body does.
    pub(super) pieces: u32,
    /// Whether the reader of the body waits for more, and so notices that the client leaves.
    reader_waits: bool,
    /// The task that reads the body, or last did.
    reader: Option<Waker>,
    /// The task that serves the connection, if it waits and the body has not ended.
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
            responding: false,
            ended: false,
            pieces: 0,
            reader_waits: false,
            reader: None,
            driver: None,
            upgradable: false,
            upgrade: None,
        }
    }

    /// Reads the beginning of the next request. While nothing comes, other connections use the
    /// buffers of this one, unless they are larger than usual.
    pub(super) fn poll_begin(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.input.has_no_memory()
            && self.output.is_done()
            && let Some((input, output)) = spare::take_buffers()
        {
            (self.input, self.output) = (input, output);
        }
        if !self.requests.has_reader() {
            self.requests.adopt(spare::take_reader());
        }
        let read = self.poll_fill(cx, 0);
        if read.is_pending() && spare::is_usual(&self.input, &self.output) {
            self.lend_buffers();
        }
        read
    }

    /// Gives up its memory, as far as it is not in use.
    pub(super) fn release(&mut self) {
        self.lend_buffers();
        if let Some(reader) = self.requests.release() {
            spare::keep_reader(reader);
        }
    }

    /// Gives up its buffers, if they are empty: to other connections, if they have the usual size.
    fn lend_buffers(&mut self) {
        let has_memory = !self.input.has_no_memory();
        if has_memory && self.input.is_empty() && self.output.is_done() {
            spare::keep_buffers(mem::take(&mut self.input), mem::take(&mut self.output));
        }
    }

    /// Reads the next request's head.
    pub(super) fn read_head(&mut self, limits: Limits) -> Result<Option<Head>, BadHead> {
        self.requests.read_head(self.input.bytes(), limits)
    }

    /// Begins the request whose head was read last; returns its number.
    pub(super) fn begin(&mut self, expects: bool, upgradable: bool) -> u32 {
        self.request = self.request.wrapping_add(1);
        (self.expects, self.untold, self.upgradable) = (expects, false, upgradable);
        (self.responding, self.reader_waits) = (false, false);
        self.request
    }

    /// Begins the response: from now on only its writer writes.
    pub(super) fn begin_response(&mut self) {
        self.untold = mem::take(&mut self.expects);
        self.responding = true;
    }

    /// Ends the request's response, and with it the rest of its body.
    pub(super) fn finish(&mut self) {
        self.upgrade = None;
        self.driver = None;
        self.requests.abandon_body();
        self.wake_reader();
        self.reader = None;
    }

    /// Whether no more of the body will arrive, although it is incomplete.
    pub(super) fn is_broken(&self) -> bool {
        self.requests.body_state().is_broken()
    }

    /// Called when the body of the request `number` was dropped.
    pub(in crate::server) fn forsake(&mut self, number: u32) {
        if number == self.request && !self.is_read() {
            self.reader_waits = false;
            if let Some(driver) = self.driver.take() {
                driver.wake();
            }
        }
    }

    /// Whether the whole request has been read.
    pub(super) fn is_read(&self) -> bool {
        self.requests.body_state().is_done()
    }

    /// Whether the client was not told to send the body.
    pub(super) fn is_untold(&self) -> bool {
        self.expects || self.untold
    }

    /// Reads and discards the available rest of a small body; returns whether it has ended. To be
    /// called only if no other code holds the body: another reader would take it for complete.
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

    /// Records that the body of the request `number` will be read, possibly after its response has
    /// begun: a client that waits for `100 Continue` receives it now.
    pub(in crate::server) fn want(&mut self, number: u32) {
        if number == self.request && !self.responding && mem::take(&mut self.expects) {
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
                // Ask for one byte more, which shows whether the client has ended or continues.
                Ok(Body::Needs(bytes)) => bytes.saturating_add(1),
                Err(error) => {
                    self.took(cx);
                    return Poll::Ready(Some(Err(InboundError::Malformed(error))));
                }
            };
            if mem::take(&mut self.expects) {
                self.output.flat().extend_from_slice(CONTINUE);
            }
            // Flush output that the socket did not accept before, because the client may be waiting
            // for it; the socket may wake this task when it is writable.
            if !self.responding
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

    /// Whether the whole body of the request `number` has been read.
    pub(in crate::server) fn is_end(&self, number: u32) -> bool {
        number == self.request && self.is_read()
    }

    /// The known bounds of its remaining length.
    pub(in crate::server) fn size_hint(&self, number: u32) -> SizeHint {
        match self.requests.body_state().left() {
            Some(left) if number == self.request => SizeHint::with_exact(left),
            _ => SizeHint::default(),
        }
    }

    /// The client's side of a tunnel, if the response to the request `number` is a 101.
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

    /// Hands the socket over to the receiver that [`Core::upgrade`] created.
    pub(super) fn hand_over(&mut self) {
        if let (Some(sender), Some((transport, place))) =
            (self.upgrade.take(), self.transport.take())
        {
            let ahead = self.input.bytes().split().freeze();
            // If the receiver is gone, the socket closes.
            let _ = sender.send(Upgraded::new(transport, ahead, place));
        }
    }

    /// Takes the socket out; a body that still exists can no longer read from it.
    pub(super) fn take(&mut self) -> Option<(Transport, Place)> {
        self.wake_reader();
        self.transport.take()
    }

    /// Whether the client has sent bytes that were not read; asks the kernel.
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

    /// Reads once; `wanted` bytes are known to come.
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

    /// Writes the output.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some((transport, _)) = &mut self.transport else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        buffer::poll_flush(&mut self.output, cx, transport)
    }

    /// Shuts down the write side.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some((transport, _)) = &mut self.transport else {
            return Poll::Ready(Ok(()));
        };
        Pin::new(transport).poll_shutdown(cx)
    }

    /// Ready when the client is gone. Bytes that it sends ahead are read meanwhile, because its end
    /// follows them; beyond `most` bytes they wait in the kernel.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<()> {
        if !self.is_read() {
            // The socket wakes only one task when it is readable. This task is woken by the body's
            // reader after each read, and then checks again which of the two must watch.
            match &mut self.driver {
                Some(known) => known.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            // A waiting reader of the body notices that the client leaves. But a client that was
            // never told to send the body may never send it.
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

    /// Wakes the body's reader, if it waits. Its task may be this one, which then runs again too.
    fn wake_reader(&mut self) {
        if mem::take(&mut self.reader_waits)
            && let Some(reader) = &self.reader
        {
            reader.wake_by_ref();
        }
    }

    /// Called after the body's reader made progress: wakes the task that serves the connection.
    fn took(&mut self, cx: &Context<'_>) {
        self.pieces = self.pieces.wrapping_add(1);
        if let Some(driver) = self.driver.take_if(|driver| !driver.will_wake(cx.waker())) {
            driver.wake();
        }
    }
}

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// The largest unread body that is worth reading to keep the connection.
const DRAIN_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests;
