//! Finds what changed between two looks at the gateway.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Serialize;
use serde_json::json;

use super::super::figures::{Figures, Observed, UpstreamOut};
use super::super::live::Live;
use super::{Events, Kind};
use crate::moments::moment;
use tollgate_gateway::refusals::{Busy, PAUSE};
use tollgate_limit::{KeyBytes, Timestamp};

#[derive(Debug, Default)]
pub(super) struct Changes {
    before: Option<Before>,
    /// The last refusals, by key, of which it is known that they hold no more: their bucket was
    /// filled, or an override admits the key.
    over: HashMap<Bucket, Timestamp>,
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

pub(in crate::admin) type Bucket = (Arc<str>, KeyBytes);

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
            refused: self.refused(observed),
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

    /// The keys whose refusals go on. A refusal that was once found to hold no more begins nothing
    /// again: later looks may not ask for its bucket, or get no answer in time.
    fn refused(&mut self, observed: &Observed) -> HashMap<Bucket, Busy> {
        let mut over = HashMap::new();
        for busy in &observed.refused {
            let bucket = bucket(busy);
            let was_over = self
                .over
                .get(&bucket)
                .is_some_and(|last| *last >= busy.last);
            if was_over || observed.admitted.contains(&bucket) {
                over.insert(bucket, busy.last);
            }
        }
        self.over = over;
        by_bucket(&observed.refused, |busy| {
            is_refused(busy, observed.at) && !self.over.contains_key(&bucket(busy))
        })
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
        let (limit, key) = (&busy.limit, live.key(&busy.key));
        let emitted = json!({
            "limit": &*limit.name, "tier": limit.tier.as_deref(), "key": key.key, "name": key.name,
            "count": busy.count, "count_error": busy.error, "since": moment(busy.since),
            "last": moment(busy.last), "until": busy.until.map(moment),
        });
        live.events.emit(kind, &emitted);
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
            let was = json!({ "upstream": upstream, "server": server, "was": state });
            events.emit(Kind::UpstreamBack, &was);
        }
    }
}

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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use tollgate_limit::fixtures::per_minute;

    fn secs(seconds: u64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn busy(last: u64, until: u64) -> Busy {
        Busy {
            limit: Arc::new(per_minute("api", 6, 3)),
            key: KeyBytes::from_slice(b"acme"),
            count: 5,
            error: 0,
            since: secs(last),
            last: secs(last),
            until: Some(secs(until)),
            cost: 1,
        }
    }

    /// Whether the key is refused at a look; `admitted`: its bucket was asked and admits.
    fn look(changes: &mut Changes, at: u64, busy: Busy, admitted: bool) -> bool {
        let admitted = admitted.then(|| bucket(&busy));
        let observed = Observed {
            at: secs(at),
            refused: vec![busy],
            near: Vec::new(),
            admitted: admitted.into_iter().collect::<HashSet<_>>(),
        };
        !changes.refused(&observed).is_empty()
    }

    #[test]
    fn events_refusals_that_ended_begin_again_only_with_a_new_refusal() {
        let mut changes = Changes::default();
        assert!(look(&mut changes, 100, busy(100, 110), false));
        // An override admits the key.
        assert!(!look(&mut changes, 102, busy(100, 110), true));
        // The store does not respond in time; the wait is over, and the bucket is asked no more.
        for at in [103, 109, 110, 115] {
            assert!(!look(&mut changes, at, busy(100, 110), false), "{at}");
        }
        assert!(look(&mut changes, 116, busy(116, 120), false));
        assert!(look(&mut changes, 121, busy(116, 120), false));
        assert!(!look(&mut changes, 126, busy(116, 120), false));
    }

    #[test]
    fn events_refusals_that_are_over_are_forgotten_with_their_key() {
        let mut changes = Changes::default();
        look(&mut changes, 102, busy(100, 110), true);
        assert_eq!(changes.over.len(), 1);
        changes.refused(&Observed {
            at: secs(2_000),
            refused: Vec::new(),
            near: Vec::new(),
            admitted: HashSet::new(),
        });
        assert_eq!(changes.over.len(), 0);
    }
}
