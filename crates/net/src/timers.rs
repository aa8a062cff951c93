//! Deadlines that are cheaper than one runtime timer each: a coarse hashed timer wheel per worker.
//!
//! Every worker (thread) owns one wheel, and a single task advances it (Varghese and Lauck 1987,
//! scheme 6). The task sleeps until the earliest deadline of the wheel, not from tick to tick: a
//! worker whose connections are idle does not wake up. Setting and moving a [`Deadline`] read the
//! clock and take a few stores. A deadline never passes early; it passes up to one [`TICK`] late.
//!
//! A deadline belongs to the thread on which it was created. Polled on another thread it would use
//! that thread's wheel, so only the request path, which never leaves its worker, may use it.

mod wheel;

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::sleep_until;

use wheel::{Set, TICK_NANOS, Wheel};

pub const TICK: Duration = Duration::from_nanos(TICK_NANOS);

/// A moment in the worker's future that can be awaited, moved and cleared.
///
/// As a future it is ready once the moment has passed, and stays ready until [`Deadline::reset`].
#[derive(Debug)]
pub struct Deadline {
    index: u32,
}

impl Deadline {
    /// A deadline `after` from now, in a worker (any current-thread tokio runtime).
    pub fn after(after: Duration) -> Self {
        let mut deadline = Self::never();
        deadline.reset(after);
        deadline
    }

    /// A deadline that does not pass until it is [`Deadline::reset`].
    pub fn never() -> Self {
        WHEEL.with_borrow_mut(|wheel| Self {
            index: wheel.insert(),
        })
    }

    /// Moves the deadline to `after` from now. A later poll registers only another waker.
    pub fn reset(&mut self, after: Duration) {
        match WHEEL.with_borrow_mut(|wheel| wheel.set(self.index, after)) {
            Set::Covered => {}
            Set::Earliest(task) => task.wake(),
            Set::First => turn(),
        }
    }

    /// Clears the deadline: it does not pass until it is [`Deadline::reset`].
    pub fn clear(&mut self) {
        WHEEL.with_borrow_mut(|wheel| wheel.clear(self.index));
    }

    pub fn passed(&self) -> bool {
        WHEEL.with_borrow(|wheel| wheel.passed(self.index))
    }

    /// The time until it passes. Reset to this value at once, it passes at most a tick later.
    pub fn left(&self) -> Duration {
        WHEEL.with_borrow_mut(|wheel| wheel.left(self.index))
    }

    /// Ready once the deadline has passed; otherwise the task is woken when it does.
    pub fn poll_passed(&mut self, context: &Context<'_>) -> Poll<()> {
        WHEEL.with_borrow_mut(|wheel| wheel.poll(self.index, context.waker()))
    }
}

impl Future for Deadline {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.poll_passed(context)
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        // At thread exit the wheel may be dropped before its deadlines.
        let _ = WHEEL.try_with(|wheel| wheel.borrow_mut().remove(self.index));
    }
}

/// The error of a future that was not ready in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the time given ran out")]
pub struct Elapsed;

/// Waits for `future`, at most for `span`; if the time has passed, the future is dropped.
pub async fn within<F: Future>(span: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = std::pin::pin!(future);
    let mut deadline = None::<Deadline>;
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        // Set only once the future has to wait: a future that is ready at once costs no deadline.
        let deadline = deadline.get_or_insert_with(|| Deadline::after(span));
        deadline.poll_passed(context).map(|()| Err(Elapsed))
    })
    .await
}

/// Waits for `span`, with the resolution of the wheel.
pub async fn pause(span: Duration) {
    Deadline::after(span).await;
}

/// Starts the task that advances this thread's wheel until it is empty.
fn turn() {
    let turning = Turning;
    tokio::spawn(async move {
        let mut alarm = pin!(sleep_until(tokio::time::Instant::now()));
        let mut due: Vec<Waker> = Vec::new();
        while let Some(next) = WHEEL.with_borrow_mut(|wheel| wheel.turn(&mut due)) {
            // Woken outside the borrow, because a waker may run any code.
            due.drain(..).for_each(Waker::wake);
            alarm.as_mut().reset(next);
            poll_fn(|context| {
                let earlier = WHEEL.with_borrow_mut(|wheel| wheel.poll_earlier(context.waker()));
                if earlier.is_ready() {
                    return Poll::Ready(());
                }
                alarm.as_mut().poll(context)
            })
            .await;
        }
        // Before the wakers: a deadline that one of them sets starts the wheel again.
        drop(turning);
        due.drain(..).for_each(Waker::wake);
    });
}

/// Records that the wheel has stopped, also if the runtime is dropped with its task.
struct Turning;

impl Drop for Turning {
    fn drop(&mut self) {
        let _ = WHEEL.try_with(|wheel| wheel.borrow_mut().stop());
    }
}

thread_local! {
    static WHEEL: RefCell<Wheel> = const { RefCell::new(Wheel::new()) };
}

/// A timeout of a wait that costs nothing until something waits, and nothing to extend.
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

#[cfg(test)]
mod tests;
