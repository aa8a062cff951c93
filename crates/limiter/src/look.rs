//! Checks whether the limits would admit a request, without charging: used before work that costs
//! more than a refusal.

use std::sync::Arc;

use tollgate_limit::{Claim, Placement, Timestamp};
use tollgate_store::{Deadline, Store};

use super::two_stores::{Claims, NOT_ASKED, merge, places};
use super::{Denied, Generation, Limiter, allows, feedback};

impl<S: Store + Send + Sync> Limiter<S> {
    /// Whether `claims` would be granted at `now`; nothing is charged, and nothing is counted. While
    /// the shared store does not respond they may be granted: [`Limiter::ask`] decides. Leased limits
    /// are not checked, because the level in the store does not include the units this gateway holds.
    ///
    /// # Errors
    /// The refusal. If the request gets it, [`Limiter::count_look`] counts it.
    pub async fn look(
        &self,
        claims: &[Claim<'_>],
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<(), Denied> {
        let generation = &self.generation;
        let Some(resolved) = generation.resolve(claims, now) else {
            return look(generation, claims, now, deadline).await;
        };
        if let Some(denied) = resolved.refusal(now) {
            return Err(denied);
        }
        let (drawn, left_out) = resolved.drawn(claims);
        let looked = Box::pin(look(generation, &drawn, now, deadline)).await;
        looked.map_err(|denied| denied.spread(left_out))
    }

    /// Counts the refusal that a look at `claims` has found, as one of a draw: also towards
    /// penalties, which can block a key now.
    pub fn count_look(&self, claims: &[Claim<'_>], denied: &mut Denied, now: Timestamp) {
        let generation = &self.generation;
        generation.counters.denied(claims, denied);
        let said = generation.local.clock().now().max(now);
        generation.count_refusals(claims, denied, said);
    }
}

async fn look<S: Store + Send + Sync>(
    generation: &Arc<Generation<S>>,
    claims: &[Claim<'_>],
    now: Timestamp,
    deadline: &Deadline,
) -> Result<(), Denied> {
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
        told = match generation.shared.peek_until(&asked, deadline).await {
            Ok(told) => told,
            Err(_) => return Ok(()),
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
        return Ok(());
    }
    let leased = claims.iter().map(|claim| claim.limit.lease);
    let unasked = places(claims, Placement::Shared) & super::bits(leased);
    Err(Denied::new(claims, standings, unasked))
}
