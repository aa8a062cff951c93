//! Decides about requests with buckets in the shared store: draws from the local buckets first,
//! then from the shared ones, and gives the local units back if the shared draw is refused, fails,
//! or is abandoned.

use std::sync::Arc;

use smallvec::SmallVec;

use tollgate_limit::{
    Change, Claim, Draw, Limit, Micros, Placement, Settlement, Standing, Timestamp, Verdict,
    WhenDown,
};
use tollgate_store::{Deadline, Store, StoreError};

use super::decision::{Silent, Standings, Unavailable, bit};
use super::handover::LocalDraw;
use super::overridden::spread_bits;
use super::permit::DrawnFrom;
use super::{Decision, Denied, Generation, allows, feedback, is_in_flight, is_windowed};

pub(super) type Claims<'a> = SmallVec<[Claim<'a>; 4]>;

pub(super) async fn check<S>(
    generation: &Arc<Generation<S>>,
    claims: &[Claim<'_>],
    now: Timestamp,
    deadline: &Deadline,
) -> Decision
where
    S: Store + Send + Sync,
{
    let (shared, local): (Claims<'_>, Claims<'_>) = claims
        .iter()
        .copied()
        .partition(|claim| claim.limit.placement == Placement::Shared);
    let conditions = generation.feedback.conditions(&local, now);
    let local = feedback::under(&local, &conditions);
    let LocalDraw {
        draw,
        left_out,
        there,
    } = match generation.draw_local(&local, now).await {
        Ok(drawn) => drawn,
        Err(unavailable) => return Decision::Unavailable(unavailable),
    };
    if left_out == 0 {
        let drawn = (&local[..], draw, there);
        let decided = check_shared(generation, claims, drawn, &shared, now, deadline).await;
        return decided.drawn_there(spread_bits(there, places(claims, Placement::Shared)));
    }
    let local = without(&local, left_out);
    let left_out = spread_bits(left_out, places(claims, Placement::Shared));
    let claims = without(claims, left_out);
    let drawn = (&local[..], draw, there);
    let decided = check_shared(generation, &claims, drawn, &shared, now, deadline);
    Box::pin(decided).await.spread(left_out)
}

/// Decides about claims of which the local ones were drawn; bit i of `there`: only the other process
/// has charged local claim i.
async fn check_shared<S>(
    generation: &Arc<Generation<S>>,
    claims: &[Claim<'_>],
    (local, drawn, there): (&[Claim<'_>], Draw, u16),
    shared: &[Claim<'_>],
    now: Timestamp,
    deadline: &Deadline,
) -> Decision
where
    S: Store + Send + Sync,
{
    if !drawn.granted {
        // A request that a local limit refuses must not draw from a shared limit, so the store is
        // not asked.
        let standings = merge(
            claims,
            drawn.standings,
            shared.iter().map(|_| NOT_ASKED).collect(),
        );
        let unasked = places(claims, Placement::Shared);
        generation
            .counters
            .count(claims, &standings, false, 0, unasked);
        return Decision::Deny(Denied::new(claims, standings, unasked));
    }
    if shared.is_empty() {
        // Reached only because the buckets are in another process.
        return generation.decide(claims, true, drawn.standings, 0, now);
    }
    let mut undo = Undo {
        generation,
        claims: local,
        standings: &drawn.standings,
        there,
        now,
        armed: true,
    };
    let told = generation.shared.draw_until(shared, deadline).await;
    let (answer, ungoverned) = match told {
        Ok(answer) => {
            if !answer.granted {
                let (renumbered, store) = (&generation.renumbered, &*generation.shared);
                renumbered.refused(shared, &answer.standings, store, now);
            }
            ((answer.granted, answer.standings), 0)
        }
        Err(error) => {
            if let Some(limit) = generation.share_elsewhere(shared).await {
                return Decision::Unavailable(Unavailable {
                    limit: Arc::clone(&limit.name),
                    silent: Silent::NewProcess,
                });
            }
            match without_store(generation, shared, &error) {
                Ok(decided) => (decided, places(claims, Placement::Shared)),
                Err(unavailable) => return Decision::Unavailable(unavailable),
            }
        }
    };
    let (granted, standings) = answer;
    undo.armed = !granted;
    drop(undo);
    let standings = merge(claims, drawn.standings, standings);
    generation.decide(claims, granted, standings, ungoverned, now)
}

/// The claims without those whose bits are set.
fn without<'c>(claims: &[Claim<'c>], left_out: u16) -> Claims<'c> {
    let stays = |(place, _): &(usize, &Claim<'_>)| left_out & bit(*place) == 0;
    let kept = claims.iter().enumerate().filter(stays);
    kept.map(|(_, claim)| *claim).collect()
}

/// The limits' decision when their store does not respond.
fn without_store<S: Store + Send + Sync>(
    generation: &Generation<S>,
    claims: &[Claim<'_>],
    error: &StoreError,
) -> Result<(bool, Standings), Unavailable> {
    if let Some(strict) = claims
        .iter()
        .find(|claim| claim.enforced && claim.limit.when_down == WhenDown::Refuse)
    {
        return Err(Unavailable {
            limit: Arc::clone(&strict.limit.name),
            silent: Silent::Store(error.clone()),
        });
    }
    // The store may have charged the request all the same.
    let charged = error.may_have_charged();
    let (granted, mut standings) = generation.shares.draw(claims, &*generation.shared, charged);
    let mut answer = Standings::new();
    let mut shared = standings.drain(..);
    for claim in claims {
        let own = (claim.limit.when_down == WhenDown::LocalShare)
            .then(|| shared.next())
            .flatten();
        answer.push(own.unwrap_or(NOT_ASKED));
    }
    Ok((granted, answer))
}

/// Gives the local units back unless the request was admitted. A guard, so that a client that
/// disconnects while the shared store or another process is asked leaves no charge.
pub(super) struct Undo<'a, S: Store + Send + Sync> {
    pub(super) generation: &'a Generation<S>,
    pub(super) claims: &'a [Claim<'a>],
    pub(super) standings: &'a [Standing],
    pub(super) there: u16,
    pub(super) now: Timestamp,
    pub(super) armed: bool,
}

impl<S: Store + Send + Sync> Drop for Undo<'_, S> {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let drawn = (self.standings, self.there);
        give_back(self.generation, self.claims, drawn, self.now);
    }
}

/// Gives back what `claims` took at `drawn_at`; bit i of `there`: only the other process has charged
/// claim i.
pub(super) fn give_back<S: Store + Send + Sync>(
    generation: &Generation<S>,
    claims: &[Claim<'_>],
    (standings, there): (&[Standing], u16),
    drawn_at: Timestamp,
) {
    let now = generation.local.clock().now().max(drawn_at);
    for (place, (claim, standing)) in claims.iter().zip(standings).enumerate() {
        let ended = is_windowed(claim.limit) && now.since(drawn_at) >= standing.reset;
        let Some(change) = reversal(claim, standing).filter(|_| !ended) else {
            continue;
        };
        let settlement = Settlement {
            // Units taken under conditions are given back under the same conditions.
            conditions: claim.conditions,
            ..Settlement::new(claim.limit, claim.key, change)
        };
        let from = match there & bit(place) {
            0 => DrawnFrom::Bucket,
            _ => DrawnFrom::OtherProcess,
        };
        generation.settle_local(settlement, from, now);
    }
}

/// The correction that gives back the units that a granted draw took by `claim`; `None`: it took none.
/// `standing` is the state of the bucket after the draw.
pub fn reversal(claim: &Claim<'_>, standing: &Standing) -> Option<Change> {
    if !allows(standing.verdict) || claim.cost == 0 {
        return None;
    }
    Some(if is_in_flight(claim.limit) {
        Change::Release { units: claim.cost }
    } else {
        refund(claim.limit, claim.cost, standing.window_end)
    })
}

/// The refund of units that a draw took from `limit`. Units come back only to the window that they
/// were taken from, which ends at `window_end`; zero: it is not known.
pub(super) fn refund(limit: &Limit, units: u64, window_end: Timestamp) -> Change {
    if is_windowed(limit) && window_end != Timestamp::default() {
        Change::RefundWithin { units, window_end }
    } else {
        Change::Refund { units }
    }
}

/// Standings of the local and the shared claims in the order the claims were given.
pub(super) fn merge(claims: &[Claim<'_>], local: Standings, shared: Standings) -> Standings {
    let (mut local, mut shared) = (local.into_iter(), shared.into_iter());
    let next = |claim: &Claim<'_>| match claim.limit.placement {
        Placement::Local => local.next(),
        Placement::Shared => shared.next(),
    };
    claims
        .iter()
        .map(next)
        .map(|standing| standing.unwrap_or(NOT_ASKED))
        .collect()
}

pub(super) fn places(claims: &[Claim<'_>], placement: Placement) -> u16 {
    super::bits(
        claims
            .iter()
            .map(|claim| claim.limit.placement == placement),
    )
}

/// The standing of a claim that no bucket decided: it refuses nothing and has no numbers.
pub(super) const NOT_ASKED: Standing = Standing {
    verdict: Verdict::Allow { wait: Micros::ZERO },
    remaining: 0,
    reset: Micros::ZERO,
    effective: Micros::ZERO,
    window_end: Timestamp::from_micros(0),
};
