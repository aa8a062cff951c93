//! What decides about a claim before its bucket does: an operator's override, or a block of its key.
//!
//! A block refuses before anything is drawn. A claim without a limit is not drawn. A claim with other
//! numbers is drawn under them, as one of another tier. So neither the beginning nor the end of an
//! override refills anything (DESIGN: "Several numbers draw from one bucket").

use std::sync::Arc;

use tollgate_limit::{Claim, Conditions, Mode, Timestamp};
use tollgate_store::Store;

use super::generation::Generation;
use super::outcome::{Block, BlockCause, By, Outcome, Outcomes, is_local};
use super::overrides::Effect;

impl<S: Store + Send + Sync> Generation<S> {
    /// The outcomes of `claims` without buckets, and the numbers by which the others are asked.
    #[inline]
    pub(super) fn resolve(&self, claims: &[Claim<'_>], now: Timestamp) -> Outcomes {
        let mut outcomes = Outcomes::of(claims);
        let is_plain =
            self.feedback.is_idle() && self.overrides.is_empty() && !self.penalties.may_block(now);
        if !is_plain {
            for (claim, outcome) in claims.iter().zip(&mut *outcomes) {
                self.resolve_one(claim, outcome, now);
            }
        }
        outcomes
    }

    #[cold]
    fn resolve_one(&self, claim: &Claim<'_>, outcome: &mut Outcome, now: Timestamp) {
        if is_local(claim) {
            let learnt = self.feedback.conditions(claim.limit.index, now);
            outcome.conditions = learnt.map(Box::new);
        }
        let overrides = &self.overrides;
        let found = overrides.of(claim.limit, claim.key, &*self.shared, now);
        let (effect, until) = found.map(|found| (found.effect, found.until)).unzip();
        if effect == Some(Effect::Unlimited) {
            outcome.by = By::Unlimited;
            return;
        }
        // A limit that only counts refuses nothing.
        let blocks = effect == Some(Effect::Block) && claim.limit.mode == Mode::Enforce;
        let operators = until.filter(|_| blocks).map(|until| Block {
            cause: BlockCause::Operator,
            until,
            admits: until,
        });
        let penalty = match claim.enforced {
            true => self.penalties.block(claim.limit, claim.key, now),
            false => None,
        };
        let blocks = operators.into_iter().chain(penalty);
        if let Some(block) = blocks.max_by_key(|block| block.admits) {
            outcome.block_by(block, now);
            return;
        }
        // Numbers that a reloaded limit cannot have any more leave it as it is.
        let numbers = match effect {
            Some(Effect::Places(places)) => claim.limit.with_places(places).ok(),
            Some(Effect::Numbers { rate, burst }) => claim.limit.with_numbers(rate, burst).ok(),
            _ => None,
        };
        if let (Some(_), Some(Effect::Places(places))) = (&numbers, effect) {
            // What an operator has set for a key comes before what was learnt.
            outcome.conditions = Some(Box::new(Conditions::Set(places)));
        }
        outcome.numbers = numbers.map(Arc::new);
    }
}

#[cfg(test)]
mod tests;
