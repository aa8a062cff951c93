//! Turns the decisions of buckets, store failures, shadow limits and candidates into a decision
//! about a request. Only this crate creates a [`Permit`]; it does not store buckets.
//!
//! A [`Limiter`] belongs to one compiled policy. [`Limiter::next`] creates the limiter for the next
//! policy and carries the buckets over, so that a reload refills no caller. Requests in flight
//! settle through the limiter they started with.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cause;
mod counters;
mod debts;
mod decision;
mod feedback;
mod generation;
mod handover;
mod hold;
mod look;
mod overrides;
mod penalties;
mod two_stores;
mod peek;
mod permit;
mod resolve;
mod shares;

#[cfg(test)]
mod tests;

use std::io::{Read, Seek, Write};
use std::sync::{Arc, Weak};

use tollgate_limit::{Claim, Kind, Limit, Placement, Timestamp, Verdict};
use tollgate_store::clock::Clock;
use tollgate_store::local::{CarryReport, ColdStart, LocalStore, Remembered, SnapshotError};
use tollgate_store::{Backend, Store};

pub use cause::{Cause, Credit};
pub use counters::{Agreement, Count, Snapshot, Units};
pub use decision::{Decision, Denied, Unavailable};
pub use feedback::RateFeedback;
pub use handover::Successor;
pub use hold::wait_until;
pub use overrides::{Effect, Override};
pub use peek::Peeked;
pub use penalties::{Imposed, PENALTY_TABLE, PenaltyCounts};
pub use permit::{OpenCharge, Permit};
pub use resolve::{Block, BlockCause};
pub use tollgate_store::Deadline;

use counters::Counters;
use feedback::Feedback;
use generation::{Generation, unasked};
use penalties::Penalties;
use shares::Shares;

/// Decides about requests under one compiled policy. Clones share the buckets.
#[derive(Debug)]
pub struct Limiter<S = Backend> {
    generation: Arc<Generation<S>>,
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
        let local = LocalStore::new(limits, clock, cold_start);
        let shares = Shares::new(limits, shared.replicas(), &local);
        Self::with(limits, shared, local, shares)
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
        let mut snapshot = snapshot;
        let (local, report) = LocalStore::restored(limits, clock.clone(), &mut snapshot)?;
        if report.also.replicas > 0 {
            shared.assume_replicas(report.also.replicas);
        }
        let (replicas, unpaid) = (shared.replicas(), &report.also.unpaid);
        let shares = Shares::restored(limits, replicas, clock, snapshot, unpaid)?;
        let limiter = Self::with(limits, shared, local, shares);
        let generation = &limiter.generation;
        let now = generation.local.clock().now();
        generation.feedback.relearn(&report.also.learnt, now);
        generation.penalties.restore(&report.also.penalized, now);
        Ok((limiter, report))
    }

    /// Writes the local buckets, the shares of shared limits and what they owe, what limits have learnt
    /// from their upstreams, and which keys were refused too often, like [`LocalStore::save`].
    ///
    /// # Errors
    /// When `writer` fails.
    pub fn save(&self, writer: impl Write) -> Result<(), SnapshotError> {
        let also = self.remembered();
        let Generation { local, shares, .. } = &*self.generation;
        shares.saved(|shares| local.save_with_shares(shares, writer, &also))
    }

    /// The same for a process that takes over, with the places of requests that this one ends.
    ///
    /// # Errors
    /// When `writer` fails.
    pub fn save_for_handover(&self, writer: impl Write) -> Result<(), SnapshotError> {
        let generation = &self.generation;
        let Generation { local, shares, .. } = &**generation;
        let mut also = self.remembered();
        also.unpaid = shares.leave();
        shares.saved(|shares| local.save_for_handover(Some(shares), writer, &also))
    }

    /// What a snapshot has beside the buckets.
    fn remembered(&self) -> Remembered {
        let generation = &self.generation;
        let now = generation.local.clock().now();
        let (unpaid, replicas) = generation.shares.unpaid();
        Remembered {
            learnt: generation.feedback.learnt(),
            penalized: generation.penalties.in_force(now),
            unpaid,
            replicas,
        }
    }

    fn with(limits: &[Arc<Limit>], shared: Arc<S>, local: LocalStore, shares: Arc<Shares>) -> Self {
        substitute(&*shared, &shares);
        let penalties = Arc::new(Penalties::new(local.names()));
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
                penalties,
            }),
        }
    }

    /// The limiter for the next policy. Buckets are carried over by name, tier and role: unchanged
    /// limits keep the same buckets, changed numbers never add units to a token bucket, another algorithm or
    /// period begins new ones. Charges of requests still in flight on `self` are not lost.
    pub fn next(&self, limits: &[Arc<Limit>], shared: Arc<S>) -> (Self, CarryReport) {
        let before = &self.generation;
        let (local, report) = before.local.next(limits);
        let shares = before.shares.next(
            limits,
            shared.replicas(),
            Arc::ptr_eq(&before.shared, &shared),
        );
        substitute(&*shared, &shares);
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
            None => self.ask(claims, now, &Deadline::default()).await,
        }
    }

    /// Decides about a request that [`Limiter::try_check`] could not decide. `deadline`: when the work
    /// of this request on the shared store ends, here and in its other calls.
    pub async fn ask(&self, claims: &[Claim<'_>], now: Timestamp, deadline: &Deadline) -> Decision {
        let generation = &self.generation;
        let mut decision = match generation.resolve(claims, now) {
            None => two_stores::check(generation, claims, now, deadline).await,
            Some(resolved) => {
                let decided = resolve::check(generation, claims, &resolved, now, deadline);
                Box::pin(decided).await
            }
        };
        if let Decision::Deny(denied) = &mut decision {
            // The waits count from the moment at which the store said them.
            let said = generation.local.clock().now().max(now);
            generation.count_refusals(claims, denied, said);
        }
        decision
    }

    /// Decides immediately if every bucket is in the process; `None` if another store must be
    /// [asked](Limiter::ask).
    pub fn try_check(&self, claims: &[Claim<'_>], now: Timestamp) -> Option<Decision> {
        if claims
            .iter()
            .any(|claim| claim.limit.placement == Placement::Shared)
        {
            return None;
        }
        let generation = &self.generation;
        let mut decision = match generation.resolve(claims, now) {
            None => generation.draw_and_decide(claims, now),
            Some(resolved) => resolve::check_here(generation, claims, &resolved, now),
        };
        if let Decision::Deny(denied) = &mut decision {
            generation.count_refusals(claims, denied, now);
        }
        Some(decision)
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

/// Makes `shares` decide while `store` does not respond.
fn substitute(store: &impl Store, shares: &Arc<Shares>) {
    let shares: Weak<Shares> = Arc::downgrade(shares);
    store.substitute(shares);
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
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
