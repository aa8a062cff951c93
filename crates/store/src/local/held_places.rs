//! The places in flight that another process holds in this one's concurrency limits, by the tag of
//! their key: the requests that hold them run there, and the keys are known there only.

use std::cell::RefCell;
use std::sync::Arc;

use tollgate_limit::bucket::State;
use tollgate_limit::{Change, Limit};

use super::LocalStore;
use super::bucket::Whose;
use super::draw::settle_locked;
use super::table::share_table;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldPlaces {
    /// The index of the limit, or of its tier.
    pub limit: usize,
    pub tag: u64,
    pub units: u64,
}

impl LocalStore {
    /// The tag of a key; a store that was restored from a snapshot has those of its writer.
    pub fn tag(&self, key: &[u8]) -> u64 {
        self.seed.tag(key)
    }

    pub fn held_places(&self) -> Vec<HeldPlaces> {
        let held = RefCell::new(Vec::new());
        for (index, (limit, table)) in self.limits.iter().zip(&self.tables).enumerate() {
            if !limit.algorithm.holds_places() {
                continue;
            }
            // Tiers share the table of their limit.
            let is_elder = !self.limits[..index]
                .iter()
                .any(|elder| share_table(elder, limit));
            if !is_elder {
                continue;
            }
            table.latest().visit(|moving| {
                if let (Whose::Bucket { tag }, State::Held(state)) =
                    (moving.whose, &moving.bucket.state)
                {
                    held.borrow_mut().push(HeldPlaces {
                        limit: index,
                        tag,
                        units: state.units,
                    });
                }
            });
        }
        held.into_inner()
    }

    pub fn release(&self, limit: &Arc<Limit>, tag: u64, units: u64) {
        let now = self.clock.now();
        let mut bound = [self.bound_by_tag(limit, tag, None)];
        settle_locked(&mut bound, Change::Release { units }, now);
    }
}
