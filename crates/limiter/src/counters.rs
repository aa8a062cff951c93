//! Counts what each limit decided. The counts survive reloads.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tollgate_limit::{Change, Claim, Limit, Micros, Role, Timestamp, UNITS_MAX};
use tollgate_store::local::Tally;

use super::feedback::Feedback;
use super::outcome::{By, Outcome};

#[derive(Debug)]
pub(super) struct Counters {
    limits: Box<[Arc<LimitCounters>]>,
}

/// The counters of one limit, which reloads keep.
#[derive(Debug, Default)]
struct LimitCounters {
    /// Several copies, so that threads that count at the same time do not pass one cache line back and
    /// forth on every request.
    stripes: [Stripe; STRIPES],
    /// Responses that reported their cost, and the sum of the units they reported.
    settled: AtomicU64,
    settled_units: AtomicU64,
    /// Responses that did not report their cost.
    unsettled: AtomicU64,
    unsettled_log: Quiet,
    /// Units that responses cost above their reservations.
    over_reserved: AtomicU64,
    over_reserved_log: Quiet,
}

/// No log line before this moment, in microseconds.
#[derive(Debug, Default)]
struct Quiet(AtomicU64);

impl Quiet {
    /// Whether to log now; then no more for a while.
    fn is_over(&self, now: Timestamp) -> bool {
        let until = self.0.load(Ordering::Relaxed);
        let next = now.after(QUIET).as_micros();
        // Of two concurrent threads only one logs.
        let first = || {
            self.0
                .compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed)
        };
        now.as_micros() >= until && first().is_ok()
    }
}

/// One copy of the counters of a limit's decisions.
///
/// Every counter only grows, so that no scrape sees a total fall.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe {
    /// Requests that took at least one unit.
    charged: AtomicU64,
    /// Requests that the bucket could pay and that took nothing: another limit refused them, they
    /// cost nothing, or no bucket was asked.
    uncharged: AtomicU64,
    refused: AtomicU64,
    shadow_refused: AtomicU64,
    units_charged: AtomicU64,
    units_given_back: AtomicU64,
    units_refused: AtomicU64,
    units_shadow_refused: AtomicU64,
    ungoverned: AtomicU64,
    both_allow: AtomicU64,
    both_refuse: AtomicU64,
    only_live_refuses: AtomicU64,
    only_candidate_refuses: AtomicU64,
}

/// What one limit has decided so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The limit that these numbers are of.
    pub limit: Arc<Limit>,
    /// What the limit has decided.
    pub count: Count,
    /// For a candidate: how it compared with the live limit.
    pub agreement: Agreement,
    /// Counters of what its local table did to stay within its memory.
    pub table: Tally,
    /// The share of its rate that is granted, in 1/1024, if it follows the upstream's health.
    pub factor: Option<u32>,
    /// How long it will grant nothing, if it obeys its upstream's quota.
    pub held: Option<Micros>,
    /// The number of places, if it is an adaptive concurrency limit.
    pub places: Option<u32>,
}

/// The decisions of one limit so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Count {
    /// The limit's bucket could pay.
    pub allowed: u64,
    /// The bucket could not pay, and the request was refused.
    pub refused: u64,
    /// The bucket could not pay, and this was only counted.
    pub shadow_refused: u64,
    /// Decided without the shared store, because it did not respond.
    pub ungoverned: u64,
    /// Responses that reported their cost.
    pub settled: u64,
    /// The total cost that those responses reported, in units.
    pub settled_units: u64,
    /// Responses that did not report their cost, so that the estimate stayed charged.
    pub unsettled: u64,
    /// Units that responses cost above what was reserved for them.
    pub over_reserved: u64,
    /// Units of the requests above.
    pub units: Units,
}

/// Units of one limit; places of concurrency limits are units, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Units {
    /// Taken from buckets by admitted requests, and charged later by their responses.
    pub charged: u64,
    /// Given back: by refunds, by settlements, and for requests that were never forwarded. Places
    /// that become free are not included.
    pub given_back: u64,
    /// Asked for by requests that the limit refused.
    pub refused: u64,
    /// Asked for by requests that the limit would have refused.
    pub shadow_refused: u64,
}

/// How a candidate's verdicts compared with the live limit's, on the same requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Agreement {
    /// Requests that both could pay.
    pub both_allow: u64,
    /// Requests that neither could pay.
    pub both_refuse: u64,
    /// Only the live limit could not pay.
    pub only_live_refuses: u64,
    /// Only the candidate could not pay.
    pub only_candidate_refuses: u64,
}

impl Counters {
    pub(super) fn new(limits: &[Arc<Limit>]) -> Self {
        Self {
            limits: limits.iter().map(|_| Arc::default()).collect(),
        }
    }

    /// The counters for the next policy. Limits of the same name, tier and role keep their counts.
    pub(super) fn next(&self, before: &[Arc<Limit>], limits: &[Arc<Limit>]) -> Self {
        fn named(limit: &Limit) -> (&str, Option<&str>, Role) {
            (&limit.name, limit.tier.as_deref(), limit.role)
        }
        let before = before.iter().map(|limit| named(limit));
        let before: HashMap<_, _> = before.zip(&self.limits).collect();
        let limits = limits.iter().map(|limit| {
            let known = before.get(&named(limit));
            known
                .map(|counters| Arc::clone(counters))
                .unwrap_or_default()
        });
        Self {
            limits: limits.collect(),
        }
    }

    /// Counts a decision; `granted`: the buckets were charged.
    pub(super) fn count(&self, claims: &[Claim<'_>], outcomes: &[Outcome], granted: bool) {
        let stripe = STRIPE.with(|stripe| *stripe);
        for (claim, outcome) in claims.iter().zip(outcomes) {
            if matches!(outcome.by, By::Unasked | By::Unlimited) {
                continue;
            }
            let Some(limit) = self.limits.get(claim.limit.index) else {
                continue;
            };
            let counters = &limit.stripes[stripe];
            let allowed = outcome.standing.verdict.is_allow();
            let (requests, units) = match (allowed, outcome.enforced) {
                (true, _) if granted && claim.cost > 0 && outcome.by != By::StoreDown => {
                    (&counters.charged, Some(&counters.units_charged))
                }
                (true, _) => (&counters.uncharged, None),
                (false, true) => (&counters.refused, Some(&counters.units_refused)),
                (false, false) => (
                    &counters.shadow_refused,
                    Some(&counters.units_shadow_refused),
                ),
            };
            requests.fetch_add(1, Ordering::Relaxed);
            if let Some(units) = units {
                // A cost is the caller's to choose, and may be larger than every burst. Bounded, it
                // takes thousands of such requests to wrap the counter around.
                units.fetch_add(claim.cost.min(UNITS_MAX), Ordering::Relaxed);
            }
            if outcome.is_without_store() {
                counters.ungoverned.fetch_add(1, Ordering::Relaxed);
            }
            if claim.limit.role == Role::Candidate
                && let Some(live_allows) = live_allows(claim, claims, outcomes)
            {
                let counter = match (live_allows, allowed) {
                    (true, true) => &counters.both_allow,
                    (false, false) => &counters.both_refuse,
                    (false, true) => &counters.only_live_refuses,
                    (true, false) => &counters.only_candidate_refuses,
                };
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn corrected(&self, limit: &Limit, change: Change) {
        let Some(limit) = self.limits.get(limit.index) else {
            return;
        };
        let counters = &limit.stripes[STRIPE.with(|stripe| *stripe)];
        let (counter, units) = match change {
            Change::Charge { more } => (&counters.units_charged, more),
            Change::Refund { units }
            | Change::RefundWithin { units, .. }
            | Change::Withdraw { units, .. } => (&counters.units_given_back, units),
            Change::Release { .. } => return,
        };
        counter.fetch_add(units, Ordering::Relaxed);
    }

    /// Counts a response that reported a cost of `units`.
    pub(super) fn settled(&self, limit: &Limit, units: u64) {
        if let Some(limit) = self.limits.get(limit.index) {
            limit.settled.fetch_add(1, Ordering::Relaxed);
            limit.settled_units.fetch_add(units, Ordering::Relaxed);
        }
    }

    /// Counts a response that did not report its cost; returns whether to log it.
    pub(super) fn unsettled(&self, limit: &Limit, now: Timestamp) -> bool {
        self.limits.get(limit.index).is_some_and(|limit| {
            limit.unsettled.fetch_add(1, Ordering::Relaxed);
            limit.unsettled_log.is_over(now)
        })
    }

    /// Counts `units` that a response cost above its reservation; returns whether to log it.
    pub(super) fn over_reserved(&self, limit: &Limit, units: u64, now: Timestamp) -> bool {
        self.limits.get(limit.index).is_some_and(|limit| {
            limit.over_reserved.fetch_add(units, Ordering::Relaxed);
            limit.over_reserved_log.is_over(now)
        })
    }

    pub(super) fn snapshot(
        &self,
        limits: &[Arc<Limit>],
        feedback: &Feedback,
        now: Timestamp,
        tally: impl Fn(usize) -> Tally,
    ) -> Vec<Snapshot> {
        let snapshot = |(index, (limit, counters)): (usize, (&Arc<Limit>, &Arc<LimitCounters>))| {
            let sum = |of: fn(&Stripe) -> &AtomicU64| -> u64 {
                let stripes = counters.stripes.iter();
                let counts = stripes.map(|stripe| of(stripe).load(Ordering::Relaxed));
                counts.fold(0, u64::wrapping_add)
            };
            let rate = feedback.rate(index);
            Snapshot {
                limit: Arc::clone(limit),
                count: Count {
                    allowed: sum(|c| &c.charged).wrapping_add(sum(|c| &c.uncharged)),
                    refused: sum(|c| &c.refused),
                    shadow_refused: sum(|c| &c.shadow_refused),
                    units: Units {
                        charged: sum(|c| &c.units_charged),
                        given_back: sum(|c| &c.units_given_back),
                        refused: sum(|c| &c.units_refused),
                        shadow_refused: sum(|c| &c.units_shadow_refused),
                    },
                    ungoverned: sum(|c| &c.ungoverned),
                    settled: counters.settled.load(Ordering::Relaxed),
                    settled_units: counters.settled_units.load(Ordering::Relaxed),
                    unsettled: counters.unsettled.load(Ordering::Relaxed),
                    over_reserved: counters.over_reserved.load(Ordering::Relaxed),
                },
                agreement: Agreement {
                    both_allow: sum(|c| &c.both_allow),
                    both_refuse: sum(|c| &c.both_refuse),
                    only_live_refuses: sum(|c| &c.only_live_refuses),
                    only_candidate_refuses: sum(|c| &c.only_candidate_refuses),
                },
                table: tally(index),
                factor: rate.map(|rate| small(rate.factor(now))),
                held: rate.filter(|rate| rate.obeys_quota()).map(|rate| {
                    let opens = rate.opens(now);
                    opens.map_or(Micros::ZERO, |opens| opens.since(now))
                }),
                places: feedback.places(index).map(small),
            }
        };
        let limits = limits.iter().zip(&self.limits);
        limits.enumerate().map(snapshot).collect()
    }
}

fn small(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// Whether the live limit would admit the request of a candidate; `None`: it was not judged.
fn live_allows(candidate: &Claim<'_>, claims: &[Claim<'_>], outcomes: &[Outcome]) -> Option<bool> {
    let live = |claim: &Claim<'_>| {
        claim.limit.role == Role::Live && claim.limit.name == candidate.limit.name
    };
    let mut all = claims.iter().zip(outcomes);
    let (_, outcome) = all.find(|(claim, _)| live(claim))?;
    outcome.asked().map(|standing| standing.verdict.is_allow())
}

/// The minimum time between two log lines of one kind about the responses of a limit.
const QUIET: Micros = Micros::from_secs(60);

/// Copies of each counter: a power of two. More threads than this share a copy.
const STRIPES: usize = 8;

static NEXT_STRIPE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static STRIPE: usize = NEXT_STRIPE.fetch_add(1, Ordering::Relaxed) % STRIPES;
}
