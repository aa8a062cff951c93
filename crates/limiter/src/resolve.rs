//! What decides about a claim before its bucket does: an operator's override, or a block of its key.
//!
//! A block refuses before anything is drawn. A claim without a limit is left out of the draw. A
//! claim with other numbers is drawn under them, as one of another tier. So neither the beginning nor
//! the end of an override refills anything (DESIGN: "Several numbers for one bucket").

use std::sync::Arc;

use smallvec::SmallVec;

use tollgate_limit::{Claim, Conditions, Limit, Mode, Timestamp};
use tollgate_store::{Deadline, Store};

use super::decision;
use super::overrides::{Effect, Found, Hit};
use super::two_stores::{self, Claims};
use super::{Decision, Denied, Generation};

/// A block: every request of a key is refused, until a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Who blocks the key.
    pub cause: BlockCause,
    /// Its end.
    pub until: Timestamp,
    /// When a lone caller is admitted: its end, or later where the bucket needs longer.
    pub admits: Timestamp,
}

/// Who blocks a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockCause {
    /// An operator, by an override.
    Operator,
    /// The limit's penalty.
    Penalty,
}

/// What decides about one claim.
#[derive(Debug)]
enum By {
    /// Its bucket, by the limit's own numbers.
    Bucket,
    /// Its bucket, by the numbers of an override.
    Numbers(Box<Numbers>),
    /// Nobody: an override lifts the limit.
    Unlimited,
    /// A block.
    Block(Block),
}

/// What decides about each claim of a request, in the order of the claims.
#[derive(Debug)]
pub(super) struct Resolved(SmallVec<[By; 4]>);

/// The numbers of a request's claims under their overrides; `None`: the claim's own.
pub(super) type Limits = SmallVec<[Option<Box<Numbers>>; 4]>;

/// A limit with the numbers of an override.
#[derive(Debug)]
pub(super) struct Numbers {
    pub(super) limit: Limit,
    /// The places of a concurrency limit, as its table in the process gets them.
    pub(super) conditions: Option<Conditions>,
}

impl Numbers {
    /// The claim under these numbers.
    pub(super) fn of<'c>(&'c self, claim: &Claim<'c>) -> Claim<'c> {
        Claim {
            limit: &self.limit,
            conditions: self.conditions.as_ref().or(claim.conditions),
            ..*claim
        }
    }
}

impl<S: Store + Send + Sync> Generation<S> {
    /// What decides about `claims`; `None`: their buckets, by the limits' own numbers.
    #[inline(always)]
    pub(super) fn resolve(&self, claims: &[Claim<'_>], now: Timestamp) -> Option<Resolved> {
        if self.overrides.is_empty() && !self.penalties.may_block(now) {
            return None;
        }
        self.resolve_each(claims, now)
    }

    #[cold]
    fn resolve_each(&self, claims: &[Claim<'_>], now: Timestamp) -> Option<Resolved> {
        let found = self.found(claims, now);
        let by = |(place, claim): (usize, &Claim<'_>)| {
            let hit = found.as_ref().and_then(|found| found[place]);
            self.decides(claim, hit.as_ref(), now)
        };
        let by: SmallVec<[By; 4]> = claims.iter().enumerate().map(by).collect();
        let any = by.iter().any(|by| !matches!(by, By::Bucket));
        any.then_some(Resolved(by))
    }

    fn decides(&self, claim: &Claim<'_>, hit: Option<&Hit>, now: Timestamp) -> By {
        if hit.is_some_and(|hit| hit.effect == Effect::Unlimited) {
            return By::Unlimited;
        }
        // A limit that only counts refuses nothing.
        let hit_blocks =
            |hit: &&Hit| hit.effect == Effect::Block && claim.limit.mode == Mode::Enforce;
        let operators = hit.filter(hit_blocks).map(|hit| Block {
            cause: BlockCause::Operator,
            until: hit.until,
            admits: hit.until,
        });
        let penalty = match claim.enforced {
            true => self.penalties.block(claim.limit, claim.key, now),
            false => None,
        };
        let blocks = operators.into_iter().chain(penalty);
        if let Some(block) = blocks.max_by_key(|block| block.admits) {
            return By::Block(block);
        }
        hit.and_then(|hit| numbers(claim, hit))
            .map_or(By::Bucket, By::Numbers)
    }

    /// The overrides of `claims`; `None`: none has one.
    #[inline(always)]
    pub(super) fn found(&self, claims: &[Claim<'_>], now: Timestamp) -> Option<Found> {
        if self.overrides.is_empty() {
            return None;
        }
        self.overrides.find(claims, &*self.shared, now)
    }

    /// The limits with other numbers.
    pub(super) fn limits_under(&self, claims: &[Claim<'_>], found: &Found) -> Limits {
        let under = |(claim, hit): (&Claim<'_>, &Option<Hit>)| numbers(claim, hit.as_ref()?);
        claims.iter().zip(found).map(under).collect()
    }
}

/// The numbers of an override. Numbers that the limit cannot have any more, because a reload has
/// changed it, leave it as it is.
fn numbers(claim: &Claim<'_>, hit: &Hit) -> Option<Box<Numbers>> {
    if let Effect::Places(places) = hit.effect {
        let limit = claim.limit.with_places(places).ok()?;
        return Some(Box::new(Numbers {
            limit,
            conditions: Some(Conditions::Set(places)),
        }));
    }
    let Effect::Numbers { rate, burst } = hit.effect else {
        return None;
    };
    let limit = claim.limit.with_numbers(rate, burst).ok()?;
    Some(Box::new(Numbers {
        limit,
        conditions: None,
    }))
}

impl Resolved {
    /// The refusal of a request of which a key is blocked; no bucket is asked. `None`: none is
    /// blocked.
    pub(super) fn refusal(&self, now: Timestamp) -> Option<Denied> {
        let blocks = self.0.iter().map(|by| match by {
            By::Block(block) => Some(*block),
            By::Bucket | By::Numbers(_) | By::Unlimited => None,
        });
        let any = blocks.clone().any(|block| block.is_some());
        any.then(|| Denied::by_blocks(blocks, now))
    }

    /// The claims that are drawn, and a bit for each that is not: its key has no limit.
    pub(super) fn drawn<'c>(&'c self, claims: &[Claim<'c>]) -> (Claims<'c>, u16) {
        let (mut left_out, mut drawn) = (0, Claims::new());
        for (place, (claim, by)) in claims.iter().zip(&self.0).enumerate() {
            match by {
                By::Unlimited => left_out |= decision::bit(place),
                By::Numbers(own) => drawn.push(own.of(claim)),
                By::Bucket | By::Block(_) => drawn.push(*claim),
            }
        }
        (drawn, left_out)
    }
}

/// Decides immediately about claims whose buckets are all in the process.
#[cold]
pub(super) fn check_here<S: Store + Send + Sync>(
    generation: &Arc<Generation<S>>,
    claims: &[Claim<'_>],
    resolved: &Resolved,
    now: Timestamp,
) -> Decision {
    if let Some(denied) = resolved.refusal(now) {
        return generation.deny(claims, denied);
    }
    let (drawn, left_out) = resolved.drawn(claims);
    generation.draw_and_decide(&drawn, now).spread(left_out)
}

/// Decides about claims of which some are in the shared store.
pub(super) async fn check<S: Store + Send + Sync>(
    generation: &Arc<Generation<S>>,
    claims: &[Claim<'_>],
    resolved: &Resolved,
    now: Timestamp,
    deadline: &Deadline,
) -> Decision {
    if let Some(denied) = resolved.refusal(now) {
        return generation.deny(claims, denied);
    }
    let (drawn, left_out) = resolved.drawn(claims);
    let decided = two_stores::check(generation, &drawn, now, deadline).await;
    decided.spread(left_out)
}

#[cfg(test)]
mod tests;
