//! Warns of routes between which a client chooses by the name that it gives its GraphQL operation.

use super::super::list_of;
use crate::context::Context;
use crate::raw::RawFile;
use http::Method;
use tollgate_policy::identity::Source;
use tollgate_policy::pattern::overlap::{
    are_alternatives, shares_methods, takes_method, takes_methods,
};
use tollgate_policy::route::{HostPattern, Pattern, Route, RouteLimit, Segment};
use tollgate_policy::{Policy, ScopePart};

/// Conditions on the operation beside a route that takes the other operations of the same path, with
/// other limits.
pub(super) fn of_operations(raw: &RawFile, policy: &Policy, context: &mut Context<'_>) {
    for (route, written) in policy.routes.iter().zip(list_of(&raw.routes)) {
        if !has_operation(&route.pattern) {
            continue;
        }
        let is_beside = |other: &&Route| {
            !std::ptr::eq(*other, route)
                && covers(&other.pattern, &route.pattern)
                && is_met_beside(&other.pattern, &route.pattern)
                && !comes_first(&other.pattern, &route.pattern)
                && !is_hidden(other, route, &policy.routes)
                && !other.target.turns_away()
                && (route.target.turns_away() || !have_same_buckets(policy, route, other))
        };
        if let Some(other) = policy.routes.iter().find(is_beside) {
            let title = format!(
                "a client chooses between the routes `{}` and `{}`: it names its operations itself",
                route.name, other.name
            );
            let place = written.r#match.place().unwrap_or(written.place);
            context
                .warning(title, place, "it may give this operation another name, or this name to another one")
                .help("give both routes the same limits, and split a limit with per = \"graphql:operation\" and listed `callers`, not with \"route\" or \"host\"");
        }
    }
}

/// Whether one request may meet the conditions of both, except those on the operation, which the
/// client names for the one or for the other.
fn is_met_beside(one: &Pattern, other: &Pattern) -> bool {
    let [of_one, of_other] = [one, other].map(|pattern| {
        let of_client = |source: &Source| *source == Source::GraphqlOperation;
        let body = pattern.body.iter().filter(|(source, _)| !of_client(source));
        body.cloned().collect::<Vec<_>>()
    });
    shares_methods(&one.methods, &other.methods)
        && !are_alternatives(&one.headers, &other.headers)
        && !are_alternatives(&of_one, &of_other)
}

/// Whether there is a condition on the operation.
pub(super) fn has_operation(pattern: &Pattern) -> bool {
    let mut conditions = pattern.body.iter();
    conditions.any(|(source, _)| *source == Source::GraphqlOperation)
}

/// Whether `other` takes each request that meets both, whatever its operation is.
fn comes_first(other: &Pattern, route: &Pattern) -> bool {
    !has_operation(other) && other.precedence() > route.precedence()
}

/// Whether a route takes all requests of the path of `route` before they come to `other`.
fn is_hidden(other: &Route, route: &Route, routes: &[Route]) -> bool {
    routes.iter().map(|nearer| &nearer.pattern).any(|nearer| {
        takes_methods(&nearer.methods, &route.pattern.methods)
            && nearer.headers.is_empty()
            && nearer.body.is_empty()
            && covers(nearer, &route.pattern)
            && nearer.precedence() > other.pattern.precedence()
    })
}

/// Whether `one` has the host and the path of every request that `other` takes.
fn covers(one: &Pattern, other: &Pattern) -> bool {
    let host = match (&one.host, &other.host) {
        (host, HostPattern::Exact(name)) => host.matches(name),
        (host, other) => *host == HostPattern::Any || host == other,
    };
    host && covers_path(&one.path, &other.path)
}

fn covers_path(one: &[Segment], other: &[Segment]) -> bool {
    match (one, other) {
        ([Segment::Rest], _) | ([], []) => true,
        (
            [Segment::Capture(_), one @ ..],
            [Segment::Capture(_) | Segment::Literal(_), other @ ..],
        ) => covers_path(one, other),
        ([first, one @ ..], [second, other @ ..]) => first == second && covers_path(one, other),
        _ => false,
    }
}

/// Whether the requests of both draw from the same buckets.
fn have_same_buckets(policy: &Policy, one: &Route, other: &Route) -> bool {
    let has = |route: &Route, limit: &RouteLimit| route.all_limits().any(|its| its == limit);
    let is_shared = |limit: &RouteLimit| {
        let parts = policy.rules[limit.rule].scope.parts();
        has(one, limit) && has(other, limit) && is_one_bucket(parts, one, other)
    };
    one.all_limits().chain(other.all_limits()).all(is_shared)
}

/// Whether a client has one bucket on both routes, as far as the routes decide.
fn is_one_bucket(parts: &[ScopePart], one: &Route, other: &Route) -> bool {
    let is_same_class = |method: &Method| one.method_class(method) == other.method_class(method);
    let is_taken = |method: &&Method| {
        [one, other]
            .iter()
            .all(|route| takes_method(&route.pattern.methods, method))
    };
    parts.iter().all(|part| match part {
        ScopePart::Route => one.name == other.name,
        ScopePart::Host => one.pattern.host == other.pattern.host,
        ScopePart::Method => {
            let listed = one.pattern.methods.iter().chain(&other.pattern.methods);
            listed.filter(is_taken).all(is_same_class)
        }
        ScopePart::Address | ScopePart::Identity(_) | ScopePart::Descriptor => true,
    })
}
