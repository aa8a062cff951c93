//! A bound on a wait, armed by the first poll that has to wait.

use std::task::{Context, Poll};
use std::time::Duration;

use super::Deadline;

/// A bound on a wait. It costs nothing until something has to wait, and nothing to put off.
#[derive(Debug)]
pub struct Expiry {
    span: Duration,
    deadline: Option<Deadline>,
    armed: bool,
}

impl Expiry {
    /// Expires when a wait has lasted `span`; zero: never.
    pub const fn after(span: Duration) -> Self {
        Self {
            span,
            deadline: None,
            armed: false,
        }
    }

    /// The wait is over: the next one starts anew.
    pub const fn reset(&mut self) {
        self.armed = false;
    }

    /// A wait that has lasted too long may last `more`, from now on.
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
