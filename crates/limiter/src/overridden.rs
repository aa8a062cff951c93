//! Decides about requests of which a key has an override.
//!
//! A block refuses before anything is drawn. A claim without a limit is left out of the draw. A
//! claim with other numbers is drawn under them, as one of another tier: a shared store keeps each
//! bucket with the numbers of its last draw, and the process moves the bucket beside its table. So
//! neither the beginning nor the end of an override refills anything (DESIGN: "Several numbers for
//! one bucket").

use std::sync::Arc;

use smallvec::SmallVec;

use tollgate_limit::{Claim, Limit, Micros, Mode, Placement, Standing, Timestamp, Verdict};
use tollgate_store::{Store, StoreError};

use super::decision::{self, Standings};
use super::overrides::{Effect, Found, Hit};
use super::two_stores::{self, Claims, NOT_ASKED};
use super::{Decision, Denied, Generation};

/// The limits of a request's claims under their overrides; `None`: the claim's own.
pub(super) type Limits = SmallVec<[Option<Box<Limit>>; 4]>;

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
            let Some(Hit {
                effect: Effect::Numbers { rate, burst },
                until,
                begins,
            }) = *found
            else {
                return None;
            };
            let limit = claim.limit.with_numbers(rate, burst).ok()?;
            if begins {
                self.shared.take_numbers(&limit, claim.key);
            }
            let here = limit.placement == Placement::Shared
                || self.handover.is_away()
                || self.local.set_aside(claim.limit, claim.key, until);
            here.then(|| Box::new(limit))
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
                Some(hit.until)
            }
            _ => None,
        };
        let mut blocks = claims.iter().zip(found).map(block).peekable();
        let mut unasked = 0;
        let (mut refused, mut standings) = (Claims::new(), Standings::new());
        let mut any = false;
        for (place, claim) in claims.iter().enumerate() {
            let until = blocks.next().flatten();
            any |= until.is_some();
            if until.is_none() {
                unasked |= decision::bit(place);
            }
            standings.push(until.map_or(NOT_ASKED, |until| standing(until.since(now))));
            refused.push(Claim {
                enforced: until.is_some(),
                ..*claim
            });
        }
        if !any {
            return None;
        }
        self.counters.count(&refused, &standings, false, 0, unasked);
        Some(Denied::new(&refused, standings, unasked).by_a_block())
    }
}

/// The standing of a blocked key.
fn standing(left: Micros) -> Standing {
    Standing {
        verdict: Verdict::Deny {
            retry_after: Some(left),
        },
        remaining: 0,
        reset: left,
        effective: left,
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
            (_, Some(limit)) => drawn.push(Claim { limit, ..*claim }),
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
        return Decision::Deny(denied);
    }
    let limits = generation.limits_under(claims, found);
    let (drawn, left_out) = drawn(claims, found, &limits);
    let draw = generation.draw_here(&drawn, now);
    generation
        .decide(&drawn, draw.granted, draw.standings, 0, now)
        .spread(left_out)
}

/// Decides about claims of which some are in the shared store.
pub(super) async fn check<S: Store + Send + Sync>(
    generation: &Arc<Generation<S>>,
    claims: &[Claim<'_>],
    found: &Found,
    now: Timestamp,
    without: Option<StoreError>,
) -> Decision {
    if let Some(denied) = generation.blocked(claims, found, now) {
        return Decision::Deny(denied);
    }
    let limits = generation.limits_under(claims, found);
    let (drawn, left_out) = drawn(claims, found, &limits);
    two_stores::check(generation, &drawn, now, without)
        .await
        .spread(left_out)
}

impl Decision {
    /// The decision about all claims, from that about those which were drawn: bit i of `left_out`
    /// says that claim i was not.
    fn spread(self, left_out: u16) -> Self {
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
