//! The body of the current request: read by the code that holds it, or discarded.

use std::mem;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use super::Core;
use crate::server::inbound::InboundError;
use tollgate_http1::Body;

impl Core {
    /// Reads and discards the available rest of a small body; returns whether it has ended. To be
    /// called only if no other code holds the body: another reader would take it for complete.
    pub(in crate::server::http1) fn drain(&mut self, cx: &mut Context<'_>) -> bool {
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

    pub(in crate::server) fn is_end(&self, number: u32) -> bool {
        number == self.request && self.is_read()
    }

    pub(in crate::server) fn size_hint(&self, number: u32) -> SizeHint {
        match self.requests.body_state().left() {
            Some(left) if number == self.request => SizeHint::with_exact(left),
            _ => SizeHint::default(),
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

pub(super) const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// The largest unread body that is worth reading to keep the connection.
const DRAIN_MAX: usize = 64 << 10;
