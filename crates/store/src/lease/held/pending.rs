//! A request for a lease, from its call to the store until its result is known.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use super::super::Leases;
use super::Held;
use crate::wire_form::StoredState;
use tollgate_limit::bucket::{Level, State};
use tollgate_limit::lease::Request;
use tollgate_limit::{Micros, Timestamp};

/// A request for a lease, in flight. Dropped without a response it counts as failed; what the store has
/// leased then ends there unused.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(super) held: Arc<Held>,
    pub(super) leases: Arc<Leases>,
    pub(super) request: Request,
    pub(super) waiting: Vec<(u64, oneshot::Sender<()>)>,
    pub(super) is_answered: bool,
}

impl Pending {
    pub(crate) fn request(&self) -> Request {
        self.request
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
        let Level { level, at } = match state {
            Some(State::Level(level)) => *level,
            _ => Level {
                level: held.shape.full_level(),
                at: now,
            },
        };
        held.level.store(
            level.saturating_sub(held.shape.scaled(units)),
            Ordering::Relaxed,
        );
        if units > 0 {
            let mut asking = held.asking.lock();
            let slot = &held.slots[held.ends_first()];
            for returned in held.empty_if(&mut asking, |other| std::ptr::eq(other, slot)) {
                leases.counters.out.fetch_sub(1, Ordering::Relaxed);
                leases.give_back(returned);
            }
            // As the store has counted it: from the moment of the bucket.
            let until = held.terms.until(at.max(now));
            slot.fill(units, until, held.terms.deadline(sent));
            held.low.store(units / 4, Ordering::Relaxed);
            drop(asking);
            leases.installed(&held, units, !self.waiting.is_empty());
        }
        if units < self.request.units.min(leases.least) {
            // There is little to lease: it is asked for again when a few lives have passed.
            let later = clock.boot().after(Micros(4 * held.terms.life.0));
            held.not_before.store(later.as_micros(), Ordering::Relaxed);
        }
        self.is_answered = true;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.held.not_sent(&self.leases);
        for (_, waiting) in self.waiting.drain(..) {
            if self.is_answered {
                // A request that is gone needs no notification.
                let _ = waiting.send(());
            }
        }
    }
}
