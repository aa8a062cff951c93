//! A penalty: a limit blocks a key that it refuses too often.
//!
//! Each gateway counts the refusals that it sends; the block itself is a bucket of its own beside
//! the limit's. So every store can keep it, it ends by the store's clock, and no gateway has to be
//! told of it.

use std::sync::Arc;

use super::limit_spec::{Kind, Terms};
use super::time::Micros;
use super::{Algorithm, Change, Limit, Mode, OnFailover, Role, WhenDown, words};

/// The penalty of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Penalty {
    /// The refusals after which a key is blocked.
    pub refusals: u32,
    /// The span in which they are counted, from the first of them.
    pub span: Micros,
    /// How long the key is blocked.
    pub block: Micros,
}

impl Penalty {
    /// The charge that empties the bucket of [`Limit::penalty_bucket`], so that its key is blocked.
    /// Charged twice, it has the effect of the first time.
    pub const BLOCK: Change = Change::Charge { more: 2 };

    /// The refusals that it takes, in words: "20 refusals in 1 minute".
    pub fn after(&self) -> String {
        let plural = if self.refusals == 1 { "" } else { "s" };
        let span = words::span(self.span);
        format!("{} refusal{plural} in {span}", self.refusals)
    }

    /// The penalty in words.
    pub fn words(&self) -> String {
        let block = words::span(self.block);
        format!("{} block the key for {block}", self.after())
    }
}

impl Limit {
    /// The bucket that says in the limit's store whether a key is blocked; `None`: the limit has no
    /// penalty. A claim of no units is refused exactly while the key is blocked: the bucket has one
    /// unit, [`Penalty::BLOCK`] leaves it one below zero, and a step after `block` fills it. No
    /// limit of a file can have its name, which has a space.
    pub fn penalty_bucket(&self) -> Option<Self> {
        let penalty = self.penalty?;
        let terms = Terms {
            burst: Some(1),
            shared: self.placement == super::Placement::Shared,
            ..Terms::new(Kind::Interval, 2, penalty.block)
        };
        Some(Self {
            name: Arc::from(format!("{} penalty", self.name)),
            tier: None,
            role: Role::Live,
            algorithm: Algorithm::new(&terms).ok()?,
            mode: Mode::Enforce,
            // Without its store a gateway blocks the keys of which it knows.
            when_down: WhenDown::Allow,
            on_failover: OnFailover::Keep,
            lease: false,
            // Gateways look again after a moment at a bucket that they know to be full.
            resettable: true,
            refundable: false,
            penalty: None,
            currency: None,
            ..self.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Timestamp, bucket::State, fixtures};

    #[test]
    fn penalty_bucket_refuses_a_claim_of_no_units_exactly_while_the_key_is_blocked() {
        let limit = Limit {
            penalty: Some(Penalty {
                refusals: 20,
                span: Micros::from_secs(60),
                block: Micros::from_secs(600),
            }),
            ..fixtures::per_minute("search", 100, 20)
        };
        let bucket = limit.penalty_bucket().expect("it has a penalty");
        let algorithm = &bucket.algorithm;
        let start = Timestamp::from_micros(1_700_000_000_000_000);
        let end = start.after(Micros::from_secs(600));
        let wait = |state: &Option<State>, at| {
            let refused = algorithm.judge(state.as_ref(), 0, at).err()?;
            refused.retry_after
        };
        let charged = |state: &Option<State>, change, at| {
            let mut state = state.clone();
            algorithm.settle(&mut state, change, at);
            state
        };
        assert_eq!(wait(&None, start), None, "no key begins blocked");
        let once = charged(&None, Penalty::BLOCK, start);
        // Another gateway blocks the key a little later: the end stays.
        let twice = charged(&once, Penalty::BLOCK, start.after(Micros::from_secs(9)));
        for state in [once, twice] {
            assert_eq!(wait(&state, start), Some(Micros::from_secs(600)));
            let before = Timestamp::from_micros(end.as_micros() - 1);
            assert_eq!(wait(&state, before), Some(Micros(1)));
            assert_eq!(wait(&state, end), None);
            // The next block lasts as long as the first.
            let again = charged(&state, Penalty::BLOCK, end);
            assert_eq!(wait(&again, end), Some(Micros::from_secs(600)));
            // Lifted: a reset gives back all that it can lack.
            let units = algorithm.depth().expect("a bucket of units");
            let lifted = charged(&again, Change::Refund { units }, end);
            assert_eq!(wait(&lifted, end), None);
        }
    }

    #[test]
    fn penalty_says_its_numbers_in_words() {
        let penalty = Penalty {
            refusals: 20,
            span: Micros::from_secs(60),
            block: Micros::from_secs(600),
        };
        assert_eq!(
            penalty.words(),
            "20 refusals in 1 minute block the key for 10 minutes"
        );
    }
}
