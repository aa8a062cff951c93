//! What the requests under one policy share, and a decision in it: the buckets' verdicts become one
//! about the request.

use std::sync::Arc;

use tollgate_limit::{Claim, Draw, Limit, Micros, Placement, Settlement, Timestamp, WhenDown};
use tollgate_store::Store;
use tollgate_store::local::LocalStore;

use super::counters::Counters;
use super::feedback::{self, Feedback};
use super::handover::Handover;
use super::overrides::Overrides;
use super::penalties::Penalties;
use super::permit::{DrawnFrom, Settle};
use super::shares::Shares;
use super::{Decision, Denied, Permit, decision, is_in_flight};

/// The state that one policy's requests share.
#[derive(Debug)]
pub(crate) struct Generation<S> {
    pub(crate) limits: Box<[Arc<Limit>]>,
    pub(crate) local: LocalStore,
    pub(crate) shared: Arc<S>,
    pub(crate) shares: Arc<Shares>,
    pub(crate) counters: Counters,
    pub(crate) feedback: Feedback,
    pub(crate) handover: Arc<Handover>,
    pub(crate) overrides: Arc<Overrides>,
    pub(crate) penalties: Arc<Penalties>,
}

impl<S: Store + Send + Sync> Generation<S> {
    /// Draws from the buckets of this process.
    #[inline]
    pub(crate) fn draw_here(&self, claims: &[Claim<'_>], now: Timestamp) -> Draw {
        if self.feedback.is_idle() {
            return self.local.draw_at(claims, now);
        }
        let conditions = self.feedback.conditions(claims, now);
        self.local
            .draw_at(&feedback::under(claims, &conditions), now)
    }

    #[inline]
    pub(crate) fn draw_and_decide(
        self: &Arc<Self>,
        claims: &[Claim<'_>],
        now: Timestamp,
    ) -> Decision {
        let draw = self.draw_here(claims, now);
        self.decide(claims, draw.granted, draw.standings, 0, now)
    }

    /// Turns the buckets' decisions into a decision about the request. Bit i of `ungoverned`: claim
    /// i was decided without its store.
    pub(crate) fn decide(
        self: &Arc<Self>,
        claims: &[Claim<'_>],
        granted: bool,
        standings: decision::Standings,
        ungoverned: u16,
        now: Timestamp,
    ) -> Decision {
        self.counters
            .count(claims, &standings, granted, ungoverned, 0);
        if granted {
            return Decision::Allow(Permit::new(self, claims, standings, ungoverned, now));
        }
        let denied = Denied::new(claims, standings, unasked(claims, ungoverned));
        Decision::Deny(denied.without_store(ungoverned))
    }

    /// The refusal of a request for which no bucket was asked.
    pub(crate) fn deny(&self, claims: &[Claim<'_>], denied: Denied) -> Decision {
        self.counters.denied(claims, &denied);
        Decision::Deny(denied)
    }

    /// Counts the refusals of claims by their own buckets towards their penalties, and blocks keys
    /// because of them.
    pub(crate) fn count_refusals(&self, claims: &[Claim<'_>], denied: &mut Denied, now: Timestamp) {
        if denied.is_blocked() {
            return;
        }
        for (place, claim) in claims.iter().enumerate() {
            // An outage of the store is not the caller's fault.
            let counts = denied.is_refused_by(place) && !denied.is_ungoverned(place);
            let Some(penalty) = claim.limit.penalty.filter(|_| counts) else {
                continue;
            };
            let own = denied.wait_of(place);
            let admits = now.after(own.unwrap_or_default());
            let block = self.penalties.refused(claim, penalty, admits, now);
            // A request that costs more than the limit can ever grant keeps that reason.
            if let Some(block) = block.filter(|_| own.is_some() || is_in_flight(claim.limit)) {
                denied.block(place, block, now);
            }
        }
    }

    /// Corrects the bucket of a charge that was made on `from`.
    pub(crate) fn correct(&self, settlement: Settlement<'_>, from: DrawnFrom) {
        match (settlement.limit.placement, from) {
            (Placement::Local, _) => self.settle_local(settlement, from, self.local.clock().now()),
            (Placement::Shared, DrawnFrom::Bucket | DrawnFrom::SinceHandover) => {
                self.shared.settle(&[settlement]);
            }
            (Placement::Shared, DrawnFrom::LocalShare) => {
                self.shares
                    .settle(settlement, self.local.clock().now(), &*self.shared)
            }
        }
    }
}

impl<S: Store + Send + Sync> Settle for Generation<S> {
    fn settle(&self, settlement: Settlement<'_>, from: DrawnFrom) {
        self.counters.corrected(settlement.limit, settlement.change);
        self.correct(settlement, from);
    }

    fn settled(&self, limit: &Limit, units: u64) {
        self.counters.settled(limit, units);
    }

    fn unsettled(&self, limit: &Limit) -> bool {
        self.counters.unsettled(limit, self.local.clock().now())
    }

    fn over_reserved(&self, limit: &Limit, units: u64) -> bool {
        self.counters
            .over_reserved(limit, units, self.local.clock().now())
    }

    fn answered(&self, limit: &Limit, took: Micros, remaining: u64, lost: bool) {
        let now = self.local.clock().now();
        self.feedback
            .answered(limit.index, now, took, remaining, lost);
    }

    fn now(&self) -> Timestamp {
        self.local.clock().now()
    }
}

/// Of the claims that were decided without their store, those whose limit is then decided by no
/// bucket.
pub(crate) fn unasked(claims: &[Claim<'_>], ungoverned: u16) -> u16 {
    let needs_no_store = |(place, claim): (usize, &Claim<'_>)| match claim.limit.when_down {
        WhenDown::Allow => decision::bit(place),
        WhenDown::LocalShare | WhenDown::Refuse => 0,
    };
    if ungoverned == 0 {
        0
    } else {
        claims.iter().enumerate().map(needs_no_store).sum::<u16>() & ungoverned
    }
}
