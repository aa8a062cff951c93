//! The socket and buffers of a connection, shared by its task and the body of the request.

mod body;

use std::io;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::AsyncWrite;
use tokio::sync::oneshot;

use crate::buffer::{self, ReadBuffer};
use crate::server::bounds::ConnectionSlot;
use crate::server::io::Transport;
use crate::server::upgrade::Upgraded;
use tollgate_http1::request::{BadHead, Head, Limits};
use tollgate_http1::{Output, Requests};

/// Borrowed only within one call, never while other code runs.
#[derive(Debug)]
pub(in crate::server) struct Core {
    /// `None` when the connection has ended or was handed over; a later body reads nothing.
    transport: Option<(Transport, ConnectionSlot)>,
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
    pub(super) fn new(transport: Transport, place: ConnectionSlot, input: ReadBuffer) -> Self {
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

    pub(super) fn read_head(&mut self, limits: Limits) -> Result<Option<Head>, BadHead> {
        self.requests.read_head(self.input.bytes(), limits)
    }

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

    pub(in crate::server) fn body_dropped(&mut self, number: u32) {
        if number == self.request && !self.is_read() {
            self.reader_waits = false;
            if let Some(driver) = self.driver.take() {
                driver.wake();
            }
        }
    }

    pub(super) fn is_read(&self) -> bool {
        self.requests.body_state().is_done()
    }

    pub(super) fn is_untold(&self) -> bool {
        self.expects || self.untold
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

    pub(super) fn hand_over(&mut self) {
        if let (Some(sender), Some((transport, place))) =
            (self.upgrade.take(), self.transport.take())
        {
            let ahead = self.input.bytes().split().freeze();
            // If the receiver is gone, the socket closes.
            let _ = sender.send(Upgraded::http1(transport, ahead, place));
        }
    }

    /// Takes the socket out; a body that still exists can no longer read from it.
    pub(super) fn take(&mut self) -> Option<(Transport, ConnectionSlot)> {
        self.wake_reader();
        self.transport.take()
    }

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

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some((transport, _)) = &mut self.transport else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        buffer::poll_flush(&mut self.output, cx, transport)
    }

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
}

#[cfg(test)]
pub(super) mod tests;
