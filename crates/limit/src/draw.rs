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
    Draw {
        granted,
        standings,
        at: now,
    }
}

impl Draw {
    /// How long a granted request must be held.
    pub fn wait(&self, claims: &[Claim<'_>]) -> Micros {
        longest_hold(self.enforced(claims))
    }

    /// When a refused request may be retried; `None`: no wait is known to help.
    pub fn retry_after(&self, claims: &[Claim<'_>]) -> Option<Micros> {
        longest_wait(self.enforced(claims))
    }

    fn enforced(&self, claims: &[Claim<'_>]) -> impl Iterator<Item = Verdict> {
        let all = claims.iter().zip(&self.standings);
        let enforced = all.filter(|(claim, _)| claim.enforced);
        enforced.map(|(_, standing)| standing.verdict)
    }
}

/// How long a request must be held that these enforced limits grant: the longest wait. Each bucket counts
/// the request at its own due moment.
pub fn longest_hold(verdicts: impl Iterator<Item = Verdict>) -> Micros {
    let waits = verdicts.map(|verdict| match verdict {
        Verdict::Allow { wait } => wait,
        Verdict::Deny { .. } => Micros::ZERO,
    });
    waits.max().unwrap_or_default()
}

/// When a request may be retried that some of these enforced limits refuse. Every one of them must be
/// able to pay, so the longest wait counts; `None` if one of them has no retry time.
pub fn longest_wait(verdicts: impl Iterator<Item = Verdict>) -> Option<Micros> {
    let waits = verdicts.filter_map(|verdict| match verdict {
        Verdict::Allow { .. } => None,
        Verdict::Deny { retry_after } => Some(retry_after),
    });
    let mut longest = Micros::ZERO;
    for wait in waits {
        longest = longest.max(wait?);
    }
    Some(longest)
}
