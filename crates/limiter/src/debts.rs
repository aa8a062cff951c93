//! What local shares have granted that no bucket of the shared store was charged for.

use std::sync::Arc;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use tollgate_limit::{KeyBytes, Limit, key};

/// Buckets that are kept; a grant of another is told to the store's own queue. 65,536 x about 200 bytes: 13 MiB.
pub(super) const DEBTS_MAX: usize = 65_536;

/// Units granted of one bucket.
#[derive(Debug)]
pub(super) struct Debt {
    pub(super) limit: Arc<Limit>,
    pub(super) key: KeyBytes,
    pub(super) units: u64,
}

/// What is owed to one store. Every generation of a limiter shares it.
#[derive(Debug, Default)]
pub(super) struct Debts(Mutex<std::collections::HashMap<KeyBytes, Debt, RandomState>>);

impl Debts {
    /// Adds a grant; `false`: there is no room.
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

    /// A grant was given back, as far as it is owed yet.
    pub(super) fn remove(&self, limit: &Limit, key: &[u8], units: u64) {
        if let Some(debt) = self.0.lock().get_mut(&key::canonical(limit, key)) {
            debt.units = debt.units.saturating_sub(units);
        }
    }

    /// All that is owed, which is owed here no more.
    pub(super) fn take(&self) -> impl Iterator<Item = Debt> {
        std::mem::take(&mut *self.0.lock())
            .into_values()
            .filter(|debt| debt.units > 0)
    }
}
