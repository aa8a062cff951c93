//! Charges the units that the gateway granted while the server did not respond, on a new connection
//! before requests use it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::assemble::{Flight, assemble};
use super::flight::fly;
use super::queue::Work;
use super::{Adjust, CORRECTIONS_MAX, Correction, LaneState, Link, Trouble};
use crate::wire_form::{Name, Names, WireForm};
use crate::{Owed, StandIn};
use tollgate_limit::{Change, Corrects};

/// The stand-in decides until the charges have arrived, and may owe more units meanwhile: it is
/// asked for debts this many times.
const ROUNDS: usize = 3;

#[derive(Debug)]
pub(super) struct Substitute {
    names: Arc<Names>,
    stand_in: Weak<dyn StandIn>,
    /// Whether it receives the number of gateways.
    counted: bool,
}

impl LaneState {
    /// Sets the stand-in for the server. If the server is connected already, its debts are charged at
    /// once: a stand-in may have them from the process before this one.
    ///
    /// If gateways are `counted`, the stand-in receives their number.
    pub(crate) fn substitute(&self, names: Arc<Names>, stand_in: Weak<dyn StandIn>, counted: bool) {
        let mut substitute = self.substitute.lock();
        *substitute = Some(Substitute {
            names,
            stand_in,
            counted,
        });
        // The number may have changed between its creation and now.
        self.tell_substitute(substitute.as_ref());
        drop(substitute);
        if self.lanes_up.load(Ordering::Acquire) > 0 {
            self.charge_beside();
        }
    }

    /// A heartbeat has reported the number of gateways.
    pub(crate) fn shared_by(&self, replicas: u32) {
        let server = self.server().unwrap_or_default();
        let changed = self.replicas.counted(server, replicas);
        if let Some(leases) = &self.leases {
            leases.shared_by(self.replicas.most());
        }
        self.tell_replicas(changed);
    }

    /// The server no longer responds: other servers have a better count of gateways.
    pub(super) fn is_not_counted_on(&self) {
        let changed = self.replicas.gone(self.server().unwrap_or_default());
        self.tell_replicas(changed);
    }

    fn tell_replicas(&self, changed: Option<u32>) {
        if changed.is_some() {
            self.tell_substitute(self.substitute.lock().as_ref());
        }
    }

    /// The stand-in's lock is held, so that the last one set has the last count.
    fn tell_substitute(&self, substitute: Option<&Substitute>) {
        let replicas = self.replicas.most();
        let counted = substitute.filter(|substitute| substitute.counted && replicas > 0);
        if let Some(stand_in) = counted.and_then(|substitute| substitute.stand_in.upgrade()) {
            stand_in.shared_by(replicas);
        }
    }

    fn owed(&self) -> Vec<Due> {
        let Some((names, stand_in)) = self.stand_in() else {
            return Vec::new();
        };
        let _one_asks = self.asking_owed.lock();
        let due = |owed: Owed| Due {
            name: names.name(&owed.limit, &owed.key),
            shape: names.shape(&owed.limit),
            owed,
        };
        let dues = stand_in.owed().into_iter().map(due);
        let (here, elsewhere): (Vec<Due>, Vec<Due>) = dues.partition(|due| self.has(&due.name));
        self.owe_again(elsewhere);
        here
    }

    fn stand_in(&self) -> Option<(Arc<Names>, Arc<dyn StandIn>)> {
        let substitute = self.substitute.lock();
        let substitute = substitute.as_ref()?;
        Some((substitute.names.clone(), substitute.stand_in.upgrade()?))
    }

    /// Gives debts that were not charged back to the stand-in, which limits them again by the units
    /// its shares are missing.
    fn owe_again(&self, dues: Vec<Due>) {
        if dues.is_empty() {
            return;
        }
        let owed: Vec<Owed> = dues.into_iter().map(|due| due.owed).collect();
        let dropped = match self.stand_in() {
            Some((_, stand_in)) => stand_in.owe_again(owed),
            None => owed,
        };
        self.lose_corrections(dropped.len(), "too many wait for the store");
    }

    /// Queues the debts beside requests: the server is up, and some were decided without it.
    pub(super) fn charge_beside(&self) {
        let mut owed = self.owed();
        let rest = owed.split_off(owed.len().min(self.room_for_corrections()));
        for due in owed {
            self.correct((&due).into());
        }
        self.owe_again(rest);
    }
}

struct Due {
    name: Name,
    shape: Arc<WireForm>,
    owed: Owed,
}

impl From<&Due> for Correction {
    fn from(due: &Due) -> Self {
        let more = due.owed.units;
        let change = Adjust::Change(Change::Charge { more }, Corrects::Any);
        Self::of(due.name, Arc::clone(&due.shape), change)
    }
}

/// Charges the debts over a new connection. A call without a response may have charged: it is sent
/// again only to a store that keeps receipts. Charges that the server refuses are owed again, and go
/// beside requests: kept here, they would let no request use any connection.
pub(super) async fn charge<L: Link>(
    shared: &LaneState,
    link: &L,
    connection: &L::Connection,
) -> Result<(), Trouble> {
    // First those that the server may have made: it recognises only its last ones.
    shared.queue.lock().waits = false;
    if let Some(batch) = shared.take_unknown() {
        let flights = vec![Flight::again(batch)];
        let flown = fly(shared, link, connection, flights, None).await;
        flown.settle(shared)?;
    }
    for _ in 0..ROUNDS {
        let mut owed = shared.owed();
        if owed.is_empty() {
            break;
        }
        while !owed.is_empty() {
            let rest = owed.split_off(owed.len().min(CORRECTIONS_MAX));
            let sent = std::mem::replace(&mut owed, rest);
            let corrections = sent.iter().map(Correction::from).collect();
            let work = Work {
                corrections,
                ..Work::default()
            };
            let flights = assemble(shared, link, work);
            let flown = fly(shared, link, connection, flights, None).await;
            let is_undone = |due: &Due| {
                let mut undone = flown.failed.iter().flat_map(|failed| &failed.undone);
                undone.any(|correction| correction.name == due.name)
            };
            shared.owe_again(sent.into_iter().filter(is_undone).collect());
            match flown.outcome() {
                Ok(()) => {}
                // A call that is kept goes before all others: the store recognises only its last ones.
                Err(Trouble::Refused(_)) if !shared.keeps_unknown() => {}
                Err(trouble) => {
                    shared.owe_again(owed);
                    return Err(trouble);
                }
            }
        }
    }
    Ok(())
}
