//! Draws all claims of one request, or none.

use super::bucket::{Next, State};
use super::claim::{Claim, Draw, Standing, Verdict};
use super::time::{Micros, Timestamp};

/// Draws every claim or none of them; `states[i]` is the bucket of `claims[i]`.
///
/// The draw is granted when every enforced claim can pay. Then each claim that can pay is charged:
/// the enforced ones, and the others whose bucket holds the cost. A limit that is not enforced and
/// cannot pay is not charged and does not go negative: it counts what it would have admitted, so
/// its buckets do not change when it is enforced later. It never refuses the request. A refused
/// request charges no bucket.
///
/// A refused draw writes nothing. No two claims share a bucket, so their order does not matter.
pub fn draw_all(claims: &[Claim<'_>], states: &mut [Option<State>], now: Timestamp) -> Draw {
    debug_assert_eq!(claims.len(), states.len(), "a state for each claim");
    let mut granted = true;
    let mut judged: smallvec::SmallVec<[(Verdict, Option<Next>); 4]> = smallvec::SmallVec::new();
    for (claim, state) in claims.iter().zip(states.iter()) {
        let algorithm = claim.limit.algorithm.under(claim.conditions);
        let answer = algorithm.judge(state.as_ref(), claim.cost, now);
        granted &= answer.is_ok() || !claim.enforced;
        judged.push((Verdict::from(&answer), answer.ok().map(|grant| grant.next)));
    }
    let mut standings = smallvec::SmallVec::new();
    for ((claim, state), (verdict, next)) in claims.iter().zip(states.iter_mut()).zip(judged) {
        // A claim of cost zero leaves the bucket unchanged.
        if let (true, Some(next)) = (granted && claim.cost > 0, next) {
            claim.limit.algorithm.apply(state, next);
        }
        let algorithm = claim.limit.algorithm.under(claim.conditions);
        standings.push(Standing::new(
            verdict,
            algorithm.report(state.as_ref(), now),
        ));
    }
    Draw { granted, standings }
}

/// The state of the buckets, without charging: each verdict is what a draw of that cost would get
/// now.
pub fn peek_all(claims: &[Claim<'_>], states: &[Option<State>], now: Timestamp) -> Vec<Standing> {
    let standing = |(claim, state): (&Claim<'_>, &Option<State>)| {
        let algorithm = claim.limit.algorithm.under(claim.conditions);
        let verdict = Verdict::from(&algorithm.judge(state.as_ref(), claim.cost, now));
        Standing::new(verdict, algorithm.report(state.as_ref(), now))
    };
    claims.iter().zip(states).map(standing).collect()
}

impl Draw {
    /// How long a granted request must be held: the longest wait of its enforced limits. Each
    /// bucket counts the request at its own due moment.
    pub fn wait(&self, claims: &[Claim<'_>]) -> Micros {
        let waits = claims
            .iter()
            .zip(&self.standings)
            .filter(|(claim, _)| claim.enforced)
            .map(|(_, standing)| match standing.verdict {
                Verdict::Allow { wait } => wait,
                Verdict::Deny { .. } => Micros::ZERO,
            });
        waits.max().unwrap_or_default()
    }

    /// When a refused request may be retried: after the longest wait of the enforced limits that
    /// refused it; `None` if one of them has no retry time.
    pub fn retry_after(&self, claims: &[Claim<'_>]) -> Option<Micros> {
        let refusals = claims
            .iter()
            .zip(&self.standings)
            .filter(|(claim, _)| claim.enforced);
        refusals
            .filter_map(|(_, standing)| match standing.verdict {
                Verdict::Allow { .. } => None,
                Verdict::Deny { retry_after } => Some(retry_after),
            })
            .try_fold(Micros::ZERO, |slowest, retry_after| {
                Some(slowest.max(retry_after?))
            })
    }
}
