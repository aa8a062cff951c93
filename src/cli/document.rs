//! The JSON documents of `check` and `explain`, with a version. Within a version, members may be
//! added but are never removed or changed in meaning.

use serde::Serialize;
use tollgate_config::{Config, Diagnostic};
use tollgate_policy::explain::{Explanation, IdentityStory, LimitStory};
use tollgate_policy::{Policy, Rule};

use super::check::room;
use super::explain::{Known, fate_words};
use super::trial::Verdict;
use crate::admin::live::Now;
use crate::admin::overrides::Overridden;
use crate::app;

const VERSION: u32 = 1;

#[derive(Debug, Default, Serialize)]
pub(super) struct Checked<'c> {
    version: u32,
    /// Whether the file is valid and its tests pass.
    good: bool,
    errors: Vec<Diagnostic>,
    warnings: Vec<Diagnostic>,
    /// Settings that are valid but may surprise.
    notes: &'c [String],
    /// Environment variables that are not set and were assumed to be.
    assumed: &'c [String],
    /// The bytes of all tables when they are full; absent if the file is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    /// The bytes of all connections when as many are open as are allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    connections_bytes: Option<u64>,
    /// The bytes of the last refusals and the busiest keys, when all are in use; absent without an
    /// admin listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusals_bytes: Option<u64>,
    limits: Vec<LimitWords<'c>>,
    routes: Vec<RouteLimits<'c>>,
    tests: Vec<Tested<'c>>,
}

#[derive(Debug, Serialize)]
struct LimitWords<'c> {
    limit: &'c str,
    words: String,
    tiers: Vec<TierWords<'c>>,
    candidate: Option<String>,
    room: Option<u64>,
}

#[derive(Debug, Serialize)]
struct TierWords<'c> {
    tier: &'c str,
    words: String,
}

#[derive(Debug, Serialize)]
struct RouteLimits<'c> {
    route: &'c str,
    limits: Vec<&'c str>,
}

#[derive(Debug, Serialize)]
struct Tested<'c> {
    test: &'c str,
    line: usize,
    passed: bool,
    wrong: &'c [String],
}

pub(super) fn wrong(errors: Vec<Diagnostic>) -> String {
    written(&Checked {
        version: VERSION,
        errors,
        ..Checked::default()
    })
}

pub(super) fn checked(
    config: &Config,
    notes: &[String],
    verdicts: &[Verdict],
    good: bool,
) -> String {
    let policy = &config.policy;
    written(&Checked {
        version: VERSION,
        good,
        errors: Vec::new(),
        warnings: config.diagnostics.clone(),
        notes,
        assumed: &config.assumed,
        memory_bytes: Some(app::memory::of_tables(&policy.limits)),
        connections_bytes: Some(app::memory::of_connections(
            config.server.bounds.connections,
        )),
        refusals_bytes: app::memory::of_refusals(config),
        limits: policy
            .rules
            .iter()
            .map(|rule| limit_words(rule, policy))
            .collect(),
        routes: policy
            .routes
            .iter()
            .map(|route| RouteLimits {
                route: &route.name,
                limits: route
                    .limits
                    .iter()
                    .map(|limit| &*policy.rules[limit.rule].name)
                    .collect(),
            })
            .collect(),
        tests: verdicts
            .iter()
            .map(|verdict| Tested {
                test: &verdict.name,
                line: verdict.line,
                passed: verdict.wrong.is_empty(),
                wrong: &verdict.wrong,
            })
            .collect(),
    })
}

fn limit_words<'c>(rule: &'c Rule, policy: &Policy) -> LimitWords<'c> {
    LimitWords {
        limit: &rule.name,
        words: rule.live.words(),
        tiers: rule
            .tiers
            .iter()
            .map(|(tier, limit)| TierWords {
                tier,
                words: limit.words(),
            })
            .collect(),
        candidate: rule.candidate.as_ref().map(|limit| limit.words()),
        room: room(rule, policy),
    }
}

#[derive(Debug, Serialize)]
struct Explained<'e> {
    version: u32,
    host: &'e str,
    path: &'e str,
    /// The client's address in the form used by buckets.
    caller: Option<&'e str>,
    forwarded: bool,
    route: Option<&'e str>,
    captures: Vec<Capture<'e>>,
    routes: Vec<Fate<'e>>,
    identities: Vec<Identified<'e>>,
    refusal: Option<String>,
    exempt: bool,
    tier: Option<&'e str>,
    limits: Vec<Limited<'e>>,
    /// The upstreams that take what limits refuse, in their order.
    over_limit: Vec<Over<'e>>,
}

/// An upstream that takes what limits before it refuse.
#[derive(Debug, Serialize)]
struct Over<'e> {
    upstream: &'e str,
    instead_of: Vec<&'e str>,
    limits: Vec<Limited<'e>>,
}

#[derive(Debug, Serialize)]
struct Capture<'e> {
    name: &'e str,
    value: &'e str,
}

#[derive(Debug, Serialize)]
struct Fate<'e> {
    route: &'e str,
    fate: String,
}

#[derive(Debug, Serialize)]
struct Identified<'e> {
    identity: &'e str,
    sources: Vec<SourceValue<'e>>,
    how: String,
    caller: Option<&'e str>,
    key: &'e str,
}

#[derive(Debug, Serialize)]
struct SourceValue<'e> {
    identity: &'e str,
    source: &'e str,
    value: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Limited<'e> {
    limit: &'e str,
    tier: Option<&'e str>,
    candidate: bool,
    words: String,
    cost: u64,
    enforced: bool,
    skipped: Option<&'static str>,
    key: &'e str,
    /// The key's name in logs; `null`: it is not known here.
    name: Option<String>,
    /// How the bucket stands, with `--live`.
    #[serde(skip_serializing_if = "Option::is_none")]
    now: Option<Now>,
    /// The override in force; only of a running gateway.
    #[serde(rename = "override")]
    overridden: Option<Overridden>,
}

pub(super) fn explained(policy: &Policy, explanation: &Explanation, known: &Known) -> String {
    let route = |index: usize| &*policy.routes[index].name;
    let captures = explanation.taken.iter().flat_map(|(_, captures)| captures);
    let fates = explanation.routes.iter().enumerate();
    written(&Explained {
        version: VERSION,
        host: &explanation.host,
        path: &explanation.path,
        caller: explanation.client.as_deref(),
        forwarded: explanation.forwarded,
        route: explanation.taken.as_ref().map(|(index, _)| route(*index)),
        captures: captures
            .map(|(name, value)| Capture { name, value })
            .collect(),
        routes: fates
            .map(|(index, fate)| Fate {
                route: route(index),
                fate: fate_words(fate),
            })
            .collect(),
        identities: explanation
            .identities
            .iter()
            .map(|story| identified(policy, story))
            .collect(),
        refusal: explanation.refusal.as_ref().map(ToString::to_string),
        exempt: explanation.exempt,
        tier: explanation.tier.as_deref(),
        limits: explanation
            .limits
            .iter()
            .map(|story| limited(policy, story, known))
            .collect(),
        over_limit: explanation
            .taken
            .iter()
            .flat_map(|(index, _)| &policy.routes[*index].over_limit)
            .zip(&explanation.over_limit)
            .map(|(over, stories)| Over {
                upstream: &policy.upstreams[over.upstream].name,
                instead_of: (over.instead_of.iter())
                    .map(|rule| &*policy.rules[*rule].name)
                    .collect(),
                limits: (stories.iter())
                    .map(|story| limited(policy, story, known))
                    .collect(),
            })
            .collect(),
    })
}

fn identified<'e>(policy: &'e Policy, story: &'e IdentityStory) -> Identified<'e> {
    let name = |index: usize| &*policy.identities[index].name;
    let of_steps = story.steps.iter().flat_map(|step| {
        step.sources
            .iter()
            .map(move |source| (step.identity, source))
    });
    Identified {
        identity: name(story.identity),
        sources: of_steps
            .map(|(identity, (source, value))| SourceValue {
                identity: name(identity),
                source,
                value: value.as_ref().ok().and_then(Option::as_deref),
                error: value.as_ref().err().map(ToString::to_string),
            })
            .collect(),
        how: match &story.outcome {
            Ok(how) => how.words().to_owned(),
            Err(reason) => reason.to_string(),
        },
        caller: story.caller.as_deref(),
        key: &story.key,
    }
}

fn limited<'e>(policy: &'e Policy, story: &'e LimitStory, known: &Known) -> Limited<'e> {
    let limit = &policy.limits[story.limit];
    let (now, overridden) = known
        .now(policy, story)
        .map_or((None, None), |(now, overridden)| (Some(now), overridden));
    Limited {
        limit: &limit.name,
        tier: limit.tier.as_deref(),
        candidate: story.candidate,
        words: limit.words(),
        cost: story.cost,
        enforced: story.enforced,
        skipped: story.skipped.map(|why| why.words()),
        key: &story.key,
        name: known.name(story),
        now,
        overridden,
    }
}

pub(super) fn written(document: &impl Serialize) -> String {
    serde_json::to_string_pretty(document).expect("text, numbers and lists are JSON")
}
