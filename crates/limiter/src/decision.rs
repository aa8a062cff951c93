//! The limiter's decision about a request.

use std::sync::Arc;

use smallvec::SmallVec;

use tollgate_limit::{Claim, Micros, Standing, Verdict};
use tollgate_store::StoreError;

use super::overridden;
use super::permit::Permit;

/// One standing per claim, in the order of the claims.
pub(super) type Standings = SmallVec<[Standing; 4]>;

/// The limiter's decision about a request.
#[derive(Debug)]
#[must_use]
pub enum Decision {
    /// The request may continue, after [`Permit::hold`].
    Allow(Permit),
    /// The request is refused with 429.
    Deny(Denied),
    /// The store or process that has the buckets did not respond, and the limit requires its
    /// decision: 503.
    Unavailable(Unavailable),
}

/// A refusal by the buckets; nothing was charged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Denied {
    standings: Standings,
    unasked: u16,
    refused: u16,
    retry_after: Option<Micros>,
    /// Bit i: claim i was decided without its store.
    ungoverned: u16,
    /// Bit i: a block or a penalty refused claim i, and its standing is none of a bucket.
    blocks: u16,
    blocked: bool,
    /// Bit i: it is a penalty that refused claim i.
    penalties: u16,
}

/// A refusal because a store did not respond and its limit says `when_down = "refuse"`, or because
/// another process has the limit's share; nothing was charged here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// The first limit that requires the response.
    pub limit: Arc<str>,
    /// Why its store did not respond.
    pub error: StoreError,
}

impl Denied {
    /// Bit i of `unasked`: no bucket decided about claim i.
    pub(super) fn new(claims: &[Claim<'_>], standings: Standings, unasked: u16) -> Self {
        let mut refused = 0;
        for (place, (claim, standing)) in claims.iter().zip(&standings).enumerate() {
            if claim.enforced && !standing.verdict.is_allow() {
                refused |= bit(place);
            }
        }
        let mut denied = Self {
            standings,
            unasked,
            refused,
            retry_after: None,
            ungoverned: 0,
            blocks: 0,
            blocked: false,
            penalties: 0,
        };
        denied.set_retry_after();
        denied
    }

    /// Sets the wait of the claims that refuse. Every refusing bucket must be able to pay, so the
    /// longest wait counts. There is none if one bucket can never pay.
    fn set_retry_after(&mut self) {
        let mut longest = Some(Micros::ZERO);
        for place in self.refused() {
            longest = longest
                .zip(self.wait_of(place))
                .map(|(longest, wait)| longest.max(wait));
        }
        self.retry_after = longest;
    }

    /// Bit i of `ungoverned`: claim i was decided without its store.
    pub(super) fn without_store(mut self, ungoverned: u16) -> Self {
        self.ungoverned = ungoverned;
        self
    }

    /// Whether the claim at `place` was decided without its store.
    pub(super) fn is_ungoverned(&self, place: usize) -> bool {
        self.ungoverned & bit(place) != 0
    }

    /// The wait that the bucket at `place` said; `None`: it can pay, or can never pay.
    pub(super) fn wait_of(&self, place: usize) -> Option<Micros> {
        match self.standings.get(place)?.verdict {
            Verdict::Deny { retry_after } => retry_after,
            Verdict::Allow { .. } => None,
        }
    }

    /// The same, by an override that blocks the key of each claim that refuses.
    pub(super) fn by_a_block(self) -> Self {
        Self {
            blocks: self.refused,
            blocked: true,
            ..self
        }
    }

    /// The same, by a penalty.
    pub(super) fn by_a_penalty(self) -> Self {
        Self {
            penalties: self.refused,
            ..self.by_a_block()
        }
    }

    /// The key of the claim at `place` is blocked for `left` by a penalty.
    pub(super) fn penalize(&mut self, place: usize, left: Micros) {
        let left = self.wait_of(place).map_or(left, |own| own.max(left));
        if let Some(standing) = self.standings.get_mut(place) {
            *standing = overridden::standing(left);
        }
        self.refused |= bit(place);
        self.unasked &= !bit(place);
        self.blocks |= bit(place);
        self.penalties |= bit(place);
        self.blocked = true;
        self.set_retry_after();
    }

    /// Forgets the last `count` claims, which are none of the request's.
    pub(super) fn remove_last(&mut self, count: usize) {
        let left = self.standings.len().saturating_sub(count);
        self.standings.truncate(left);
        let places = (0..left).fold(0, |bits, place| bits | bit(place));
        self.refused &= places;
        self.unasked &= places;
        self.ungoverned &= places;
        self.blocks &= places;
        self.penalties &= places;
        self.set_retry_after();
    }

    /// The refusal with places for the claims that were not drawn.
    pub(super) fn spread(self, left_out: u16) -> Self {
        Self {
            standings: overridden::spread_standings(&self.standings, left_out),
            unasked: overridden::spread_bits(self.unasked, left_out) | left_out,
            refused: overridden::spread_bits(self.refused, left_out),
            ungoverned: overridden::spread_bits(self.ungoverned, left_out),
            blocks: overridden::spread_bits(self.blocks, left_out),
            penalties: overridden::spread_bits(self.penalties, left_out),
            ..self
        }
    }

    /// Whether an operator's override or a penalty blocks a key of the request.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Whether a penalty blocks a key of the request.
    pub fn is_penalty(&self) -> bool {
        self.penalties != 0
    }

    /// Whether a penalty refused the claim at `place`.
    pub fn is_penalty_at(&self, place: usize) -> bool {
        self.penalties & bit(place) != 0
    }

    /// Whether a block or a penalty refused the claim at `place`: its standing then says for how
    /// long, and nothing of its bucket.
    pub fn is_blocked_at(&self, place: usize) -> bool {
        self.blocks & bit(place) != 0
    }

    /// The standing of each bucket, in the order of the claims.
    pub fn standings(&self) -> &[Standing] {
        &self.standings
    }

    /// Whether no bucket decided about the claim at `place`; its standing is then meaningless.
    pub fn is_unasked(&self, place: usize) -> bool {
        self.unasked & bit(place) != 0
    }

    /// Bit i: no bucket decided about claim i.
    pub(super) fn unasked(&self) -> u16 {
        self.unasked
    }

    /// Whether the claim at `place` refused the request (shadow limits and candidates never do).
    pub fn is_refused_by(&self, place: usize) -> bool {
        self.refused & bit(place) != 0
    }

    /// The positions of the claims that refused the request.
    pub fn refused(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.standings.len()).filter(|place| self.is_refused_by(*place))
    }

    /// A single caller that waits exactly this long is admitted; `None`: no wait is known to help.
    pub fn retry_after(&self) -> Option<Micros> {
        self.retry_after
    }
}

/// The bit of the claim at `place`; there are at most [`tollgate_limit::CLAIMS_MAX`].
pub(super) const fn bit(place: usize) -> u16 {
    if place < 16 { 1 << place } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_limit::{Kind, fixtures};

    #[test]
    fn denied_by_a_block_and_a_penalty_says_which_claim_each_of_them_refused() {
        let terms = fixtures::terms(Kind::TokenBucket, 1, Micros::from_secs(60));
        let limits = ["blocked", "penalized", "open"].map(|name| fixtures::limit(name, &terms));
        let claims = limits.each_ref().map(|limit| Claim::new(limit, b"k", 1));
        let refused = overridden::standing(Micros::from_secs(5));
        let open = Standing {
            verdict: Verdict::Allow { wait: Micros::ZERO },
            ..refused
        };
        let standings = Standings::from_slice(&[refused, open, open]);
        let mut denied = Denied::new(&claims, standings, 0).by_a_block();
        assert!(!denied.is_penalty());
        denied.penalize(1, Micros::from_secs(9));
        let places = [0, 1, 2];
        assert!(denied.is_penalty());
        assert_eq!(
            places.map(|at| denied.is_penalty_at(at)),
            [false, true, false]
        );
        assert_eq!(
            places.map(|at| denied.is_blocked_at(at)),
            [true, true, false]
        );

        let spread = denied.clone().spread(0b1);
        assert_eq!(
            places.map(|at| spread.is_penalty_at(at)),
            [false, false, true]
        );
        denied.remove_last(2);
        assert!(!denied.is_penalty(), "its claim is none of the request's");
    }
}
