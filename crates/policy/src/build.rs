//! Compiles the parts of a policy and reports all of their mistakes at once.

use std::sync::Arc;

use http::HeaderName;

use super::body::{BodySettings, Wanted};
use super::claims::plan::Plan;
use super::identity::address::AddressPolicy;
use super::identity::{Identity, Source, WhenMissing};
use super::routes::Route;
use super::routes::router::Router;
use super::upstream::Upstream;
use super::{BuildError, Cost, Domains, Guarded, Policy, Responses, Rule};
use tollgate_limit::Limit;

/// The parts of a policy, each checked by itself: every index is one of a part, a route names a limit once, has at most
/// [`TARGETS_MAX`](crate::TARGETS_MAX) targets, and draws from no more buckets than one draw supports, and claims have
/// settings for verifying tokens. [`Policy::build`] panics otherwise.
#[derive(Debug)]
pub struct PolicyParts {
    pub address: AddressPolicy,
    pub identities: Vec<Identity>,
    /// Limits as the file names them. [`Policy::build`] numbers their variants.
    pub rules: Vec<Rule>,
    pub upstreams: Vec<Arc<Upstream>>,
    pub routes: Vec<Route>,
    pub domains: Domains,
    pub responses: Responses,
    pub egress: bool,
    pub keeps_slashes: bool,
    pub body: BodySettings,
}

impl Policy {
    /// Compiles the parts. Variants of limits are numbered here, in the order of the rules.
    pub fn build(parts: PolicyParts) -> Result<Self, Vec<BuildError>> {
        let PolicyParts {
            address,
            mut identities,
            mut rules,
            upstreams,
            routes,
            domains,
            responses,
            egress,
            keeps_slashes,
            body,
        } = parts;
        let mut errors = Vec::new();
        let mut wanted = Wanted::default();
        for index in 0..identities.len() {
            check_identity(index, &identities, &mut errors);
        }
        for identity in &mut identities {
            let claims = identity.sources.iter().filter_map(|source| match source {
                Source::JwtClaim(name) => Some(name.as_str()),
                _ => None,
            });
            if let Some(jwt) = &mut identity.jwt {
                jwt.want(claims);
            }
        }
        let limits = number(&mut rules);
        let plans = routes
            .iter()
            .enumerate()
            .map(|(index, route)| {
                if !keeps_slashes && route.pattern.has_encoded_slash() {
                    errors.push(BuildError::EncodedSlash(index));
                }
                Plan::new(index, route, &rules, &identities, &mut wanted, &mut errors)
            })
            .collect();
        let router =
            Router::new(routes.iter().map(|route| &route.pattern)).unwrap_or_else(|conflicts| {
                errors.extend(conflicts);
                Router::default()
            });
        if !errors.is_empty() {
            return Err(errors);
        }
        let guarded = Guarded::new(deciding(&identities, &rules, &routes), compared(&routes));
        Ok(Self {
            address,
            guarded: Arc::new(guarded),
            identities,
            limits,
            rules,
            upstreams,
            routes,
            domains,
            responses,
            egress,
            keeps_slashes,
            router,
            plans,
            body,
            wanted: Arc::new(wanted),
        })
    }
}

/// The headers that keys and costs are read from, that routes match, and that routes set or remove.
fn deciding<'p>(
    identities: &'p [Identity],
    rules: &'p [Rule],
    routes: &'p [Route],
) -> impl Iterator<Item = &'p HeaderName> {
    let limits = routes.iter().flat_map(Route::all_limits);
    let of_routes = limits.filter_map(|limit| limit.cost.as_ref());
    let costs = rules.iter().map(|rule| &rule.cost).chain(of_routes);
    let costs = costs.filter_map(|cost| match cost {
        Cost::Header { name, .. } => Some(name),
        _ => None,
    });
    let conditions = routes.iter().flat_map(|route| &route.pattern.headers);
    let matched = conditions.map(|(name, _)| name);
    let edits = || routes.iter().map(|route| &route.request_headers);
    let set = edits().flat_map(|edits| &edits.set).map(|(name, _)| name);
    let removed = edits().flat_map(|edits| &edits.remove);
    let read = key_headers(identities).chain(costs).chain(matched);
    read.chain(removed).chain(set)
}

pub(super) fn key_headers(identities: &[Identity]) -> impl Iterator<Item = &HeaderName> {
    let sources = identities.iter().flat_map(|identity| &identity.sources);
    sources.filter_map(|source| match source {
        Source::Header(name) => Some(name),
        _ => None,
    })
}

fn compared(routes: &[Route]) -> impl Iterator<Item = &HeaderName> {
    let conditions = routes.iter().flat_map(|route| &route.pattern.headers);
    conditions.filter_map(|(name, value)| value.as_ref().map(|_| name))
}

fn check_identity(index: usize, identities: &[Identity], errors: &mut Vec<BuildError>) {
    let identity = &identities[index];
    if identity.sources.is_empty() || identity.sources.len() > SOURCES_MAX {
        errors.push(BuildError::Sources(index));
    }
    if identity.callers.is_some()
        && (identity.sources.len() != 1 && !identity.first_of
            || identity.sources.contains(&Source::Address))
    {
        errors.push(BuildError::CallersOfComposite(index));
    }
    // Otherwise a client could send a value that equals another caller's token claim, and be
    // identified as that caller.
    let claim = |source: &Source| matches!(source, Source::JwtClaim(_));
    if identity.first_of
        && !identity.sources.iter().all(Source::is_unverified)
        && !identity.sources.iter().all(claim)
    {
        errors.push(BuildError::FirstOfMixed(index));
    }
    let mut at = index;
    for _ in 0..=identities.len() {
        let WhenMissing::Use(next) = identities[at].when_missing else {
            return;
        };
        if next == index {
            errors.push(BuildError::IdentityCycle(index));
            return;
        }
        at = next;
    }
    // A cycle further along is reported at its own identity.
}

/// Numbers every variant of every limit, densely from zero.
fn number(rules: &mut [Rule]) -> Vec<Arc<Limit>> {
    let mut limits: Vec<Arc<Limit>> = Vec::new();
    for rule in rules {
        rule.tiers.sort_by(|a, b| a.0.cmp(&b.0));
        let tiers = rule.tiers.iter_mut().map(|(_, limit)| limit);
        let variants = [&mut rule.live].into_iter().chain(tiers);
        for variant in variants.chain(rule.candidate.as_mut()) {
            Arc::make_mut(variant).index = limits.len();
            limits.push(Arc::clone(variant));
        }
    }
    limits
}

const SOURCES_MAX: usize = 8;
