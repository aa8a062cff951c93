//! Writes a response, and finishes its request: reads the rest of the body, or ends.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use http::Response;
use http_body::{Body, Frame};
use hyper::ext::ReasonPhrase;

use super::ending::LINGER;
use super::{Connection, Stop, date};
use crate::server::{Handler, Payload};
use crate::timers::within;
use tollgate_http1::write::{Extras, ResponseForm, ResponseWriter, response_head};

impl<H: Handler> Connection<H> {
    /// Whether another request can follow the current response. If the handler has dropped the
    /// body, only its available part is read; the rest is not awaited.
    pub(super) async fn may_go_on(&mut self) -> bool {
        {
            let core = self.core.borrow();
            if core.is_read() || core.is_untold() {
                // A client that was not told to send its body may send its next request instead.
                return core.is_read();
            }
        }
        if Rc::strong_count(&self.core) > 1 {
            return true;
        }
        std::future::poll_fn(|cx| Poll::Ready(self.core.borrow_mut().drain(cx))).await
    }

    pub(super) async fn send(
        &mut self,
        response: Response<H::Body>,
        asked: ResponseForm,
    ) -> Result<ResponseWriter, Stop> {
        let (mut head, mut body) = response.into_parts();
        // Computed before the socket is borrowed: the response may be the request's body.
        let exact = body.size_hint().exact();
        let verbatim = body.take_verbatim();
        let mut plan = {
            let mut core = self.core.borrow_mut();
            core.begin_response();
            let reason = head.extensions.get::<ReasonPhrase>();
            let extras = Extras {
                reason: reason.map(ReasonPhrase::as_bytes),
                verbatim,
                more: |out: &mut Vec<u8>| body.write_fields(out),
                date: date::write_date,
            };
            let plan = response_head(core.output.flat(), &head, extras, exact, asked);
            // The next request reuses this header table instead of allocating one.
            core.requests.reuse(std::mem::take(&mut head.headers));
            plan
        };
        drop(head);
        let mut stalled = None;
        let sent =
            std::future::poll_fn(|cx| self.poll_send(cx, &mut body, &mut plan, &mut stalled));
        if let Err(stop) = sent.await {
            body.unsent();
            return Err(stop);
        }
        Ok(plan)
    }

    /// `stalled`: the number of request pieces that had arrived when the client read nothing.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut H::Body,
        plan: &mut ResponseWriter,
        stalled: &mut Option<u32>,
    ) -> Poll<Result<(), Stop>> {
        loop {
            let mut waits = false;
            // Gather all available pieces into one write.
            while !plan.body.is_ended() && self.core.borrow().output.left() < GATHER {
                let frame = Pin::new(&mut *body).poll_frame(cx);
                let last = body.is_end_stream();
                let output = &mut self.core.borrow_mut().output;
                match frame.map(|frame| frame.map(|frame| frame.map(Frame::into_data))) {
                    Poll::Ready(Some(Ok(Ok(piece)))) => plan.body.data(output, piece, last),
                    Poll::Ready(Some(Ok(Err(frame)))) => {
                        plan.body.end(output, frame.trailers_ref())
                    }
                    Poll::Ready(Some(Err(_))) => plan.body.fail(),
                    Poll::Ready(None) => plan.body.end(output, None),
                    Poll::Pending => {
                        waits = true;
                        break;
                    }
                }
            }
            let mut core = self.core.borrow_mut();
            let before = core.output.left();
            match core.poll_flush(cx) {
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Stop::Done)),
                Poll::Ready(Ok(())) => *stalled = None,
                Poll::Pending => {
                    if stalled.is_none() || core.output.left() < before {
                        *stalled = Some(core.pieces);
                        self.deadline.reset(self.served.settings.body_idle);
                    }
                    std::task::ready!(self.deadline.poll_passed(cx));
                    // A client that uploads before it reads is not idle.
                    if stalled.replace(core.pieces) == Some(core.pieces) {
                        return Poll::Ready(Err(Stop::Unread));
                    }
                    self.deadline.reset(self.served.settings.body_idle);
                    return self.deadline.poll_passed(cx).map(|()| Err(Stop::Unread));
                }
            }
            if plan.body.is_ended() {
                return Poll::Ready(Ok(()));
            }
            if waits {
                return core
                    .poll_gone(cx, self.limits.bytes)
                    .map(|()| Err(Stop::Done));
            }
        }
    }

    /// Whether the connection continues after a response. `wanted`: the client asked for that.
    pub(super) async fn finish(&mut self, plan: &ResponseWriter, wanted: bool) -> Result<(), Stop> {
        if plan.body.is_broken() {
            self.core.borrow_mut().finish();
            return Err(if plan.body.ends_with_connection() {
                Stop::Broken
            } else {
                Stop::Done
            });
        }
        if plan.switches {
            self.core.borrow_mut().hand_over();
            return Err(Stop::Done);
        }
        let read = if self.core.borrow().is_read() {
            true
        } else if plan.persists {
            self.body_ends().await
        } else if !self.core.borrow().is_untold() && Rc::strong_count(&self.core) > 1 {
            // Shut down the write side, because the client may wait for that; a reader still takes
            // the bytes that it sends.
            let _ = within(
                LINGER,
                std::future::poll_fn(|cx| self.core.borrow_mut().poll_shutdown(cx)),
            )
            .await;
            self.body_ends().await
        } else {
            false
        };
        let mut core = self.core.borrow_mut();
        core.finish();
        match (plan.persists, read) {
            (true, true) => Ok(()),
            _ if core.ended => Err(Stop::Done),
            // Bytes after the last request are ignored, but may exist, perhaps only in the kernel.
            // A client that itself said `close` sends nothing more.
            (false, true) if core.input.is_empty() && !(wanted && core.has_unread()) => {
                Err(Stop::Done)
            }
            _ => Err(Stop::Linger),
        }
    }

    /// Runs after a response that began before the request's body was read: whether the body ends.
    /// While another owner holds the body, such as an upstream that responded early and reads on,
    /// only that owner reads it.
    async fn body_ends(&mut self) -> bool {
        let Self {
            core: shared,
            deadline,
            served,
            limits,
            ..
        } = self;
        let mut seen = None;
        std::future::poll_fn(|cx| {
            let mut core = shared.borrow_mut();
            if core.is_read() {
                return Poll::Ready(true);
            }
            if Rc::strong_count(shared) == 1 {
                return Poll::Ready(core.drain(cx));
            }
            if core.is_broken() || core.poll_gone(cx, limits.bytes).is_ready() {
                return Poll::Ready(false);
            }
            if seen.replace(core.pieces) != Some(core.pieces) {
                deadline.reset(served.settings.body_idle);
            }
            deadline.poll_passed(cx).map(|()| false)
        })
        .await
    }
}

/// The number of response bytes that are gathered before a write.
const GATHER: usize = 128 << 10;
