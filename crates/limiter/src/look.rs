//! Checks whether the limits would admit a request, without charging: used before work that costs
//! more than a refusal.

use std::sync::Arc;

use tollgate_limit::{Claim, Placement, Timestamp};
use tollgate_store::{Store, StoreError};

use super::overrides::Found;
use super::two_stores::{Claims, NOT_ASKED, merge, places};
use super::{Denied, Generation, Limiter, allows, feedback, overridden, penalized};

/// What the limits would decide about a request.
#[derive(Debug)]
pub enum Look {
    /// The limits that were checked would admit it.
    Open,
    /// The limits would refuse it; this is counted like any refusal.
    Denied(Denied),
    /// The shared store does not respond. [`Limiter::ask`] decides what that means, so that a
    /// request waits for the store only once.
    Unavailable(StoreError),
}

impl<S: Store + Send + Sync> Limiter<S> {
    /// Whether `claims` would be granted at `now`; nothing is charged. Leased limits are not
    /// checked, because the level in the store does not include the units this gateway holds.
    pub async fn look(&self, claims: &[Claim<'_>], now: Timestamp) -> Look {
        let generation = &self.generation;
        let found = generation.found(claims, now);
        if generation.penalizes(claims) {
            if let Some(denied) = penalized::look(generation, claims, found.as_ref(), now) {
                return Look::Denied(denied);
            }
            let mut looked = Box::pin(self.look_under(claims, found.as_ref(), now)).await;
            if let Look::Denied(denied) = &mut looked {
                let counted =
                    penalized::after_look(generation, claims, found.as_ref(), denied, now);
                Box::pin(counted).await;
            }
            return looked;
        }
        self.look_under(claims, found.as_ref(), now).await
    }

    /// `found`: the overrides of the claims.
    async fn look_under(
        &self,
        claims: &[Claim<'_>],
        found: Option<&Found>,
        now: Timestamp,
    ) -> Look {
        let generation = &self.generation;
        let Some(found) = found else {
            return look(generation, claims, now).await;
        };
        if let Some(denied) = generation.blocked(claims, found, now) {
            return Look::Denied(denied);
        }
        let limits = generation.limits_under(claims, found);
        let (drawn, left_out) = overridden::drawn(claims, found, &limits);
        match Box::pin(look(generation, &drawn, now)).await {
            Look::Denied(denied) => Look::Denied(denied.spread(left_out)),
            open => open,
        }
    }
}

async fn look<S: Store + Send + Sync>(
    generation: &Arc<Generation<S>>,
    claims: &[Claim<'_>],
    now: Timestamp,
) -> Look {
    if generation.handover.is_away() {
        // The local buckets are in another process; the draw asks there.
        return Look::Open;
    }
    let (shared, local): (Claims<'_>, Claims<'_>) = claims
        .iter()
        .copied()
        .partition(|claim| claim.limit.placement == Placement::Shared);
    let conditions = generation.feedback.conditions(&local, now);
    let local = feedback::under(&local, &conditions);
    let local = generation.local.peek_at(&local, now).into();
    let asked: Claims<'_> = shared
        .iter()
        .copied()
        .filter(|claim| !claim.limit.lease)
        .collect();
    let mut told = Vec::new();
    if !asked.is_empty() {
        told = match generation.shared.peek(&asked).await {
            Ok(told) => told,
            Err(error) => return Look::Unavailable(error),
        };
    }
    let mut told = told.into_iter();
    let next = |claim: &Claim<'_>| if claim.limit.lease { None } else { told.next() };
    let standings = shared
        .iter()
        .map(next)
        .map(|standing| standing.unwrap_or(NOT_ASKED))
        .collect();
    let standings = merge(claims, local, standings);
    if claims
        .iter()
        .zip(&standings)
        .all(|(claim, standing)| !claim.enforced || allows(standing.verdict))
    {
        return Look::Open;
    }
    let leased = claims.iter().map(|claim| claim.limit.lease);
    let unasked = places(claims, Placement::Shared) & super::bits(leased);
    generation
        .counters
        .count(claims, &standings, false, 0, unasked);
    Look::Denied(Denied::new(claims, standings, unasked))
}
