//! The proof that a request was admitted, and the corrections due when it ends.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use tollgate_limit::{
    Change, Claim, KeyBytes, Limit, Micros, Placement, Role, Settlement, Standing, Timestamp,
    Verdict,
};
use tollgate_store::Store;

use super::cause::Credit;
use super::decision::{Standings, bit};
use super::two_stores::refund;
use super::{Generation, is_in_flight, is_windowed, overridden};

/// The proof that a request was admitted. Only the limiter creates one, and forwarding requires
/// one.
///
/// A permit owns its data, so that a response body can hold it until the body ends. Dropping it
/// releases the places it holds in concurrency limits. Dropping it before [`Permit::forwarded`]
/// also refunds what it took from limits whose charges can be corrected, because the request was
/// never forwarded. After that, lowering a charge requires a [`Credit`].
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

/// One charge that can be corrected.
struct Charge {
    place: usize,
    limit: Arc<Limit>,
    key: KeyBytes,
    cost: u64,
    ungoverned: bool,
    /// The time until the bucket was due to be full, or its window over.
    reset: Micros,
    /// When the window of the draw ends, by the clock of its store; zero: it is not known.
    window_end: Timestamp,
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

/// Receives settlements.
pub(super) trait Settle: Send + Sync {
    /// Corrects one charge; `ungoverned`: it was made on the local share of a shared limit.
    fn settle(&self, settlement: Settlement<'_>, ungoverned: bool);
    /// Counts a response that reported a cost of `units`.
    fn settled(&self, limit: &Limit, units: u64);
    /// Counts a charge that nothing corrected; returns whether to log it.
    fn unsettled(&self, limit: &Limit) -> bool;
    /// Counts `units` that a response cost above its reservation; returns whether to log it.
    fn over_reserved(&self, limit: &Limit, units: u64) -> bool;
    /// Records an upstream's response after `took`, or its absence (`lost`); the request had left
    /// `remaining` places.
    fn answered(&self, limit: &Limit, took: Micros, remaining: u64, lost: bool);
    /// The present moment.
    fn now(&self) -> Timestamp;
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
                    ungoverned: ungoverned & bit(place) != 0,
                    reset: standing.reset,
                    // A request that waits takes units of a later window.
                    window_end: if wait == Micros::ZERO {
                        standing.window_end
                    } else {
                        Timestamp::default()
                    },
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
        self.standings = overridden::spread_standings(&self.standings, left_out);
        self.ungoverned = overridden::spread_bits(self.ungoverned, left_out);
        self.unasked = overridden::spread_bits(self.unasked, left_out) | left_out;
        if let Some(held) = &mut self.held {
            for charge in &mut held.charges {
                charge.place = overridden::places(left_out)
                    .nth(charge.place)
                    .unwrap_or(charge.place);
            }
        }
        self
    }

    /// Without the last `count` claims, which are none of the request's.
    pub(super) fn without_last(mut self, count: usize) -> Self {
        let left = self.standings.len().saturating_sub(count);
        self.standings.truncate(left);
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

    /// The charges that can still be corrected. Places of concurrency limits are not among them.
    pub fn open_charges(&self) -> impl Iterator<Item = OpenCharge<'_>> {
        let charges = self.held.iter().flat_map(|held| &held.charges);
        charges
            .filter(|charge| charge.limit.refundable && charge.limit.role == Role::Live)
            .map(|charge| OpenCharge {
                place: charge.place,
                limit: &charge.limit,
                key: &charge.key,
                units: charge.cost,
                left: self.standings[charge.place].remaining,
            })
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

    /// What the limit named `rule` was charged, if that can still be corrected.
    pub fn charged(&self, rule: &str) -> Option<u64> {
        self.charge_of(rule).map(|(_, charge)| charge.cost)
    }

    /// What the claim at `place` is charged so far, if that can be corrected; places of concurrency
    /// limits cannot.
    pub fn charged_at(&self, place: usize) -> Option<u64> {
        let held = self.held.as_ref()?;
        held.charges
            .iter()
            .find(|charge| charge.place == place && charge.limit.refundable)
            .map(|charge| charge.cost)
    }

    /// Settles the charge of the limit named `rule`: the response reported a cost of `units`.
    pub fn settled(&self, rule: &str, units: u64) {
        let Some(held) = self.held.as_deref() else {
            return;
        };
        for charge in held
            .charges
            .iter()
            .filter(|charge| &*charge.limit.name == rule)
        {
            held.settler.settled(&charge.limit, units);
        }
    }

    /// Records that the response did not report its cost for the limit named `rule`, so the
    /// estimate stays charged. Returns whether to log it: once a minute for each limit.
    pub fn unsettled(&self, rule: &str) -> bool {
        self.charge_of(rule)
            .is_some_and(|(held, charge)| held.settler.unsettled(&charge.limit))
    }

    /// Records that the response cost `units` more than was reserved for it by the limit named
    /// `rule`. Returns whether to log it: once a minute for each limit.
    pub fn over_reserved(&self, rule: &str, units: u64) -> bool {
        self.charge_of(rule)
            .is_some_and(|(held, charge)| held.settler.over_reserved(&charge.limit, units))
    }

    fn charge_of(&self, rule: &str) -> Option<(&Held, &Charge)> {
        let held = self.held.as_deref()?;
        let mut charges = held.charges.iter();
        Some((held, charges.find(|charge| &*charge.limit.name == rule)?))
    }

    /// Charges `more` units to the limit named `rule`, both the live limit and its candidate.
    pub fn charge_more(&mut self, rule: &str, more: u64) {
        self.settle_rule(rule, Change::Charge { more });
    }

    /// Refunds `units` to the limit named `rule`, both the live limit and its candidate; never more
    /// than was charged.
    pub fn refund(&mut self, rule: &str, units: u64, _leave: Credit) {
        self.settle_rule(rule, Change::Refund { units });
    }

    fn settle_rule(&mut self, rule: &str, change: Change) {
        let Some(held) = &mut self.held else { return };
        let Held {
            settler,
            charges,
            drawn_at,
            ..
        } = &mut **held;
        for charge in charges
            .iter_mut()
            .filter(|charge| &*charge.limit.name == rule)
        {
            charge.settle(&**settler, *drawn_at, change);
        }
    }
}

impl Charge {
    fn settle(&mut self, settler: &dyn Settle, drawn_at: Timestamp, change: Change) {
        let change = match change {
            // Never more than was taken, even if refunded repeatedly.
            Change::Refund { units }
            | Change::RefundWithin { units, .. }
            | Change::Withdraw { units, .. } => {
                let units = units.min(self.cost);
                self.cost -= units;
                let windowed = is_windowed(&self.limit);
                // Nothing is left of a finished window. (The store checks it again when the refund
                // arrives.)
                if windowed && settler.now().since(drawn_at) >= self.reset {
                    return;
                }
                match change {
                    _ if windowed => refund(&self.limit, units, self.window_end),
                    Change::Withdraw { full_at, .. }
                        if self.limit.placement == Placement::Local =>
                    {
                        Change::Withdraw { units, full_at }
                    }
                    _ => Change::Refund { units },
                }
            }
            Change::Release { units } => {
                let units = units.min(self.cost);
                self.cost -= units;
                Change::Release { units }
            }
            Change::Charge { more } => {
                self.cost = self.cost.saturating_add(more);
                Change::Charge { more }
            }
        };
        if !matches!(
            change,
            Change::Charge { more: 0 }
                | Change::Refund { units: 0 }
                | Change::RefundWithin { units: 0, .. }
                | Change::Withdraw { units: 0, .. }
                | Change::Release { units: 0 }
        ) {
            settler.settle(
                Settlement::new(&self.limit, &self.key, change),
                self.ungoverned,
            );
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
