//! Ceilings that bound nothing: requests that are not charged, and reservations that do not bound what a
//! response may cost.

use crate::raw::RawFile;
use crate::reading::{Context, Place};
use crate::validate::{entry_of, list_of};
use tollgate_policy::identity::WhenMissing;
use tollgate_policy::{Cost, Policy, Rule};

pub(super) fn warn(raw: &RawFile, policy: &Policy, context: &mut Context<'_>) {
    for rule in policy.rules.iter().filter(|rule| rule.ceiling) {
        let Some((_, limit)) = entry_of(&raw.limits, &rule.name) else {
            continue;
        };
        skipped(raw, policy, rule, context);
        let place = limit.value.cost.place().unwrap_or(limit.place);
        warn_of_bounds(rule, &rule.cost, place, context);
    }
    for (route, written) in policy.routes.iter().zip(list_of(&raw.routes)) {
        let place = written.limits.place().unwrap_or(written.place);
        for limit in route.all_limits() {
            let rule = &policy.rules[limit.rule];
            if let (true, Some(cost)) = (rule.ceiling, &limit.cost) {
                warn_of_bounds(rule, cost, place, context);
            }
        }
    }
}

/// Requests that leave their key out, and are then not limited.
fn skipped(raw: &RawFile, policy: &Policy, rule: &Rule, context: &mut Context<'_>) {
    for first in rule.scope.identities() {
        // An identity may be replaced by another one, which may be skipped.
        let next = |at: &usize| match policy.identities.get(*at)?.when_missing {
            WhenMissing::Use(other) => Some(other),
            _ => None,
        };
        let mut used = std::iter::successors(Some(first), next).take(policy.identities.len());
        let skips = |at: &usize| policy.identities[*at].when_missing == WhenMissing::Skip;
        let Some(at) = used.find(skips) else { continue };
        let identity = &policy.identities[at];
        let Some((name, table)) = entry_of(&raw.identities, &identity.name) else {
            continue;
        };
        let title = format!(
            "requests without `{}` are not charged on the ceiling `{}`",
            identity.name, rule.name
        );
        let place = table.when_missing.place().unwrap_or(name.place);
        context
            .warning(title, place, "a client can leave its key out")
            .help("write when_missing = \"refuse\", or the identity that counts instead");
    }
}

/// Warns of a reservation that leaves what a response may cost to the request.
fn warn_of_bounds(rule: &Rule, cost: &Cost, place: Place, context: &mut Context<'_>) {
    let (default, most) = match cost {
        Cost::Body(body) => (body.default, body.most),
        Cost::Header { default, most, .. } => (*default, *most),
        Cost::Fixed(_) | Cost::ContentLength { .. } => return,
    };
    if rule.settle.is_some() && rule.reserves() && default < most {
        let title = format!(
            "requests may cost more than the ceiling `{}` reserves",
            rule.name
        );
        context
            .warning(title, place, "no bound of what a response costs")
            .help(format!("write default = {most}: a request that states no maximum reserves {default}, and the upstream chooses its maximum"));
    }
}
