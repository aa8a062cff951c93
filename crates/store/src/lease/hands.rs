//! Leased units that requests have taken and may still put back, as another of their limits has not decided yet.
//!
//! A lease may leave its place while such units are out: it is used up, has ended, or makes room for another. What goes
//! back to the store must include them, and a second return of the same lease counts for nothing there. So a lease that
//! leaves waits here until every request that took from it is decided, or until it has to go back.

use smallvec::SmallVec;

use super::slot::Turn;
use tollgate_limit::Timestamp;

/// Which lease units were taken from: its place, and its turn there.
pub(super) type Origin = (usize, Turn);

/// The units out, by lease.
#[derive(Debug, Default)]
pub(super) struct Hands(SmallVec<[Hand; 2]>);

/// Requests that hold units of one lease.
#[derive(Debug)]
struct Hand {
    origin: Origin,
    requests: u64,
    lease: Lease,
}

/// Where a lease is of which units are out.
#[derive(Debug)]
enum Lease {
    InPlace,
    Leaving(Leaving),
    /// It went back without them.
    Gone,
}

/// A lease that has left its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leaving {
    pub(super) id: u64,
    pub(super) left: u64,
    /// The store counts it until then.
    pub(super) until: Timestamp,
}

/// What is to be done with the units of a request that is decided.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decided {
    /// Put those that were not granted back into the lease, which is in its place.
    PutBack,
    /// Nothing: others hold units of the lease.
    Waits,
    /// Give the lease back, with these units in it: nobody holds any more of it.
    GiveBack(Leaving),
    /// Nothing: it is too late for them.
    TooLate,
}

impl Hands {
    /// A request has taken units.
    pub(super) fn take(&mut self, origin: Origin) {
        match self.0.iter_mut().find(|hand| hand.origin == origin) {
            Some(hand) => hand.requests += 1,
            None => self.0.push(Hand {
                origin,
                requests: 1,
                lease: Lease::InPlace,
            }),
        }
    }

    /// A lease leaves its place. It is handed back at once unless units of it are out.
    pub(super) fn leave(&mut self, origin: Origin, leaving: Leaving) -> Option<Leaving> {
        let Some(hand) = self.0.iter_mut().find(|hand| hand.origin == origin) else {
            return Some(leaving);
        };
        hand.lease = Lease::Leaving(leaving);
        None
    }

    /// A request that took units is decided, and puts so many of them back.
    pub(super) fn decide(&mut self, origin: Origin, back: u64) -> Decided {
        let Some(place) = self.0.iter().position(|hand| hand.origin == origin) else {
            return Decided::TooLate;
        };
        let hand = &mut self.0[place];
        hand.requests -= 1;
        let last = hand.requests == 0;
        let decided = match &mut hand.lease {
            Lease::InPlace => Decided::PutBack,
            Lease::Gone => Decided::TooLate,
            Lease::Leaving(leaving) => {
                leaving.left += back;
                if last {
                    Decided::GiveBack(*leaving)
                } else {
                    Decided::Waits
                }
            }
        };
        if last {
            self.0.swap_remove(place);
        }
        decided
    }

    /// The leases that must go back now, units out or not: those that the store counts until `until` or less.
    pub(super) fn let_go(&mut self, until: Timestamp) -> impl Iterator<Item = Leaving> {
        self.0.iter_mut().filter_map(move |hand| {
            let Lease::Leaving(leaving) = hand.lease else {
                return None;
            };
            if leaving.until > until {
                return None;
            }
            hand.lease = Lease::Gone;
            Some(leaving)
        })
    }

    /// Leases that wait here.
    pub(super) fn leaving(&self) -> u64 {
        self.0
            .iter()
            .map(|hand| u64::from(matches!(hand.lease, Lease::Leaving(_))))
            .sum()
    }

    /// Whether no unit is out.
    pub(super) fn are_empty(&self) -> bool {
        self.0.is_empty()
    }
}
