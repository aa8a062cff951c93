//! A timeout of a wait, armed by the first poll that has to wait.

use std::task::{Context, Poll};
use std::time::Duration;

use super::Deadline;

/// A timeout of a wait. It costs nothing until something has to wait, and extending it costs
/// nothing.
#[derive(Debug)]
pub struct Expiry {
    span: Duration,
    deadline: Option<Deadline>,
    armed: bool,
}

impl Expiry {
    /// Expires after a wait of `span`; zero: never.
    pub const fn after(span: Duration) -> Self {
        Self {
            span,
            deadline: None,
            armed: false,
        }
    }

    /// Ends the wait: the next one starts a new timeout.
    pub const fn reset(&mut self) {
        self.armed = false;
    }

    /// Extends an expired wait by `more`, from now on.
    pub fn put_off(&mut self, more: Duration) {
        if let Some(deadline) = &mut self.deadline {
            deadline.reset(more);
        }
    }

    /// Ready when the wait has lasted too long.
    pub fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.span.is_zero() {
            return Poll::Pending;
        }
        let span = self.span;
        let deadline = self.deadline.get_or_insert_with(Deadline::never);
        if !self.armed {
            deadline.reset(span);
            self.armed = true;
        }
        deadline.poll_passed(cx)
    }
}
