//! What the requests under one policy share, and where corrections of their charges go.

use std::sync::Arc;

use tollgate_limit::{Change, Limit, Micros, Placement, Settlement, Timestamp};
use tollgate_store::Store;
use tollgate_store::local::LocalStore;

use super::counters::Counters;
use super::feedback::Feedback;
use super::handover::Handover;
use super::overrides::Overrides;
use super::penalties::Penalties;
use super::permit::{DrawnFrom, Settle};
use super::shares::Shares;

#[derive(Debug)]
pub(crate) struct Generation<S> {
    pub(crate) limits: Box<[Arc<Limit>]>,
    pub(crate) local: LocalStore,
    pub(crate) shared: Arc<S>,
    pub(crate) shares: Arc<Shares>,
    pub(crate) counters: Counters,
    pub(crate) feedback: Feedback,
    pub(crate) handover: Arc<Handover>,
    pub(crate) overrides: Arc<Overrides>,
    pub(crate) penalties: Arc<Penalties>,
}

impl<S: Store + Send + Sync> Generation<S> {
    /// Corrects a bucket of this process, and its copy in another one.
    pub(crate) fn settle_local(&self, settlement: Settlement<'_>, from: DrawnFrom) {
        self.handover
            .settle(settlement, from, &self.limits, &self.local);
    }

    /// Corrects the bucket of a charge that was made on `from`.
    pub(crate) fn correct(&self, settlement: Settlement<'_>, from: DrawnFrom) {
        match (settlement.limit.placement, from) {
            (Placement::Local, _) => self.settle_local(settlement, from),
            (Placement::Shared, DrawnFrom::Bucket | DrawnFrom::SinceHandover) => {
                self.shared.settle(&[settlement]);
            }
            (Placement::Shared, DrawnFrom::LocalShare { is_owed }) => {
                self.shares.settle(settlement, &*self.shared, is_owed);
            }
        }
    }
}

impl<S: Store + Send + Sync> Settle for Generation<S> {
    fn count_used(&self, limit: &Limit, key: &[u8], units: u64) {
        let used = Settlement::new(limit, key, Change::Charge { more: units });
        self.correct(used, DrawnFrom::Bucket);
    }

    fn settle(&self, settlement: Settlement<'_>, from: DrawnFrom) {
        self.counters.corrected(settlement.limit, settlement.change);
        self.correct(settlement, from);
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn answered(&self, limit: &Limit, took: Micros, remaining: u64, lost: bool) {
        let now = self.local.clock().now();
        self.feedback
            .answered(limit.index, now, took, remaining, lost);
    }

    fn now(&self) -> Timestamp {
        self.local.clock().now()
    }
}
