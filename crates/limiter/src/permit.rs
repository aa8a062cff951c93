//! The proof that a request was admitted. When it is dropped, it gives back what the request did not use.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use tollgate_limit::draw::longest_hold;
use tollgate_limit::{
    Change, Claim, Corrects, KeyBytes, Limit, Micros, Placement, Role, Settlement, Timestamp, key,
};
use tollgate_store::clock::Clock;

use super::counters::Counters;
use super::outcome::{By, Outcome, Outcomes};

/// The proof that a request was admitted. Only the limiter creates one, and forwarding requires
/// one.
///
/// A permit owns its data, so that a response body can hold it until the body ends. Dropping it
/// releases the places it holds in concurrency limits. Dropping it before [`Permit::forwarded`]
/// also refunds what it took from limits whose charges can be corrected, because the request was
/// never forwarded. After that, lowering a charge requires a [`Credit`].
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
    /// The limit of the charge.
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
    /// `from`: where local units were taken from; `now`: when the request arrived; `drawn_at`: when the
    /// shared store made its draw, by its clock.
    pub(super) fn new(
        settler: &Arc<impl Settle + 'static>,
        limits: &[Arc<Limit>],
        from: DrawnFrom,
        claims: &[Claim<'_>],
        outcomes: Outcomes,
        now: Timestamp,
        drawn_at: Timestamp,
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
                    drawn_at: match (claim.limit.placement, outcome.by) {
                        (Placement::Local, _) => now,
                        (Placement::Shared, By::Bucket) => drawn_at,
                        (Placement::Shared, _) => Timestamp::default(),
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
                left: self.outcomes[charge.place].standing.remaining(),
                window_end: charge.window_end,
            })
    }

    /// Counts what the limit named `rule` is charged as used, beside its bucket, if that use is an event. It is
    /// called once, when the reservation is settled.
    pub fn count_used(&self, rule: &str) {
        let Some((held, charge)) = self.charge_of(rule) else {
            return;
        };
        let (limit, window_end) = (&charge.limit, charge.window_end);
        if limit.events.is_empty() || charge.cost == 0 || window_end == Timestamp::default() {
            return;
        }
        let key = key::beside(&charge.key, window_end, key::USED);
        held.settler.count_used(limit, &key, charge.cost);
    }

    /// What the limit named `rule` was charged, if that can still be corrected.
    pub fn charged(&self, rule: &str) -> Option<u64> {
        self.charge_of(rule).map(|(_, charge)| charge.cost)
    }

    /// What the claim at `place` is charged so far, if that can be corrected; places cannot.
    pub fn charged_at(&self, place: usize) -> Option<u64> {
        let held = self.held.as_ref()?;
        let is_it = |charge: &&Charge| charge.place == place && charge.limit.refundable;
        held.charges.iter().find(is_it).map(|charge| charge.cost)
    }

    /// Settles the charge of the limit named `rule`: the response reported a cost of `units`.
    pub fn settled(&self, rule: &str, units: u64) {
        let Some(held) = self.held.as_deref() else {
            return;
        };
        let charges = held.charges.iter();
        for charge in charges.filter(|charge| &*charge.limit.name == rule) {
            held.settler.counters().settled(&charge.limit, units);
        }
    }

    /// Records that the response did not report its cost for the limit named `rule`, so the
    /// estimate stays charged. Returns whether to log it: once a minute for each limit.
    pub fn unsettled(&self, rule: &str) -> bool {
        self.charge_of(rule).is_some_and(|(held, charge)| {
            let now = held.settler.now();
            held.settler.counters().unsettled(&charge.limit, now)
        })
    }

    /// Records that the response cost `units` more than was reserved for it by the limit named
    /// `rule`. Returns whether to log it: once a minute for each limit.
    pub fn over_reserved(&self, rule: &str, units: u64) -> bool {
        self.charge_of(rule).is_some_and(|(held, charge)| {
            let (counters, now) = (held.settler.counters(), held.settler.now());
            counters.over_reserved(&charge.limit, units, now)
        })
    }

    fn charge_of(&self, rule: &str) -> Option<(&Held, &Charge)> {
        let held = self.held.as_deref()?;
        let mut charges = held.charges.iter();
        Some((held, charges.find(|charge| &*charge.limit.name == rule)?))
    }

    /// Charges `more` units to the limit named `rule`, both the live limit and its candidate.
    pub fn charge_more(&mut self, rule: &str, more: u64) {
        self.each(rule, |charge, settler, _| charge.raise(settler, more));
    }

    /// Refunds `units` to the limit named `rule`, live and candidate; at most what was charged.
    pub fn refund(&mut self, rule: &str, units: u64, _leave: Credit) {
        self.each(rule, |charge, settler, drawn_at| {
            charge.give_back(settler, drawn_at, units, false);
        });
    }

    fn each(&mut self, rule: &str, correct: impl Fn(&mut Charge, &dyn Settle, Timestamp)) {
        let Some(held) = self.held.as_deref_mut() else {
            return;
        };
        let charges = held.charges.iter_mut();
        for charge in charges.filter(|charge| &*charge.limit.name == rule) {
            correct(charge, &*held.settler, held.drawn_at);
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

/// One charge that can be corrected.
struct Charge {
    place: usize,
    limit: Arc<Limit>,
    key: KeyBytes,
    cost: u64,
    from: DrawnFrom,
    /// The time until the bucket was due to be full, or its window over.
    reset: Micros,
    /// When the window of the draw ends, by the clock of its store; zero: it is not known.
    window_end: Timestamp,
    /// The moment of the draw by the same clock; zero: it is not known.
    drawn_at: Timestamp,
}

impl Charge {
    fn raise(&mut self, settler: &dyn Settle, more: u64) {
        self.cost = self.cost.saturating_add(more);
        if more > 0 {
            self.send(settler, Change::Charge { more });
        }
    }

    /// Gives back `units`, never more than are charged. `withdrawn`: the request was never forwarded.
    fn give_back(
        &mut self,
        settler: &dyn Settle,
        drawn_at: Timestamp,
        units: u64,
        withdrawn: bool,
    ) {
        let units = units.min(self.cost);
        self.cost -= units;
        let windowed = self.limit.algorithm.is_windowed();
        // Nothing is left of a finished window. (The store checks it again when the refund arrives.)
        let ended = windowed && settler.now().since(drawn_at) >= self.reset;
        if units == 0 || ended {
            return;
        }
        let local = self.limit.placement == Placement::Local;
        let change = if withdrawn && local && !windowed {
            let full_at = drawn_at.after(self.reset);
            Change::Withdraw { units, full_at }
        } else {
            self.limit.algorithm.refund(units, self.window_end)
        };
        self.send(settler, change);
    }

    fn release(&mut self, settler: &dyn Settle) {
        let units = std::mem::take(&mut self.cost);
        if units > 0 {
            self.send(settler, Change::Release { units });
        }
    }

    fn send(&self, settler: &dyn Settle, change: Change) {
        let settlement = Settlement {
            corrects: Corrects::draw_of(self.drawn_at),
            ..Settlement::new(&self.limit, &self.key, change)
        };
        settler.settle(settlement, self.from);
    }
}

/// Where the units of a charge were taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DrawnFrom {
    /// The bucket in its store, or in this process.
    Bucket,
    /// The local share of a shared limit, if it has one; `is_owed`: the store is to be charged for it.
    LocalShare { is_owed: bool },
    /// The bucket in this process, after another one got a copy of it.
    SinceHandover,
}

pub(crate) trait Settle: Send + Sync {
    /// Counts what was used of a bucket beside it; this is no correction of a charge.
    fn count_used(&self, limit: &Limit, key: &[u8], units: u64);
    fn settle(&self, settlement: Settlement<'_>, from: DrawnFrom);
    /// Where what responses cost is counted.
    fn counters(&self) -> &Counters;
    /// Records an upstream's response after `took`; the request had left `remaining` places.
    fn answered(&self, limit: &Limit, took: Micros, remaining: u64, lost: bool);
    fn now(&self) -> Timestamp;
}

/// Who caused the outcome of a request. A caller gets credit only for outcomes that the upstream alone
/// caused; otherwise callers could choose what they pay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The upstream alone, or the route's target in its place: it responded, or did not accept.
    Upstream,
    /// The upstream, which did not respond in time to a request that it received completely. It may
    /// have done all of its work, so a charge for that work stays; only a count of requests is lowered.
    Silence,
    /// The upstream, by a response that began before the request had arrived completely, or that a
    /// deadline of the request may have ended. The caller may have caused it: the response can raise
    /// a charge, not lower it.
    Early,
    /// The gateway, for a request that reached no upstream.
    Gateway,
    /// The client, or possibly the client: by its deadline, by breaking off a body or connection,
    /// or by a request that makes an upstream close the connection. The upstream may have done all
    /// of its work.
    Client,
}

/// Permission to lower a charge: [`Permit::refund`] requires it, and only
/// [`Cause::credit`] creates it.
#[derive(Clone, Copy, Debug)]
pub struct Credit(());

impl Cause {
    /// Permission to lower a charge, if no caller can provoke this cause.
    pub const fn credit(self) -> Option<Credit> {
        match self {
            Self::Upstream | Self::Silence => Some(Credit(())),
            Self::Early | Self::Gateway | Self::Client => None,
        }
    }
}

/// Waits until `clock` has reached `due`; never returns earlier. Dropping the future ends the wait.
pub async fn wait_until(clock: &Clock, due: Timestamp) {
    loop {
        let left = due.since(clock.now());
        if left.0 == 0 {
            return;
        }
        // A test sets its clock by hand, so poll it often. Held requests are rare enough for a
        // timer of the runtime, whose resolution of a millisecond is finer than a timer wheel's.
        let wait = match clock {
            Clock::System(_) => Duration::from(left),
            Clock::Manual(_) => Duration::from_millis(1),
        };
        tokio::time::sleep(wait).await;
    }
}

#[cfg(test)]
mod tests;
