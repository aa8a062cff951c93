//! One draw for requests that are decided together, and for a request by limit: all are charged or
//! none.

use serde_json::{Value, json};

use super::batch::{Item, OfLimit};
use super::json::Refused;
use super::permits::Permits;
use crate::body::Guarded;
use crate::gateway::{Gateway, Snapshot};
use crate::rejection::Rejection;
use tollgate_limit::CLAIMS_MAX;
use tollgate_limiter::settle::{Owed, is_open};
use tollgate_limiter::{Decision, Judged};
use tollgate_policy::identity::WhenUnknown;
use tollgate_policy::{Claims, Policy, Scope, ScopePart};
use tollgate_response::{Asked, Problem};

impl Gateway {
    /// Decides about `items` by one draw.
    ///
    /// # Errors
    /// If they cannot be decided: a limit is unknown, or there are too many.
    pub(super) async fn draw(
        &self,
        snapshot: &Snapshot,
        items: Vec<Item>,
        permits: &Permits,
    ) -> Result<Value, Refused> {
        let policy = &snapshot.policy;
        let mut claims = Claims::default();
        for item in items {
            match item {
                Item::Limit(asked) => claims.join(&asked.claims(policy)?),
                Item::Request(original) => match self.claims_of(snapshot, *original) {
                    Ok(more) => claims.join(&more),
                    Err(rejection) => return Ok(refusal(&rejection).await),
                },
            }
        }
        check(&claims, policy)?;
        let deciding = &snapshot.deciding;
        let slot = permits.reserve(deciding.permits);
        let list = claims.list(policy);
        let decision = snapshot.limiter.check(&list, self.now()).await;
        drop(list);
        let mut permit = match decision {
            Decision::Allow(permit) => permit,
            Decision::Deny(denied) => return Ok(denial(Judged::Denied(denied), &claims, policy)),
            Decision::Unavailable(down) => {
                let limit = down.limit;
                return Ok(refusal(&Rejection::StoreDown { limit }).await);
            }
        };
        // Until then, a program that leaves gets the charges back.
        self.hold(permit.hold()).await;
        permit.forwarded();
        let mut document = json!({ "allowed": true, "status": 200 });
        // A request of no units only asks how the limits stand: nothing is reported of it later.
        let is_look = claims.charges().iter().all(|charge| charge.cost == 0);
        if let Some(open) = permit.take_open().filter(|_| !is_look) {
            let charged = |rule: &usize| claims.charges().iter().any(|one| one.rule == *rule);
            let rules = (0..policy.rules.len()).filter(charged);
            let owed = Owed::new(rules.map(|rule| &policy.rules[rule]));
            let Some(slot) = slot else {
                open.revoke();
                return Ok(refusal(&Rejection::Overloaded).await);
            };
            let expires = self.now().after(deciding.permit_expiry);
            let Some(id) = slot.open((open, owed), expires) else {
                return Ok(refusal(&Rejection::Internal).await);
            };
            document["permit"] = id.to_string().into();
        }
        document["limits"] = limits(&Judged::Permitted(permit), &claims, policy);
        Ok(document)
    }
}

/// Refuses claims that no single draw can decide.
fn check(claims: &Claims, policy: &Policy) -> Result<(), Refused> {
    let charges = claims.charges();
    if charges.len() > CLAIMS_MAX {
        let detail = format!("Requests together draw from at most {CLAIMS_MAX} buckets.");
        return Err(Refused::bad(detail));
    }
    // A report names a limit, not a caller.
    for (place, charge) in charges.iter().enumerate() {
        let rule = &policy.rules[charge.rule];
        let again = |other: &tollgate_policy::Charge| {
            other.rule == charge.rule && claims.key(other) != claims.key(charge)
        };
        if is_open(rule) && charges[..place].iter().any(again) {
            let detail = format!(
                "A response corrects charges of the limit `{}`, so two callers of it are not decided together.",
                rule.name
            );
            return Err(Refused::bad(detail));
        }
    }
    Ok(())
}

impl OfLimit {
    /// What it draws from.
    fn claims(&self, policy: &Policy) -> Result<Claims, Refused> {
        let name = &self.limit;
        let index = policy.rules.iter().position(|rule| *rule.name == **name);
        let index = index.ok_or_else(|| Refused::bad(format!("No limit is called `{name}`.")))?;
        let rule = &policy.rules[index];
        let parts = rule.scope.names(policy);
        let identity = match parts.as_slice() {
            [] => "everyone",
            [one] => one,
            [..] => {
                let parts = parts.join(" and ");
                let detail = format!("`{name}` counts by {parts}: ask by the request.");
                return Err(Refused::bad(detail));
            }
        };
        let values: Vec<&str> = self.key.iter().map(String::as_str).collect();
        let caller = policy
            .look_up_key(identity, &values)
            .map_err(|error| Refused::bad(format!("`key` of `{name}`: {error}.")))?;
        if !caller.decides(&rule.scope) {
            let detail = format!("`{name}` counts by {identity}: ask by the request.");
            return Err(Refused::bad(detail));
        }
        if let Scope::Identities(parts) = &rule.scope
            && let [ScopePart::Identity(identity)] = parts.as_slice()
        {
            let identity = &policy.identities[*identity];
            let is_unknown = identity.callers.is_some() && caller.caller.is_none();
            // A made-up key would be a fresh bucket.
            if is_unknown && identity.when_unknown != WhenUnknown::Accept {
                return Err(Problem::KEY_UNKNOWN.into());
            }
        }
        let exempt = |value: &&str| {
            let address = value.parse().ok().filter(|_| identity == "address");
            address.is_some_and(|address| policy.address.exempt.contains(address))
        };
        if values.first().is_some_and(exempt) {
            return Ok(Claims::default());
        }
        Ok(Claims::on_limit(policy, index, &caller, self.cost))
    }
}

/// A refusal by limits.
fn denial(judged: Judged, claims: &Claims, policy: &Policy) -> Value {
    let mut document = json!({ "allowed": false, "status": 429 });
    if let Some(denied) = judged.denied() {
        let contents = denied.contents(claims, policy);
        document["status"] = contents.problem().status.as_u16().into();
        if denied.sheds_load(claims, &policy.limits) {
            document["status"] = 503.into();
        }
        let violated: Vec<&str> = contents.violated.iter().map(|name| &**name).collect();
        document["violated"] = violated.into();
        if let Some(wait) = contents.retry_after.filter(|_| !contents.never_fits) {
            document["retry_after_ms"] = wait.ceil_millis().into();
        }
    }
    document["limits"] = limits(&judged, claims, policy);
    document
}

/// How the limits stand, those that the quota headers would have.
fn limits(judged: &Judged, claims: &Claims, policy: &Policy) -> Value {
    let limits = judged.reported(claims, &policy.limits);
    limits
        .map(|(_, charge, standing)| {
            json!({
                "limit": &*policy.rules[charge.rule].name,
                "cost": charge.cost,
                "remaining": standing.remaining,
                "reset_ms": standing.reset.ceil_millis(),
            })
        })
        .collect()
}

/// A refusal for another reason.
async fn refusal(rejection: &Rejection) -> Value {
    let response = rejection.response(&Asked::default(), None, "");
    super::decision(response.map(Guarded::bare)).await
}
