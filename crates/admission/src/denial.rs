//! What the refusal of a request by its limits says, and what follows from it.

use std::sync::Arc;

use tollgate_limit::{Algorithm, Limit, Verdict, words};
use tollgate_limiter::Denied;
use tollgate_policy::routes::OverLimit;
use tollgate_policy::{Claims, Policy};
use tollgate_response::{Refused, SpentBudget};

pub fn contents(denied: &Denied, claims: &Claims, policy: &Policy) -> Refused {
    let refusing = || {
        denied
            .refused()
            .map(|place| (place, &policy.limits[claims.charges()[place].limit]))
    };
    Refused {
        violated: refusing()
            .map(|(_, limit)| Arc::clone(&limit.name))
            .collect(),
        retry_after: denied.retry_after(),
        blocked: denied.is_blocked(),
        budget: denied
            .refused()
            .any(|place| policy.rules[claims.charges()[place].rule].is_budget()),
        by_penalty: denied.is_penalty(),
        reserved: false,
        budgets: budgets(denied, claims, policy),
        never_fits: refusing().any(|(place, limit)| {
            // A concurrency limit has no retry time either, but its slots become free.
            matches!(
                denied.outcomes()[place].standing.verdict,
                Verdict::Deny { retry_after: None }
            ) && !matches!(limit.algorithm, Algorithm::InFlight(_))
        }),
    }
}

/// The budgets that refuse a request with these `claims`: limits that count money, or say that a
/// budget is used up. A block is none of them.
fn budgets(denied: &Denied, claims: &Claims, policy: &Policy) -> Vec<SpentBudget> {
    let mut budgets = Vec::new();
    for place in denied.refused().filter(|_| !denied.is_blocked()) {
        let charge = &claims.charges()[place];
        let (rule, limit) = (&policy.rules[charge.rule], &policy.limits[charge.limit]);
        if !rule.is_budget() && limit.currency.is_none() {
            continue;
        }
        let Some(quota) = limit.rate_words() else {
            continue;
        };
        let standing = &denied.outcomes()[place].standing;
        let in_words = |units| words::units(units, limit.currency.as_deref());
        // What a request states above the highest cost, or unreadably, counts as one unit more
        // than the limit can ever grant: that is no cost of the request.
        let never = limit.algorithm.greatest_cost().saturating_add(1);
        let is_known = charge.cost < u64::MAX && charge.cost != never;
        budgets.push(SpentBudget {
            limit: Arc::clone(&limit.name),
            quota,
            left: rule.scope.is_of_caller().then(|| match standing.owed() {
                0 => in_words(standing.remaining()),
                owed => format!("-{}", in_words(owed)),
            }),
            used: None,
            reserved: None,
            cost: is_known.then(|| in_words(charge.cost)),
            reset: standing.reset,
        });
    }
    budgets
}

/// Whether the request passes on to the next target of its route: a limit refuses that this
/// target replaces. A block by an operator is for all targets.
pub fn passes_on(denied: &Denied, claims: &Claims, over: &OverLimit) -> bool {
    let replaced = |place: usize| over.instead_of.contains(&claims.charges()[place].rule);
    !denied.is_blocked() && denied.refused().any(replaced)
}

/// Whether a lone caller that retries is admitted earlier by this refusal's limits than by
/// those of `other`, another target's. The refusal that ends first is the one that is sent.
pub fn ends_before(denied: &Denied, other: &Denied) -> bool {
    match (denied.retry_after(), other.retry_after()) {
        (Some(this), Some(other)) => this < other,
        (this, other) => this.is_some() && other.is_none(),
    }
}

/// Whether the refusal of a request with these `claims` sheds load for an upstream at its
/// capacity, which is not the caller's fault.
pub fn sheds_load(denied: &Denied, claims: &Claims, limits: &[Arc<Limit>]) -> bool {
    !denied.is_blocked()
        && denied
            .refused()
            .all(|place| limits[claims.charges()[place].limit].algorithm.sheds_load())
}
