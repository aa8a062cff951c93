//! What each rule needs to find in a log, and what the log lacks.

use std::sync::Arc;

use http::header::{AUTHORIZATION, COOKIE, HeaderName};

use super::Subject;
use crate::log::Survey;
use tollgate_limit::{Kind as Quantity, Limit};
use tollgate_policy::identity::{Source, WhenMissing};
use tollgate_policy::{Cost, Policy, Scope, ScopePart, SettleFrom};

/// What a rule needs to find in a log.
#[derive(Debug, Default)]
pub(super) struct Needs {
    pub(super) address: bool,
    pub(super) headers: Vec<HeaderName>,
    query: bool,
    never: Option<&'static str>,
    pub(super) price: Option<HeaderName>,
    length: bool,
    host: bool,
    conditions: Vec<HeaderName>,
    durations: bool,
}

impl Needs {
    /// Whether the key is not told by the address alone.
    pub(super) fn is_identity(&self) -> bool {
        !self.headers.is_empty() || self.query || self.never.is_some()
    }
}

impl Subject<'_> {
    pub(crate) fn key_headers(&self, rule: usize) -> &[HeaderName] {
        &self.needs[rule].headers
    }

    /// Why a rule cannot be judged by this log; `None`: it can.
    pub(crate) fn not_judged(&self, rule: usize, survey: &Survey) -> Option<String> {
        let (needs, named) = (&self.needs[rule], &self.policy.rules[rule].name);
        if let Some(why) = &survey.sampled {
            return Some(format!("the log is not whole: {why}"));
        }
        let rule = &self.policy.rules[rule];
        let follows = |limit: &Arc<Limit>| {
            limit.algorithm.follows().is_some() || limit.algorithm.sheds_load()
        };
        if follows(&rule.live) || rule.tiers.iter().any(|(_, limit)| follows(limit)) {
            return Some("it follows the upstream's health, which no log holds".into());
        }
        let none_has = |what: &str| Some(format!("no line of the log has {what}"));
        let lacks = |name: &HeaderName| !survey.headers.contains(name.as_str());
        let is_given = survey.with.key > 0 || survey.own_limits.contains(&**named);
        if !is_given {
            if let Some(what) = needs.never {
                return Some(format!("its key is {what}, which no log holds"));
            }
            let user = |name: &HeaderName| *name == AUTHORIZATION && survey.with.user > 0;
            if let Some(name) = needs.headers.iter().find(|name| lacks(name) && !user(name)) {
                return none_has(&format!("the header `{name}`, which its key is read from"));
            }
            if needs.query && survey.with.query == 0 {
                return none_has("a query, which its key is read from");
            }
            // Behind a number of proxies the client is in their header, whoever the peer was.
            let is_forwarded = self.policy.address.trusted_hops > 0 && survey.forwarded > 0;
            if needs.address && survey.with.client + survey.with.key == 0 && !is_forwarded {
                return none_has("a client address");
            }
        }
        let priced = survey.with.cost > 0 || survey.own_limits.contains(&**named);
        if let Some(name) = needs.price.as_ref().filter(|name| lacks(name) && !priced) {
            return none_has(&format!("the header `{name}`, which its cost is read from"));
        }
        if needs.length && survey.with.received == 0 && !priced {
            return none_has("the length of a request's body, which its cost is");
        }
        if needs.host && survey.with.host == 0 {
            return Some("its routes name hosts, and no line of the log has one".into());
        }
        if let Some(name) = needs.conditions.iter().find(|name| lacks(name)) {
            return Some(format!(
                "a route asks for the header `{name}`, which no line of the log has"
            ));
        }
        if needs.durations && survey.with.duration == 0 {
            return Some("it counts requests under way, and the log has no durations".into());
        }
        None
    }

    /// What is not exact about a rule, in words.
    pub(crate) fn caveat(&self, rule: usize, survey: &Survey) -> Option<&'static str> {
        let rule = &self.policy.rules[rule];
        match rule.settle.as_ref().map(|settle| &settle.from) {
            Some(SettleFrom::Header(_) | SettleFrom::Json(_)) if survey.with.cost == 0 => Some(
                "what its responses cost is not in the log: every request stays charged by the estimate",
            ),
            _ => None,
        }
    }
}

impl Needs {
    pub(super) fn new(policy: &Policy, rule: usize) -> Self {
        let mut needs = Self::default();
        if let Scope::Identities(parts) = &policy.rules[rule].scope {
            for part in parts {
                match part {
                    ScopePart::Address => needs.address = true,
                    ScopePart::Method
                    | ScopePart::Route
                    | ScopePart::Host
                    | ScopePart::Descriptor => {}
                    ScopePart::Identity(index) => identity_needs(policy, *index, &mut needs, 0),
                }
            }
        }
        let mut price = |cost: &Cost| match cost {
            Cost::Fixed(_) => {}
            Cost::Header { name, .. } => needs.price = Some(name.clone()),
            Cost::ContentLength { .. } => needs.length = true,
            Cost::Body(_) => needs.never = Some(OF_BODY),
        };
        let settled = policy.rules[rule].settle.is_some();
        if !settled {
            price(&policy.rules[rule].cost);
        }
        let mut hosts = Vec::new();
        let mut by_body = false;
        for route in &policy.routes {
            let Some(limit) = route.limits.iter().find(|limit| limit.rule == rule) else {
                continue;
            };
            if let Some(cost) = limit.cost.as_ref().filter(|_| !settled) {
                price(cost);
            }
            hosts.push(!route.pattern.host.matches(""));
            needs
                .conditions
                .extend(route.pattern.headers.iter().map(|(name, _)| name.clone()));
            by_body |= !route.pattern.body.is_empty();
        }
        if by_body {
            needs.never = Some(OF_BODY);
        }
        needs.host = !hosts.is_empty() && hosts.iter().all(|named| *named);
        needs.durations = policy.rules[rule].live.algorithm.kind() == Quantity::InFlight;
        needs
    }
}

/// `depth`: identities stand in for each other without circles, and never deeper than there are any.
fn identity_needs(policy: &Policy, index: usize, needs: &mut Needs, depth: usize) {
    let identity = &policy.identities[index];
    // Where the first source that is present counts, those of the log decide: the first one is taken for all.
    let sources = if identity.first_of {
        &identity.sources[..1.min(identity.sources.len())]
    } else {
        &identity.sources[..]
    };
    for source in sources {
        match source {
            Source::Address => needs.address = true,
            Source::Header(name) => needs.headers.push(name.clone()),
            Source::Bearer | Source::BasicUser => needs.headers.push(AUTHORIZATION),
            Source::Cookie(_) => needs.headers.push(COOKIE),
            Source::Query(_) => needs.query = true,
            Source::Path(_) => {}
            Source::JwtClaim(_) => needs.never = Some("a claim of a token"),
            Source::Json(_)
            | Source::JsonDigest(_)
            | Source::Form(_)
            | Source::GraphqlOperation => {
                needs.never = Some(OF_BODY);
            }
            Source::Application => needs.never = Some("the key that a service gives a request"),
            Source::ClientCertificate => needs.never = Some("the subject of a client certificate"),
        }
    }
    if let WhenMissing::Use(other) = identity.when_missing
        && depth < policy.identities.len()
    {
        identity_needs(policy, other, needs, depth + 1);
    }
}

const OF_BODY: &str = "what the body of a request says";
