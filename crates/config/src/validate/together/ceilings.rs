//! Ceilings and what other tables do to them: a crash, requests that are not charged, and reservations
//! that do not bound what a response may cost.

use crate::context::Context;
use crate::raw::RawFile;
use crate::settings::{ColdStart, Server};
use crate::source::Place;
use crate::validate::{entry_of, list_of};
use tollgate_limit::Placement;
use tollgate_policy::identity::WhenMissing;
use tollgate_policy::usage::Usage;
use tollgate_policy::{BodyCost, Cost, Policy, Rule, SettleFrom};

/// Warns of ceilings that may be exceeded.
pub(super) fn warn(raw: &RawFile, policy: &Policy, server: &Server, context: &mut Context<'_>) {
    for rule in policy.rules.iter().filter(|rule| rule.ceiling) {
        let Some((_, limit)) = entry_of(&raw.limits, &rule.name) else {
            continue;
        };
        let place = limit.value.ceiling.place().unwrap_or(limit.place);
        let local = rule.live.placement == Placement::Local;
        if let (true, ColdStart::Full) = (local, server.cold_start) {
            let title = format!("a crash may let the ceiling `{}` be exceeded", rule.name);
            context
                .warning(title, place, "its buckets live in the process, and start full after a crash")
                .help("write cold_start = \"empty\" in [server]: then they start empty; or keep them in a [store]");
        }
        skipped(raw, policy, rule, context);
        let place = limit.value.cost.place().unwrap_or(limit.place);
        warn_of_bounds(rule, &rule.cost, place, context);
    }
    exempt(raw, policy, context);
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

/// Clients that are never limited.
fn exempt(raw: &RawFile, policy: &Policy, context: &mut Context<'_>) {
    let mut ceilings = policy.rules.iter().filter(|rule| rule.ceiling);
    let Some(rule) = ceilings
        .next()
        .filter(|_| !policy.address.exempt.is_empty())
    else {
        return;
    };
    let written = entry_of(&raw.limits, &rule.name).and_then(|(_, limit)| limit.ceiling.place());
    if let (Some(place), Some(ceiling)) = (context.place("address.exempt"), written) {
        let title = "exempt clients are not charged on a ceiling";
        context
            .warning(title, place, "these are never limited")
            .at(ceiling, "what they use comes on top")
            .help("leave `exempt` out, or send these clients to a gateway of their own");
    }
}

/// Warns of a reservation that is less than what a response may cost.
fn warn_of_bounds(rule: &Rule, cost: &Cost, place: Place, context: &mut Context<'_>) {
    let Some(settle) = rule.settle.as_ref().filter(|_| rule.reserves()) else {
        return;
    };
    let mut reasons = Vec::new();
    match cost {
        Cost::Body(body) => {
            if let SettleFrom::Json(usage) = &settle.from {
                of_model(rule, body, usage, &mut reasons);
            }
            reasons.extend(unstated(body.default, body.most));
        }
        Cost::Header { default, most, .. } => reasons.extend(unstated(*default, *most)),
        Cost::Fixed(_) | Cost::ContentLength { .. } => {}
    }
    if reasons.is_empty() {
        return;
    }
    let title = format!(
        "requests may cost more than the ceiling `{}` reserves",
        rule.name
    );
    let problem = context.warning(title, place, "no bound of what a response costs");
    for reason in reasons {
        problem.help(reason);
    }
}

/// The upstream chooses the maximum of a request that states none.
fn unstated(default: u64, most: u64) -> Option<String> {
    (default < most).then(|| {
        format!(
            "write default = {most}: a request that states no maximum reserves {default}, and the upstream chooses its maximum"
        )
    })
}

/// Tokens of a language model that a cost does not count.
fn of_model(rule: &Rule, cost: &BodyCost, usage: &Usage, reasons: &mut Vec<String>) {
    let names = || {
        let paths = usage.paths().list().iter();
        paths.filter_map(|path| path.last())
    };
    let has = |known: &[&str]| names().any(|name| known.contains(&name.as_str()));
    let prompt = ["total_tokens", "prompt_tokens", "input_tokens"];
    let bytes = match cost.plus {
        // Every byte is reserved at its price.
        _ if rule.prices.is_some() => None,
        None if has(&prompt) && usage.reserved().input > 0 => {
            Some("the tokens of the prompt are not counted".to_owned())
        }
        Some(per) if per > 1 => Some(format!(
            "a text can have more than a token for every {per} bytes"
        )),
        _ => None,
    };
    reasons.extend(bytes.map(|reason| {
        format!("write plus = \"body_bytes\": {reason}, and a token covers one byte at least")
    }));
    if cost.times.is_empty() && has(&["total_tokens", "prompt_tokens", "completion_tokens"]) {
        let reason = "write times = [\"n\", \"best_of\"]: OpenAI's requests ask for several outputs by them, and one without them for one";
        reasons.push(reason.to_owned());
    }
}
