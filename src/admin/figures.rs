//! `/api/v1/figures`: the counters of all limits, who is refused or close, and whether limits are
//! exact now, in one document. The stream of events has it, too, with rates.

use std::collections::HashSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use super::Options;
use super::events::changes::{Bucket, bucket};
use super::limits::{KeyCount, LimitCounts, is_near};
use super::live::{Live, Now, moment};
use super::status::Status;
use tollgate_gateway::refusals::{Busy, Counted, Counts, PAUSE};
use tollgate_limit::{Micros, Timestamp};

/// What a page or a terminal shows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// The version of this document.
    pub format: u32,
    /// When it was made.
    pub at: String,
    /// `starting`, `serving` or `draining`.
    pub phase: String,
    /// The number of configurations put in force so far.
    pub generation: u64,
    /// Why the last reload was refused; `null`: it was not.
    pub last_error: Option<String>,
    /// Connections that are open.
    pub connections: usize,
    /// Every limit, as in `/api/v1/limits`.
    pub limits: Vec<LimitFigures>,
    /// The keys that are refused now.
    pub refused: KeysNow,
    /// The keys that have used four fifths.
    pub near: KeysNow,
    /// Whether the numbers of the file are enforced exactly.
    pub exact: Exact,
}

/// The counters of one variant of a limit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LimitFigures {
    /// Its counters.
    #[serde(flatten)]
    pub counts: LimitCounts,
    /// Admitted requests that left at most a fifth of the units, of all tiers together; counted at
    /// the variant without a tier.
    pub near: u64,
    /// The rates of the last two seconds; `null`: not known.
    pub per_second: Option<PerSecond>,
}

/// Rates of the counters of the same name.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PerSecond {
    /// Requests that it admitted.
    pub allowed: f64,
    /// Requests that it refused.
    pub refused: f64,
    /// Refusals that were only counted.
    pub shadow_refused: f64,
    /// Admitted requests that left few units.
    pub near: f64,
}

/// The keys of all limits that are refused, or close.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeysNow {
    /// The number of keys, of which `keys` has the first.
    pub found: usize,
    /// The most events that a key which was not kept can have had.
    pub unseen: u64,
    /// The keys.
    pub keys: Vec<KeyNow>,
}

/// One key of one limit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeyNow {
    /// The limit.
    pub limit: String,
    /// The key and its events.
    #[serde(flatten)]
    pub count: KeyCount,
}

/// What makes limits inexact. All zero, and a store that responds: every number holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Exact {
    /// Decisions without the shared store since the start.
    pub ungoverned: u64,
    /// Buckets forgotten with a debt that was kept.
    pub key_evictions: u64,
    /// Refusals of keys that stood at an inherited debt.
    pub inherited_refusals: u64,
    /// The shared store; `null`: there is none.
    pub store: Option<StoreNow>,
    /// The servers of upstreams that get no requests.
    pub upstreams_out: Vec<UpstreamOut>,
}

/// The state of the shared store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoreNow {
    /// `redis` or `postgres`.
    pub kind: String,
    /// Whether it responds.
    pub answers: bool,
    /// The behaviour of its limits while it does not; `null`: it responds.
    pub when_down: Option<String>,
    /// The reason why it does not respond, or only in part.
    pub why_not: Option<String>,
    /// The number of gateways that share it.
    pub replicas: u32,
}

/// A server that gets no requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UpstreamOut {
    /// The upstream.
    pub upstream: String,
    /// The server.
    pub server: String,
    /// `ejected` or `unhealthy`.
    pub state: String,
    /// Since when.
    pub since: Option<String>,
    /// Its last error.
    pub error: Option<String>,
}

/// What the figures were made from.
#[derive(Debug)]
pub(super) struct Observed {
    /// When.
    pub(super) at: Timestamp,
    /// All keys that were refused of late.
    pub(super) refused: Vec<Busy>,
    /// All keys that were close of late.
    pub(super) near: Vec<Busy>,
    /// The keys whose last refusal does not hold any more.
    pub(super) admitted: HashSet<Bucket>,
}

impl LimitFigures {
    /// Whether `other` has the counters of the same limit.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        let (one, other) = (&self.counts, &other.counts);
        (&one.limit, &one.tier, one.candidate) == (&other.limit, &other.tier, other.candidate)
    }
}

impl PerSecond {
    /// The rates between two looks that are this far apart.
    pub(crate) fn between(before: &LimitFigures, now: &LimitFigures, micros: u64) -> Self {
        let rate = |before: u64, now: u64| {
            let tenths =
                u128::from(now.saturating_sub(before)) * 10_000_000 / u128::from(micros.max(1));
            f64::from(u32::try_from(tenths).unwrap_or(u32::MAX)) / 10.0
        };
        let (one, two) = (&before.counts, &now.counts);
        Self {
            allowed: rate(one.allowed, two.allowed),
            refused: rate(one.refused, two.refused),
            shadow_refused: rate(one.shadow_refused, two.shadow_refused),
            near: rate(before.near, now.near),
        }
    }
}

impl Options {
    /// Looks at everything that the figures show.
    pub(super) async fn observe(&self) -> (Figures, Observed) {
        let live = &self.live;
        let (status, at) = ((self.status)(), live.now());
        let (refused, near) = (
            live.counts(Counted::Refused, at),
            live.counts(Counted::Near, at),
        );
        let limits = live.limit_figures();
        let exact = exact(&status, &limits);
        let (refused_now, admitted) = live.refused_now(&refused, at).await;
        let figures = Figures {
            format: FORMAT,
            at: moment(at),
            phase: status.phase.to_owned(),
            generation: status.configuration.generation,
            last_error: status.configuration.last_error,
            connections: status.connections,
            limits,
            refused: refused_now,
            near: live.near_now(&near, at).await,
            exact,
        };
        let observed = Observed {
            at,
            refused: refused.keys,
            near: near.keys,
            admitted,
        };
        (figures, observed)
    }
}

impl Live {
    fn limit_figures(&self) -> Vec<LimitFigures> {
        let near = self
            .refusals
            .as_ref()
            .map(|refusals| refusals.near_totals())
            .unwrap_or_default();
        let figures = |counts: LimitCounts| {
            let is_base = counts.tier.is_none() && !counts.candidate;
            let near = near.get(&*counts.limit).filter(|_| is_base);
            LimitFigures {
                near: near.copied().unwrap_or(0),
                counts,
                per_second: None,
            }
        };
        self.limits().limits.into_iter().map(figures).collect()
    }

    /// The keys that are refused now, and those whose last refusal does not hold any more, because
    /// their bucket was filled.
    async fn refused_now(&self, counts: &Counts, at: Timestamp) -> (KeysNow, HashSet<Bucket>) {
        let mut busy: Vec<&Busy> = counts
            .keys
            .iter()
            .filter(|busy| busy.until.is_none_or(|until| until > at))
            .collect();
        busy.sort_by_key(|one| std::cmp::Reverse((one.count, one.last)));
        let (mut keys, mut admitted) = (Vec::new(), HashSet::new());
        let looks = Looks::new();
        for one in busy.iter().take(PEEKS_MAX) {
            let now = looks.peek(self, one).await;
            if is_admitted(one, &now, at) {
                admitted.insert(bucket(one));
            } else if keys.len() < KEYS_MAX {
                keys.push(self.key_now(one, now));
            }
        }
        let now = KeysNow {
            found: busy.len() - admitted.len(),
            unseen: counts.unseen,
            keys,
        };
        (now, admitted)
    }

    async fn near_now(&self, counts: &Counts, at: Timestamp) -> KeysNow {
        let mut busy: Vec<&Busy> = counts
            .keys
            .iter()
            .filter(|busy| at.since(busy.last) < NEAR_WITHIN)
            .collect();
        busy.sort_by_key(|one| std::cmp::Reverse((one.count, one.last)));
        let (mut keys, mut found) = (Vec::new(), busy.len());
        let looks = Looks::new();
        for one in busy.iter().take(PEEKS_MAX) {
            let now = looks.peek(self, one).await;
            let few = now
                .level
                .as_ref()
                .is_none_or(|level| is_near(&one.limit, level.remaining));
            if !few {
                found -= 1;
            } else if keys.len() < KEYS_MAX {
                keys.push(self.key_now(one, now));
            }
        }
        KeysNow {
            found,
            unseen: counts.unseen,
            keys,
        }
    }

    fn key_now(&self, busy: &Busy, now: Now) -> KeyNow {
        KeyNow {
            limit: busy.limit.name.to_string(),
            count: self.key_count(busy, now),
        }
    }
}

/// Peeks at buckets, until that takes too long.
struct Looks {
    until: Instant,
}

impl Looks {
    fn new() -> Self {
        Self {
            until: Instant::now() + PEEKS_WITHIN,
        }
    }

    async fn peek(&self, live: &Live, busy: &Busy) -> Now {
        let level = live.level(&busy.limit, &busy.key, busy.cost);
        timeout_at(self.until, level).await.unwrap_or_else(|_| Now {
            level: None,
            why_not: Some("its store was not asked, or responds too slowly".to_owned()),
        })
    }
}

/// Whether the bucket of a refused key can pay for the refused request before it was due: an
/// operator filled it, or its numbers changed. A moment after the refusal, so that a key of a high
/// rate does not come and go.
pub(super) fn is_admitted(busy: &Busy, now: &Now, at: Timestamp) -> bool {
    let admits = now.level.as_ref().is_some_and(|level| level.admits);
    admits && at.since(busy.last) >= ADMITTED_AFTER
}

fn exact(status: &Status, limits: &[LimitFigures]) -> Exact {
    let sum = |count: fn(&LimitCounts) -> u64| limits.iter().map(|one| count(&one.counts)).sum();
    let out = |server: &super::status::Server| matches!(server.state, "ejected" | "unhealthy");
    let mut upstreams_out = Vec::new();
    for (upstream, servers) in &status.upstreams {
        for server in servers.iter().filter(|server| out(server)) {
            upstreams_out.push(UpstreamOut {
                upstream: upstream.clone(),
                server: server.server.clone(),
                state: server.state.to_owned(),
                since: server.since.clone(),
                error: server.last_error.as_ref().map(|last| last.error.clone()),
            });
        }
    }
    Exact {
        ungoverned: sum(|counts| counts.ungoverned),
        key_evictions: sum(|counts| counts.key_evictions),
        inherited_refusals: sum(|counts| counts.inherited_refusals),
        store: status.store.as_ref().map(|store| StoreNow {
            kind: store.kind.to_owned(),
            answers: store.answers,
            when_down: store.when_down.clone(),
            why_not: store.why_not.clone(),
            replicas: store.replicas,
        }),
        upstreams_out,
    }
}

/// [`Figures::format`] of this version.
const FORMAT: u32 = 1;

/// The most keys of each list.
const KEYS_MAX: usize = 25;

/// The most buckets that are looked at for one list.
const PEEKS_MAX: usize = 50;

/// How long that may take.
const PEEKS_WITHIN: Duration = Duration::from_millis(150);

/// How long ago a key was close that is looked at.
const NEAR_WITHIN: Micros = Micros(6 * PAUSE.0);

/// How long after its last refusal a key counts as admitted again.
const ADMITTED_AFTER: Micros = Micros::from_secs(2);
