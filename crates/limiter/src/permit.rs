//! The proof that a request was admitted. When it is dropped, it gives back what the request did not use.

mod charge;
mod corrected;

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use tollgate_limit::draw::longest_hold;
use tollgate_limit::{Claim, KeyBytes, Limit, Micros, Placement, Timestamp};

use super::outcome::{By, Outcome, Outcomes};
use charge::Charge;

pub(super) use charge::{DrawnFrom, Settle, is_windowed, refund};

/// The proof that a request was admitted. Only the limiter creates one, and forwarding requires
/// one.
///
/// A permit owns its data, so that a response body can hold it until the body ends. Dropping it
/// releases the places it holds in concurrency limits. Dropping it before [`Permit::forwarded`]
/// also refunds what it took from limits whose charges can be corrected, because the request was
/// never forwarded. After that, lowering a charge requires a [`Credit`](crate::Credit).
#[must_use]
pub struct Permit {
    outcomes: Outcomes,
    held: Option<Box<Held>>,
}

struct Held {
    settler: Arc<dyn Settle>,
    charges: SmallVec<[Charge; 2]>,
    drawn_at: Timestamp,
    forwarded: bool,
}

/// A charge that can be corrected.
#[derive(Clone, Copy, Debug)]
pub struct OpenCharge<'p> {
    /// Its claim's place in the request.
    pub place: usize,
    /// The limit.
    pub limit: &'p Arc<Limit>,
    /// The key of its bucket.
    pub key: &'p [u8],
    /// Units that are charged so far.
    pub units: u64,
    /// Units that were left when the bucket was drawn from.
    pub left: u64,
    /// When the window of the draw ends, by the clock of its store; zero: it is not known.
    pub window_end: Timestamp,
}

impl OpenCharge<'_> {
    /// Units that are left if no other request drew. `first`: what was charged at the draw.
    pub const fn left_after(&self, first: u64) -> u64 {
        self.left.saturating_sub(self.units.saturating_sub(first))
    }
}

impl Permit {
    /// `from`: where local units were taken from; `now`: when the request arrived.
    pub(super) fn new(
        settler: &Arc<impl Settle + 'static>,
        limits: &[Arc<Limit>],
        from: DrawnFrom,
        claims: &[Claim<'_>],
        outcomes: Outcomes,
        now: Timestamp,
    ) -> Self {
        let mut charges = SmallVec::new();
        for (place, (claim, outcome)) in claims.iter().zip(&*outcomes).enumerate() {
            let from = match outcome.by {
                By::Bucket if claim.limit.placement == Placement::Local => from,
                By::Bucket => DrawnFrom::Bucket,
                By::LocalShare { may_be_charged } => DrawnFrom::LocalShare {
                    is_owed: !may_be_charged,
                },
                By::StoreDown => DrawnFrom::LocalShare { is_owed: false },
                By::Unasked | By::Unlimited | By::Block(_) => continue,
            };
            let algorithm = &claim.limit.algorithm;
            let correctable = claim.limit.refundable || algorithm.holds_places();
            let may_cost_more = algorithm.settled() > 0 || algorithm.is_ceiling();
            let took = outcome.standing.verdict.is_allow() && (claim.cost > 0 || may_cost_more);
            if correctable && took {
                charges.push(Charge {
                    place,
                    limit: Arc::clone(&limits[claim.limit.index]),
                    key: KeyBytes::from_slice(claim.key),
                    cost: claim.cost,
                    from,
                    reset: outcome.standing.reset,
                    window_end: outcome.standing.window_end,
                    drawn_at: match claim.limit.placement {
                        Placement::Local => now,
                        Placement::Shared => Timestamp::default(),
                    },
                });
            }
        }
        let held = (!charges.is_empty()).then(|| {
            let settler = Arc::clone(settler);
            Box::new(Held {
                settler,
                charges,
                drawn_at: now,
                forwarded: false,
            })
        });
        Self { outcomes, held }
    }

    /// Notes when the shared store made the draw, by its clock.
    pub(super) fn drawn_in_store(&mut self, at: Timestamp) {
        for charge in self.held.iter_mut().flat_map(|held| &mut held.charges) {
            if charge.limit.placement == Placement::Shared && charge.from == DrawnFrom::Bucket {
                charge.drawn_at = at;
            }
        }
    }

    /// What became of each claim, in the order of the claims; the standings are those after the draw.
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// Takes out the charges that can still be corrected, as a permit of their own. What remains is
    /// only the proof. `None`: every charge is final.
    pub fn take_open(&mut self) -> Option<Self> {
        let held = self.held.take()?;
        Some(Self {
            outcomes: self.outcomes.clone(),
            held: Some(held),
        })
    }

    /// Refunds what can still be corrected, because the request will not be forwarded after all.
    pub fn revoke(mut self) {
        if let Some(held) = &mut self.held {
            held.forwarded = false;
        }
    }

    /// Whether no charge can be corrected any more, and no place is held.
    pub fn is_settled(&self) -> bool {
        self.held.is_none()
    }

    /// How long the request must be held before it continues (shaping); zero: it is not held.
    pub fn hold(&self) -> Micros {
        longest_hold(self.outcomes.enforced())
    }

    /// Records that the request was sent: from now on only the response can cause a refund.
    pub fn forwarded(&mut self) {
        if let Some(held) = &mut self.held {
            held.forwarded = true;
        }
    }

    /// Records the upstream's response after `took`. `lost`: there was no response, or a 503.
    /// Adaptive limits learn from it.
    pub fn answered(&self, took: Micros, lost: bool) {
        let Some(held) = &self.held else { return };
        for charge in &held.charges {
            if charge.limit.algorithm.holds_places() {
                let remaining = self.outcomes[charge.place].standing.remaining();
                held.settler.answered(&charge.limit, took, remaining, lost);
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(mut held) = self.held.take() else {
            return;
        };
        let Held {
            settler,
            charges,
            drawn_at,
            forwarded,
        } = &mut *held;
        for charge in charges {
            if charge.limit.algorithm.holds_places() {
                charge.release(&**settler);
            } else if !*forwarded {
                charge.give_back(&**settler, *drawn_at, charge.cost, true);
            }
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let charges = self.held.as_ref().map_or(0, |held| held.charges.len());
        f.debug_struct("Permit")
            .field("outcomes", &self.outcomes)
            .field("correctable", &charges)
            .finish()
    }
}

#[cfg(test)]
mod tests;
