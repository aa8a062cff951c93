//! The rules of a rate limit service: which limits the descriptors of a request are charged on.
//!
//! A descriptor is an ordered list of entries, each a key with a value. Rules stand in a tree for
//! each domain, one entry a level, as in the configuration of envoyproxy/ratelimit. At each level
//! an equal value goes before a pattern with `*`, a pattern before a rule without a value; patterns
//! are tried in the order of the file. There is no way back up: a descriptor is charged by the rule
//! that it reaches with its last entry, or by none.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;

use super::wildcard::Wildcard;
use super::{Charge, TooManyBuckets, is_enforced};
use crate::identity::keys;
use crate::{Claims, Policy, Rule, ScopePart};
use tollgate_limit::{KeyBytes, Limit, Mode, Rate};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'e> {
    pub key: &'e str,
    pub value: &'e str,
}

/// One level of a rule: the entries that it matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub key: String,
    /// Its value; `*` in it stands for any characters. `None`: any value.
    pub value: Option<String>,
    /// Whether all values that a pattern matches share one bucket.
    pub shared: bool,
}

/// What applies to the descriptors that reach a place of the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescriptorRule {
    /// Its name, by which another rule of the same request replaces it.
    pub name: Option<Arc<str>>,
    /// The names of the rules that it replaces in a request which both match.
    pub replaces: Vec<Arc<str>>,
    /// Its limits, by index in [`Policy::rules`]; none: it admits everything.
    pub limits: Vec<usize>,
    /// What a refusal calls it if it has neither a name nor limits.
    pub path: Arc<str>,
    /// Whether it refuses every request: it was written with a rate of zero.
    pub refuses: bool,
    /// Whether it refuses only together with all other such rules of a request.
    pub quota: bool,
}

#[derive(Debug, Default)]
pub struct Domains {
    trees: HashMap<Box<str>, Level>,
    /// The rule of descriptors that name their own rate and reach no other rule.
    pub named_rate: Option<DescriptorRule>,
}

/// The entries that can follow, by key.
type Level = HashMap<Box<str>, Values>;

#[derive(Debug, Default)]
struct Values {
    equal: HashMap<Box<str>, Node>,
    patterns: Vec<(Wildcard, Node)>,
    any: Option<Box<Node>>,
}

#[derive(Debug, Default)]
struct Node {
    rule: Option<DescriptorRule>,
    below: Level,
    /// The value under which all its buckets are named.
    shared: Option<Box<str>>,
}

#[derive(Debug)]
pub struct DescriptorMatch<'d> {
    pub rule: &'d DescriptorRule,
    /// The key of the descriptor's bucket under a limit per descriptor.
    key: KeyBytes,
    /// The address of the client, if an entry contains it.
    client: Option<IpAddr>,
}

impl DescriptorRule {
    pub fn called(&self) -> &Arc<str> {
        self.name.as_ref().unwrap_or(&self.path)
    }
}

impl DescriptorMatch<'_> {
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    pub fn client(&self) -> Option<IpAddr> {
        self.client
    }
}

impl Domains {
    pub fn is_empty(&self) -> bool {
        self.trees.is_empty()
    }

    pub fn has(&self, domain: &str) -> bool {
        self.trees.contains_key(domain)
    }

    pub fn rules(&self) -> impl Iterator<Item = &DescriptorRule> {
        let mut rules = Vec::new();
        self.trees
            .values()
            .for_each(|level| gather(level, &mut rules));
        rules.into_iter().chain(&self.named_rate)
    }

    /// Adds the domain; a domain may have no rules.
    pub fn add(&mut self, domain: &str) {
        self.trees.entry(domain.into()).or_default();
    }

    /// Puts a rule at the end of `steps`, of which there is at least one. Returns whether the place
    /// was free; otherwise nothing is changed.
    pub fn insert(&mut self, domain: &str, steps: &[Step], rule: DescriptorRule) -> bool {
        let place = &mut self.at(domain, steps).rule;
        let free = place.is_none();
        if free {
            *place = Some(rule);
        }
        free
    }

    /// Makes a place without a rule at the end of `steps`: no other rule is for a descriptor that
    /// reaches it.
    pub fn exempt(&mut self, domain: &str, steps: &[Step]) {
        self.at(domain, steps);
    }

    fn at(&mut self, domain: &str, steps: &[Step]) -> &mut Node {
        let level = self.trees.entry(domain.into()).or_default();
        let (first, rest) = steps.split_first().expect("a rule has an entry");
        rest.iter().fold(node(level, first), |above, step| {
            node(&mut above.below, step)
        })
    }

    /// The rule of a descriptor; `None`: no rule matches it. `names_rate`: whether it names its own rate.
    pub fn find(
        &self,
        domain: &str,
        entries: &[Entry<'_>],
        names_rate: bool,
    ) -> Option<DescriptorMatch<'_>> {
        let mut shared: Shared<'_> = SmallVec::new();
        let reached = reached(self.trees.get(domain)?, entries, &mut shared);
        let rule = match reached {
            Some(rule) => rule,
            None if names_rate => {
                shared.clear();
                self.named_rate.as_ref()?
            }
            None => return None,
        };
        let mut key = KeyBytes::new();
        keys::push(&mut key, keys::DOMAIN, domain.as_bytes());
        let shared = shared.into_iter().chain(std::iter::repeat(None));
        for (entry, shared) in entries.iter().zip(shared) {
            keys::push_entry(&mut key, entry.key, shared.unwrap_or(entry.value));
        }
        Some(DescriptorMatch {
            rule,
            key,
            client: entries.iter().find_map(client),
        })
    }
}

/// The values under which buckets are named, by entry; `None`: the entry's own.
type Shared<'d> = SmallVec<[Option<&'d str>; 4]>;

fn reached<'d>(
    mut level: &'d Level,
    entries: &[Entry<'_>],
    shared: &mut Shared<'d>,
) -> Option<&'d DescriptorRule> {
    let mut rule = None;
    for entry in entries {
        let node = level.get(entry.key)?.find(entry.value)?;
        shared.push(node.shared.as_deref());
        (rule, level) = (node.rule.as_ref(), &node.below);
    }
    rule
}

fn gather<'d>(level: &'d Level, rules: &mut Vec<&'d DescriptorRule>) {
    for values in level.values() {
        let patterns = values.patterns.iter().map(|(_, node)| node);
        let any = values.any.as_deref();
        for node in values.equal.values().chain(patterns).chain(any) {
            rules.extend(&node.rule);
            gather(&node.below, rules);
        }
    }
}

/// The node of a step, which is made if there is none.
fn node<'l>(level: &'l mut Level, step: &Step) -> &'l mut Node {
    let values = level.entry(step.key.as_str().into()).or_default();
    match &step.value {
        None => values.any.get_or_insert_default(),
        Some(value) if value.contains('*') => {
            let pattern = Wildcard::new(value);
            let known = values.patterns.iter().position(|(one, _)| *one == pattern);
            let place = known.unwrap_or_else(|| {
                values.patterns.push((pattern, Node::default()));
                values.patterns.len() - 1
            });
            let node = &mut values.patterns[place].1;
            if step.shared {
                node.shared = Some(value.as_str().into());
            }
            node
        }
        Some(value) => values.equal.entry(value.as_str().into()).or_default(),
    }
}

impl Values {
    fn find(&self, value: &str) -> Option<&Node> {
        let pattern = || {
            let mut patterns = self.patterns.iter();
            patterns.find(|(pattern, _)| pattern.matches(value))
        };
        self.equal
            .get(value)
            .or_else(|| pattern().map(|(_, node)| node))
            .or(self.any.as_deref())
    }
}

/// The keys of entries in which Envoy sends the address of the client.
pub const ADDRESS_KEYS: [&str; 2] = ["remote_address", "masked_remote_address"];

/// The address in an entry; of a masked one, the beginning of its network.
fn client(entry: &Entry<'_>) -> Option<IpAddr> {
    let address = entry
        .value
        .split_once('/')
        .map_or(entry.value, |(ip, _)| ip);
    let names = ADDRESS_KEYS.contains(&entry.key);
    names.then(|| address.parse().ok()).flatten()
}

impl Policy {
    /// Adds what a descriptor is charged on to `claims`; returns the positions of the charges of
    /// its live limits in [`Claims::charges`]. Descriptors with the same bucket have one charge,
    /// whose cost is the sum of theirs. `numbers`: the rate to take instead of the limit's own, if
    /// the file lists it. `enforced`: whether its refusals refuse the request.
    pub fn charge(
        &self,
        claims: &mut Claims,
        found: &DescriptorMatch<'_>,
        hits: u64,
        numbers: Option<Rate>,
        enforced: bool,
    ) -> Result<SmallVec<[usize; 2]>, TooManyBuckets> {
        let mut places = SmallVec::new();
        if found
            .client
            .is_some_and(|client| self.address.exempt.contains(client))
        {
            return Ok(places);
        }
        for &index in &found.rule.limits {
            let rule = &self.rules[index];
            let limit = rule.with_rate(numbers);
            if limit.mode == Mode::Off {
                continue;
            }
            // What a leased limit has left is known only by drawing from it.
            let units = rule.units(if limit.lease { hits.max(1) } else { hits });
            let key = self.descriptor_key(rule, found);
            let enforced = enforced && is_enforced(limit, &key);
            let candidate = rule.candidate.as_ref();
            let candidate = candidate.filter(|candidate| candidate.mode != Mode::Off);
            let charge = Charge {
                rule: index,
                limit: limit.index,
                cost: units,
                enforced,
                price: None,
                key: 0,
            };
            places.push(claims.add(&key, charge));
            if let Some(candidate) = candidate {
                let (limit, enforced) = (candidate.index, false);
                claims.add(
                    &key,
                    Charge {
                        limit,
                        enforced,
                        ..charge
                    },
                );
            }
            self.check_buckets(claims)?;
        }
        Ok(places)
    }

    /// The buckets of a descriptor: each of its live limits with the key under it, and the units
    /// that `hits` hits cost.
    pub fn buckets<'p>(
        &'p self,
        found: &DescriptorMatch<'_>,
        hits: u64,
    ) -> SmallVec<[(&'p Limit, KeyBytes, u64); 2]> {
        let rules = found.rule.limits.iter().map(|index| &self.rules[*index]);
        let on = rules.filter(|rule| rule.live.mode != Mode::Off);
        on.map(|rule| {
            (
                &*rule.live,
                self.descriptor_key(rule, found),
                rule.units(hits),
            )
        })
        .collect()
    }

    fn descriptor_key(&self, rule: &Rule, found: &DescriptorMatch<'_>) -> KeyBytes {
        let mut key = KeyBytes::new();
        for part in rule.scope.parts() {
            match part {
                ScopePart::Descriptor => key.extend_from_slice(&found.key),
                ScopePart::Address => {
                    let client = found.client.map(|client| self.address.key(client));
                    keys::push_address(&mut key, client);
                }
                // The configuration refuses such a limit in a rule for descriptors.
                ScopePart::Identity(_) | ScopePart::Route | ScopePart::Method | ScopePart::Host => {
                }
            }
        }
        key
    }
}

impl Rule {
    /// The variant with this rate; the limit's own numbers if there is none.
    fn with_rate(&self, rate: Option<Rate>) -> &Arc<Limit> {
        let has = |limit: &&Arc<Limit>| {
            let own = limit.algorithm.quota().map(|quota| quota.rate);
            rate.is_some() && own == rate
        };
        let variants = self.tiers.iter().map(|(_, limit)| limit);
        std::iter::once(&self.live)
            .chain(variants)
            .find(has)
            .unwrap_or(&self.live)
    }

    fn units(&self, hits: u64) -> u64 {
        match &self.cost {
            crate::Cost::Fixed(units) => units.saturating_mul(hits),
            // The configuration refuses a cost that an HTTP request states.
            crate::Cost::Header { .. }
            | crate::Cost::ContentLength { .. }
            | crate::Cost::Body(_) => hits,
        }
    }
}

#[cfg(test)]
mod tests;
