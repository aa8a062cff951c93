//! What became of each claim of a request: one list, which a decision fills in passes.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use smallvec::SmallVec;

use tollgate_limit::{Claim, Conditions, Limit, Micros, Placement, Standing, Timestamp, Verdict};

/// The claims of a request, or those of them that one store is asked about.
pub(crate) type Claims<'a> = SmallVec<[Claim<'a>; 4]>;

/// What became of one claim.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Who decided about the claim.
    pub by: By,
    /// How its bucket stands; meaningless where no bucket was asked ([`Outcome::asked`]).
    pub standing: Standing,
    /// Whether its refusal refuses the request (those of shadow limits and candidates do not).
    pub enforced: bool,
    /// The limit with the numbers of an override; not kept of a request that is admitted.
    pub numbers: Option<Arc<Limit>>,
    /// What the limit has learnt; not kept either. (The places of an override are fixed: nothing that was
    /// learnt changes them.)
    pub(crate) conditions: Option<Box<Conditions>>,
}

/// Who decided about a claim. A feature adds a variant; it never moves another claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The claim is undecided: another one was refused first, or the store was not looked at.
    Unasked,
    /// The bucket decided about the claim.
    Bucket,
    /// This gateway's share of the limit, because the store did not respond.
    LocalShare {
        /// Whether the store may have charged the request all the same.
        may_be_charged: bool,
    },
    /// The store did not respond, and the claim is admitted without it.
    StoreDown,
    /// An override lifts the limit for this key.
    Unlimited,
    /// A block of its key. The standing says for how long, and nothing of the bucket.
    Block(Block),
}

/// A block: every request of a key is refused, until a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Whether an operator or a penalty blocks the key.
    pub cause: BlockCause,
    /// The moment at which the block ends.
    pub until: Timestamp,
    /// When a lone caller is admitted: its end, or later where the bucket needs longer.
    pub admits: Timestamp,
}

/// Who has a key blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockCause {
    /// An operator, by an override.
    Operator,
    /// The penalty of the limit, for refusals.
    Penalty,
}

/// The standing of a claim that no bucket decided: it refuses nothing and has no numbers.
const NOT_ASKED: Standing = Standing {
    verdict: Verdict::Allow { wait: Micros::ZERO },
    left: 0,
    reset: Micros::ZERO,
    effective: Micros::ZERO,
    window_end: Timestamp::from_micros(0),
};

impl Outcome {
    fn of(claim: &Claim<'_>) -> Self {
        Self {
            by: By::Unasked,
            standing: NOT_ASKED,
            enforced: claim.enforced,
            numbers: None,
            conditions: None,
        }
    }

    /// The standing, if a bucket was asked, or a block refused in its place.
    pub fn asked(&self) -> Option<&Standing> {
        match self.by {
            By::Bucket | By::LocalShare { .. } | By::Block(_) => Some(&self.standing),
            By::Unasked | By::StoreDown | By::Unlimited => None,
        }
    }

    /// Whether it refuses the request.
    pub fn refuses(&self) -> bool {
        self.enforced && !self.standing.verdict.is_allow()
    }

    /// Whether it was decided without its store, which did not respond.
    pub fn is_without_store(&self) -> bool {
        matches!(self.by, By::LocalShare { .. } | By::StoreDown)
    }

    /// The block that refused it.
    pub fn block(&self) -> Option<Block> {
        match self.by {
            By::Block(block) => Some(block),
            _ => None,
        }
    }

    /// The word for it in logs and explanations.
    pub fn word(&self) -> &'static str {
        match (self.by, self.standing.verdict.is_allow(), self.enforced) {
            (By::Unasked | By::Unlimited, ..) => "unasked",
            (By::LocalShare { .. } | By::StoreDown, true, _) => "ungoverned",
            (_, true, _) => "allow",
            (_, false, true) => "deny",
            (_, false, false) => "shadow_deny",
        }
    }

    /// Makes `block` the reason of the refusal, in place of what decided about the claim before.
    pub(crate) fn block_by(&mut self, block: Block, now: Timestamp) {
        let left = block.admits.since(now);
        self.by = By::Block(block);
        self.enforced = true;
        self.standing = Standing {
            verdict: Verdict::Deny {
                retry_after: Some(left),
            },
            reset: left,
            effective: left,
            ..NOT_ASKED
        };
    }

    /// The claim as its bucket is asked: under the numbers of an override, and what was learnt.
    pub(crate) fn claim<'c>(&'c self, claim: &Claim<'c>) -> Claim<'c> {
        Claim {
            limit: self.numbers.as_deref().unwrap_or(claim.limit),
            conditions: self.conditions.as_deref().or(claim.conditions),
            ..*claim
        }
    }
}

/// The outcomes of a request's claims, in their order: the list is never reordered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcomes(SmallVec<[Outcome; 2]>);

impl Outcomes {
    pub(crate) fn of(claims: &[Claim<'_>]) -> Self {
        Self(claims.iter().map(Outcome::of).collect())
    }

    /// Whether a block refuses the request, so that no bucket is asked.
    pub(crate) fn are_blocked(&self) -> bool {
        self.iter().any(|outcome| outcome.block().is_some())
    }

    pub(crate) fn are_open(&self) -> bool {
        self.iter().any(|outcome| outcome.by == By::Unasked)
    }

    /// The claims that are still to be decided, of these, as their buckets are asked.
    pub(crate) fn open<'c>(
        &'c self,
        claims: &'c [Claim<'_>],
        which: impl Fn(&Claim<'_>) -> bool,
    ) -> Claims<'c> {
        let all = claims.iter().zip(&self.0);
        let open = all.filter(|(claim, outcome)| outcome.by == By::Unasked && which(claim));
        open.map(|(claim, outcome)| outcome.claim(claim)).collect()
    }

    /// Records the answers to [`Outcomes::open`], in its order.
    pub(crate) fn close(
        &mut self,
        claims: &[Claim<'_>],
        which: impl Fn(&Claim<'_>) -> bool,
        by: By,
        standings: impl IntoIterator<Item = Standing>,
    ) {
        let all = claims.iter().zip(&mut self.0);
        let open = all.filter(|(claim, outcome)| outcome.by == By::Unasked && which(claim));
        for ((_, outcome), standing) in open.zip(standings) {
            outcome.by = by;
            outcome.standing = standing;
        }
    }

    /// The verdicts of the limits that can refuse the request.
    pub(crate) fn enforced(&self) -> impl Iterator<Item = Verdict> {
        let enforced = self.iter().filter(|outcome| outcome.enforced);
        enforced.map(|outcome| outcome.standing.verdict)
    }
}

impl Deref for Outcomes {
    type Target = [Outcome];

    fn deref(&self) -> &[Outcome] {
        &self.0
    }
}

impl DerefMut for Outcomes {
    fn deref_mut(&mut self) -> &mut [Outcome] {
        &mut self.0
    }
}

pub(crate) fn is_local(claim: &Claim<'_>) -> bool {
    claim.limit.placement == Placement::Local
}

pub(crate) fn is_shared(claim: &Claim<'_>) -> bool {
    claim.limit.placement == Placement::Shared
}
