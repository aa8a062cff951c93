//! The line of a bucket: requests that its reservations refuse wait, first come first served, until
//! enough is settled (`max_wait` of a limit that reserves).
//!
//! A settlement on this gateway wakes the first of the line, which draws again: one call for each
//! settled reservation, and none while nothing is settled. The first stays in its place while it draws, so
//! that a settlement of that moment is noted for it. A request that leaves the line wakes the next one where
//! that may have its units: the bucket holds them, or nothing that could free them is under way. What
//! other gateways settle is seen with the next settlement here, or at the end of the wait.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::{Bucket, Reserved, UnderWay};
use tollgate_limit::{Micros, Standing, Timestamp, Verdict};
use tollgate_limiter::wait_until;
use tollgate_policy::{Claims, Policy};
use tollgate_store::clock::Clock;

/// The requests that wait for one bucket, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Line(VecDeque<Waiting>);

#[derive(Debug)]
struct Waiting {
    number: u64,
    cost: u64,
    /// When the bucket holds its cost whatever is settled, as far as that is known.
    due: Option<Timestamp>,
    /// Whether the bucket may hold its cost now.
    woken: bool,
    /// Whether it draws, and what comes of that is not known.
    draws: bool,
    waker: Option<Waker>,
}

/// A request with one of its buckets: while it draws, it notes what is settled, and others count what it may
/// reserve as reserved. It may have to wait in line. Dropping it gives up its place.
#[derive(Debug)]
pub(crate) struct Place {
    under_way: Arc<UnderWay>,
    bucket: Bucket,
    /// The claim of the request, by its position.
    pub(crate) claim: usize,
    cost: u64,
    pub(crate) max_wait: Micros,
    /// Its number in the line; `None`: it does not wait.
    number: Option<u64>,
    seen: u64,
    /// Whether it draws, and what comes of that is not known.
    is_drawing: bool,
}

impl Line {
    /// Wakes the first request, because units came back; the caller calls the waker without the lock.
    pub(super) fn wake_first(&mut self) -> Option<Waker> {
        let first = self.0.front_mut()?;
        first.woken = true;
        first.waker.take()
    }

    fn position(&self, number: u64) -> Option<usize> {
        self.0.iter().position(|one| one.number == number)
    }
}

impl UnderWay {
    /// The places of a request with these `claims`: one for each bucket that it reserves units of.
    pub(crate) fn places(self: &Arc<Self>, claims: &Claims, policy: &Policy) -> Vec<Place> {
        let mut places = Vec::new();
        for (claim, charge) in claims.charges().iter().enumerate() {
            let rule = &policy.rules[charge.rule];
            if !rule.reserves() || !charge.enforced {
                continue;
            }
            let bucket = (Arc::clone(&rule.name), claims.key(charge).clone());
            places.push(self.place(bucket, claim, charge.cost, rule.max_wait));
        }
        places
    }

    pub(super) fn place(
        self: &Arc<Self>,
        bucket: Bucket,
        claim: usize,
        cost: u64,
        max_wait: Micros,
    ) -> Place {
        let mut buckets = self.lock();
        let reserved = buckets.by_key.entry(bucket.clone()).or_default();
        reserved.places += 1;
        let seen = reserved.settled;
        drop(buckets);
        Place {
            under_way: Arc::clone(self),
            bucket,
            claim,
            cost,
            max_wait,
            number: None,
            seen,
            is_drawing: false,
        }
    }
}

impl Place {
    pub(crate) fn may_wait(&self) -> bool {
        self.max_wait > Micros::ZERO
    }

    pub(crate) fn draw(&mut self) {
        let cost = u128::from(self.cost);
        self.seen = self.with(|reserved| {
            reserved.drawing += cost;
            reserved.settled
        });
        self.is_drawing = true;
    }

    /// Notes what came of a draw. If nothing is under way any more, the first of the line must not wait for it.
    fn drew(&mut self) {
        if !std::mem::take(&mut self.is_drawing) {
            return;
        }
        let (cost, number) = (u128::from(self.cost), self.number);
        let woken = self.with(|reserved| {
            reserved.drawing -= cost;
            let first = reserved.line.0.front().map(|first| first.number);
            let is_other = first.is_some() && first != number;
            (reserved.is_idle() && is_other).then(|| reserved.line.wake_first())
        });
        woken.flatten().inspect(Waker::wake_by_ref);
    }

    /// Whether a refusal with this `standing` at `now` may end by `end`: reservations under way here
    /// would be enough, something was settled since the draw, or the bucket gets its units by then.
    pub(crate) fn may_get(&mut self, standing: &Standing, now: Timestamp, end: Timestamp) -> bool {
        self.drew();
        let comes = due(standing, now).is_some_and(|due| due <= end);
        let left = i128::from(standing.left);
        now < end
            && (comes
                || self.with(|reserved| {
                    let reservations = i128::try_from(reserved.under_way()).unwrap_or(i128::MAX);
                    reserved.settled != self.seen
                        || left.saturating_add(reservations) >= i128::from(self.cost)
                }))
    }

    /// Joins the line behind other requests. It returns `false` if the line is empty or full.
    pub(crate) fn join_behind(&mut self) -> bool {
        let is_empty = self.with(|reserved| reserved.line.0.is_empty());
        !is_empty && self.join(None)
    }

    /// Waits in line after a refusal with this `standing` at `now`; `false`: there is no room.
    pub(crate) fn wait_for(&mut self, standing: &Standing, now: Timestamp) -> bool {
        self.join(due(standing, now))
    }

    fn join(&mut self, due: Option<Timestamp>) -> bool {
        let mut buckets = self.under_way.lock();
        let has_room = buckets.waiting < WAITING_MAX;
        let Some(reserved) = buckets.by_key.get_mut(&self.bucket) else {
            return false;
        };
        let known = self
            .number
            .and_then(|number| reserved.line.position(number));
        if let Some(one) = known.and_then(|at| reserved.line.0.get_mut(at)) {
            (one.due, one.draws) = (due, false);
            return true;
        }
        if !has_room || reserved.line.0.len() >= LINE_MAX {
            return false;
        }
        let number = reserved.next;
        reserved.next += 1;
        reserved.line.0.push_back(Waiting {
            number,
            cost: self.cost,
            due,
            woken: reserved.settled != self.seen,
            draws: false,
            waker: None,
        });
        buckets.waiting += 1;
        self.number = Some(number);
        true
    }

    /// Waits until `end`, or until the request is the first and the bucket may hold its cost.
    pub(crate) async fn turn(&self, clock: &Clock, end: Timestamp) {
        let mut timer: Option<(Timestamp, Pin<Box<_>>)> = None;
        poll_fn(|context| {
            loop {
                let Some(due) = self.due(clock.now(), end, context.waker()) else {
                    return Poll::Ready(());
                };
                if timer.as_ref().is_none_or(|(set, _)| *set != due) {
                    timer = Some((due, Box::pin(wait_until(clock, due))));
                }
                if let Some((_, timer)) = &mut timer
                    && timer.as_mut().poll(context).is_pending()
                {
                    return Poll::Pending;
                }
            }
        })
        .await;
    }

    /// Until when the request waits if it is not woken before; `None`: it draws now.
    pub(super) fn due(&self, now: Timestamp, end: Timestamp, waker: &Waker) -> Option<Timestamp> {
        self.with(|reserved| {
            let at = reserved.line.position(self.number?)?;
            let one = reserved.line.0.get_mut(at)?;
            let due = one.due.filter(|due| at == 0 && *due < end).unwrap_or(end);
            if at == 0 && one.woken || now >= due {
                (one.woken, one.draws, one.waker) = (false, true, None);
                return None;
            }
            one.waker = Some(waker.clone());
            Some(due)
        })
    }

    /// Leaves the line. `granted`: how the bucket stood after the draw that admits the request.
    pub(crate) fn leave(&mut self, granted: Option<(&Standing, Timestamp)>) {
        self.drew();
        let Some(number) = self.number.take() else {
            return;
        };
        let mut buckets = self.under_way.lock();
        buckets.waiting -= 1;
        let Some(reserved) = buckets.by_key.get_mut(&self.bucket) else {
            return;
        };
        let at = reserved.line.position(number);
        let Some((at, left)) = at.and_then(|at| Some((at, reserved.line.0.remove(at)?))) else {
            return;
        };
        let is_idle = reserved.is_idle();
        let Some(next) = reserved.line.0.front_mut().filter(|_| at == 0) else {
            return;
        };
        let (fits, due) = match granted {
            Some((standing, now)) => (
                next.cost <= standing.remaining(),
                Some(now.after(standing.reset)),
            ),
            None => (left.draws || next.cost < left.cost, left.due),
        };
        next.woken |= left.woken || fits || is_idle;
        next.due = next.due.or(due);
        let woken = next.waker.take();
        drop(buckets);
        woken.inspect(Waker::wake_by_ref);
    }

    /// Reads or changes the entry of its bucket, which is there as long as the place.
    fn with<T>(&self, change: impl FnOnce(&mut Reserved) -> T) -> T {
        let mut buckets = self.under_way.lock();
        change(buckets.by_key.entry(self.bucket.clone()).or_default())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave(None);
        let mut buckets = self.under_way.lock();
        if let Some(reserved) = buckets.by_key.get_mut(&self.bucket) {
            reserved.places -= 1;
            if !reserved.is_needed() {
                buckets.by_key.remove(&self.bucket);
            }
        }
    }
}

/// When a bucket that refuses holds the cost, whatever is settled; `None`: that is not known.
fn due(standing: &Standing, now: Timestamp) -> Option<Timestamp> {
    match standing.verdict {
        Verdict::Deny { retry_after } => retry_after.map(|wait| now.after(wait)),
        Verdict::Allow { .. } => None,
    }
}

/// The most requests that wait for one bucket, and for all: each of them holds its connection.
const LINE_MAX: usize = 1_000;
const WAITING_MAX: usize = 10_000;
