//! The limiter's decision about a request.

use std::sync::Arc;

use tollgate_limit::Micros;
use tollgate_limit::draw::longest_wait;
use tollgate_store::StoreError;

use super::outcome::{BlockCause, Outcome, Outcomes};
use super::permit::Permit;

/// The limiter's decision about a request.
#[derive(Debug)]
#[must_use]
pub enum Decision {
    /// The request may continue, after [`Permit::hold`].
    Allow(Permit),
    /// The request is refused with 429.
    Deny(Denied),
    /// The store did not respond, and the limit requires its decision: 503.
    Unavailable(Unavailable),
}

/// A refusal by the limits; nothing was charged.
#[derive(Clone, Debug)]
pub struct Denied(pub(crate) Outcomes);

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
    /// What became of each claim, in the order of the claims.
    pub fn outcomes(&self) -> &[Outcome] {
        &self.0
    }

    /// The positions of the claims that refused the request.
    pub fn refused(&self) -> impl Iterator<Item = usize> + '_ {
        let all = self.0.iter().enumerate();
        all.filter(|(_, outcome)| outcome.refuses())
            .map(|(place, _)| place)
    }

    /// Whether an operator's override or a penalty blocks a key of the request.
    pub fn is_blocked(&self) -> bool {
        self.0.are_blocked()
    }

    /// Whether a penalty blocks a key of the request.
    pub fn is_penalty(&self) -> bool {
        let mut blocks = self.0.iter().filter_map(Outcome::block);
        blocks.any(|block| block.cause == BlockCause::Penalty)
    }

    /// A single caller that waits exactly this long is admitted; `None`: no wait is known to help.
    pub fn retry_after(&self) -> Option<Micros> {
        longest_wait(self.0.enforced())
    }
}

#[cfg(test)]
mod tests {
    use tollgate_limit::{Claim, Timestamp, fixtures};

    use super::*;
    use crate::outcome::Block;

    #[test]
    fn denied_by_blocks_says_which_claim_each_of_them_refused_and_for_how_long() {
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        let block = |cause, seconds, admits| Block {
            cause,
            until: now.after(Micros::from_secs(seconds)),
            admits: now.after(Micros::from_secs(admits)),
        };
        let limit = fixtures::per_minute("each", 1, 1);
        let mut denied = Denied(Outcomes::of(&[Claim::new(&limit, b"k", 1); 3]));
        let operators = block(BlockCause::Operator, 5, 5);
        denied.0[1].block_by(operators, now);
        assert!(denied.is_blocked() && !denied.is_penalty());
        assert_eq!(denied.retry_after(), Some(Micros::from_secs(5)));
        let asked = denied.outcomes().iter().map(|outcome| outcome.asked());
        assert!(asked.map(|asked| asked.is_some()).eq([false, true, false]));
        assert!(denied.refused().eq([1]));

        let penalty = block(BlockCause::Penalty, 3, 9);
        denied.0[2].block_by(penalty, now);
        assert!(denied.is_penalty());
        assert_eq!(denied.retry_after(), Some(Micros::from_secs(9)));
        let blocks = denied.outcomes().iter().map(Outcome::block);
        assert!(blocks.eq([None, Some(operators), Some(penalty)]));
    }
}
