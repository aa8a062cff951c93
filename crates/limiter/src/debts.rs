//! Records units that local shares have granted and that are not yet charged in the shared store.

use std::sync::Arc;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use tollgate_limit::{KeyBytes, Limit, key};
use tollgate_store::local::{Unpaid, same_bucket};

/// The most buckets kept; a grant from another bucket goes to the store's own queue. 65,536 x about
/// 200 bytes: 13 MiB.
pub(super) const DEBTS_MAX: usize = 65_536;

/// Units granted from one bucket.
#[derive(Debug)]
pub(super) struct Debt {
    pub(super) limit: Arc<Limit>,
    pub(super) key: KeyBytes,
    pub(super) units: u64,
}

/// The debts to one store, shared by every generation of a limiter.
#[derive(Debug, Default)]
pub(super) struct Debts(Mutex<std::collections::HashMap<KeyBytes, Debt, RandomState>>);

impl Debts {
    /// Adds a grant; returns `false` if there is no room.
    pub(super) fn add(&self, limit: &Arc<Limit>, key: &[u8], units: u64) -> bool {
        let name = key::canonical(limit, key);
        let mut debts = self.0.lock();
        if let Some(debt) = debts.get_mut(&name) {
            debt.units = debt.units.saturating_add(units);
            return true;
        }
        if debts.len() >= DEBTS_MAX {
            return false;
        }
        debts.insert(
            name,
            Debt {
                limit: Arc::clone(limit),
                key: KeyBytes::from_slice(key),
                units,
            },
        );
        true
    }

    /// Subtracts a grant that was given back, as far as it is still owed.
    pub(super) fn remove(&self, limit: &Limit, key: &[u8], units: u64) {
        if let Some(debt) = self.0.lock().get_mut(&key::canonical(limit, key)) {
            debt.units = debt.units.saturating_sub(units);
        }
    }

    /// All debts, by the index of the limit in `limits`.
    pub(super) fn unpaid(&self, limits: &[Arc<Limit>]) -> Vec<Unpaid> {
        let debts = self.0.lock();
        let owed = debts.values().filter(|debt| debt.units > 0);
        owed.filter_map(|debt| {
            let limit = limits
                .iter()
                .position(|limit| same_bucket(limit, &debt.limit))?;
            let (key, units) = (debt.key.clone(), debt.units);
            Some(Unpaid { limit, key, units })
        })
        .collect()
    }

    /// Removes and returns all debts.
    pub(super) fn take(&self) -> impl Iterator<Item = Debt> {
        std::mem::take(&mut *self.0.lock())
            .into_values()
            .filter(|debt| debt.units > 0)
    }
}
