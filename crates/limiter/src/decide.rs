//! A decision about a request, in passes over one list of outcomes: [`Generation::resolve`] (overrides
//! and blocks), the buckets of the process, those of the shared store, and
//! [`Generation::finish`]. Where the store does not respond, its limits say what that means.
//!
//! A block refuses before anything is drawn. A claim without a limit is not drawn. A claim with other
//! numbers is drawn under them, as one of another tier. So neither the beginning nor the end of an
//! override refills anything (DESIGN: "Several numbers draw from one bucket").
//!
//! A request that a limit of the process refuses must not draw from the shared store, so the store is
//! asked last. What was drawn in the process is given back if the store refuses, does not respond, or
//! the caller leaves meanwhile.

use std::sync::Arc;

use tollgate_limit::{Change, Claim, Corrects, Mode, Settlement, Timestamp, WhenDown};
use tollgate_store::{Deadline, Store, StoreError};

use super::decision::{Decision, Denied, Unavailable};
use super::limiter::Generation;
use super::outcome::{Block, BlockCause, By, Outcome, Outcomes, is_local, is_shared};
use super::overrides::Effect;
use super::permit::{DrawnFrom, Permit};

/// A decision, or what the shared store must be asked for first.
#[must_use]
pub enum Deciding<'a, S: Store> {
    /// The decision: no store had to be asked.
    Decided(Decision),
    /// The buckets of the process have granted the request.
    Asking(SharedDraw<'a, S>),
}

impl<S: Store> Deciding<'_, S> {
    /// The decision, if it needs no shared store.
    pub fn at_once(self) -> Option<Decision> {
        match self {
            Self::Decided(decision) => Some(decision),
            Self::Asking(_) => None,
        }
    }

    /// The decision. `deadline`: when the work of the request on the shared store ends.
    pub async fn finish(self, deadline: &Deadline) -> Decision {
        match self {
            Self::Decided(decision) => decision,
            Self::Asking(draw) => draw.ask(deadline).await,
        }
    }
}

/// A draw from the shared store that is still to be made. It owns what was drawn in the process, and
/// gives that back when it is dropped.
pub struct SharedDraw<'a, S: Store> {
    generation: &'a Arc<Generation<S>>,
    claims: Vec<Claim<'a>>,
    /// Empty once the request is decided.
    outcomes: Outcomes,
    from: DrawnFrom,
    now: Timestamp,
    counts: bool,
}

impl<S: Store> Generation<S> {
    /// `counts`: whether a refusal is counted.
    pub(crate) fn decide<'a>(
        self: &'a Arc<Self>,
        claims: &[Claim<'a>],
        now: Timestamp,
        counts: bool,
    ) -> Deciding<'a, S> {
        let mut outcomes = self.resolve(claims, now);
        if outcomes.are_blocked() {
            return Deciding::Decided(self.finish(claims, outcomes, false, now, NOT_DRAWN, counts));
        }
        let from = self.handover.draws_from();
        let granted = self.draw_local(claims, &mut outcomes, now);
        if granted && outcomes.are_open() {
            return Deciding::Asking(SharedDraw {
                generation: self,
                claims: claims.to_vec(),
                outcomes,
                from,
                now,
                counts,
            });
        }
        Deciding::Decided(self.finish(claims, outcomes, granted, now, NOT_DRAWN, counts))
    }

    /// The outcomes of `claims` without buckets, and the numbers by which the others are asked.
    pub(super) fn resolve(&self, claims: &[Claim<'_>], now: Timestamp) -> Outcomes {
        let mut outcomes = Outcomes::of(claims);
        for (claim, outcome) in claims.iter().zip(&mut *outcomes) {
            self.resolve_one(claim, outcome, now);
        }
        outcomes
    }

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
        outcome.numbers = numbers.map(Arc::new);
    }

    /// Draws from the buckets of the process; returns whether they grant the request.
    fn draw_local(&self, claims: &[Claim<'_>], outcomes: &mut Outcomes, now: Timestamp) -> bool {
        let drawn = self.local.draw_at(&outcomes.open(claims, is_local), now);
        outcomes.close(claims, is_local, By::Bucket, drawn.standings);
        drawn.granted
    }

    /// Decides without the store, as the limits say; returns whether the request is granted.
    fn store_down(
        &self,
        claims: &[Claim<'_>],
        outcomes: &mut Outcomes,
        error: &StoreError,
    ) -> Result<bool, Unavailable> {
        // In a handover the other process has the shares.
        let has_shares = !self.handover.has_begun();
        for (claim, outcome) in claims.iter().zip(&mut **outcomes) {
            match (outcome.by, claim.limit.when_down) {
                (By::Unasked, WhenDown::LocalShare) if has_shares => {}
                (By::Unasked, WhenDown::LocalShare | WhenDown::Refuse) if claim.enforced => {
                    return Err(Unavailable {
                        limit: Arc::clone(&claim.limit.name),
                        error: error.clone(),
                    });
                }
                (By::Unasked, _) => outcome.by = By::StoreDown,
                _ => {}
            }
        }
        let may_be_charged = error.may_have_charged();
        let drawn = {
            let own = outcomes.open(claims, is_shared);
            self.shares.draw(&own, &*self.shared, may_be_charged)
        };
        let by = By::LocalShare { may_be_charged };
        outcomes.close(claims, is_shared, by, drawn.standings);
        Ok(drawn.granted)
    }

    /// `drawn_at`: when the shared store made its draw, by its clock.
    fn finish(
        self: &Arc<Self>,
        claims: &[Claim<'_>],
        mut outcomes: Outcomes,
        granted: bool,
        now: Timestamp,
        drawn_at: Timestamp,
        counts: bool,
    ) -> Decision {
        if granted {
            for outcome in &mut *outcomes {
                (outcome.numbers, outcome.conditions) = (None, None);
            }
            self.counters.count(claims, &outcomes, true);
            // Read after the draw: a request that waited for a store while the copy was made may be in
            // it, and is then corrected here only.
            let from = self.handover.draws_from();
            let limits = &self.limits;
            let permit = Permit::new(self, limits, from, claims, outcomes, now, drawn_at);
            return Decision::Allow(permit);
        }
        if counts {
            self.count_refusal(claims, &mut outcomes, now);
        }
        Decision::Deny(Denied(outcomes))
    }

    /// Counts a refusal, also towards penalties, which can block a key now.
    pub(crate) fn count_refusal(
        &self,
        claims: &[Claim<'_>],
        outcomes: &mut Outcomes,
        now: Timestamp,
    ) {
        self.counters.count(claims, outcomes, false);
        if !outcomes.are_blocked() {
            self.penalties
                .count(claims, outcomes, self.local.clock(), now);
        }
    }

    /// Whether `claims` would be granted: the buckets are only looked at, nothing is counted.
    pub(crate) async fn look(
        &self,
        claims: &[Claim<'_>],
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<(), Denied> {
        let mut outcomes = self.resolve(claims, now);
        if !outcomes.are_blocked() {
            let looked = self.local.peek_at(&outcomes.open(claims, is_local), now);
            outcomes.close(claims, is_local, By::Bucket, looked);
            // The level of a leased limit does not include the units that this gateway holds.
            let is_level = |claim: &Claim<'_>| is_shared(claim) && !claim.limit.lease;
            let asked = outcomes.open(claims, is_level);
            let looked = if asked.is_empty() {
                Vec::new()
            } else {
                let looked = self.shared.peek_until(&asked, deadline).await;
                looked.unwrap_or_default()
            };
            drop(asked);
            outcomes.close(claims, is_level, By::Bucket, looked);
        }
        match outcomes.iter().any(Outcome::refuses) {
            true => Err(Denied(outcomes)),
            false => Ok(()),
        }
    }
}

impl<S: Store> SharedDraw<'_, S> {
    /// Asks the shared store. `deadline`: when the work of the request on it ends.
    pub async fn ask(mut self, deadline: &Deadline) -> Decision {
        let (generation, now) = (self.generation, self.now);
        let drawn = {
            let asked = self.outcomes.open(&self.claims, is_shared);
            generation.shared.draw_until(&asked, deadline).await
        };
        let drawn_at = drawn.as_ref().map_or(NOT_DRAWN, |drawn| drawn.at);
        let granted = match drawn {
            Ok(drawn) => {
                let standings = drawn.standings;
                self.outcomes
                    .close(&self.claims, is_shared, By::Bucket, standings);
                Ok(drawn.granted)
            }
            Err(error) => {
                let granted = generation.store_down(&self.claims, &mut self.outcomes, &error);
                if !matches!(granted, Ok(true)) {
                    generation.shared.forgo(deadline);
                }
                granted
            }
        };
        match granted {
            Ok(granted) => {
                if !granted {
                    self.give_back();
                }
                let outcomes = std::mem::take(&mut self.outcomes);
                let (claims, counts) = (&self.claims, self.counts);
                generation.finish(claims, outcomes, granted, now, drawn_at, counts)
            }
            Err(unavailable) => Decision::Unavailable(unavailable),
        }
    }

    fn give_back(&self) {
        let now = self.generation.local.clock().now().max(self.now);
        for (claim, outcome) in self.claims.iter().zip(&*self.outcomes) {
            let standing = &outcome.standing;
            let took = is_local(claim) && standing.verdict.is_allow() && claim.cost > 0;
            let algorithm = &claim.limit.algorithm;
            let ended = algorithm.is_windowed() && now.since(self.now) >= standing.reset;
            if !took || outcome.by != By::Bucket || ended {
                continue;
            }
            let change = if algorithm.holds_places() {
                Change::Release { units: claim.cost }
            } else {
                algorithm.refund(claim.cost, standing.window_end)
            };
            let claim = outcome.claim(claim);
            let settlement = Settlement {
                // Units taken under conditions are given back under the same conditions.
                conditions: claim.conditions,
                corrects: Corrects::draw_of(self.now),
                ..Settlement::new(claim.limit, claim.key, change)
            };
            self.generation.settle_local(settlement, self.from);
        }
    }
}

/// The moment of a draw that the shared store was not asked for, or of which it did not tell.
const NOT_DRAWN: Timestamp = Timestamp::from_micros(0);

impl<S: Store> Drop for SharedDraw<'_, S> {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests;
