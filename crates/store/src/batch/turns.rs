//! The calls of a lane that are in flight: one, or a second in parallel.
//!
//! While the server works on a call, the callers of the last one get their results and return. With
//! one call in flight the server then idles from its response until the next call arrives. If
//! requests draw from many buckets, a call takes the server long, so a part of the callers is sent
//! in a second call, and the server goes from one to the other. If all draw from one bucket, a
//! second call would only split what merging makes free.
//!
//! Only requests that hold no places go in a parallel call, and only in parallel to such requests:
//! a heartbeat never leaves while granted places are not yet delivered.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use super::flight::{Departing, Failure, Flown, Landed};
use super::gather::Gathering;
use super::shared::Work;
use super::{Ask, Link, Shared};

/// The most calls in flight.
const FLYING_MAX: usize = 2;
/// One in this many callers goes in the parallel call: one part is being decided, one waits at the
/// server, one gets its results.
const PARTS: usize = 3;
/// Fewer requests than this do not go in a parallel call.
const WORTH: usize = 8;
/// With each call the expected number of callers shrinks by one in this many, unless they are seen.
const SHRINKS: usize = 32;

/// A call in flight.
struct Flying<'a> {
    call: Pin<Box<dyn Future<Output = Flown> + 'a>>,
    asked: usize,
    /// Whether another call may go in parallel.
    accompanied: bool,
}

/// The calls of a lane, and the results not yet delivered.
pub(super) struct Turns<'a, L: Link> {
    shared: &'a Shared,
    link: &'a L,
    connection: &'a L::Connection,
    flying: Vec<Flying<'a>>,
    landed: Vec<Landed>,
    /// Whether most callers draw from buckets of their own, as far as known: then a second call
    /// loses little merging.
    spread: bool,
    /// The number of callers, as far as known.
    crowd: usize,
}

impl<'a, L: Link> Turns<'a, L> {
    pub(super) fn new(shared: &'a Shared, link: &'a L, connection: &'a L::Connection) -> Self {
        Self {
            shared,
            link,
            connection,
            flying: Vec::new(),
            landed: Vec::new(),
            spread: false,
            crowd: 0,
        }
    }

    pub(super) fn is_flying(&self) -> bool {
        !self.flying.is_empty()
    }

    pub(super) fn has_landed(&self) -> bool {
        !self.landed.is_empty()
    }

    /// Delivers the results of all finished calls.
    pub(super) fn tell(&mut self) -> Result<(), Failure> {
        let mut outcome = Ok(());
        for landed in self.landed.drain(..) {
            outcome = outcome.and(landed.deliver(self.shared));
        }
        outcome
    }

    /// Sends `work`, then delivers the results of earlier calls, so that callers get them while the
    /// server works.
    pub(super) async fn begin(&mut self, work: Work) -> Result<(), Failure> {
        let asked = work.asks.len();
        let alike = work.corrections.is_empty()
            && work.errands.is_empty()
            && work.asks.iter().all(fits(self.link));
        let departing = Departing::of(self.shared, self.link, work);
        self.spread = departing.is_spread().unwrap_or(self.spread);
        let accompanied = alike && self.spread;
        let mut call: Pin<Box<dyn Future<Output = Flown> + 'a>> =
            Box::pin(departing.fly(self.shared, self.link, self.connection));
        if !self.landed.is_empty() || !self.flying.is_empty() {
            // The call leaves with the connection's own task.
            if let Poll::Ready(flown) =
                poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await
            {
                return self.arrive(flown);
            }
            if !self.landed.is_empty() {
                tokio::task::yield_now().await;
            }
        }
        self.flying.push(Flying {
            call,
            asked,
            accompanied,
        });
        self.tell()
    }

    /// Waits until a call finishes, and sends another in parallel if useful. Unless the next call
    /// may leave first, the results are delivered at once, and the lane waits briefly for the
    /// callers to return.
    pub(super) async fn go_on(&mut self, gathering: &mut Gathering) -> Result<(), Failure> {
        loop {
            if let Some(work) = self.beside() {
                self.begin(work).await?;
            }
            if self.flying.is_empty() {
                return Ok(());
            }
            let may_follow = self.may_follow();
            let shared = self.shared;
            let mut enough = pin!(shared.enough.notified());
            let flying = &mut self.flying;
            let flown = poll_fn(|context| {
                for place in 0..flying.len() {
                    if let Poll::Ready(flown) = flying[place].call.as_mut().poll(context) {
                        return Poll::Ready(Some((flying.remove(place).asked, flown)));
                    }
                }
                if may_follow && enough.as_mut().poll(context).is_ready() {
                    Poll::Ready(None)
                } else {
                    Poll::Pending
                }
            })
            .await;
            if let Some((asked, flown)) = flown {
                let outcome = self.arrive(flown);
                let queued = self.shared.queued();
                let all: usize = self.flying.iter().map(|flying| flying.asked).sum();
                self.crowd = (self.crowd - self.crowd / SHRINKS).max(all + asked + queued);
                // If calls take the server long, the next one leaves before results are delivered.
                // A call for one bucket costs the same for any number of callers, so it waits for
                // those that get results.
                let overlaps = self.link.overlaps() && self.spread;
                if overlaps && outcome.is_ok() && self.flying.is_empty() {
                    return outcome;
                }
                let told = self.tell();
                if !overlaps && outcome.is_ok() && told.is_ok() {
                    gathering.wait(self.shared, asked, queued);
                }
                return outcome.and(told);
            }
        }
    }

    /// The work for a parallel call, if it is useful.
    fn beside(&self) -> Option<Work> {
        if !self.may_follow() {
            return None;
        }
        let least = (self.crowd / PARTS).max(WORTH);
        self.shared.take_beside(least, fits(self.link))
    }

    fn may_follow(&self) -> bool {
        (1..FLYING_MAX).contains(&self.flying.len())
            && self.flying.iter().all(|flying| flying.accompanied)
    }

    /// Waits for the calls in flight and delivers all results: the connection is given up.
    pub(super) async fn end(&mut self) {
        for flying in std::mem::take(&mut self.flying) {
            // The end of the connection has been reported already.
            let _ = self.arrive(flying.call.await);
        }
        let _ = self.tell();
    }

    fn arrive(&mut self, flown: Flown) -> Result<(), Failure> {
        let (landed, outcome) = flown.settle(self.shared);
        self.landed.extend(landed);
        outcome
    }
}

/// Whether a request may be in a call in parallel to others.
fn fits<L: Link>(link: &L) -> impl Fn(&Ask) -> bool {
    |ask| !ask.peek && link.goes_beside(&ask.wants)
}
