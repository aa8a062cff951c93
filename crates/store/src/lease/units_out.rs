//! Tracks leased units that requests have taken and may still put back, because another of their
//! limits has not decided yet.
//!
//! A lease may leave its slot while such units are out: it is used up, has ended, or is replaced by
//! another. Its return to the store must include them, because the store ignores a second return of
//! the same lease. So the lease waits here until every request that took from it is decided, or
//! until it must be returned.

use smallvec::SmallVec;

use super::slot::Turn;
use tollgate_limit::Timestamp;

/// The origin of leased units: the slot, and its turn.
pub(super) type Origin = (usize, Turn);

#[derive(Debug, Default)]
pub(super) struct Hands(SmallVec<[Hand; 2]>);

/// The requests that hold units of one lease.
#[derive(Debug)]
struct Hand {
    origin: Origin,
    requests: u64,
    lease: Lease,
}

/// The location of a lease with units in hand.
#[derive(Debug)]
enum Lease {
    InPlace,
    Leaving(Leaving),
    /// It was returned without them.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leaving {
    pub(super) id: u64,
    pub(super) left: u64,
    /// The store counts the lease until this moment.
    pub(super) until: Timestamp,
}

/// What to do with the units of a decided request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decided {
    /// Put those that were not granted back into the lease, which is in its slot.
    PutBack,
    /// Nothing: other requests hold units of the lease.
    Waits,
    /// Return the lease with these units: no request holds any more of it.
    GiveBack(Leaving),
    /// Nothing: it is too late to return them.
    TooLate,
}

impl Hands {
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

    /// Records that a lease leaves its slot. Returns it immediately unless units of it are in hand.
    pub(super) fn leave(&mut self, origin: Origin, leaving: Leaving) -> Option<Leaving> {
        let Some(hand) = self.0.iter_mut().find(|hand| hand.origin == origin) else {
            return Some(leaving);
        };
        hand.lease = Lease::Leaving(leaving);
        None
    }

    /// Records the decision on a request that took units; it puts `back` units back.
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

    /// The leases that must be returned now, even with units in hand: those that the store counts
    /// until `until` or less.
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

    pub(super) fn leaving(&self) -> u64 {
        self.0
            .iter()
            .map(|hand| u64::from(matches!(hand.lease, Lease::Leaving(_))))
            .sum()
    }

    /// Whether no unit is in hand.
    pub(super) fn are_empty(&self) -> bool {
        self.0.is_empty()
    }
}
