//! What the gateway granted while the server did not answer: charged on a new connection before anybody may ask there.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::flight::{Departing, Failure};
use super::shared::Work;
use super::{Adjust, CORRECTIONS_MAX, Correction, Link, QUEUE_MAX, Shared};
use crate::shape::Names;
use crate::stand_in::{Owed, StandIn};
use tollgate_limit::Change;

/// Requests are decided without the store until the charges have landed, and may owe again: this often it is asked what.
const ROUNDS: usize = 3;

/// What decides in the server's place.
pub(super) struct Substitute {
    names: Arc<Names>,
    stand_in: Weak<dyn StandIn>,
    /// Whether it is told how many gateways there are.
    counted: bool,
}

impl std::fmt::Debug for Substitute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Substitute").finish_non_exhaustive()
    }
}

impl Shared {
    /// Names what decides in the server's place from now on.
    ///
    /// Where gateways are `counted` it is told how many there are.
    pub(crate) fn substitute(&self, names: Arc<Names>, stand_in: Weak<dyn StandIn>, counted: bool) {
        let replicas = self.replicas.most();
        if let Some(stand_in) = stand_in.upgrade().filter(|_| counted && replicas > 0) {
            // It may have been told between its making and now.
            stand_in.shared_by(replicas);
        }
        *self.substitute.lock() = Some(Substitute { names, stand_in, counted });
    }

    /// A heartbeat has told how many gateways there are.
    pub(crate) fn shared_by(&self, replicas: u32) {
        let changed = self.replicas.counted(self.server().unwrap_or_default(), replicas);
        self.tell_replicas(changed);
    }

    /// The server answers no more: others know better how many gateways there are.
    pub(super) fn is_not_counted_on(&self) {
        let changed = self.replicas.gone(self.server().unwrap_or_default());
        self.tell_replicas(changed);
    }

    fn tell_replicas(&self, changed: Option<u32>) {
        let Some(replicas) = changed else { return };
        let substitute = self.substitute.lock();
        let counted = substitute.as_ref().filter(|substitute| substitute.counted);
        if let Some(stand_in) = counted.and_then(|substitute| substitute.stand_in.upgrade()) {
            stand_in.shared_by(replicas.max(1));
        }
    }

    /// What is owed on this server, as corrections. What is owed on others is kept for them.
    fn owed(&self) -> Vec<Correction> {
        let owed = self.owed_anywhere();
        if self.server().is_none() {
            return owed;
        }
        let mut elsewhere = self.owed_elsewhere.lock();
        elsewhere.extend(owed);
        let here = elsewhere.extract_if(.., |owed| self.has(&owed.name)).collect();
        let too_many = elsewhere.len().saturating_sub(QUEUE_MAX);
        elsewhere.truncate(QUEUE_MAX);
        self.counters.corrections_dropped.fetch_add(too_many as u64, Ordering::Relaxed);
        here
    }

    fn owed_anywhere(&self) -> Vec<Correction> {
        let known = self.substitute.lock().as_ref().map(|one| (one.names.clone(), one.stand_in.upgrade()));
        let Some((names, Some(stand_in))) = known else { return Vec::new() };
        let correction = |owed: Owed| Correction {
            name: names.name(&owed.limit, &owed.key),
            shape: names.shape(&owed.limit),
            adjust: Adjust::Change(Change::Charge { more: owed.units }),
        };
        stand_in.owed().into_iter().map(correction).collect()
    }
}

/// Charges what is owed over a new connection. A call that gets no answer may have charged: it is not sent again, and what
/// was to follow it waits for the next connection.
pub(super) async fn charge<L: Link>(shared: &Shared, link: &L, connection: &L::Connection) -> Result<(), Failure> {
    for _ in 0..ROUNDS {
        let mut owed = shared.owed();
        if owed.is_empty() {
            break;
        }
        while !owed.is_empty() {
            let rest = owed.split_off(owed.len().min(CORRECTIONS_MAX));
            let work = Work { asks: Vec::new(), corrections: std::mem::replace(&mut owed, rest), errands: Vec::new() };
            let (landed, outcome) = Departing::of(shared, link, work).fly(shared, link, connection).await;
            let told = landed.into_iter().try_for_each(|landed| landed.deliver(shared));
            if let Err(failure) = outcome.and(told) {
                shared.put_corrections_back(owed);
                return Err(failure);
            }
        }
    }
    Ok(())
}
