//! The calls of a lane that are under way: one, or a second beside it.
//!
//! While the server works on a call, the callers of the last are told and come back; with one call under way the server
//! then waits for the next, from its answer until what has queued meanwhile is there. Where requests draw from many buckets
//! a call keeps it busy for long, so a part of the crowd is sent beside the call under way, and the server goes from the
//! one to the other. Where all draw from one bucket that would only take them apart: merged, they cost it nothing.
//!
//! Only requests that hold no places go beside another call, and only beside such: a heartbeat never leaves while places
//! are granted that nobody was told of.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use super::flight::{Departing, Failure, Landed};
use super::gather::Gathering;
use super::shared::Work;
use super::{Ask, Link, Shared};

/// Calls under way at most.
const FLYING_MAX: usize = 2;
/// One in so many of those who ask goes beside the call under way: one part is decided, one waits there, one is told.
const PARTS: usize = 3;
/// Fewer are not sent beside another call.
const WORTH: usize = 8;
/// With each call the crowd is thought smaller by one in so many, unless it is seen.
const SHRINKS: usize = 32;

type Flown = (Vec<Landed>, Result<(), Failure>);

/// A call under way.
struct Flying<'a> {
    call: Pin<Box<dyn Future<Output = Flown> + 'a>>,
    asked: usize,
    /// Whether another may go beside it.
    accompanied: bool,
}

/// The calls of a lane, and the answers that nobody was told yet.
pub(super) struct Turns<'a, L: Link> {
    shared: &'a Shared,
    link: &'a L,
    connection: &'a L::Connection,
    flying: Vec<Flying<'a>>,
    landed: Vec<Landed>,
    /// Whether most of those who ask draw from buckets of their own, as far as is known: then a second call beside the first
    /// costs little of what is merged.
    spread: bool,
    /// How many ask, as far as is known.
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

    /// Tells everybody who waits for the answers that have landed.
    pub(super) fn tell(&mut self) -> Result<(), Failure> {
        let mut outcome = Ok(());
        for landed in self.landed.drain(..) {
            outcome = outcome.and(landed.deliver(self.shared));
        }
        outcome
    }

    /// Sends `work`, then tells those who wait for the answers that landed before: while the server works on one call, the
    /// callers of the last are told.
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
            // What is asked leaves with the connection's own task.
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

    /// Waits until a call under way has landed, and sends another beside it where that is worth it. Unless the next call may
    /// leave first, those who wait for the answer are told at once, and waited for a moment.
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
                // Where calls keep the server busy the next leaves before anybody is told. A call for one bucket costs the
                // same whoever is in it: it waits for those who are told.
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

    /// What goes beside the call under way, if that is worth it.
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

    /// Waits for what is under way, and tells everybody: the connection is given up.
    pub(super) async fn end(&mut self) {
        for flying in std::mem::take(&mut self.flying) {
            let (landed, _) = flying.call.await;
            self.landed.extend(landed);
        }
        // The connection's own end has been told already.
        let _ = self.tell();
    }

    fn arrive(&mut self, (landed, outcome): Flown) -> Result<(), Failure> {
        self.landed.extend(landed);
        outcome
    }
}

/// Whether a request may go beside other calls.
fn fits<L: Link>(link: &L) -> impl Fn(&Ask) -> bool {
    |ask| !ask.peek && link.goes_beside(&ask.wants)
}
