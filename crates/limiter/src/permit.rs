//! The proof that a request was admitted. When it is dropped, it gives back what the request did not use.

mod charge;
mod corrected;

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use tollgate_limit::{
    Change, Claim, KeyBytes, Limit, Micros, Placement, Standing, Timestamp, Verdict,
};
use tollgate_store::Store;

use super::decision::{Standings, bit};
use super::{Generation, decision, is_in_flight};
use charge::Charge;

pub(super) use charge::{DrawnFrom, Settle};

/// The proof that a request was admitted. Only the limiter creates one, and forwarding requires
/// one.
///
/// A permit owns its data, so that a response body can hold it until the body ends. Dropping it
/// releases the places it holds in concurrency limits. Dropping it before [`Permit::forwarded`]
/// also refunds what it took from limits whose charges can be corrected, because the request was
/// never forwarded. After that, lowering a charge requires a [`Credit`](crate::Credit).
#[must_use]
pub struct Permit {
    standings: Standings,
    ungoverned: u16,
    unasked: u16,
    hold: Micros,
    held: Option<Box<Held>>,
}

/// What must be settled when the request ends.
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
}

impl OpenCharge<'_> {
    /// Units that are left if no other request drew from the bucket. `first`: what was charged when it
    /// was drawn from.
    pub const fn left_after(&self, first: u64) -> u64 {
        self.left.saturating_sub(self.units.saturating_sub(first))
    }
}

impl Permit {
    pub(super) fn new<S: Store + Send + Sync>(
        generation: &Arc<Generation<S>>,
        claims: &[Claim<'_>],
        standings: Standings,
        ungoverned: u16,
        now: Timestamp,
    ) -> Self {
        let mut hold = Micros::ZERO;
        let mut charges = SmallVec::new();
        // Read after the draw: a request that waited for a store while the copy was made may be in it,
        // and is then corrected here only.
        let from = generation.draws_from();
        for (place, (claim, standing)) in claims.iter().zip(&standings).enumerate() {
            let Verdict::Allow { wait } = standing.verdict else {
                continue;
            };
            if claim.enforced {
                hold = hold.max(wait);
            }
            let correctable = claim.limit.refundable || is_in_flight(claim.limit);
            let algorithm = &claim.limit.algorithm;
            let may_cost_more = algorithm.settled() > 0 || algorithm.is_ceiling();
            if correctable && (claim.cost > 0 || may_cost_more) {
                charges.push(Charge {
                    place,
                    limit: Arc::clone(&generation.limits[claim.limit.index]),
                    key: KeyBytes::from_slice(claim.key),
                    cost: claim.cost,
                    from: match (claim.limit.placement, ungoverned & bit(place)) {
                        (Placement::Local, _) => from,
                        (Placement::Shared, 0) => DrawnFrom::Bucket,
                        (Placement::Shared, _) => DrawnFrom::LocalShare,
                    },
                    reset: standing.reset,
                    window_end: standing.window_end,
                });
            }
        }
        let held = (!charges.is_empty()).then(|| {
            let settler: Arc<dyn Settle> = Arc::clone(generation) as Arc<dyn Settle>;
            Box::new(Held {
                settler,
                charges,
                drawn_at: now,
                forwarded: false,
            })
        });
        let unasked = super::unasked(claims, ungoverned);
        Self {
            standings,
            ungoverned,
            unasked,
            hold,
            held,
        }
    }

    /// The permit with places for the claims that were not drawn.
    pub(super) fn spread(mut self, left_out: u16) -> Self {
        self.standings = decision::spread_standings(&self.standings, left_out);
        self.ungoverned = decision::spread_bits(self.ungoverned, left_out);
        self.unasked = decision::spread_bits(self.unasked, left_out) | left_out;
        if let Some(held) = &mut self.held {
            for charge in &mut held.charges {
                charge.place = decision::places(left_out)
                    .nth(charge.place)
                    .unwrap_or(charge.place);
            }
        }
        self
    }

    /// The standing of each bucket after the draw, in the order of the claims.
    pub fn standings(&self) -> &[Standing] {
        &self.standings
    }

    /// Takes out the charges that can still be corrected, as a permit of their own. What remains is
    /// only the proof. `None`: every charge is final.
    pub fn take_open(&mut self) -> Option<Self> {
        let held = self.held.take()?;
        Some(Self {
            standings: self.standings.clone(),
            ungoverned: self.ungoverned,
            unasked: self.unasked,
            hold: self.hold,
            held: Some(held),
        })
    }

    /// Refunds what can still be corrected, because the request will not be forwarded after all.
    pub fn revoke(mut self) {
        if let Some(held) = &mut self.held {
            held.forwarded = false;
        }
    }

    /// Whether the claim at `place` was decided without its store, which did not respond. Its
    /// standing is then that of this gateway's local share, or meaningless
    /// ([`Permit::is_unasked`]).
    pub fn is_ungoverned(&self, place: usize) -> bool {
        self.ungoverned & bit(place) != 0
    }

    /// Whether no bucket decided about the claim at `place`; its standing is then meaningless.
    pub fn is_unasked(&self, place: usize) -> bool {
        self.unasked & bit(place) != 0
    }

    /// Whether no charge can be corrected any more, and no place is held.
    pub fn is_settled(&self) -> bool {
        self.held.is_none()
    }

    /// How long the request must be held before it continues (shaping); zero: it is not held.
    pub fn hold(&self) -> Micros {
        self.hold
    }

    /// Records that the request was sent to the upstream: from now on only the response can cause a
    /// refund.
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
            if is_in_flight(&charge.limit) {
                let remaining = self.standings[charge.place].remaining;
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
            let units = charge.cost;
            if is_in_flight(&charge.limit) {
                charge.settle(&**settler, *drawn_at, Change::Release { units });
            } else if !*forwarded {
                let full_at = drawn_at.after(charge.reset);
                charge.settle(&**settler, *drawn_at, Change::Withdraw { units, full_at });
            }
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let charges = self.held.as_ref().map_or(0, |held| held.charges.len());
        f.debug_struct("Permit")
            .field("standings", &self.standings)
            .field("ungoverned", &self.ungoverned)
            .field("hold", &self.hold)
            .field("correctable", &charges)
            .finish()
    }
}

#[cfg(test)]
mod tests;
