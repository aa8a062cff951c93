//! Turns the decisions of buckets, store failures, shadow limits and candidates into a decision
//! about a request. Only this crate creates a [`Permit`]; it does not store buckets.
//!
//! A [`Limiter`] belongs to one compiled policy. [`Limiter::next`] creates the limiter for the next
//! policy and carries the buckets over, so that a reload refills no caller. Requests in flight
//! settle through the limiter they started with.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod cause;
mod counters;
mod debts;
mod decision;
mod feedback;
mod handover;
mod hold;
#[cfg(feature = "http")]
mod judged;
mod look;
mod overridden;
mod overrides;
mod penalized;
mod penalties;
mod two_stores;
mod peek;
mod renumbered;
mod permit;
#[cfg(feature = "http")]
pub mod settle;
#[cfg(feature = "config")]
pub mod shared_store;
mod shares;
#[cfg(feature = "tower")]
pub mod tower;
#[cfg(feature = "http")]
mod upstream_quota;

#[cfg(test)]
mod tests;

use std::io::{Read, Seek, Write};
use std::sync::{Arc, Weak};

use tollgate_limit::{
    Claim, Draw, Kind, Limit, Micros, Placement, Settlement, Timestamp, Verdict, WhenDown,
};
use tollgate_store::clock::Clock;
use tollgate_store::local::{CarryReport, ColdStart, LocalStore, SnapshotError};
use tollgate_store::{Backend, Store, StoreError};

pub use cause::{Cause, Credit};
pub use counters::{Agreement, Count, Snapshot, Units};
pub use decision::{Decision, Denied, Unavailable};
pub use feedback::RateFeedback;
pub use handover::Successor;
pub use hold::wait_until;
#[cfg(feature = "http")]
pub use judged::{Judged, denied_outcome};
pub use look::Look;
pub use overrides::{Effect, Override};
pub use peek::PeekError;
pub use penalties::{Imposed, PENALTY_TABLE, PenaltyCounts};
pub use permit::Permit;

use counters::Counters;
use feedback::Feedback;
use handover::Handover;
use overrides::{Found, Overrides};
use penalties::Penalties;
use permit::Settle;
use renumbered::Renumbered;
use shares::Shares;

/// Decides about requests under one compiled policy. Clones share the buckets.
#[derive(Debug)]
pub struct Limiter<S = Backend> {
    generation: Arc<Generation<S>>,
}

/// The state that one policy's requests share.
#[derive(Debug)]
struct Generation<S> {
    limits: Box<[Arc<Limit>]>,
    local: LocalStore,
    shared: Arc<S>,
    shares: Arc<Shares>,
    counters: Counters,
    feedback: Feedback,
    handover: Arc<Handover>,
    overrides: Arc<Overrides>,
    penalties: Arc<Penalties>,
    renumbered: Renumbered,
    /// Whether a limit has a penalty.
    has_penalties: bool,
    /// For each limit, the bucket in the shared store that says whether a key is blocked.
    penalty_buckets: Box<[Option<Limit>]>,
}

impl<S: Store + Send + Sync> Limiter<S> {
    /// A limiter for `limits` (`limits[i].index == i`). The buckets of limits with
    /// [`Placement::Shared`] are in `shared`.
    pub fn new(limits: &[Arc<Limit>], shared: Arc<S>, clock: Clock, cold_start: ColdStart) -> Self {
        debug_assert!(
            limits
                .iter()
                .enumerate()
                .all(|(index, limit)| limit.index == index),
            "indices are dense"
        );
        Self::with(limits, shared, LocalStore::new(limits, clock, cold_start))
    }

    /// A limiter for `limits`, restored from a snapshot written by [`Limiter::save`].
    ///
    /// # Errors
    /// When the snapshot cannot be used. Then start with [`Limiter::new`] and the configured
    /// `cold_start`.
    pub fn restored(
        limits: &[Arc<Limit>],
        shared: Arc<S>,
        clock: Clock,
        snapshot: impl Read + Seek,
    ) -> Result<(Self, CarryReport), SnapshotError> {
        let (local, report) = LocalStore::restored(limits, clock, snapshot)?;
        let limiter = Self::with(limits, shared, local);
        let generation = &limiter.generation;
        let now = generation.local.clock().now();
        generation.feedback.relearn(&report.learnt, now);
        Ok((limiter, report))
    }

    /// Writes the local buckets, and what limits have learnt from their upstreams, like
    /// [`LocalStore::save`].
    ///
    /// # Errors
    /// When `writer` fails.
    pub fn save(&self, writer: impl Write) -> Result<(), SnapshotError> {
        let learnt = self.generation.feedback.learnt();
        self.generation.local.save(writer, &learnt)
    }

    fn with(limits: &[Arc<Limit>], shared: Arc<S>, local: LocalStore) -> Self {
        let shares = Shares::new(limits, shared.replicas(), local.clock().clone());
        substitute(&*shared, &shares);
        Self {
            generation: Arc::new(Generation {
                limits: limits.into(),
                local,
                shared,
                shares,
                counters: Counters::new(limits),
                feedback: Feedback::new(limits),
                handover: Arc::default(),
                overrides: Arc::default(),
                penalties: Arc::default(),
                renumbered: Renumbered::default(),
                has_penalties: has_penalties(limits),
                penalty_buckets: penalized::buckets(limits),
            }),
        }
    }

    /// The limiter for the next policy. Buckets are carried over by name, tier and role: unchanged
    /// limits keep the same buckets, changed numbers rescale them and never add units, a changed
    /// algorithm starts fresh. Charges of requests still in flight on `self` are not lost.
    pub fn next(&self, limits: &[Arc<Limit>], shared: Arc<S>) -> (Self, CarryReport) {
        let before = &self.generation;
        let (local, report) = before.local.next(limits);
        let shares = before.shares.next(
            limits,
            shared.replicas(),
            Arc::ptr_eq(&before.shared, &shared),
        );
        substitute(&*shared, &shares);
        let now = before.local.clock().now();
        let renumbered = Renumbered::new(&before.renumbered, &before.limits, limits, now);
        let generation = Generation {
            limits: limits.into(),
            local,
            shared,
            shares,
            counters: before.counters.next(&before.limits, limits),
            feedback: before.feedback.next(&before.limits, limits),
            handover: Arc::clone(&before.handover),
            overrides: Arc::clone(&before.overrides),
            penalties: Arc::clone(&before.penalties),
            renumbered,
            has_penalties: has_penalties(limits),
            penalty_buckets: penalized::buckets(limits),
        };
        (
            Self {
                generation: Arc::new(generation),
            },
            report,
        )
    }

    /// Decides about one request: all of `claims` are charged, or none. `now` is the moment the
    /// request arrived; shared stores use their own clock.
    pub async fn check(&self, claims: &[Claim<'_>], now: Timestamp) -> Decision {
        match self.try_check(claims, now) {
            Some(decision) => decision,
            None => self.ask(claims, now, None).await,
        }
    }

    /// Decides about a request that [`Limiter::try_check`] could not decide. `without`: why the
    /// shared store need not be asked, if [`Limiter::look`] has found that it does not respond.
    pub async fn ask(
        &self,
        claims: &[Claim<'_>],
        now: Timestamp,
        without: Option<StoreError>,
    ) -> Decision {
        let found = self.generation.found(claims, now);
        if self.generation.penalizes(claims) {
            let decided = penalized::check(&self.generation, claims, found, now, without);
            return Box::pin(decided).await;
        }
        if let Some(found) = found {
            let decided = overridden::check(&self.generation, claims, &found, now, without);
            return Box::pin(decided).await;
        }
        two_stores::check(&self.generation, claims, now, without).await
    }

    /// Decides immediately if every bucket is in the process; `None` if another store must be
    /// [asked](Limiter::ask).
    pub fn try_check(&self, claims: &[Claim<'_>], now: Timestamp) -> Option<Decision> {
        if claims
            .iter()
            .any(|claim| claim.limit.placement == Placement::Shared)
            || self.generation.handover.is_away()
        {
            return None;
        }
        let found = self.generation.found(claims, now);
        if self.generation.penalizes(claims) {
            let found = found.as_ref();
            return Some(penalized::check_here(&self.generation, claims, found, now));
        }
        Some(self.generation.check_here(claims, found.as_ref(), now))
    }

    /// Refuses a request that was granted and is not forwarded, and gives back what it took. `claims`
    /// are those of the draw; those that could not pay and are enforced now refuse, and are counted.
    pub fn refuse(&self, permit: Permit, claims: &[Claim<'_>]) -> Denied {
        let denied = permit.refuse(claims);
        for place in denied.refused() {
            self.generation.counters.refused(&claims[place]);
        }
        denied
    }

    /// What the limit at `index` has learnt from its upstream, if its rate follows that upstream.
    pub fn rate_feedback(&self, index: usize) -> Option<&RateFeedback> {
        self.generation.feedback.rate(index)
    }

    /// What each limit has decided so far. The counts survive reloads.
    pub fn snapshot(&self) -> Vec<Snapshot> {
        let generation = &self.generation;
        let now = generation.local.clock().now();
        generation
            .counters
            .snapshot(&generation.limits, &generation.feedback, now, |index| {
                generation.local.tally(index)
            })
    }

    /// The buckets in the process: for inspection, saving and restoring.
    pub fn local(&self) -> &LocalStore {
        &self.generation.local
    }

    /// The shared store.
    pub fn shared(&self) -> &Arc<S> {
        &self.generation.shared
    }

    /// The limits, by index.
    pub fn limits(&self) -> &[Arc<Limit>] {
        &self.generation.limits
    }
}

impl<S> Clone for Limiter<S> {
    fn clone(&self) -> Self {
        Self {
            generation: Arc::clone(&self.generation),
        }
    }
}

impl<S: Store + Send + Sync> Generation<S> {
    /// Draws from the buckets of this process.
    #[inline]
    fn draw_here(&self, claims: &[Claim<'_>], now: Timestamp) -> Draw {
        if self.feedback.is_idle() {
            return self.local.draw_at(claims, now);
        }
        let conditions = self.feedback.conditions(claims, now);
        self.local
            .draw_at(&feedback::under(claims, &conditions), now)
    }

    /// Decides immediately; `found`: the overrides of the claims.
    #[inline]
    fn check_here(
        self: &Arc<Self>,
        claims: &[Claim<'_>],
        found: Option<&Found>,
        now: Timestamp,
    ) -> Decision {
        match found {
            Some(found) => overridden::check_here(self, claims, found, now),
            None => self.draw_and_decide(claims, now),
        }
    }

    #[inline]
    fn draw_and_decide(self: &Arc<Self>, claims: &[Claim<'_>], now: Timestamp) -> Decision {
        let draw = self.draw_here(claims, now);
        self.decide(claims, draw.granted, draw.standings, 0, now)
    }

    /// Turns the buckets' decisions into a decision about the request. Bit i of `ungoverned`: claim
    /// i was decided without its store.
    fn decide(
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
}

impl<S: Store + Send + Sync> Generation<S> {
    /// Corrects a bucket; `ungoverned`: its charge was made on the local share of a shared limit.
    fn correct(&self, settlement: Settlement<'_>, ungoverned: bool) {
        match (settlement.limit.placement, ungoverned) {
            (Placement::Local, _) => self.settle_local(settlement, self.local.clock().now()),
            (Placement::Shared, false) => self.shared.settle(&[settlement]),
            (Placement::Shared, true) => {
                self.shares
                    .settle(settlement, self.local.clock().now(), &*self.shared)
            }
        }
    }
}

impl<S: Store + Send + Sync> Settle for Generation<S> {
    fn settle(&self, settlement: Settlement<'_>, ungoverned: bool) {
        self.counters.corrected(settlement.limit, settlement.change);
        self.correct(settlement, ungoverned);
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

fn has_penalties(limits: &[Arc<Limit>]) -> bool {
    limits.iter().any(|limit| limit.penalty.is_some())
}

/// Makes `shares` decide while `store` does not respond.
fn substitute(store: &impl Store, shares: &Arc<Shares>) {
    let shares: Weak<Shares> = Arc::downgrade(shares);
    store.substitute(shares);
}

/// Of the claims that were decided without their store, those whose limit is then decided by no
/// bucket.
fn unasked(claims: &[Claim<'_>], ungoverned: u16) -> u16 {
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

/// One bit for each claim; the first claim is the lowest bit.
fn bits(claims: impl Iterator<Item = bool>) -> u16 {
    claims.enumerate().fold(0, |bits, (place, set)| {
        if set {
            bits | decision::bit(place)
        } else {
            bits
        }
    })
}

/// Whether a limit's units are places that are held until the request ends.
fn is_in_flight(limit: &Limit) -> bool {
    limit.algorithm.kind() == Kind::InFlight
}

/// Whether a limit's units belong to a window that ends: a later refund would land in another one.
fn is_windowed(limit: &Limit) -> bool {
    matches!(
        limit.algorithm.kind(),
        Kind::Interval | Kind::FixedWindow | Kind::SlidingWindow | Kind::SlidingLog
    )
}

fn allows(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Allow { .. })
}

/// Runs the README's example as a test.
#[cfg(all(doctest, feature = "tower"))]
#[doc = include_str!("../README.md")]
struct Readme;
