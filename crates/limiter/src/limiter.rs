//! The limiter of one compiled policy.

use std::io::{Read, Seek, Write};
use std::sync::{Arc, Weak};

use tollgate_limit::{Change, Claim, Limit, Micros, Placement, Settlement, Timestamp};
use tollgate_store::clock::Clock;
use tollgate_store::local::{CarryReport, ColdStart, LocalStore, Remembered, SnapshotError};
use tollgate_store::{Backend, Deadline, Store};

use super::counters::{Counters, Snapshot};
use super::decide::Deciding;
use super::decision::Denied;
use super::feedback::{Feedback, RateFeedback};
use super::handover::{Handover, Successor};
use super::outcome::Block;
use super::overrides::{Override, Overrides};
use super::penalties::{Imposed, Penalties, PenaltyCounts};
use super::permit::{DrawnFrom, Settle};
use super::shares::Shares;

/// Decides about requests under one compiled policy. Clones share the buckets.
#[derive(Debug)]
pub struct Limiter<S = Backend> {
    pub(super) generation: Arc<Generation<S>>,
}

impl<S: Store> Limiter<S> {
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
    /// When the snapshot cannot be used. Then start with [`Limiter::new`] and the configured `cold_start`.
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
        let now = limiter.now();
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
        shares.saved(|shares| local.save(Some(shares), writer, &also))
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
        let now = self.now();
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
    /// request arrived; shared stores use their own clock. The decision is there at once unless the
    /// shared store must be asked.
    pub fn decide<'a>(&'a self, claims: &[Claim<'a>], now: Timestamp) -> Deciding<'a, S> {
        self.generation.decide(claims, now, true)
    }

    /// The same for a request that may wait and ask again: its refusal is not counted before
    /// [`Limiter::count_refusal`] does that.
    pub fn try_decide<'a>(&'a self, claims: &[Claim<'a>], now: Timestamp) -> Deciding<'a, S> {
        self.generation.decide(claims, now, false)
    }

    /// Whether `claims` would be granted at `now`; nothing is charged, and nothing is counted. What only
    /// the shared store knows while it does not respond may be granted, and so may leased limits: the
    /// level in the store does not include the units this gateway holds.
    ///
    /// # Errors
    /// The refusal. If the request gets it, [`Limiter::count_refusal`] counts it.
    pub async fn look(
        &self,
        claims: &[Claim<'_>],
        now: Timestamp,
        deadline: &Deadline,
    ) -> Result<(), Denied> {
        self.generation.look(claims, now, deadline).await
    }

    /// Counts a refusal that was not counted yet, also towards penalties, which may block a key.
    pub fn count_refusal(&self, claims: &[Claim<'_>], denied: &mut Denied, now: Timestamp) {
        self.generation.count_refusal(claims, &mut denied.0, now);
    }

    /// What the limit at `index` has learnt from its upstream, if its rate follows that upstream.
    pub fn rate_feedback(&self, index: usize) -> Option<&RateFeedback> {
        self.generation.feedback.rate(index)
    }

    /// What each limit has decided so far. The counts survive reloads.
    pub fn snapshot(&self) -> Vec<Snapshot> {
        let (generation, now) = (&self.generation, self.now());
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

    /// The store of limits with [`Placement::Shared`].
    pub fn shared(&self) -> &Arc<S> {
        &self.generation.shared
    }

    /// The limits of the policy, by index.
    pub fn limits(&self) -> &[Arc<Limit>] {
        &self.generation.limits
    }

    /// Puts these overrides in force instead of all earlier ones.
    pub fn put_overrides(&self, overrides: impl IntoIterator<Item = Override>) {
        self.generation.overrides.put(overrides);
    }

    /// Names the buckets of the process by this secret, which must be the same after a restart for
    /// overrides to be found again. Overrides that were put under other names are gone.
    pub fn name_buckets_by(&self, secret: &[u8]) {
        self.generation.overrides.name_buckets_by(secret);
    }

    /// The name of the bucket of `limit` for `key` in overrides; `None`: its store is not there.
    pub fn bucket_hash(&self, limit: &Limit, key: &[u8]) -> Option<u128> {
        let generation = &self.generation;
        match limit.placement {
            Placement::Local => Some(generation.overrides.local_name(limit, key)),
            Placement::Shared => generation.shared.bucket_hash(limit, key),
        }
    }

    /// The override in force for the bucket of `limit` for `key`.
    pub fn overridden(&self, limit: &Limit, key: &[u8]) -> Option<Override> {
        let generation = &self.generation;
        let (store, now) = (&*generation.shared, self.now());
        generation.overrides.of(limit, key, store, now)
    }

    /// The block of `key` by the penalty of `limit` that is in force on this gateway. It ends when it
    /// was said to end, whatever a later policy says.
    pub fn penalty(&self, limit: &Limit, key: &[u8]) -> Option<Block> {
        self.generation.penalties.block(limit, key, self.now())
    }

    /// Lifts the penalty of `key` under `limit`; returns whether one was in force.
    pub fn lift_penalty(&self, limit: &Limit, key: &[u8]) -> bool {
        self.generation.penalties.lift(limit, key, self.now())
    }

    /// The blocks that this gateway has imposed since the last call.
    pub fn take_penalties(&self) -> Vec<Imposed> {
        self.generation.penalties.take()
    }

    /// What the penalties of this gateway have done so far.
    pub fn penalty_counts(&self) -> PenaltyCounts {
        self.generation.penalties.counts()
    }

    /// Begins a handover: corrections wait from now on, and shares of shared limits grant nothing. A
    /// draw that has begun on another thread may still be writing when this returns; the code that
    /// saves the buckets must make sure that none is.
    pub fn begin_handover(&self) {
        self.generation.handover.begin();
    }

    /// There is no successor after all.
    pub fn abandon_handover(&self) {
        self.generation.shares.stay();
        self.end_handover(None);
    }

    /// `successor` serves by the copy from now on.
    pub fn hand_to(&self, successor: Arc<dyn Successor>) {
        self.generation.shares.left();
        self.end_handover(Some(successor));
    }

    fn end_handover(&self, successor: Option<Arc<dyn Successor>>) {
        let Generation {
            handover,
            limits,
            local,
            ..
        } = &*self.generation;
        handover.end(successor, limits, local);
    }

    /// Corrects a charge for a process that has handed over its buckets.
    pub fn settle_for(&self, settlement: Settlement<'_>) {
        self.generation.settle_local(settlement, DrawnFrom::Bucket);
    }

    fn now(&self) -> Timestamp {
        self.generation.local.clock().now()
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

/// What the requests under one policy share.
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

impl<S: Store> Generation<S> {
    /// Corrects a bucket of this process, and its copy in another one.
    pub(crate) fn settle_local(&self, settlement: Settlement<'_>, from: DrawnFrom) {
        self.handover
            .settle(settlement, from, &self.limits, &self.local);
    }

    /// Corrects the bucket of a charge that was made on `from`.
    pub(crate) fn correct(&self, settlement: Settlement<'_>, from: DrawnFrom) {
        match (settlement.limit.placement, from) {
            (Placement::Local, _) => self.settle_local(settlement, from),
            (Placement::Shared, DrawnFrom::Bucket | DrawnFrom::SinceHandover) => {
                self.shared.settle(&[settlement]);
            }
            (Placement::Shared, DrawnFrom::LocalShare { is_owed }) => {
                self.shares.settle(settlement, &*self.shared, is_owed);
            }
        }
    }
}

impl<S: Store> Settle for Generation<S> {
    fn count_used(&self, limit: &Limit, key: &[u8], units: u64) {
        let used = Settlement::new(limit, key, Change::Charge { more: units });
        self.correct(used, DrawnFrom::Bucket);
    }

    fn settle(&self, settlement: Settlement<'_>, from: DrawnFrom) {
        self.counters.corrected(settlement.limit, settlement.change);
        self.correct(settlement, from);
    }

    fn counters(&self) -> &Counters {
        &self.counters
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
