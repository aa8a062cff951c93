//! Records the places of concurrency limits that requests of this gateway hold, and reports them to
//! the store by heartbeats.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::{Adjust, CORRECTIONS_MAX, Correction, LaneState, Wanted, Wants};
use crate::wire_form::{Name, WireForm};
use tollgate_limit::{Change, Corrects, Draw};

/// A concurrency limit's bucket and the places held in it.
pub(super) type Places = (Name, Arc<WireForm>, u64);

impl LaneState {
    /// Frees places of a concurrency limit. The lock covers both steps: a heartbeat reports what is
    /// held and what still waits to be freed.
    pub(crate) fn release(&self, name: Name, shape: Arc<WireForm>, units: u64) {
        let mut held = self.held.lock();
        if let Some((_, _, count)) = held.get_mut(&name.hash) {
            *count = count.saturating_sub(units);
            if *count == 0 {
                held.remove(&name.hash);
            }
        }
        let change = Change::Release { units };
        let adjust = Adjust::Change(change, Corrects::Any);
        self.correct(Correction::of(name, shape, adjust));
    }

    /// Queues heartbeats for all held places, once the last ones have been sent.
    pub(crate) fn heartbeat(&self) {
        let held = self.held.lock();
        let mut queue = self.queue.lock();
        queue.waits = false;
        if queue.heartbeats.is_empty() {
            let here = held.values().filter(|(name, ..)| self.has(name));
            let buckets = here.map(|(name, shape, _)| (*name, shape.clone()));
            queue.heartbeats.extend(buckets);
        }
    }

    /// The heartbeats of the next call. They go before everything else that waits, so that places
    /// granted by one call are not missing in a heartbeat of a later call. Places that wait to be
    /// freed still exist on the server, and are reported as held.
    pub(super) fn take_heartbeats(&self) -> Vec<Correction> {
        let held = self.held.lock();
        let mut queue = self.queue.lock();
        if !queue.has_heartbeats() {
            return Vec::new();
        }
        let mut waiting: HashMap<u128, u64, RandomState> = HashMap::default();
        for correction in &queue.corrections {
            if let Adjust::Change(Change::Release { units }, _) = correction.adjust {
                *waiting.entry(correction.name.hash).or_default() += units;
            }
        }
        let mut beats = Vec::new();
        while beats.len() < CORRECTIONS_MAX
            && let Some((name, shape)) = queue.heartbeats.pop_front()
        {
            // All of its places may be given back by now; corrections that free them are queued.
            let Some((_, _, units)) = held.get(&name.hash).filter(|_| self.has(&name)) else {
                continue;
            };
            let units = units.saturating_add(waiting.get(&name.hash).copied().unwrap_or(0));
            beats.push(Correction::of(name, shape, Adjust::Hold(units)));
        }
        beats
    }

    pub(super) fn hold(&self, wants: &Wants, draw: &Draw) {
        if !wants.iter().any(|wanted| wanted.shape.holds()) {
            return;
        }
        let mut held = self.held.lock();
        for wanted in places(wants, draw) {
            let free = || (wanted.name, wanted.shape.clone(), 0);
            held.entry(wanted.name.hash).or_insert_with(free).2 += wanted.cost;
        }
    }

    pub(super) fn give_places_back(&self, wants: &Wants, draw: &Draw) {
        for wanted in places(wants, draw) {
            self.release(wanted.name, wanted.shape.clone(), wanted.cost);
        }
    }
}

fn places<'w>(wants: &'w Wants, draw: &'w Draw) -> impl Iterator<Item = &'w Wanted> {
    let standings = wants.iter().zip(&draw.standings);
    standings
        .filter(|(wanted, standing)| wanted.shape.holds() && standing.verdict.is_allow())
        .map(|(wanted, _)| wanted)
}
