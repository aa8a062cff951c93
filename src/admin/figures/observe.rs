use std::collections::HashSet;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::super::Options;
use super::super::events::changes::{Bucket, bucket};
use super::super::limits::{LimitCounts, is_near};
use super::super::live::{Live, Now};
use super::super::status::{Server, Status};
use super::{Exact, FORMAT, Figures, KeyNow, KeysNow, LimitFigures, UpstreamOut};
use crate::moments::moment;
use tollgate_gateway::refusals::{Busy, Counted, Counts, PAUSE};
use tollgate_limit::{Micros, Timestamp};

#[derive(Debug)]
pub(in crate::admin) struct Observed {
    pub(in crate::admin) at: Timestamp,
    pub(in crate::admin) refused: Vec<Busy>,
    pub(in crate::admin) near: Vec<Busy>,
    /// The keys whose last refusal does not hold any more.
    pub(in crate::admin) admitted: HashSet<Bucket>,
}

impl Options {
    pub(in crate::admin) async fn observe(&self) -> (Figures, Observed) {
        let live = &self.live;
        let (status, at) = ((self.status)(), live.now());
        let (refused, near) = (
            live.counts(Counted::Refused, at),
            live.counts(Counted::Near, at),
        );
        let limits = live.limit_figures();
        let exact = exact(&status, &limits);
        let (refused_now, admitted) = live.refused_now(&refused, at).await;
        let refused_keys = refused.keys.iter().filter(|busy| {
            is_refused(busy, at) && (admitted.is_empty() || !admitted.contains(&bucket(busy)))
        });
        let refused_keys = refused_keys
            .map(|busy| (&*busy.limit.name, &busy.key[..]))
            .collect();
        let near_now = live.near_now(&near, &refused_keys, at).await;
        let shadow = live.counts(Counted::Shadow, at);
        let (shadow, _) = live.refused_now(&shadow, at).await;
        let figures = Figures {
            format: FORMAT,
            at: moment(at),
            phase: status.phase.to_owned(),
            generation: status.configuration.generation,
            last_error: status.configuration.last_error,
            connections: status.connections,
            limits,
            refused: refused_now,
            near: near_now,
            shadow,
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
        let is_refused = |busy: &Busy| is_refused(busy, at);
        let holds = |busy: &Busy, now: &Now| !is_admitted(busy, now, at);
        self.keys_now(counts, is_refused, holds).await
    }

    /// The keys that are close, and not refused.
    async fn near_now(
        &self,
        counts: &Counts,
        refused: &HashSet<(&str, &[u8])>,
        at: Timestamp,
    ) -> KeysNow {
        let was_close = |busy: &Busy| {
            at.since(busy.last) < NEAR_WITHIN
                && !refused.contains(&(&*busy.limit.name, &busy.key[..]))
        };
        let is_close = |busy: &Busy, now: &Now| {
            let level = now.level.as_ref();
            level.is_none_or(|level| is_near(&busy.limit, level.remaining))
        };
        self.keys_now(counts, was_close, is_close).await.0
    }

    /// The keys that are `listed`, as far as that `holds` when their bucket is looked at; and those
    /// of which it does not hold.
    async fn keys_now(
        &self,
        counts: &Counts,
        listed: impl Fn(&Busy) -> bool,
        holds: impl Fn(&Busy, &Now) -> bool,
    ) -> (KeysNow, HashSet<Bucket>) {
        let mut busy: Vec<&Busy> = counts.keys.iter().filter(|one| listed(one)).collect();
        busy.sort_by_key(|one| std::cmp::Reverse((one.count, one.last)));
        let (mut keys, mut others) = (Vec::new(), HashSet::new());
        let until = Instant::now() + PEEKS_WITHIN;
        for one in busy.iter().take(PEEKS_MAX) {
            let level = self.level(&one.limit, &one.key, one.cost);
            let now = timeout_at(until, level).await.unwrap_or_else(|_| {
                Now::unknown("its store was not asked, or responds too slowly")
            });
            let (now, overridden) = self.with_override(&one.limit, &one.key, now);
            if !holds(one, &now) {
                others.insert(bucket(one));
            } else if keys.len() < KEYS_MAX {
                keys.push(KeyNow {
                    limit: one.limit.name.to_string(),
                    count: self.key_count(one, now, overridden),
                });
            }
        }
        let now = KeysNow {
            found: busy.len() - others.len(),
            unseen: counts.unseen,
            keys,
        };
        (now, others)
    }
}

/// Whether a key is refused: its last refusal's wait lasts, or the refusal is a moment ago, so that a
/// key of a high rate does not come and go.
pub(in crate::admin) fn is_refused(busy: &Busy, at: Timestamp) -> bool {
    busy.until.is_none_or(|until| until > at) || at.since(busy.last) < MOMENT
}

/// Whether the bucket of a refused key can pay for the refused request before it was due: an
/// operator filled it, or its numbers changed.
pub(in crate::admin) fn is_admitted(busy: &Busy, now: &Now, at: Timestamp) -> bool {
    let admits = now.level.as_ref().is_some_and(|level| level.admits);
    admits && at.since(busy.last) >= MOMENT
}

fn exact(status: &Status, limits: &[LimitFigures]) -> Exact {
    let sum = |count: fn(&LimitCounts) -> u64| limits.iter().map(|one| count(&one.counts)).sum();
    let out = |server: &Server| matches!(server.state, "ejected" | "unhealthy");
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
        store: status.store.as_ref().map(|store| store.now.clone()),
        upstreams_out,
    }
}

const KEYS_MAX: usize = 25;

/// The most buckets that are looked at for one list.
const PEEKS_MAX: usize = 50;

/// How long that may take.
const PEEKS_WITHIN: Duration = Duration::from_millis(150);

/// How long ago a key was close that is looked at.
const NEAR_WITHIN: Micros = Micros(6 * PAUSE.0);

/// How long after its last refusal a key counts as refused in any case.
const MOMENT: Micros = Micros::from_secs(2);
