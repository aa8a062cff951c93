//! Identities, keys and charges of a request, as the plan of its route says.

use http::HeaderMap;

use tollgate_limit::{KeyBytes, Mode};

use super::{Charge, Claims, Identified, SentBody, is_enforced};
use crate::Policy;
use crate::claims::plan::Plan;
use crate::claims::prices::ModelPrice;
use crate::identity::{Evidence, IdentityRefusal};
use crate::routes::Match;

impl Plan {
    /// Resolves every identity the route needs, and the key under each of its scopes, into `identified`.
    pub(crate) fn identify(
        &self,
        evidence: Evidence<'_, '_>,
        identified: &mut Identified,
    ) -> Result<(), IdentityRefusal> {
        for &identity in &self.identities {
            identified.resolved.push(evidence.resolve(identity)?);
        }
        self.finish(evidence, identified);
        Ok(())
    }

    /// The same from the address alone: limits by other identities get no key.
    pub(crate) fn place(&self, evidence: Evidence<'_, '_>, identified: &mut Identified) {
        for &identity in self
            .identities
            .iter()
            .filter(|identity| evidence.identities[**identity].is_address())
        {
            identified.resolved.extend(evidence.resolve(identity));
        }
        self.finish(evidence, identified);
    }

    fn finish(&self, evidence: Evidence<'_, '_>, identified: &mut Identified) {
        let client = evidence.request.client;
        identified.exempt = client.is_some_and(|client| evidence.address.exempt.contains(client));
        identified.at = evidence.now;
        let resolved = &identified.resolved;
        let known = || resolved.iter().filter_map(|one| one.caller.as_ref());
        let with_tier = known().find(|caller| caller.tier.is_some());
        identified.caller = with_tier.or_else(|| known().next()).cloned();
        // Pushed one by one: there are few, and `extend` checks for capacity at every step.
        for scope in &self.scopes {
            identified.keys.push(scope.key(evidence, resolved));
        }
    }

    /// The key of a rule's bucket; `None` when one of its identities is skipped, or the rule is off.
    pub(crate) fn key_of<'w>(&self, rule: usize, who: &'w Identified) -> Option<&'w KeyBytes> {
        let charge = self.charges.iter().find(|charge| charge.rule == rule)?;
        who.keys[charge.scope].as_ref()
    }
}

impl Claims {
    /// Adds the charges of a request with this body to one of its route's targets.
    pub(crate) fn add_route(
        &mut self,
        policy: &Policy,
        target: usize,
        matched: &Match<'_>,
        who: &Identified,
        headers: &HeaderMap,
        body: SentBody<'_>,
    ) {
        let route = &policy.routes[matched.route];
        let plan = &policy.plans[matched.route];
        if who.exempt {
            return;
        }
        for key in &who.keys {
            let key = KeyBytes::from_slice(key.as_deref().unwrap_or_default());
            self.keys.push(key);
        }
        for charge in plan.charges.iter().filter(|charge| charge.is_of(target)) {
            let rule = &policy.rules[charge.rule];
            let limit = rule.variant(who.numbers());
            let Some(key) = &who.keys[charge.scope] else {
                continue;
            };
            if limit.mode == Mode::Off {
                continue;
            }
            let enforced = is_enforced(limit, key);
            let model = rule.model_price(route, target, matched, body);
            if model == Some(ModelPrice::Refused) && enforced {
                self.unpriced = Some(charge.rule);
                continue;
            }
            let cost = rule.price(limit, charge.cost.as_ref(), headers, body, model);
            let charge = Charge {
                rule: charge.rule,
                limit: limit.index,
                cost,
                enforced,
                price: model.and_then(ModelPrice::place),
                key: charge.scope,
            };
            self.push(rule, limit, charge);
        }
    }
}
