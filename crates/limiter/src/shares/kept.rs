//! Keeps shares, and what they owe, over a restart and an upgrade.

use std::io::{Read, Seek};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollgate_limit::Limit;
use tollgate_store::clock::Clock;
use tollgate_store::local::{LocalStore, SnapshotError, Unpaid, same_bucket};

use super::{Divided, Shares, divide};
use crate::debts::Debts;

impl Shares {
    /// The shares that were saved in `snapshot`, and what they owe.
    pub(crate) fn restored(
        limits: &[Arc<Limit>],
        replicas: u32,
        clock: Clock,
        snapshot: impl Read + Seek,
        unpaid: &[Unpaid],
    ) -> Result<Arc<Self>, SnapshotError> {
        let owes = |limit: &Limit| {
            let mut limits = unpaid.iter().filter_map(|one| limits.get(one.limit));
            limits.any(|owing| same_bucket(owing, limit))
        };
        let (shares, dense) = divide(limits, replicas, owes);
        let (store, _) = LocalStore::restored(&dense, clock, snapshot)?;
        let divided = Divided {
            replicas,
            shares,
            store,
        };
        let debts = Debts::default();
        for Unpaid { limit, key, units } in unpaid {
            if let Some(limit) = limits.get(*limit) {
                // (There is room: no process owes more.)
                debts.add(limit, key, *units);
            }
        }
        Ok(Self::with(limits, divided, Arc::new(debts)))
    }

    /// Where the shares are, to be saved with other buckets.
    pub(crate) fn saved<T>(&self, save: impl FnOnce(&LocalStore) -> T) -> T {
        save(&self.divided.load().store)
    }

    /// What the shares owe, and the number of gateways that they are divided by.
    pub(crate) fn unpaid(&self) -> (Vec<Unpaid>, u32) {
        (
            self.debts.unpaid(&self.limits),
            self.replicas.load(Ordering::Acquire),
        )
    }

    /// What the shares owe, which another process pays if it begins to serve. It is no longer owed here, so
    /// that a store that responds meanwhile is charged once.
    pub(crate) fn leave(&self) -> Vec<Unpaid> {
        self.debts.leave(&self.limits)
    }

    /// The other process serves, and pays what it was left.
    pub(crate) fn left(&self) {
        self.debts.left();
    }

    /// The other process does not serve: what it was left is owed here.
    pub(crate) fn stay(&self) {
        self.debts.stay();
    }
}
