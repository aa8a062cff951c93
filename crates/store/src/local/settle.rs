//! Corrects earlier grants. Operators reset buckets: what was drawn before returns nothing to them.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use parking_lot::RwLock;

use super::LocalStore;
use super::draw::{Bound, lock_all};
use crate::clock::Clock;
use tollgate_limit::{Change, Corrects, Limit, Role, Settlement, Timestamp};

impl LocalStore {
    pub fn settle_at(&self, settlements: &[Settlement<'_>], now: Timestamp) {
        for settlement in settlements {
            let Settlement { limit, key, .. } = *settlement;
            let mut bound = [self.bound(limit, key, settlement.conditions)];
            let settle = || settle_locked(&mut bound, settlement.change, now);
            let tag = self.seed.tag(key);
            self.resets.settle(settlement, tag, &self.clock, settle);
        }
    }

    pub fn release(&self, limit: &Arc<Limit>, tag: u64, units: u64) {
        let now = self.clock.now();
        let mut bound = [self.bound_by_tag(limit, tag, None)];
        settle_locked(&mut bound, Change::Release { units }, now);
    }
}

/// Corrects an earlier grant of each bucket.
fn settle_locked(bound: &mut [Bound<'_>], change: Change, now: Timestamp) {
    let mut locked = lock_all(bound);
    for place in 0..bound.len() {
        let (slot, shard) = locked.at(place);
        slot.settle(shard, change, now);
    }
}

/// The most resets that are remembered: those of the latest moments.
const RESETS_MAX: usize = 4096;

/// A bucket: its limit's name and role, and its tag.
type Bucket = (Arc<str>, Role, u64);

#[derive(Debug, Default)]
pub(super) struct Resets(RwLock<HashMap<Bucket, Timestamp, RandomState>>);

impl Resets {
    /// Settles, unless that returns units which were drawn before the last reset of the bucket. A
    /// reset and the settlements of other draws wait for each other.
    pub(super) fn settle(
        &self,
        settlement: &Settlement<'_>,
        tag: u64,
        clock: &Clock,
        settle: impl FnOnce(),
    ) {
        let bucket = || {
            let limit = settlement.limit;
            (Arc::clone(&limit.name), limit.role, tag)
        };
        match settlement.corrects {
            Corrects::Any => settle(),
            Corrects::DrawOf(_) => {
                let resets = self.0.read();
                let reset = match resets.is_empty() {
                    true => None,
                    false => resets.get(&bucket()).copied(),
                };
                if !settlement.corrects.is_of_before(reset, settlement.change) {
                    settle();
                }
            }
            Corrects::Reset => {
                let mut resets = self.0.write();
                settle();
                if resets.len() >= RESETS_MAX
                    && let Some(oldest) = resets.values().min().copied()
                {
                    resets.retain(|_, at| *at > oldest);
                }
                // Not earlier than any draw that was filled up again.
                resets.insert(bucket(), clock.now());
            }
        }
    }
}
