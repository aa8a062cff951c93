//! A request for a lease, from its call to the store until its result is known.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use super::super::{Leases, Return};
use super::{Had, Held};
use crate::wire_form::StoredState;
use tollgate_limit::bucket::{Level, State};
use tollgate_limit::lease::Wish;
use tollgate_limit::{Micros, Timestamp};

/// A request for a lease, in flight. Dropped without a response it counts as failed.
#[derive(Debug)]
pub(crate) struct Wishing {
    pub(super) held: Arc<Held>,
    pub(super) leases: Arc<Leases>,
    pub(super) wish: Wish,
    /// When the call left, by the clock of leases.
    pub(super) departed: Timestamp,
    pub(super) waiting: Vec<(u64, oneshot::Sender<Had>)>,
    pub(super) answered: Option<Had>,
}

impl Wishing {
    pub(crate) fn wish(&self) -> Wish {
        self.wish
    }

    /// Stores the result of the store at `now` by its clock, for a call made at `sent` by ours;
    /// `state`: the bucket before.
    pub(crate) fn answered(
        mut self,
        units: u64,
        state: Option<&StoredState>,
        now: Timestamp,
        sent: Timestamp,
    ) {
        let (held, leases) = (self.held.clone(), self.leases.clone());
        let clock = &leases.clock;
        held.heard.store(sent.as_micros(), Ordering::Relaxed);
        held.received
            .store(clock.boot().as_micros(), Ordering::Relaxed);
        held.at.store(now.as_micros(), Ordering::Relaxed);
        let level = match state {
            Some(State::Level(Level { level, .. })) => *level,
            _ => held.shape.full_level(),
        };
        held.level.store(
            level.saturating_sub(held.shape.scaled(units)),
            Ordering::Relaxed,
        );
        if units > 0 {
            let mut asking = held.asking.lock();
            let place = match held.slots.iter().position(|slot| !slot.is_held()) {
                Some(free) => free,
                None => {
                    let earlier = usize::from(held.slots[1].deadline() < held.slots[0].deadline());
                    if let Some(leaving) = held.vacate(&mut asking, earlier) {
                        leases.counters.out.fetch_sub(1, Ordering::Relaxed);
                        leases.give_back(&held, leaving);
                    }
                    earlier
                }
            };
            held.slots[place].fill(self.wish.id, units, held.terms.deadline(sent));
            held.low.store(units / 4, Ordering::Relaxed);
            let first = !std::mem::replace(&mut asking.listed, true);
            drop(asking);
            leases.installed(&held, units, first, !self.waiting.is_empty());
        } else {
            let later = clock.boot().after(Micros(held.terms.life.0 / 4));
            held.not_before.store(later.as_micros(), Ordering::Relaxed);
        }
        // (All waiting requests together may need more than there is, while each alone does not.)
        let one = self.waiting.iter().map(|(cost, _)| *cost).min();
        let there = one.is_some_and(|cost| level >= held.shape.scaled(cost));
        self.answered = Some(if units == 0 && there {
            Had::Nothing
        } else {
            Had::Answer
        });
    }
}

impl Drop for Wishing {
    fn drop(&mut self) {
        if self.answered.is_none() {
            // The store may have leased units without our knowledge: they are returned, if they
            // exist.
            let until = self.departed.after(self.held.terms.counted());
            let (name, shape) = (self.held.name, self.held.shape.clone());
            self.leases.again([Return {
                name,
                shape,
                id: self.wish.id,
                left: None,
                until,
            }]);
        }
        self.held.not_sent(&self.leases);
        for (_, waiting) in self.waiting.drain(..) {
            if let Some(had) = self.answered {
                // A request that is gone needs no notification.
                let _ = waiting.send(had);
            }
        }
    }
}
