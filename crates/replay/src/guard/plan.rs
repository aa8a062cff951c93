//! The buckets that requests of one kind draw from, under both policies.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{Judge, NEW, OLD};
use tollgate_gateway::recent::{
    Requests, Seen, is_by_address, route_words, rule_words, scope_words, tier_words,
};
use tollgate_limit::{Algorithm, Mode};
use tollgate_policy::{Cost, Count, Policy, Rule, Scope};

/// One policy.
pub(super) struct Side<'p> {
    pub(super) policy: &'p Policy,
    /// Routes and tiers by their recorded numbers.
    routes: HashMap<u16, usize>,
    tiers: HashMap<u16, Arc<str>>,
    /// By rule: its words, those of its scope, and why it is not judged.
    pub(super) rules: Vec<(String, String, Option<&'static str>)>,
}

/// What requests of one signature draw from.
#[derive(Default)]
pub(super) struct Plan {
    /// The buckets.
    pub(super) keys: SmallVec<[(Source, u32); 2]>,
    /// By policy: its steps; `None`: it has no such route.
    pub(super) sides: [Option<SmallVec<[Step; 2]>>; 2],
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Charge(usize),
    Address,
    Everyone,
}

pub(super) struct Step {
    /// The place in [`Plan::keys`].
    pub(super) key: usize,
    /// By index in the policy's limits.
    pub(super) limit: usize,
    pub(super) cost: Price,
}

#[derive(Clone, Copy)]
pub(super) enum Price {
    Fixed(u64),
    /// The one that was recorded for the charge at this place.
    Recorded(usize),
}

impl<'p> Side<'p> {
    pub(super) fn new(policy: &'p Policy, requests: &Requests) -> Self {
        let number = |words: String| requests.numbers.get(words.as_str()).copied();
        let routes = policy.routes.iter().enumerate();
        let routes =
            routes.filter_map(|(place, route)| Some((number(route_words(&route.name))?, place)));
        let tiers = policy.rules.iter().flat_map(|rule| &rule.tiers);
        let tiers =
            tiers.filter_map(|(tier, _)| Some((number(tier_words(tier))?, Arc::clone(tier))));
        let rule = |place: usize| {
            let rule = &policy.rules[place];
            (
                rule_words(policy, place),
                scope_words(policy, &rule.scope),
                not_judged(rule),
            )
        };
        Self {
            policy,
            routes: routes.collect(),
            tiers: tiers.collect(),
            rules: (0..policy.rules.len()).map(rule).collect(),
        }
    }

    fn has(&self, route: Option<usize>, words: &str) -> bool {
        route.is_some_and(|route| {
            let mut limits = self.policy.routes[route].limits.iter();
            limits.any(|limit| self.rules[limit.rule].0 == words)
        })
    }
}

/// Why recent requests cannot tell what a limit does; `None`: they can.
fn not_judged(rule: &Rule) -> Option<&'static str> {
    let tiers = rule.tiers.iter().map(|(_, limit)| limit);
    let mut variants = std::iter::once(&rule.live).chain(tiers);
    if rule.settle.is_some() || rule.count != Count::All || !rule.refund_on.is_empty() {
        return Some("its charges depend on the response");
    }
    variants.find_map(|limit| match &limit.algorithm {
        Algorithm::InFlight(_) => Some("it counts requests in progress"),
        algorithm if algorithm.follows().is_some() => Some("it follows the upstream's health"),
        _ => None,
    })
}

impl Judge<'_> {
    pub(super) fn plan(
        &mut self,
        signature: u64,
        seen: &Seen<'_>,
        requests: &Requests,
    ) -> Arc<Plan> {
        if let Some(plan) = self.plans.get(&signature) {
            return Arc::clone(plan);
        }
        let mut plan = Plan::default();
        for side in [OLD, NEW] {
            plan.sides[side] = self.steps(side, seen, requests, &mut plan.keys);
        }
        let plan = Arc::new(plan);
        self.plans.insert(signature, Arc::clone(&plan));
        plan
    }

    fn steps(
        &mut self,
        side: usize,
        seen: &Seen<'_>,
        requests: &Requests,
        keys: &mut SmallVec<[(Source, u32); 2]>,
    ) -> Option<SmallVec<[Step; 2]>> {
        let this = &self.sides[side];
        let policy = this.policy;
        let route = *this.routes.get(&seen.route())?;
        let charge_of = |words: &str| {
            let rule = *requests.numbers.get(words)?;
            (0..seen.len()).find(|place| seen.charge(*place).rule == rule)
        };
        // What drew from no bucket of a limit that its route had when it came has no key for it.
        let before = self.sides[OLD].routes.get(&seen.route()).copied();
        let is_present = seen.generation() == requests.generation;
        let (mut steps, mut skipped) = (SmallVec::new(), Vec::new());
        for limit in &policy.routes[route].limits {
            let rule = &policy.rules[limit.rule];
            let (words, scope, why) = &this.rules[limit.rule];
            let variant = rule.variant(this.tiers.get(&seen.tier()));
            if variant.mode != Mode::Enforce {
                continue;
            }
            if let Some(why) = *why {
                skipped.push((limit.rule, why));
                continue;
            }
            let charge = charge_of(words);
            let source = match charge {
                Some(place) => Source::Charge(place),
                None if is_present && self.sides[OLD].has(before, words) => continue,
                None => match self.borrowed(seen, requests, &rule.scope, scope) {
                    Some(source) => source,
                    None => {
                        skipped.push((limit.rule, "recent requests hold no key for it"));
                        continue;
                    }
                },
            };
            let cost = match (limit.cost.as_ref().unwrap_or(&rule.cost), charge) {
                (Cost::Fixed(units), _) => Price::Fixed(*units),
                (_, Some(place)) => Price::Recorded(place),
                _ => {
                    skipped.push((limit.rule, "recent requests hold no cost for it"));
                    continue;
                }
            };
            // A bucket is its limit's name and its caller: both policies draw from the same one.
            let number = self.number(words);
            let key = match keys.iter().position(|known| *known == (source, number)) {
                Some(place) => place,
                None => {
                    keys.push((source, number));
                    keys.len() - 1
                }
            };
            steps.push(Step {
                key,
                limit: variant.index,
                cost,
            });
        }
        if side == NEW {
            self.skipped.extend(skipped);
        }
        Some(steps)
    }

    /// Where the key of a limit stands that the request did not draw from.
    fn borrowed(
        &self,
        seen: &Seen<'_>,
        requests: &Requests,
        scope: &Scope,
        words: &str,
    ) -> Option<Source> {
        if *scope == Scope::Everyone {
            return Some(Source::Everyone);
        }
        if is_by_address(scope) {
            return Some(Source::Address);
        }
        // Another limit that is split alike.
        let alike = |place: &usize| {
            let rule = seen.charge(*place).rule;
            self.sides
                .iter()
                .flat_map(|side| &side.rules)
                .any(|(rule_words, scope, _)| {
                    scope == words && requests.numbers.get(rule_words.as_str()) == Some(&rule)
                })
        };
        (0..seen.len()).find(alike).map(Source::Charge)
    }

    /// A number for a limit's words: its place among the new policy's limits, then among the old one's.
    fn number(&self, words: &str) -> u32 {
        let [old, new] = &self.sides;
        let place = new.rules.iter().position(|rule| rule.0 == words);
        let place = place.or_else(|| {
            let place = old.rules.iter().position(|rule| rule.0 == words)?;
            Some(new.rules.len() + place)
        });
        place
            .and_then(|place| u32::try_from(place).ok())
            .unwrap_or(u32::MAX)
    }
}
