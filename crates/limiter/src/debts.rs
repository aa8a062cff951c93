//! Records units that local shares have granted and that are not yet charged in the shared store.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use tollgate_limit::{KeyBytes, Limit, key};
use tollgate_store::Owed;
use tollgate_store::local::{Unpaid, place_of};

/// The most buckets kept, about 13 MiB; other grants go to the store's own queue.
pub(super) const DEBTS_MAX: usize = 65_536;

/// The debts to one store, shared by every generation of a limiter.
#[derive(Debug, Default)]
pub(super) struct Debts(Mutex<Lists>);

#[derive(Debug, Default)]
struct Lists {
    owed: ByBucket,
    /// Those that another process pays if it begins to serve. There is room for them here until then.
    leaving: ByBucket,
}

/// By the canonical name of the bucket.
type ByBucket = HashMap<KeyBytes, Owed, RandomState>;

impl Debts {
    /// Adds a grant; returns `false` if there is no room.
    pub(super) fn add(&self, limit: &Arc<Limit>, key: &[u8], units: u64) -> bool {
        let name = key::canonical(limit, key);
        let mut debts = self.0.lock();
        if let Some(debt) = debts.owed.get_mut(&name) {
            debt.units = debt.units.saturating_add(units);
            return true;
        }
        if debts.owed.len() + debts.leaving.len() >= DEBTS_MAX {
            return false;
        }
        debts.owed.insert(
            name,
            Owed {
                limit: Arc::clone(limit),
                key: KeyBytes::from_slice(key),
                units,
            },
        );
        true
    }

    pub(super) fn remove(&self, limit: &Limit, key: &[u8], units: u64) {
        let name = key::canonical(limit, key);
        let Lists { owed, leaving } = &mut *self.0.lock();
        let mut left = units;
        for debt in [owed, leaving]
            .into_iter()
            .filter_map(|list| list.get_mut(&name))
        {
            let removed = left.min(debt.units);
            debt.units -= removed;
            left -= removed;
        }
    }

    /// All debts, by the index of the limit in `limits`.
    pub(super) fn unpaid(&self, limits: &[Arc<Limit>]) -> Vec<Unpaid> {
        unpaid(&self.0.lock().owed, limits)
    }

    /// The same for another process, which pays them if it begins to serve.
    pub(super) fn leave(&self, limits: &[Arc<Limit>]) -> Vec<Unpaid> {
        let mut debts = self.0.lock();
        debts.leaving = std::mem::take(&mut debts.owed);
        unpaid(&debts.leaving, limits)
    }

    /// The other process pays those that it was left.
    pub(super) fn left(&self) {
        self.0.lock().leaving.clear();
    }

    /// No other process pays those that were to be left.
    pub(super) fn stay(&self) {
        let Lists { owed, leaving } = &mut *self.0.lock();
        for (name, debt) in leaving.drain() {
            match owed.get_mut(&name) {
                Some(known) => known.units = known.units.saturating_add(debt.units),
                None => drop(owed.insert(name, debt)),
            }
        }
    }

    pub(super) fn take(&self) -> impl Iterator<Item = Owed> {
        std::mem::take(&mut self.0.lock().owed)
            .into_values()
            .filter(|debt| debt.units > 0)
    }
}

/// The debts of `list`, by the index of the limit in `limits`.
fn unpaid(list: &ByBucket, limits: &[Arc<Limit>]) -> Vec<Unpaid> {
    let owed = list.values().filter(|debt| debt.units > 0);
    owed.filter_map(|debt| {
        let limit = place_of(limits, &debt.limit)?;
        let (key, units) = (debt.key.clone(), debt.units);
        Some(Unpaid { limit, key, units })
    })
    .collect()
}
