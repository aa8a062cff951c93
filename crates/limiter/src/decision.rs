//! The limiter's decision about a request.

use std::sync::Arc;

use smallvec::SmallVec;

use tollgate_limit::{Claim, Micros, Standing, Timestamp, Verdict};
use tollgate_store::StoreError;

use super::permit::Permit;
use super::resolve::{Block, BlockCause};
use super::two_stores::NOT_ASKED;

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
    /// The blocks that refused claims, each with its claim's place. The standing of such a claim is
    /// none of a bucket. In a box, because few requests have one and each has room for a refusal.
    blocks: Option<Box<SmallVec<[(usize, Block); 1]>>>,
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
            blocks: None,
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

    /// The refusal by these blocks, in the order of the claims; no bucket was asked.
    pub(super) fn by_blocks(
        blocks: impl ExactSizeIterator<Item = Option<Block>>,
        now: Timestamp,
    ) -> Self {
        let mut denied = Self {
            standings: SmallVec::from_elem(NOT_ASKED, blocks.len()),
            unasked: super::bits(std::iter::repeat_n(true, blocks.len())),
            ..Self::default()
        };
        for (place, block) in blocks.enumerate() {
            if let Some(block) = block {
                denied.block(place, block, now);
            }
        }
        denied
    }

    /// Has `block` refuse the claim at `place`.
    pub(super) fn block(&mut self, place: usize, block: Block, now: Timestamp) {
        let left = block.admits.since(now);
        if let Some(standing) = self.standings.get_mut(place) {
            *standing = Standing {
                verdict: Verdict::Deny {
                    retry_after: Some(left),
                },
                reset: left,
                effective: left,
                ..NOT_ASKED
            };
        }
        self.refused |= bit(place);
        self.unasked &= !bit(place);
        self.blocks.get_or_insert_default().push((place, block));
        self.set_retry_after();
    }

    /// The refusal with places for the claims that were not drawn.
    pub(super) fn spread(self, left_out: u16) -> Self {
        Self {
            standings: spread_standings(&self.standings, left_out),
            unasked: spread_bits(self.unasked, left_out) | left_out,
            refused: spread_bits(self.refused, left_out),
            ungoverned: spread_bits(self.ungoverned, left_out),
            ..self
        }
    }

    /// Whether an operator's override or a penalty blocks a key of the request.
    pub fn is_blocked(&self) -> bool {
        self.blocks.is_some()
    }

    /// Whether a penalty blocks a key of the request.
    pub fn is_penalty(&self) -> bool {
        let mut blocks = self.blocks.iter().flat_map(|blocks| blocks.iter());
        blocks.any(|(_, block)| block.cause == BlockCause::Penalty)
    }

    /// The block that refused the claim at `place`. Its standing then says for how long, and nothing
    /// of its bucket.
    pub fn block_at(&self, place: usize) -> Option<&Block> {
        let mut blocks = self.blocks.iter().flat_map(|blocks| blocks.iter());
        blocks.find(|(at, _)| *at == place).map(|(_, block)| block)
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

/// The place among all claims of each that was drawn.
pub(super) fn places(left_out: u16) -> impl Iterator<Item = usize> {
    (0..16).filter(move |place| left_out & bit(*place) == 0)
}

/// The bits of the claims that were drawn, as bits of all claims.
pub(super) fn spread_bits(bits: u16, left_out: u16) -> u16 {
    places(left_out)
        .enumerate()
        .filter(|(drawn, _)| bits & bit(*drawn) != 0)
        .fold(0, |spread, (_, place)| spread | bit(place))
}

/// The standings of the claims that were drawn, among those of all.
pub(super) fn spread_standings(standings: &Standings, left_out: u16) -> Standings {
    let mut drawn = standings.iter();
    let count = standings.len() + left_out.count_ones() as usize;
    let standing = |place: usize| match left_out & bit(place) {
        0 => drawn.next().copied().unwrap_or(NOT_ASKED),
        _ => NOT_ASKED,
    };
    (0..count).map(standing).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denied_by_blocks_says_which_claim_each_of_them_refused_and_for_how_long() {
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        let block = |cause, seconds, admits| Block {
            cause,
            until: now.after(Micros::from_secs(seconds)),
            admits: now.after(Micros::from_secs(admits)),
        };
        let operators = block(BlockCause::Operator, 5, 5);
        let blocks = [None, Some(operators), None];
        let mut denied = Denied::by_blocks(blocks.into_iter(), now);
        assert!(denied.is_blocked() && !denied.is_penalty());
        assert_eq!(denied.retry_after(), Some(Micros::from_secs(5)));
        assert!(denied.is_unasked(0) && !denied.is_unasked(1));
        assert_eq!(denied.refused().collect::<Vec<_>>(), [1]);

        let penalty = block(BlockCause::Penalty, 3, 9);
        denied.block(2, penalty, now);
        assert!(denied.is_penalty());
        assert_eq!(denied.retry_after(), Some(Micros::from_secs(9)));
        let places = [0, 1, 2].map(|place| denied.block_at(place).copied());
        assert_eq!(places, [None, Some(operators), Some(penalty)]);
    }
}
