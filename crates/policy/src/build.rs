//! Compiles the parts of a policy and reports all of their mistakes at once.

use std::sync::Arc;

use http::HeaderName;

use super::body::{BodySettings, Wanted};
use super::claims::plan::Plan;
use super::identity::address::AddressPolicy;
use super::identity::{Identity, Source, WhenMissing};
use super::routes::Route;
use super::routes::router::{Conflict, Router};
use super::upstream::Upstream;
use super::{BuildError, Cost, Domains, Guarded, Part, Policy, Responses, Rule};
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
    pub fn build(mut parts: PolicyParts) -> Result<Self, Vec<BuildError>> {
        let mut errors = Vec::new();
        let mut wanted = Wanted::default();
        for index in 0..parts.identities.len() {
            check_identity(index, &parts.identities, &mut errors);
        }
        for identity in &mut parts.identities {
            let claims = identity.sources.iter().filter_map(|source| match source {
                Source::JwtClaim(name) => Some(name.as_str()),
                _ => None,
            });
            if let Some(jwt) = &mut identity.jwt {
                jwt.want(claims);
            }
        }
        let limits = number(&mut parts.rules);
        let (routes, rules, identities) = (&parts.routes, &parts.rules, &parts.identities);
        let plans = routes
            .iter()
            .enumerate()
            .map(|(index, route)| {
                if !parts.keeps_slashes && route.pattern.has_encoded_slash() {
                    let title = format!("route `{}` can never match", route.name);
                    let label = "paths with an encoded slash are refused";
                    let error = BuildError::new(title, Part::Route(index), label);
                    errors.push(error.help(
                        "[server] encoded_slash = \"keep\" takes it for a character of its segment",
                    ));
                }
                Plan::new(index, route, rules, identities, &mut wanted, &mut errors)
            })
            .collect();
        let router =
            Router::new(routes.iter().map(|route| &route.pattern)).unwrap_or_else(|conflicts| {
                errors.extend(conflicts.into_iter().map(|one| conflict(one, routes)));
                Router::default()
            });
        if !errors.is_empty() {
            return Err(errors);
        }
        let guarded = Guarded::new(deciding(identities, rules, routes), compared(routes));
        Ok(Self {
            address: parts.address,
            guarded: Arc::new(guarded),
            identities: parts.identities,
            limits,
            rules: parts.rules,
            upstreams: parts.upstreams,
            routes: parts.routes,
            domains: parts.domains,
            responses: parts.responses,
            egress: parts.egress,
            keeps_slashes: parts.keeps_slashes,
            router,
            plans,
            body: parts.body,
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

fn conflict(conflict: Conflict, routes: &[Route]) -> BuildError {
    match conflict {
        Conflict::Tie { first, second } => {
            let (one, other) = (&routes[first].name, &routes[second].name);
            let title = format!("routes `{one}` and `{other}` tie");
            let label = "matches some of the same requests";
            let error = BuildError::new(title, Part::Route(second), label);
            error.at(Part::Route(first), "and neither is more specific").help(if one == other {
                "one of them must go, or match more: a method, a host, a header"
            } else {
                "the most specific route wins: make one of them more specific, or add a route for what both match"
            })
        }
        Conflict::Unreachable { route, by } => {
            let title = format!("route `{}` can never match", routes[route].name);
            let label = match by.len() {
                1 => "takes all of its requests",
                _ => "takes some of its requests",
            };
            let error = BuildError::new(title, Part::Route(route), "never reached");
            let others = by.into_iter();
            others.fold(error, |error, other| error.at(Part::Route(other), label))
        }
    }
}

fn check_identity(index: usize, identities: &[Identity], errors: &mut Vec<BuildError>) {
    let identity = &identities[index];
    let (name, part) = (&identity.name, Part::Identity(index));
    if identity.sources.is_empty() || identity.sources.len() > SOURCES_MAX {
        let title = format!("the key of identity `{name}` has too many parts");
        errors.push(BuildError::new(title, part, "fewer sources were expected"));
    }
    // There is no single key to hash.
    if identity.callers.is_some()
        && (identity.sources.len() != 1 && !identity.first_of
            || identity.sources.contains(&Source::Address))
    {
        let title = format!(
            "identity `{name}` lists callers by the hash of their key, but has no one key to hash"
        );
        let label = "exactly one source is needed, and not the address";
        errors.push(BuildError::new(title, part, label));
    }
    // Otherwise a client could send a value that equals another caller's token claim, and be
    // identified as that caller.
    let claim = |source: &Source| matches!(source, Source::JwtClaim(_));
    if identity.first_of
        && !identity.sources.iter().all(Source::is_unverified)
        && !identity.sources.iter().all(claim)
    {
        let title = format!("the sources of identity `{name}` cannot replace one another");
        let label = "either all are keys that clients send, or all are claims of a token";
        errors.push(BuildError::new(title, part, label).help(
            "define an identity for each, and name the second in the first: when_missing = \"use:OTHER\"",
        ));
    }
    errors.extend(cycle(index, identities));
}

/// The cycle of `when_missing` whose first identity this is.
fn cycle(first: usize, identities: &[Identity]) -> Option<BuildError> {
    let next = |at: &usize| match identities[*at].when_missing {
        WhenMissing::Use(next) => Some(next),
        _ => None,
    };
    let followed = std::iter::successors(Some(first), next).skip(1);
    // A cycle closes within as many steps as there are identities.
    let mut others: Vec<usize> = followed.take(identities.len()).collect();
    let end = others.iter().position(|other| *other == first)?;
    others.truncate(end);
    if others.iter().any(|other| *other < first) {
        return None;
    }
    let title = format!("identity `{}` replaces itself", identities[first].name);
    let start = Part::WhenMissing(first);
    let error = BuildError::new(title, start, "the circle begins here")
        .help("the last one must end: when_missing = \"refuse\", \"skip\" or \"use:address\"");
    let others = others.into_iter();
    Some(others.fold(error, |error, other| {
        error.at(Part::WhenMissing(other), "goes on here")
    }))
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
