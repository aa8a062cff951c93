//! Decides about requests under limits with a penalty.
//!
//! A key that this gateway knows to be blocked is refused before anything is drawn. Otherwise the
//! request is decided as any other, and a refusal is counted. Where the limit is shared, the bucket
//! that says whether the key is blocked ([`Limit::penalty_bucket`]) is asked in the same call as the
//! limit's own, so that a block by one gateway is one by all. An operator's override that lifts the
//! limit lifts its penalty.

mod operator;
mod stored;

use std::sync::Arc;

use smallvec::SmallVec;

use tollgate_limit::{Claim, Limit, Micros, Penalty, Placement, Timestamp};
use tollgate_store::{Deadline, Store};

use super::overridden;
use super::overrides::{Effect, Found};
use super::penalties::{Block, KNOWN_FOR};
use super::two_stores::{self, Claims};
use super::{Decision, Denied, Generation, is_in_flight};

/// The penalty that applies to a claim.
struct Watched<'g> {
    place: usize,
    /// The name of its key in the process.
    bucket: u128,
    penalty: Penalty,
    /// The bucket in the shared store; `None`: the limit is local.
    shared: Option<&'g Limit>,
}

/// The claims to which a penalty applies.
type Watch<'g> = SmallVec<[Watched<'g>; 2]>;

impl<S: Store + Send + Sync> Generation<S> {
    /// Whether one of these claims is of a limit with a penalty.
    #[inline(always)]
    pub(super) fn penalizes(&self, claims: &[Claim<'_>]) -> bool {
        self.has_penalties && claims.iter().any(|claim| claim.limit.penalty.is_some())
    }

    fn watched(&self, claims: &[Claim<'_>], found: Option<&Found>) -> Watch<'_> {
        let watched = |(place, claim): (usize, &Claim<'_>)| {
            let hit = found.and_then(|found| found[place]);
            let free = hit.is_some_and(|hit| hit.effect == Effect::Unlimited);
            // A claim that is not enforced is never refused.
            let penalty = claim.limit.penalty.filter(|_| claim.enforced && !free)?;
            Some(Watched {
                place,
                bucket: self.penalties.name(claim.limit, claim.key),
                penalty,
                shared: self.penalty_buckets.get(claim.limit.index)?.as_ref(),
            })
        };
        claims.iter().enumerate().filter_map(watched).collect()
    }

    /// The refusal of a request of which a key is known to be blocked. `trusted`: whether a block is
    /// obeyed without asking the store.
    fn penalized(
        &self,
        claims: &[Claim<'_>],
        watched: &[Watched<'_>],
        now: Timestamp,
        trusted: impl Fn(&Block) -> bool,
    ) -> Option<Denied> {
        let mut blocks: SmallVec<[Option<Micros>; 4]> = SmallVec::from_elem(None, claims.len());
        for one in watched {
            let block = self.penalties.block(one.bucket, now);
            blocks[one.place] = block
                .filter(&trusted)
                .map(|block| block.admits.max(block.until).since(now));
        }
        self.refused_by_blocks(claims, &blocks)
            .map(Denied::by_a_penalty)
    }

    /// The bucket in the shared store that says whether keys of `limit` are blocked.
    fn penalty_bucket(&self, limit: &Limit) -> Option<&Limit> {
        let same = |one: &&Arc<Limit>| one.name == limit.name && one.penalty.is_some();
        let own = self.limits.iter().find(same)?;
        self.penalty_buckets.get(own.index)?.as_ref()
    }

    /// Counts the refusals of claims by their own buckets; returns the places of keys that are to
    /// be blocked now.
    fn count_refusals(
        &self,
        denied: &Denied,
        watched: &[Watched<'_>],
        now: Timestamp,
    ) -> SmallVec<[usize; 2]> {
        watched
            .iter()
            // An outage of the store is not the caller's fault.
            .filter(|one| denied.is_refused_by(one.place) && !denied.is_ungoverned(one.place))
            .filter(|one| self.penalties.refused(one.bucket, one.penalty, now))
            .map(|one| one.place)
            .collect()
    }

    /// Records a block, and says so in the refusal that caused it.
    fn impose(
        &self,
        denied: &mut Denied,
        claim: &Claim<'_>,
        watched: &Watched<'_>,
        now: Timestamp,
        (left, unstored): (Micros, bool),
    ) {
        let waits = denied.wait_of(watched.place);
        self.block(claim, watched, now, waits, (left, unstored));
        // A request that costs more than the limit can ever grant keeps that reason.
        if waits.is_some() || is_in_flight(claim.limit) {
            denied.penalize(watched.place, left);
        }
    }

    /// Records a block of a key whose bucket itself said to wait for `waits`.
    fn block(
        &self,
        claim: &Claim<'_>,
        watched: &Watched<'_>,
        now: Timestamp,
        waits: Option<Micros>,
        (left, unstored): (Micros, bool),
    ) {
        let until = now.after(left);
        let own = waits.unwrap_or_default();
        let shared = watched.shared.is_some();
        let block = Block {
            until,
            admits: until.max(now.after(own)),
            ask_again: if shared { now.after(KNOWN_FOR) } else { until },
            shared,
            unstored,
        };
        self.penalties.put(watched.bucket, block, now);
        self.penalties.record(claim.limit, claim.key, now, until);
    }
}

/// Decides immediately about claims whose buckets are all in the process.
#[cold]
pub(super) fn check_here<S: Store + Send + Sync>(
    generation: &Arc<Generation<S>>,
    claims: &[Claim<'_>],
    found: Option<&Found>,
    now: Timestamp,
) -> Decision {
    let watched = generation.watched(claims, found);
    if let Some(denied) = generation.penalized(claims, &watched, now, |_| true) {
        return generation.deny(claims, denied);
    }
    let mut denied = match generation.check_here(claims, found, now) {
        Decision::Deny(denied) => denied,
        other => return other,
    };
    if !denied.is_blocked() {
        for place in generation.count_refusals(&denied, &watched, now) {
            let Some(one) = watched.iter().find(|one| one.place == place) else {
                continue;
            };
            let block = (one.penalty.block, false);
            generation.impose(&mut denied, &claims[place], one, now, block);
        }
    }
    Decision::Deny(denied)
}

/// Decides about claims of which some are in the shared store.
pub(super) async fn check<S: Store + Send + Sync>(
    generation: &Arc<Generation<S>>,
    claims: &[Claim<'_>],
    found: Option<Found>,
    now: Timestamp,
    deadline: &Deadline,
) -> Decision {
    let watched = generation.watched(claims, found.as_ref());
    generation.confirm(claims, &watched, now, deadline).await;
    if let Some(denied) = generation.penalized(claims, &watched, now, |_| true) {
        return generation.deny(claims, denied);
    }
    let asked: SmallVec<[&Watched<'_>; 2]> =
        watched.iter().filter(|one| one.shared.is_some()).collect();
    let mut all: Claims<'_> = claims.iter().copied().collect();
    for one in &asked {
        if let Some(bucket) = one.shared {
            all.push(Claim::new(bucket, claims[one.place].key, 0));
        }
    }
    let decision = match found {
        Some(mut found) => {
            found.resize(all.len(), None);
            overridden::check(generation, &all, &found, now, deadline).await
        }
        None => two_stores::check(generation, &all, now, deadline).await,
    };
    let mut denied = match decision {
        Decision::Deny(denied) => denied,
        Decision::Allow(permit) => return Decision::Allow(permit.without_last(asked.len())),
        Decision::Unavailable(unavailable) => return Decision::Unavailable(unavailable),
    };
    if denied.is_blocked() {
        denied.remove_last(asked.len());
        return Decision::Deny(denied);
    }
    let told = generation.local.clock().now();
    let blocks: SmallVec<[Option<Micros>; 2]> = (claims.len()..all.len())
        .map(|place| denied.wait_of(place))
        .collect();
    denied.remove_last(asked.len());
    let counted = not_blocked(&watched, &asked, &blocks);
    for (one, left) in asked.iter().zip(&blocks) {
        let Some(left) = *left else { continue };
        let until = told.after(left);
        let own = denied.wait_of(one.place).unwrap_or_default();
        let block = Block {
            until,
            admits: until.max(told.after(own)),
            ask_again: told.after(KNOWN_FOR),
            shared: true,
            unstored: false,
        };
        generation.penalties.put(one.bucket, block, told);
        denied.penalize(one.place, left);
    }
    let counted = generation.count(claims, &counted, &mut denied, (now, deadline));
    counted.await;
    Decision::Deny(denied)
}

/// Looks whether a key is known to be blocked.
pub(super) fn look<S: Store + Send + Sync>(
    generation: &Arc<Generation<S>>,
    claims: &[Claim<'_>],
    found: Option<&Found>,
    now: Timestamp,
) -> Option<Denied> {
    let watched = generation.watched(claims, found);
    generation.penalized(claims, &watched, now, |block| block.ask_again > now)
}

/// Counts a refusal that a look has found, and blocks keys because of it.
pub(super) async fn after_look<S: Store + Send + Sync>(
    generation: &Arc<Generation<S>>,
    claims: &[Claim<'_>],
    denied: &mut Denied,
    (now, deadline): (Timestamp, &Deadline),
) {
    if !denied.is_blocked() {
        let found = generation.found(claims, now);
        let watched = generation.watched(claims, found.as_ref());
        let counted = generation.count(claims, &watched, denied, (now, deadline));
        counted.await;
    }
}

/// The watched claims whose keys the store does not block.
fn not_blocked<'g>(
    watched: &[Watched<'g>],
    asked: &[&Watched<'g>],
    blocks: &[Option<Micros>],
) -> Watch<'g> {
    let is_blocked = |one: &Watched<'_>| {
        let mut told = asked.iter().zip(blocks);
        told.any(|(asked, block)| asked.place == one.place && block.is_some())
    };
    watched
        .iter()
        .filter(|one| !is_blocked(one))
        .map(|one| Watched { ..*one })
        .collect()
}

/// The buckets in the shared store of the limits that have a penalty, by the limits' index. Their
/// own indices follow those of the limits.
pub(super) fn buckets(limits: &[Arc<Limit>]) -> Box<[Option<Limit>]> {
    let bucket = |limit: &Arc<Limit>| {
        if limit.placement != Placement::Shared {
            return None;
        }
        let base = limits.iter().position(|one| one.name == limit.name)?;
        Some(Limit {
            index: limits.len() + base,
            ..limit.penalty_bucket()?
        })
    };
    limits.iter().map(bucket).collect()
}

#[cfg(test)]
mod tests;
