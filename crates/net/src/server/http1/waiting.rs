//! Between two requests: reads the next head in time, and frees the memory of idle connections.

use std::task::{Context, Poll};
use std::time::Duration;

use super::{Connection, Stop};
use crate::server::Handler;
use crate::timers::pause;
use crate::worker::Task;
use tollgate_http1::request::Head;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    Head,
    Idle,
    Unset,
}

impl<H: Handler> Connection<H> {
    /// Reads until a head is complete and stored in `read`.
    pub(super) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        read: &mut Option<Head>,
    ) -> Poll<Result<(), Stop>> {
        let mut core = self.core.borrow_mut();
        loop {
            if !core.input.is_empty() {
                match core.read_head(self.limits) {
                    Ok(Some(head)) => {
                        *read = Some(head);
                        return Poll::Ready(Ok(()));
                    }
                    Ok(None) => {}
                    Err(bad) => return Poll::Ready(Err(Stop::Bad(bad))),
                }
            }
            match core.poll_begin(cx) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(Stop::Done)),
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => break,
            }
        }
        let has_begun = !core.input.is_empty();
        drop(core);
        self.poll_time(cx, has_begun).map(Err)
    }

    /// Ready when a head is awaited for too long; `has_begun`: part of it has arrived.
    fn poll_time(&mut self, cx: &mut Context<'_>, has_begun: bool) -> Poll<Stop> {
        let waits = if has_begun || (self.fresh && !self.draining) {
            Waits::Head
        } else {
            Waits::Idle
        };
        if waits != self.waits {
            self.waits = waits;
            if self.wait(waits) {
                return Poll::Ready(Stop::Rest);
            }
        }
        if !self.draining && self.task.poll_drain(cx).is_ready() {
            self.draining = true;
            if !has_begun {
                // A request that has not begun has only a short time to begin.
                self.keep_no_longer();
                self.waits = Waits::Idle;
                self.deadline.reset(self.task.worker().grace());
            }
        }
        std::task::ready!(self.deadline.poll_passed(cx));
        Poll::Ready(match self.waits {
            _ if self.resting => Stop::Rest,
            _ if self.draining && !has_begun => Stop::Done,
            Waits::Head => Stop::TooSlow,
            Waits::Idle | Waits::Unset => Stop::Idle,
        })
    }

    /// Sets the deadline for the awaited event; returns whether the connection should rest at once.
    fn wait(&mut self, waits: Waits) -> bool {
        self.keep_no_longer();
        let settings = &self.served.settings;
        if waits == Waits::Head {
            self.deadline.reset(settings.header_read);
        } else if self.draining {
            self.deadline.reset(self.task.worker().grace());
        } else if self.idle_left <= settings.awake {
            self.deadline.reset(self.idle_left);
        } else {
            // If many other idle connections stay ready, this one rests.
            self.awake = self.task.worker().stay_awake();
            self.resting = true;
            self.deadline.reset(settings.awake);
            return self.awake.is_none();
        }
        false
    }

    fn keep_no_longer(&mut self) {
        (self.resting, self.awake) = (false, None);
    }

    /// Waits for the next request without its memory; `false`: close the connection.
    pub(super) async fn rest(&mut self) -> bool {
        self.resting = false;
        let kept = self
            .awake
            .take()
            .map_or(Duration::ZERO, |_| self.served.settings.awake);
        self.core.borrow_mut().release();
        let stats = &self.served.shared.stats;
        stats.rested.add();
        self.deadline.reset(self.idle_left.saturating_sub(kept));
        tokio::select! {
            biased;
            () = std::future::poll_fn(|cx| self.core.borrow_mut().poll_readable(cx)) => {
                // A client that sends only TLS records without a request stays idle.
                self.idle_left = self.deadline.left();
                self.waits = Waits::Unset;
                true
            }
            () = drained(&self.task) => false,
            () = &mut self.deadline => {
                stats.idle_closed.add();
                false
            }
        }
    }
}

/// Ready once the worker drains and the grace period for one more request has passed.
async fn drained(task: &Task) {
    std::future::poll_fn(|context| task.poll_drain(context)).await;
    pause(task.worker().grace()).await;
}
