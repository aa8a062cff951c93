//! Decides about requests with buckets in the shared store: draws from the local buckets first,
//! then from the shared ones, and gives the local units back if the shared draw is refused, fails,
//! or is abandoned.

use std::sync::Arc;

use smallvec::SmallVec;

use tollgate_limit::{
    Change, Claim, Limit, Micros, Placement, Settlement, Standing, Timestamp, Verdict, WhenDown,
};
use tollgate_store::{Deadline, Store, StoreError};

use super::decision::{Standings, Unavailable};
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
    let from = generation.draws_from();
    let drawn = generation.local.draw_at(&local, now);
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
        // Overrides leave nothing to ask the store.
        return generation.decide(claims, true, drawn.standings, 0, now);
    }
    let mut undo = Undo {
        generation,
        claims: &local,
        standings: &drawn.standings,
        from,
        now,
        armed: true,
    };
    let told = generation.shared.draw_until(&shared, deadline).await;
    let (answer, ungoverned) = match told {
        Ok(answer) => ((answer.granted, answer.standings), 0),
        Err(error) => {
            let decided = without_store(generation, &shared, &error);
            if !decided.as_ref().is_ok_and(|(granted, _)| *granted) {
                generation.shared.forgo(deadline);
            }
            match decided {
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

/// The limits' decision when their store does not respond.
fn without_store<S: Store + Send + Sync>(
    generation: &Generation<S>,
    claims: &[Claim<'_>],
    error: &StoreError,
) -> Result<(bool, Standings), Unavailable> {
    let needs_store = |limit: &Limit| match limit.when_down {
        WhenDown::Refuse => true,
        // In a handover the other process has the shares.
        WhenDown::LocalShare => generation.handover.has_begun(),
        WhenDown::Allow => false,
    };
    let mut strict = claims.iter().filter(|claim| claim.enforced);
    if let Some(claim) = strict.find(|claim| needs_store(claim.limit)) {
        return Err(Unavailable {
            limit: Arc::clone(&claim.limit.name),
            error: error.clone(),
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
/// disconnects while the shared store is asked leaves no charge.
struct Undo<'a, S: Store + Send + Sync> {
    generation: &'a Generation<S>,
    claims: &'a [Claim<'a>],
    standings: &'a [Standing],
    from: DrawnFrom,
    now: Timestamp,
    armed: bool,
}

impl<S: Store + Send + Sync> Drop for Undo<'_, S> {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let now = self.generation.local.clock().now().max(self.now);
        for (claim, standing) in self.claims.iter().zip(self.standings) {
            let ended = is_windowed(claim.limit) && now.since(self.now) >= standing.reset;
            let Some(change) = reversal(claim, standing).filter(|_| !ended) else {
                continue;
            };
            let settlement = Settlement {
                // Units taken under conditions are given back under the same conditions.
                conditions: claim.conditions,
                ..Settlement::new(claim.limit, claim.key, change)
            };
            self.generation.settle_local(settlement, self.from, now);
        }
    }
}

/// The correction that gives back the units that a granted draw took by `claim`; `None`: it took none.
/// `standing` is the state of the bucket after the draw.
fn reversal(claim: &Claim<'_>, standing: &Standing) -> Option<Change> {
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
