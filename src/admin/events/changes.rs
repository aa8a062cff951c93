//! Finds what changed between two looks at the gateway.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Serialize;

use super::super::figures::{Figures, Observed, UpstreamOut};
use super::super::live::{Key, Live, moment};
use super::{Events, Kind};
use tollgate_gateway::refusals::{Busy, PAUSE};
use tollgate_limit::{KeyBytes, Timestamp};

/// The state at the last look.
#[derive(Debug, Default)]
pub(super) struct Changes {
    before: Option<Before>,
}

#[derive(Debug, Default)]
struct Before {
    refused: HashMap<Bucket, Busy>,
    near: HashMap<Bucket, Busy>,
    store_answers: Option<bool>,
    out: Out,
}

/// The states of servers that get no requests, by upstream and server.
type Out = BTreeMap<(String, String), String>;

/// A key of one limit.
pub(in crate::admin) type Bucket = (Arc<str>, KeyBytes);

/// The key of an event, as in `/api/v1/limits/{name}/keys`.
#[derive(Debug, Serialize)]
struct KeyEvent {
    limit: String,
    tier: Option<String>,
    #[serde(flatten)]
    key: Key,
    count: u64,
    count_error: u64,
    since: String,
    last: String,
    until: Option<String>,
}

/// The keys that changed at one look, beyond those that were told one by one.
#[derive(Debug, Default, Serialize)]
struct Omitted {
    refusals_began: usize,
    refusals_ended: usize,
    near: usize,
}

impl Changes {
    /// Emits what changed since the last look; the first look only remembers.
    pub(super) fn compare(&mut self, figures: &Figures, observed: &Observed, live: &Live) {
        let at = observed.at;
        let now = Before {
            refused: by_bucket(&observed.refused, |busy| {
                is_refused(busy, at) && !observed.admitted.contains(&bucket(busy))
            }),
            near: by_bucket(&observed.near, |busy| is_recent(busy, at)),
            store_answers: figures.exact.store.as_ref().map(|store| store.answers),
            out: figures.exact.upstreams_out.iter().map(place).collect(),
        };
        if let Some(before) = &self.before {
            let ended = ended(before, &now, observed);
            let omitted = Omitted {
                refusals_began: tell(
                    Kind::RefusalsBegan,
                    fresh(&now.refused, &before.refused),
                    live,
                ),
                refusals_ended: tell(Kind::RefusalsEnded, ended, live),
                near: tell(Kind::Near, fresh(&now.near, &before.near), live),
            };
            if omitted.refusals_began + omitted.refusals_ended + omitted.near > 0 {
                live.events.emit(Kind::Omitted, &omitted);
            }
            store(before.store_answers, figures, &live.events);
            upstreams(&before.out, &now.out, figures, &live.events);
        }
        self.before = Some(now);
    }
}

/// The keys of `now` that `before` lacks: those that came, or (the other way round) those that went.
fn fresh<'b>(now: &'b HashMap<Bucket, Busy>, before: &HashMap<Bucket, Busy>) -> Vec<&'b Busy> {
    let fresh = now.iter().filter(|(key, _)| !before.contains_key(*key));
    fresh.map(|(_, busy)| busy).collect()
}

/// The keys that are refused no more, with their counts as they are now.
fn ended<'b>(before: &'b Before, now: &Before, observed: &'b Observed) -> Vec<&'b Busy> {
    let gone = fresh(&before.refused, &now.refused);
    if gone.is_empty() {
        return gone;
    }
    let last: HashMap<(&str, &[u8]), &Busy> = observed
        .refused
        .iter()
        .map(|busy| ((&*busy.limit.name, &busy.key[..]), busy))
        .collect();
    let last = |busy: &Busy| last.get(&(&*busy.limit.name, &busy.key[..])).copied();
    gone.into_iter()
        .map(|busy| last(busy).unwrap_or(busy))
        .collect()
}

/// Emits an event for each key, those with the most requests first; returns how many were too many.
fn tell(kind: Kind, mut keys: Vec<&Busy>, live: &Live) -> usize {
    keys.sort_by_key(|busy| std::cmp::Reverse(busy.count));
    for busy in keys.iter().take(TOLD_MAX) {
        let told = KeyEvent {
            limit: busy.limit.name.to_string(),
            tier: busy.limit.tier.as_deref().map(str::to_owned),
            key: live.key(&busy.key),
            count: busy.count,
            count_error: busy.error,
            since: moment(busy.since),
            last: moment(busy.last),
            until: busy.until.map(moment),
        };
        live.events.emit(kind, &told);
    }
    keys.len().saturating_sub(TOLD_MAX)
}

fn store(answered: Option<bool>, figures: &Figures, events: &Events) {
    let Some(store) = &figures.exact.store else {
        return;
    };
    match (answered, store.answers) {
        (Some(true), false) => events.emit(Kind::StoreDown, store),
        (Some(false), true) => events.emit(Kind::StoreUp, store),
        _ => {}
    }
}

fn upstreams(before: &Out, now: &Out, figures: &Figures, events: &Events) {
    for one in &figures.exact.upstreams_out {
        if !before.contains_key(&place(one).0) {
            events.emit(Kind::UpstreamOut, one);
        }
    }
    for ((upstream, server), state) in before {
        if !now.contains_key(&(upstream.clone(), server.clone())) {
            let was = serde_json::json!({ "upstream": upstream, "server": server, "was": state });
            events.emit(Kind::UpstreamBack, &was);
        }
    }
}

/// A server that gets no requests, and its state.
fn place(one: &UpstreamOut) -> ((String, String), String) {
    (
        (one.upstream.clone(), one.server.clone()),
        one.state.clone(),
    )
}

fn by_bucket(all: &[Busy], holds: impl Fn(&Busy) -> bool) -> HashMap<Bucket, Busy> {
    let held = all.iter().filter(|busy| holds(busy));
    held.map(|busy| (bucket(busy), busy.clone())).collect()
}

/// The bucket of a key.
pub(in crate::admin) fn bucket(busy: &Busy) -> Bucket {
    (Arc::clone(&busy.limit.name), busy.key.clone())
}

/// Whether the refusals of a key go on: a retry is refused, or there was one of late.
fn is_refused(busy: &Busy, now: Timestamp) -> bool {
    busy.until.is_some_and(|until| until > now) || is_recent(busy, now)
}

fn is_recent(busy: &Busy, now: Timestamp) -> bool {
    now.since(busy.last) < PAUSE
}

/// The most events of one kind at one look.
const TOLD_MAX: usize = 20;
