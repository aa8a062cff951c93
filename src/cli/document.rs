//! The JSON documents of `check` and `explain`, with a version. Within a version, members may be
//! added but are never removed or changed in meaning.

use serde::Serialize;
use serde_json::{Value, json};
use tollgate_config::{Config, Diagnostic};
use tollgate_policy::Policy;
use tollgate_policy::explain::{Explanation, IdentityStory, LimitStory};

use super::lookup::Lookup;
use super::trial::Verdict;
use crate::app::memory;

const VERSION: u32 = 1;

/// The document of a file that is invalid, or with which no gateway would start.
pub(super) fn wrong(errors: &[Diagnostic]) -> String {
    written(&json!({
        "version": VERSION,
        "good": false,
        "errors": errors,
        "warnings": [],
        "notes": [],
        "assumed": [],
        "limits": [],
        "routes": [],
        "tests": [],
    }))
}

/// The document of a valid file. `good`: its tests pass, and nothing that is to be strict about is
/// warned of.
pub(super) fn checked(
    config: &Config,
    notes: &[String],
    verdicts: &[Verdict],
    good: bool,
) -> String {
    let policy = &config.policy;
    let limits = policy.rules.iter().map(|rule| {
        let tiers = rule.tiers.iter();
        let tiers = tiers.map(|(tier, limit)| json!({ "tier": &**tier, "words": limit.words() }));
        json!({
            "limit": &*rule.name,
            "words": rule.live.words(),
            "tiers": tiers.collect::<Value>(),
            "candidate": rule.candidate.as_ref().map(|limit| limit.words()),
            "room": memory::room(rule, policy),
        })
    });
    let routes = policy.routes.iter().map(|route| {
        let limits = route.limits.iter();
        let limits = limits.map(|limit| json!(&*policy.rules[limit.rule].name));
        json!({ "route": &*route.name, "limits": limits.collect::<Value>() })
    });
    let tests = verdicts.iter().map(|verdict| {
        json!({
            "test": verdict.name,
            "line": verdict.line,
            "passed": verdict.wrong.is_empty(),
            "wrong": verdict.wrong,
        })
    });
    let mut document = json!({
        "version": VERSION,
        "good": good,
        "errors": [],
        "warnings": config.diagnostics,
        "notes": notes,
        "assumed": config.assumed,
        "memory_bytes": memory::of_tables(&policy.limits),
        "connections_bytes": memory::of_connections(config.server.bounds.connections),
        "limits": limits.collect::<Value>(),
        "routes": routes.collect::<Value>(),
        "tests": tests.collect::<Value>(),
    });
    if let Some(bytes) = memory::of_refusals(config) {
        document["refusals_bytes"] = json!(bytes);
    }
    written(&document)
}

pub(super) fn explained(policy: &Policy, explanation: &Explanation, lookup: &Lookup) -> String {
    let taken = explanation.taken.as_ref();
    let captures = taken.iter().flat_map(|(_, captures)| captures);
    let captures = captures.map(|(name, value)| json!({ "name": &**name, "value": &**value }));
    let routes = policy.routes.iter().zip(&explanation.routes);
    let routes =
        routes.map(|(route, fate)| json!({ "route": &*route.name, "fate": fate.to_string() }));
    let identities = explanation.identities.iter();
    let limits = |stories: &[LimitStory]| -> Value {
        let limits = stories.iter().map(|story| limited(policy, story, lookup));
        limits.collect()
    };
    let over = taken
        .iter()
        .flat_map(|(route, _)| &policy.routes[*route].over_limit);
    let over = over.zip(&explanation.over_limit).map(|(over, stories)| {
        let instead_of = over.instead_of.iter();
        let instead_of = instead_of.map(|rule| json!(&*policy.rules[*rule].name));
        json!({
            "upstream": &*policy.upstreams[over.upstream].name,
            "instead_of": instead_of.collect::<Value>(),
            "limits": limits(stories),
        })
    });
    written(&json!({
        "version": VERSION,
        "host": explanation.host,
        "path": explanation.path,
        "caller": explanation.client.as_deref(),
        "forwarded": explanation.forwarded,
        "route": taken.map(|(route, _)| &*policy.routes[*route].name),
        "captures": captures.collect::<Value>(),
        "routes": routes.collect::<Value>(),
        "identities": identities.map(|story| identified(policy, story)).collect::<Value>(),
        "refusal": explanation.refusal.as_ref().map(ToString::to_string),
        "exempt": explanation.exempt,
        "tier": explanation.tier.as_deref(),
        "limits": limits(&explanation.limits),
        "over_limit": over.collect::<Value>(),
    }))
}

fn identified(policy: &Policy, story: &IdentityStory) -> Value {
    let name = |index: usize| &*policy.identities[index].name;
    let sources = story.steps.iter().flat_map(|step| {
        step.sources.iter().map(|(source, value)| {
            let mut source = json!({ "identity": name(step.identity), "source": source });
            match value {
                Ok(value) => source["value"] = json!(value),
                Err(reason) => {
                    source["value"] = Value::Null;
                    source["error"] = json!(reason.to_string());
                }
            }
            source
        })
    });
    json!({
        "identity": name(story.identity),
        "sources": sources.collect::<Value>(),
        "how": match &story.outcome {
            Ok(how) => how.words().to_owned(),
            Err(reason) => reason.to_string(),
        },
        "caller": story.caller.as_deref(),
        "key": story.key,
    })
}

fn limited(policy: &Policy, story: &LimitStory, lookup: &Lookup) -> Value {
    let limit = &policy.limits[story.limit];
    let mut limited = json!({
        "limit": &*limit.name,
        "tier": limit.tier.as_deref(),
        "candidate": story.candidate,
        "words": limit.words(),
        "cost": story.cost,
        "enforced": story.enforced,
        "skipped": story.skipped.map(|why| why.words()),
        "key": story.key,
        // `null`: the key's name in logs is not known here.
        "name": lookup.name(story),
        "override": null,
    });
    if let Some((now, overridden)) = lookup.now(policy, story) {
        limited["now"] = json!(now);
        limited["override"] = json!(overridden);
    }
    limited
}

pub(super) fn written(document: &impl Serialize) -> String {
    serde_json::to_string_pretty(document).expect("text, numbers and lists are JSON")
}
