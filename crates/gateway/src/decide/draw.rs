//! One draw for requests that are decided together, and for a request by limit: all are charged or none.

use http::{Request, StatusCode};
use serde_json::{Value, json};

use super::batch::{Item, OfLimit};
use super::json::Refused;
use super::permits::Permits;
use super::request::close_draw;
use crate::forward::body::Guarded;
use crate::rejection::Rejection;
use crate::request::request_context::RequestContext;
use crate::request::{Gateway, HeldSnapshot, Snapshot};
use tollgate_admission::denial;
use tollgate_admission::settle::is_open;
use tollgate_limit::CLAIMS_MAX;
use tollgate_policy::identity::WhenUnknown;
use tollgate_policy::{Claims, Policy, Scope, ScopePart};
use tollgate_response::{DecisionId, Problem, RefusalForm, SpentBudget};

impl Gateway {
    /// Decides about `items` by one draw. `asked`: the request of the program.
    pub(super) async fn draw(
        &self,
        snapshot: &HeldSnapshot,
        asked: &Request<()>,
        items: Vec<Item>,
        permits: &Permits,
    ) -> Result<Value, Refused> {
        let policy = &snapshot.policy;
        let claims = match self.claims_of_all(snapshot, items)? {
            Ok(claims) => claims,
            Err(rejection) => {
                let context = self.open_draw(snapshot, asked, Claims::default());
                let document = refusal(&rejection, context.id()).await;
                close_draw(context, Some(&rejection), asked);
                return Ok(document);
            }
        };
        check(&claims, policy)?;
        let mut context = self.open_draw(snapshot, asked, claims);
        let drawn = self.draw_recorded(snapshot, &mut context, permits).await;
        let document = match &drawn {
            Ok(permit) => {
                let mut document = json!({ "allowed": true, "status": 200 });
                if let Some(id) = permit {
                    document["permit"] = id.to_string().into();
                }
                document["limits"] = limits(&context, policy);
                document
            }
            Err(rejection) => match denied(&context, rejection.status(), policy) {
                Some(document) => document,
                None => refusal(rejection, context.id()).await,
            },
        };
        close_draw(context, drawn.err().as_ref(), asked);
        Ok(document)
    }

    /// What `items` draw from together, or why one of them is refused before anything is drawn.
    fn claims_of_all(
        &self,
        snapshot: &Snapshot,
        items: Vec<Item>,
    ) -> Result<Result<Claims, Rejection>, Refused> {
        let mut claims = Claims::default();
        for item in items {
            match item {
                Item::Limit(asked) => claims.join(&asked.claims(&snapshot.policy)?),
                Item::Request(original) => match self.claims_of(snapshot, *original) {
                    Ok(more) => claims.join(&more),
                    Err(rejection) => return Ok(Err(rejection)),
                },
            }
        }
        Ok(Ok(claims))
    }
}

/// Refuses claims that no single draw can decide.
fn check(claims: &Claims, policy: &Policy) -> Result<(), Refused> {
    let charges = claims.charges();
    if policy.check_buckets(claims).is_err() {
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
        if !caller.decides(rule) {
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

fn denied(context: &RequestContext, status: StatusCode, policy: &Policy) -> Option<Value> {
    let denied = context.account.judged.denied()?;
    let contents = denial::contents(denied, &context.account.claims, policy);
    let violated: Vec<&str> = contents.violated.iter().map(|name| &**name).collect();
    let mut document = json!({
        "allowed": false,
        "status": status.as_u16(),
        "decision_id": context.id().as_str(),
        "violated": violated,
        "limits": limits(context, policy),
    });
    if let Some(wait) = contents.retry_after.filter(|_| !contents.never_fits) {
        document["retry_after_ms"] = wait.ceil_millis().into();
    }
    if !contents.budgets.is_empty() {
        let mut budgets = String::new();
        SpentBudget::write_list(&contents.budgets, &mut budgets);
        document["budgets"] = serde_json::from_str(&budgets).unwrap_or_default();
    }
    Some(document)
}

/// How the limits stand, those that the quota headers would have.
fn limits(context: &RequestContext, policy: &Policy) -> Value {
    let account = &context.account;
    let limits = account.judged.reported(&account.claims, &policy.limits);
    limits
        .map(|(charge, outcome)| {
            let standing = &outcome.standing;
            json!({
                "limit": &*policy.rules[charge.rule].name,
                "cost": charge.cost,
                "remaining": standing.remaining(),
                "reset_ms": standing.reset.ceil_millis(),
            })
        })
        .collect()
}

async fn refusal(rejection: &Rejection, id: DecisionId) -> Value {
    let response = rejection.response(&RefusalForm::default(), None, id.as_str());
    super::decision(response.map(Guarded::bare)).await
}
