//! Draws all claims of one request, or none.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::Algorithm;
use super::bucket::{Next, State};
use super::claim::{Claim, Draw, Standing, Verdict};
use super::time::{Micros, Timestamp};

/// What a draw takes from one bucket.
pub struct Part<'a> {
    pub algorithm: Cow<'a, Algorithm>,
    /// The place of the bucket's state.
    pub bucket: usize,
    pub cost: u64,
    /// Whether a refusal by this bucket refuses the request ([`Claim::enforced`]).
    pub enforced: bool,
}

/// Draws every claim or none of them; `states[i]` is the bucket of `claims[i]`.
pub fn draw_all(claims: &[Claim<'_>], states: &mut [Option<State>], now: Timestamp) -> Draw {
    debug_assert_eq!(claims.len(), states.len(), "a state for each claim");
    let parts = claims.iter().enumerate().map(|(bucket, claim)| Part {
        algorithm: claim.limit.algorithm.under(claim.conditions),
        bucket,
        cost: claim.cost,
        enforced: claim.enforced,
    });
    draw_parts(&parts.collect::<SmallVec<[_; 4]>>(), states, now)
}

/// Draws every part or none of them.
///
/// The draw is granted when every enforced part can pay. Then each part that can pay is charged:
/// the enforced ones, and the others whose bucket holds the cost. A limit that is not enforced and
/// cannot pay is not charged and does not go negative: it counts what it would have admitted, so
/// its buckets do not change when it is enforced later. It never refuses the request. A refused
/// request charges no bucket.
///
/// A refused draw writes nothing. No two parts share a bucket, so their order does not matter.
pub fn draw_parts(parts: &[Part<'_>], states: &mut [Option<State>], now: Timestamp) -> Draw {
    let mut granted = true;
    let mut judged: SmallVec<[(Verdict, Option<Next>); 4]> = SmallVec::new();
    for part in parts {
        let state = states[part.bucket].as_ref();
        let answer = part.algorithm.judge(state, part.cost, now);
        granted &= answer.is_ok() || !part.enforced;
        judged.push((Verdict::from(&answer), answer.ok().map(|grant| grant.next)));
    }
    let mut standings = SmallVec::new();
    for (part, (verdict, next)) in parts.iter().zip(judged) {
        let state = &mut states[part.bucket];
        // A part of cost zero leaves the bucket unchanged.
        if let (true, Some(next)) = (granted && part.cost > 0, next) {
            part.algorithm.apply(state, next);
        }
        let report = part.algorithm.report(state.as_ref(), now);
        standings.push(Standing::new(verdict, report));
    }
    Draw {
        granted,
        standings,
        at: now,
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
