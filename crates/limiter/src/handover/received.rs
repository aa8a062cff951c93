//! Decides about buckets that another process has handed over to this one, for its last requests.

use smallvec::SmallVec;

use tollgate_limit::{Claim, Draw, Placement, Settlement};
use tollgate_store::Backend;

use crate::Limiter;
use crate::permit::DrawnFrom;

impl Limiter<Backend> {
    /// Draws for a process that has handed over its buckets: immediately, and only for local
    /// limits.
    pub fn draw_for(&self, claims: &[Claim<'_>]) -> Draw {
        debug_assert!(
            claims
                .iter()
                .all(|claim| claim.limit.placement == Placement::Local)
        );
        let generation = &self.generation;
        let now = generation.local.clock().now();
        let found = generation.found(claims, now);
        // An operator may block a key here after the handover. (What has no limit since then is drawn
        // all the same: the other process may give back what it takes for charged.)
        let blocked = found.as_ref();
        if let Some(denied) = blocked.and_then(|found| generation.blocked(claims, found, now)) {
            return denied.into_draw();
        }
        let draw = || match &found {
            None => generation.draw_here(claims, now),
            Some(found) => {
                let limits = generation.limits_under(claims, found);
                let claims: SmallVec<[Claim<'_>; 4]> = claims
                    .iter()
                    .zip(&limits)
                    .map(|(claim, own)| own.as_deref().map_or(*claim, |own| own.of(claim)))
                    .collect();
                generation.draw_here(&claims, now)
            }
        };
        match generation.penalizes(claims) {
            true => generation.draw_for(claims, found.as_ref(), now, draw),
            false => draw(),
        }
    }

    /// Corrects a charge for a process that has handed over its buckets.
    pub fn settle_for(&self, settlement: Settlement<'_>) {
        self.generation.settle_local(
            settlement,
            DrawnFrom::Bucket,
            self.generation.local.clock().now(),
        );
    }
}
