//! The plan of a route, computed once: its identities, its distinct scopes, its charges.

use smallvec::SmallVec;

use crate::body::{Wanted, WantedFacts};
use crate::identity::keys;
use crate::identity::{Evidence, How, Identity, Resolved, Source, WhenMissing};
use crate::routes::template::{Placeholder, Template};
use crate::routes::{Route, Target};
use crate::{BuildError, Cost, Part, RefusalBody, Rule, Scope, ScopePart};
use tollgate_limit::{KeyBytes, Mode};

#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Identities to resolve, by index, ascending, so that the order of limits in the file does not matter.
    pub(crate) identities: Vec<usize>,
    pub(crate) scopes: Vec<PlannedScope>,
    pub(crate) charges: Vec<PlannedCharge>,
    /// What its conditions, identities and costs ask of the body.
    pub(crate) asked: WantedFacts,
}

#[derive(Debug)]
pub(crate) struct PlannedScope(pub(crate) Vec<ScopePart>);

#[derive(Debug)]
pub(crate) struct PlannedCharge {
    pub(crate) rule: usize,
    pub(crate) scope: usize,
    pub(crate) cost: Option<Cost>,
    /// The targets of the route whose requests are charged, a bit for each.
    targets: u8,
}

impl PlannedCharge {
    pub(crate) const fn is_of(&self, target: usize) -> bool {
        target < TARGETS_MAX && self.targets & (1 << target) != 0
    }
}

/// The most targets of a route, its own included.
pub const TARGETS_MAX: usize = 8;

impl PlannedScope {
    /// The key of a caller under this scope; `None` when one of its identities is skipped.
    pub(crate) fn key(
        &self,
        evidence: Evidence<'_, '_>,
        resolved: &[Resolved],
    ) -> Option<KeyBytes> {
        let mut key = KeyBytes::new();
        for part in &self.0 {
            match part {
                ScopePart::Address => evidence.push_address(&mut key),
                ScopePart::Route => {
                    keys::push(&mut key, keys::ROUTE, evidence.route.name.as_bytes())
                }
                ScopePart::Method => {
                    let method = evidence.route.method_class(evidence.request.method);
                    keys::push(&mut key, keys::METHOD, method.as_bytes());
                }
                ScopePart::Host => keys::push_host(&mut key, &evidence.route.pattern.host),
                // The configuration refuses such a limit on a route.
                ScopePart::Descriptor => return None,
                ScopePart::Identity(index) => {
                    let one = resolved.iter().find(|one| one.identity == *index)?;
                    if one.how == How::Skipped {
                        return None;
                    }
                    if key.is_empty() {
                        // One part, the common case: copied, because appending would reserve space.
                        key = KeyBytes::from_slice(&one.key);
                    } else {
                        key.extend_from_slice(&one.key);
                    }
                }
            }
        }
        Some(key)
    }
}

impl Plan {
    /// Computes the plan of route `index`; mistakes are added to `errors`.
    pub(crate) fn new(
        index: usize,
        route: &Route,
        rules: &[Rule],
        identities: &[Identity],
        wanted: &mut Wanted,
        errors: &mut Vec<BuildError>,
    ) -> Self {
        let mut plan = Self::default();
        for target in 0..=route.over_limit.len() {
            plan.charge(route, target, rules);
        }
        for placeholder in templates(route).flat_map(Template::placeholders) {
            match placeholder {
                Placeholder::Identity(identity) => plan.identities.push(*identity),
                Placeholder::Path(name) if route.pattern.capture(name).is_none() => {
                    let title = format!(
                        "a template says `{{path:{name}}}`, but route `{}` has no `{{{name}}}`",
                        route.name
                    );
                    let label = format!("no segment is called `{name}`");
                    errors.push(BuildError::new(title, Part::Route(index), label));
                }
                _ => {}
            }
        }
        plan.identities.sort_unstable();
        plan.identities.dedup();
        // An identity by `path:NAME` on a route that does not capture that segment would be missing in
        // every request.
        for identity in reached(&plan.identities, identities) {
            for source in &identities[identity].sources {
                if let Source::Path(name) = source
                    && route.pattern.capture(name).is_none()
                {
                    let title = format!(
                        "identity `{}` is made of `path:{name}`, but route `{}` has no `{{{name}}}`",
                        identities[identity].name, route.name
                    );
                    let label = format!("no segment is called `{name}`");
                    let error = BuildError::new(title, Part::Route(index), label);
                    errors.push(error.at(Part::Identity(identity), "the identity"));
                }
            }
        }
        match plan.ask(route, rules, identities, wanted) {
            Some(asked) => plan.asked = asked,
            None => {
                let title = "too much is asked of bodies".to_owned();
                let label = "64 members or form fields are the most, of all routes together";
                errors.push(BuildError::new(title, Part::Route(index), label));
            }
        }
        plan
    }

    /// Adds the limits of one of the route's targets.
    fn charge(&mut self, route: &Route, target: usize, rules: &[Rule]) {
        for limit in route.limits_of(target) {
            let rule = &rules[limit.rule];
            if rule.is_off() {
                continue;
            }
            let same = |charge: &&mut PlannedCharge| {
                charge.rule == limit.rule && charge.cost == limit.cost
            };
            if let Some(charge) = self.charges.iter_mut().find(same) {
                charge.targets |= 1 << target;
                continue;
            }
            let scope = self.scope(&rule.scope);
            self.charges.push(PlannedCharge {
                rule: limit.rule,
                scope,
                cost: limit.cost.clone(),
                targets: 1 << target,
            });
        }
    }

    /// What is asked of the body of a request on this route; `None`: too much is asked of bodies.
    fn ask(
        &self,
        route: &Route,
        rules: &[Rule],
        identities: &[Identity],
        wanted: &mut Wanted,
    ) -> Option<WantedFacts> {
        let mut asked = WantedFacts::default();
        for (source, _) in &route.pattern.body {
            asked = asked.and(wanted.ask(source)?);
        }
        let mut numbers = Vec::new();
        for charge in &self.charges {
            let rule = &rules[charge.rule];
            if let (Cost::Body(cost), None) =
                (charge.cost.as_ref().unwrap_or(&rule.cost), rule.estimate())
            {
                numbers.extend(cost.members());
            }
            if rule.settle.as_ref().is_some_and(|settle| settle.ask) {
                asked = asked.and(wanted.ask_usage()?);
            }
            if let Some(prices) = &rule.prices
                && let Some(source) = prices.source(&route.pattern)
            {
                asked = asked.and(wanted.ask(source)?);
            }
        }
        if route.refusal == Some(RefusalBody::JsonRpc) {
            asked = asked.and(wanted.ask_calls()?);
        }
        for path in numbers {
            asked = asked.and(wanted.ask_number(path)?);
        }
        for index in reached(&self.identities, identities) {
            for source in &identities[index].sources {
                asked = asked.and(wanted.ask(source)?);
            }
        }
        Some(asked)
    }

    fn scope(&mut self, scope: &Scope) -> usize {
        let parts = scope.parts();
        self.identities.extend(scope.identities());
        let known = self.scopes.iter().position(|known| known.0 == parts);
        known.unwrap_or_else(|| {
            self.scopes.push(PlannedScope(parts.to_vec()));
            self.scopes.len() - 1
        })
    }
}

/// These identities, and those that replace them where their keys are missing.
pub(crate) fn reached(asked: &[usize], identities: &[Identity]) -> SmallVec<[usize; 8]> {
    let mut reached: SmallVec<[usize; 8]> = asked.iter().copied().collect();
    let mut next = 0;
    while let Some(at) = reached.get(next) {
        if let WhenMissing::Use(other) = identities[*at].when_missing
            && !reached.contains(&other)
        {
            reached.push(other);
        }
        next += 1;
    }
    reached
}

impl Rule {
    pub fn is_off(&self) -> bool {
        self.live.mode == Mode::Off && self.tiers.iter().all(|(_, limit)| limit.mode == Mode::Off)
    }
}

fn templates(route: &Route) -> impl Iterator<Item = &Template> {
    let edits = route
        .request_headers
        .set
        .iter()
        .chain(&route.response_headers.set)
        .map(|(_, template)| template);
    let location = match &route.target {
        Target::Redirect { location, .. } => Some(location),
        _ => None,
    };
    edits.chain(location)
}
