//! Decides about requests of which a key has an override.
//!
//! A block refuses before anything is drawn. A claim without a limit is left out of the draw. A
//! claim with other numbers is drawn under them, as one of another tier: a shared store keeps each
//! bucket with the numbers of its last draw, and the process moves the bucket beside its table. So
//! neither the beginning nor the end of an override refills anything (DESIGN: "Several numbers for
//! one bucket").

use std::sync::Arc;

use smallvec::SmallVec;

use tollgate_limit::{Claim, Conditions, Limit, Micros, Mode, Standing, Timestamp, Verdict};
use tollgate_store::{Deadline, Store};

use super::decision::{self, Standings};
use super::overrides::{Effect, Found, Hit};
use super::two_stores::{self, Claims, NOT_ASKED};
use super::{Decision, Denied, Generation};

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
    /// The overrides of `claims`; `None`: none has one.
    #[inline(always)]
    pub(super) fn found(&self, claims: &[Claim<'_>], now: Timestamp) -> Option<Found> {
        if self.overrides.is_empty() {
            return None;
        }
        self.overrides.find(claims, &*self.shared, now)
    }

    /// The limits with other numbers. Numbers that the limit cannot have any more, because a reload
    /// has changed it, leave it as it is.
    pub(super) fn limits_under(&self, claims: &[Claim<'_>], found: &Found) -> Limits {
        let limit = |(claim, found): (&Claim<'_>, &Option<Hit>)| {
            let hit = (*found)?;
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
        };
        claims.iter().zip(found).map(limit).collect()
    }

    /// The refusal of a request that an override blocks.
    pub(super) fn blocked(
        &self,
        claims: &[Claim<'_>],
        found: &Found,
        now: Timestamp,
    ) -> Option<Denied> {
        let block = |(claim, found): (&Claim<'_>, &Option<Hit>)| match found {
            // A limit that only counts refuses nothing.
            Some(hit) if hit.effect == Effect::Block && claim.limit.mode == Mode::Enforce => {
                Some(hit.until.since(now))
            }
            _ => None,
        };
        let blocks: SmallVec<[Option<Micros>; 4]> = claims.iter().zip(found).map(block).collect();
        self.refused_by_blocks(claims, &blocks)
            .map(Denied::by_a_block)
    }

    /// The refusal of a request of which these claims are blocked for these spans; no bucket is
    /// asked, and nothing is counted. `None`: none is blocked.
    pub(super) fn refused_by_blocks(
        &self,
        claims: &[Claim<'_>],
        blocks: &[Option<Micros>],
    ) -> Option<Denied> {
        if blocks.iter().all(Option::is_none) {
            return None;
        }
        let mut unasked = 0;
        let (mut refused, mut standings) = (Claims::new(), Standings::new());
        for (place, (claim, left)) in claims.iter().zip(blocks).enumerate() {
            if left.is_none() {
                unasked |= decision::bit(place);
            }
            standings.push(left.map_or(NOT_ASKED, standing));
            refused.push(Claim {
                enforced: left.is_some(),
                ..*claim
            });
        }
        Some(Denied::new(&refused, standings, unasked))
    }
}

/// The standing of a blocked key.
pub(super) fn standing(left: Micros) -> Standing {
    Standing {
        verdict: Verdict::Deny {
            retry_after: Some(left),
        },
        remaining: 0,
        reset: left,
        effective: left,
        window_end: Timestamp::default(),
    }
}

/// The claims that are drawn, and a bit for each that is not: its key has no limit.
pub(super) fn drawn<'c>(
    claims: &[Claim<'c>],
    found: &Found,
    limits: &'c Limits,
) -> (Claims<'c>, u16) {
    let (mut left_out, mut drawn) = (0, Claims::new());
    for (place, claim) in claims.iter().enumerate() {
        match (&found[place], limits[place].as_deref()) {
            (Some(hit), _) if hit.effect == Effect::Unlimited => left_out |= decision::bit(place),
            (_, Some(numbers)) => drawn.push(numbers.of(claim)),
            (_, None) => drawn.push(*claim),
        }
    }
    (drawn, left_out)
}

/// Decides immediately about claims whose buckets are all in the process.
#[cold]
pub(super) fn check_here<S: Store + Send + Sync>(
    generation: &Arc<Generation<S>>,
    claims: &[Claim<'_>],
    found: &Found,
    now: Timestamp,
) -> Decision {
    if let Some(denied) = generation.blocked(claims, found, now) {
        return generation.deny(claims, denied);
    }
    let limits = generation.limits_under(claims, found);
    let (drawn, left_out) = drawn(claims, found, &limits);
    let decided = generation.draw_and_decide(&drawn, now);
    decided.spread(left_out)
}

/// Decides about claims of which some are in the shared store.
pub(super) async fn check<S: Store + Send + Sync>(
    generation: &Arc<Generation<S>>,
    claims: &[Claim<'_>],
    found: &Found,
    now: Timestamp,
    deadline: &Deadline,
) -> Decision {
    if let Some(denied) = generation.blocked(claims, found, now) {
        return generation.deny(claims, denied);
    }
    let limits = generation.limits_under(claims, found);
    let (drawn, left_out) = drawn(claims, found, &limits);
    two_stores::check(generation, &drawn, now, deadline)
        .await
        .spread(left_out)
}

impl Decision {
    /// The decision about all claims, from that about those which were drawn: bit i of `left_out`
    /// says that claim i was not.
    pub(super) fn spread(self, left_out: u16) -> Self {
        match self {
            _ if left_out == 0 => self,
            Self::Allow(permit) => Self::Allow(permit.spread(left_out)),
            Self::Deny(denied) => Self::Deny(denied.spread(left_out)),
            Self::Unavailable(_) => self,
        }
    }
}

/// The place among all claims of each that was drawn.
pub(super) fn places(left_out: u16) -> impl Iterator<Item = usize> {
    (0..16).filter(move |place| left_out & decision::bit(*place) == 0)
}

/// The bits of the claims that were drawn, as bits of all claims.
pub(super) fn spread_bits(bits: u16, left_out: u16) -> u16 {
    places(left_out)
        .enumerate()
        .filter(|(drawn, _)| bits & decision::bit(*drawn) != 0)
        .fold(0, |spread, (_, place)| spread | decision::bit(place))
}

/// The standings of the claims that were drawn, among those of all.
pub(super) fn spread_standings(standings: &Standings, left_out: u16) -> Standings {
    let mut drawn = standings.iter();
    let count = standings.len() + left_out.count_ones() as usize;
    let standing = |place: usize| match left_out & decision::bit(place) {
        0 => drawn.next().copied().unwrap_or(NOT_ASKED),
        _ => NOT_ASKED,
    };
    (0..count).map(standing).collect()
}

#[cfg(test)]
mod tests;
