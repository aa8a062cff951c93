//! Judges a new configuration by a gateway's recent requests, before it takes effect.
//!
//! Every recent request is put to the policy in force and to the new one, with buckets that are full
//! when the oldest request comes. The pure algorithms decide, without the tables and stores of a
//! limiter: ten million requests take less than a second. Limits whose charges depend on the
//! response, on durations or on the upstream's health are not judged.

mod plan;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use smallvec::SmallVec;

use plan::{Plan, Price, Side, Source, Step};
use tollgate_gateway::recent::{Requests, Seen};
use tollgate_limit::key::{WHOLE, stable_hash};
use tollgate_limit::{Kept, Limit, Next, State, Timestamp};
use tollgate_policy::{Policy, Rule};

/// The effect of a new configuration on recent requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// Requests that were judged.
    pub requests: u64,
    /// Requests that were not: a file has no route of the name that took them, or their key is one
    /// more than are judged.
    pub unknown: u64,
    /// Requests that only the new configuration refuses.
    pub newly_refused: u64,
    /// By limit: its keys, and how many of them are newly refused a request.
    pub limits: BTreeMap<String, [u64; 2]>,
    /// The ten keys that would lose most.
    pub hits: Vec<Hit>,
    /// Limits of the new configuration that were not judged, and why.
    pub not_judged: Vec<(String, &'static str)>,
}

/// A key that would newly be refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The limit.
    pub limit: String,
    /// The hash of the key.
    pub key: u64,
    /// Its requests that were judged.
    pub requests: u32,
    /// Those that only the new configuration refuses.
    pub refused: u32,
}

impl Judged {
    /// Whether more than `hundredths` of a percent of the keys of some limit, or of all requests, are
    /// newly refused.
    pub fn exceeds(&self, hundredths: u16, of_keys: bool) -> bool {
        let above = |part: u64, all: u64| {
            u128::from(part) * u128::from(WHOLE) > u128::from(hundredths) * u128::from(all)
        };
        if of_keys {
            self.limits.values().any(|[keys, hit]| above(*hit, *keys))
        } else {
            above(self.newly_refused, self.requests)
        }
    }

    /// Keys that are newly refused a request, by all limits.
    pub fn keys_hit(&self) -> u64 {
        self.limits.values().map(|[_, hit]| hit).sum()
    }
}

/// Puts `requests` to the policy `old`, under which the last of them came, and to `new`. At most `keys`
/// buckets are judged, about 170 bytes each.
pub fn judge(requests: &Requests, old: &Policy, new: &Policy, keys: usize) -> Judged {
    let mut judge = Judge {
        keys,
        sides: [Side::new(old, requests), Side::new(new, requests)],
        plans: HashMap::default(),
        buckets: Vec::new(),
        last: None,
        table: HashTable::new(),
        everyone: stable_hash(&[]),
        skipped: BTreeSet::new(),
        judged: Judged::default(),
    };
    let mut last: Option<(u64, Arc<Plan>)> = None;
    requests.each(|seen| {
        let signature = seen.signature();
        let plan = match &last {
            Some((known, plan)) if *known == signature => plan,
            _ => {
                let plan = judge.plan(signature, &seen, requests);
                &last.insert((signature, plan)).1
            }
        };
        judge.one(&seen, plan);
    });
    judge.finish()
}

struct Judge<'p> {
    sides: [Side<'p>; 2],
    /// By the signature of requests.
    plans: HashMap<u64, Arc<Plan>, FixedState>,
    buckets: Vec<Bucket>,
    /// The bucket that was drawn from last.
    last: Option<u32>,
    /// The most buckets.
    keys: usize,
    table: HashTable<u32>,
    /// The hash of the key that all callers share.
    everyone: u64,
    /// Rules of the new policy that were not judged, and why.
    skipped: BTreeSet<(usize, &'static str)>,
    judged: Judged,
}

/// One limit's bucket for one key, under both policies.
struct Bucket {
    key: u64,
    /// Its limit's place in [`Side::rules`] of the new policy; of the old one where the new one has it not.
    limit: u32,
    drawn: [Drawn; 2],
    requests: u32,
    refused: u32,
    /// Whether the new policy judged it.
    is_new: bool,
}

/// A bucket under one policy, in the numbers of the limit that it was last drawn from: callers of
/// several tiers can draw from one bucket.
#[derive(Default)]
struct Drawn {
    state: Option<State>,
    /// The limit, by index.
    limit: usize,
    /// The largest burst that it was drawn under, where it was drawn from several; zero: its own.
    largest: u64,
}

impl Drawn {
    /// The bucket under the numbers of another limit; `None`: it has them.
    fn renumbered(&self, limits: &[Arc<Limit>], limit: usize, now: Timestamp) -> Option<Kept> {
        if (self.state.is_none() || self.limit == limit) && self.largest == 0 {
            return None;
        }
        let algorithm = limits[self.limit].algorithm.clone();
        let kept = Kept::from_parts(algorithm, self.state.clone(), self.largest);
        Some(kept.under(&limits[limit].algorithm, now))
    }

    fn grant(&mut self, limits: &[Arc<Limit>], limit: usize, grant: Grant) {
        if let Some(kept) = grant.renumbered {
            self.state = kept.state().cloned();
            self.largest = kept.largest();
        }
        self.limit = limit;
        limits[limit].algorithm.apply(&mut self.state, grant.next);
    }
}

/// What a bucket grants.
struct Grant {
    /// The bucket before it, if that had the numbers of another limit.
    renumbered: Option<Kept>,
    next: Next,
}

impl Bucket {
    /// What the limit of `step` grants; `None`: nothing, and it refuses nothing either, because the
    /// key is outside of its share.
    fn judge(
        &self,
        side: usize,
        limits: &[Arc<Limit>],
        step: &Step,
        seen: &Seen<'_>,
    ) -> Result<Option<Grant>, ()> {
        let limit = &limits[step.limit];
        let cost = match step.cost {
            Price::Fixed(units) => units,
            Price::Recorded(charge) => seen.charge(charge).cost,
        };
        let drawn = &self.drawn[side];
        let renumbered = drawn.renumbered(limits, step.limit, seen.at);
        let state = match &renumbered {
            Some(kept) => kept.state(),
            None => drawn.state.as_ref(),
        };
        match limit.algorithm.judge(state, cost, seen.at) {
            Ok(granted) => Ok(Some(Grant {
                next: granted.next,
                renumbered,
            })),
            Err(_) if self.key % u64::from(WHOLE) >= u64::from(limit.enforce_for) => Ok(None),
            Err(_) => Err(()),
        }
    }
}

impl Judge<'_> {
    fn one(&mut self, seen: &Seen<'_>, plan: &Plan) {
        let [Some(old), Some(new)] = &plan.sides else {
            self.judged.unknown += 1;
            return;
        };
        let mut places: SmallVec<[u32; 2]> = SmallVec::new();
        for (source, limit) in &plan.keys {
            let key = match source {
                Source::Charge(place) => seen.charge(*place).key,
                Source::Address => seen.address,
                Source::Everyone => self.everyone,
            };
            let Some(place) = self.bucket(key, *limit) else {
                self.judged.unknown += 1;
                return;
            };
            places.push(place);
        }
        self.judged.requests += 1;
        let by_old = self.decide(OLD, seen, old, &places);
        let by_new = self.decide(NEW, seen, new, &places);
        for step in new {
            let bucket = &mut self.buckets[places[step.key] as usize];
            bucket.is_new = true;
            bucket.requests = bucket.requests.saturating_add(1);
        }
        if let (None, Some(bucket)) = (by_old, by_new) {
            self.judged.newly_refused += 1;
            let bucket = &mut self.buckets[bucket as usize];
            bucket.refused = bucket.refused.saturating_add(1);
        }
    }

    /// Draws from all buckets or from none; the first bucket that refuses.
    fn decide(
        &mut self,
        side: usize,
        seen: &Seen<'_>,
        steps: &[Step],
        places: &[u32],
    ) -> Option<u32> {
        let limits = &self.sides[side].policy.limits;
        // Most requests draw from one limit: its grant needs no second look.
        if let [step] = steps {
            let place = places[step.key];
            let bucket = &mut self.buckets[place as usize];
            return match bucket.judge(side, limits, step, seen) {
                Ok(Some(grant)) => {
                    bucket.drawn[side].grant(limits, step.limit, grant);
                    None
                }
                Ok(None) => None,
                Err(()) => Some(place),
            };
        }
        let mut granted: SmallVec<[(u32, &Step, Grant); 2]> = SmallVec::new();
        for step in steps {
            let place = places[step.key];
            match self.buckets[place as usize].judge(side, limits, step, seen) {
                Ok(Some(grant)) => granted.push((place, step, grant)),
                Ok(None) => {}
                Err(()) => return Some(place),
            }
        }
        for (place, step, grant) in granted {
            self.buckets[place as usize].drawn[side].grant(limits, step.limit, grant);
        }
        None
    }

    /// The bucket's place; `None`: there are too many.
    fn bucket(&mut self, key: u64, limit: u32) -> Option<u32> {
        let hash =
            |key: u64, limit: u32| (key ^ u64::from(limit)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let buckets = &mut self.buckets;
        let same = |place: &u32| {
            let bucket = &buckets[*place as usize];
            bucket.key == key && bucket.limit == limit
        };
        // A caller's requests come in a row.
        if let Some(place) = self.last
            && same(&place)
        {
            return Some(place);
        }
        if let Some(place) = self.table.find(hash(key, limit), same) {
            self.last = Some(*place);
            return Some(*place);
        }
        if buckets.len() >= self.keys {
            return None;
        }
        let place = u32::try_from(buckets.len()).ok()?;
        buckets.push(Bucket {
            key,
            limit,
            drawn: <[Drawn; 2]>::default(),
            requests: 0,
            refused: 0,
            is_new: false,
        });
        let rehash = |place: &u32| {
            let bucket = &buckets[*place as usize];
            hash(bucket.key, bucket.limit)
        };
        self.table.insert_unique(hash(key, limit), place, rehash);
        Some(place)
    }

    fn finish(self) -> Judged {
        let mut judged = self.judged;
        let rules = &self.sides[NEW].policy.rules;
        let mut hits: Vec<&Bucket> = Vec::new();
        for bucket in self.buckets.iter().filter(|bucket| bucket.is_new) {
            let Some(rule) = rules.get(bucket.limit as usize) else {
                continue;
            };
            let counts = judged.limits.entry(rule.name.to_string()).or_default();
            counts[0] += 1;
            counts[1] += u64::from(bucket.refused > 0);
            if bucket.refused > 0 {
                hits.push(bucket);
            }
        }
        let old = &self.sides[OLD].policy.rules;
        let changed = self.skipped.iter().map(|(rule, why)| (&rules[*rule], *why));
        // A limit that stays as it is newly refuses no request.
        let changed = changed.filter(|(rule, _)| !old.iter().any(|old| is_same(old, rule)));
        judged.not_judged = changed
            .map(|(rule, why)| (rule.name.to_string(), why))
            .collect();
        hits.sort_by_key(|bucket| (u32::MAX - bucket.refused, bucket.limit, bucket.key));
        let hit = |bucket: &Bucket| Hit {
            limit: rules[bucket.limit as usize].name.to_string(),
            key: bucket.key,
            requests: bucket.requests,
            refused: bucket.refused,
        };
        judged.hits = hits.into_iter().take(HITS).map(hit).collect();
        judged
    }
}

fn is_same(one: &Rule, other: &Rule) -> bool {
    let numbers = |rule: &Rule| {
        let variants = rule
            .tiers
            .iter()
            .map(|(tier, limit)| (Some(Arc::clone(tier)), limit));
        let variants = std::iter::once((None, &rule.live)).chain(variants);
        let number = |(tier, limit): (Option<Arc<str>>, &Arc<Limit>)| {
            (tier, limit.algorithm.clone(), limit.mode, limit.enforce_for)
        };
        variants.map(number).collect::<Vec<_>>()
    };
    one.name == other.name
        && one.scope == other.scope
        && one.cost == other.cost
        && numbers(one) == numbers(other)
}

/// Places in [`Judge::sides`].
const OLD: usize = 0;
const NEW: usize = 1;
const HITS: usize = 10;

#[cfg(test)]
mod tests;
