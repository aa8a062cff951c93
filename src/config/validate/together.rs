//! What no table is wrong about alone: routes against routes, limits against the store, names against their use.

use std::net::IpAddr;

use super::limits::Limits;
use super::routes::Routes;
use super::{Context, entries_of, list_of};
use crate::config::problem::Problem;
use crate::config::raw::RawFile;
use crate::config::scalar::ShortOr;
use crate::config::settings::{Listener, Server, Store, Topology};
use crate::config::source::{At, Place};
use crate::limit::{Kind, Micros, Mode, Placement};
use crate::policy::identity::{Source, WhenMissing, WhenUnknown};
use crate::policy::upstream::ServerAddress;
use crate::policy::{BuildError, Policy, Scope, ScopePart};

/// Where the parts of a policy are written, for what it finds wrong with them together.
pub(crate) struct Places<'p> {
    /// The names of the identities.
    pub(crate) written: &'p [At<String>],
    /// What each does when its key is missing.
    pub(crate) when_missing: &'p [WhenMissing],
    /// Where each says that.
    pub(crate) missing_places: Vec<Place>,
    /// Where each says what its key is.
    pub(crate) key_places: Vec<Place>,
    pub(crate) routes: Vec<Place>,
    pub(crate) route_names: Vec<String>,
}

/// Says what the policy's own checks found, in places of the file.
pub(crate) fn build_error(error: BuildError, places: &Places<'_>, context: &mut Context<'_>) {
    let identity = |index: usize| {
        let name = places.written.get(index).map_or("", |name| name.value.as_str());
        (name, places.key_places.get(index).copied().unwrap_or_default())
    };
    let route = |index: usize| {
        let name = places.route_names.get(index).map_or("", String::as_str);
        (name, places.routes.get(index).copied().unwrap_or_default())
    };
    let problem = match error {
        BuildError::Tie { first, second } => {
            let ((first_name, first), (second_name, second)) = (route(first), route(second));
            let problem = Problem::error(format!("routes `{first_name}` and `{second_name}` tie"))
                .at(second, "matches some of the same requests")
                .at(first, "and neither is more specific");
            if first_name == second_name {
                problem.help("one of them must go, or match more: a method, a host, a header")
            } else {
                problem.help(
                    "the most specific route wins: make one of them more specific, or add a route for what both match",
                )
            }
        }
        BuildError::Unreachable { route: index, by } => {
            let (name, place) = route(index);
            let mut problem = Problem::error(format!("route `{name}` can never match")).at(place, "never reached");
            let label = if by.len() == 1 { "takes all of its requests" } else { "takes some of its requests" };
            for other in by {
                problem = problem.at(route(other).1, label);
            }
            problem
        }
        BuildError::UnknownCapture { route: index, identity: by, name } => {
            let ((route_name, place), (identity_name, at)) = (route(index), identity(by));
            Problem::error(format!(
                "identity `{identity_name}` is made of `path:{name}`, but route `{route_name}` has no `{{{name}}}`"
            ))
            .at(place, format!("no segment is called `{name}`"))
            .at(at, "the identity")
        }
        BuildError::TemplateCapture { route: index, name } => {
            let (route_name, place) = route(index);
            Problem::error(format!("a template says `{{path:{name}}}`, but route `{route_name}` has no `{{{name}}}`"))
                .at(place, format!("no segment is called `{name}`"))
        }
        BuildError::IdentityCycle { identity: index } => match cycle(index, places) {
            Some(problem) => problem,
            None => return,
        },
        BuildError::CallersOfComposite { identity: index } => {
            let (name, place) = identity(index);
            Problem::error(format!(
                "identity `{name}` lists callers by the hash of their key, but has no one key to hash"
            ))
            .at(place, "exactly one source is needed, and not the address")
        }
        BuildError::Sources { identity: index } => {
            let (name, place) = identity(index);
            Problem::error(format!("the key of identity `{name}` has too many parts"))
                .at(place, "fewer sources were expected")
        }
        BuildError::UnverifiedToken { identity: index } => {
            let (name, place) = identity(index);
            Problem::error(format!("identity `{name}` does not say how tokens are verified"))
                .at(place, "`jwt` is missing")
        }
        // Checked before, where the place is better known.
        BuildError::LimitTwice { route: index, .. } => {
            Problem::error("a route names a limit twice").at(route(index).1, "this route")
        }
        BuildError::TooManyClaims { route: index, claims } => {
            Problem::error(format!("a route is charged on {claims} limits at once"))
                .at(route(index).1, "16 are the most, candidates among them")
        }
        BuildError::Dangling { route: index, what } => {
            Problem::error(format!("a route refers to {what}, which does not exist")).at(route(index).1, "this route")
        }
    };
    context.push(problem);
}

/// A circle of `when_missing`, told once: of its first identity.
fn cycle(index: usize, places: &Places<'_>) -> Option<Problem> {
    let place = |index: usize| places.missing_places.get(index).copied().unwrap_or_default();
    let name = places.written.get(index).map_or("", |name| name.value.as_str());
    let mut problem =
        Problem::error(format!("identity `{name}` stands in for itself")).at(place(index), "the circle begins here");
    let mut at = index;
    // As many steps as there are identities: the circle closes within them.
    for _ in 0..places.when_missing.len() {
        let Some(WhenMissing::Use(next)) = places.when_missing.get(at).copied() else { break };
        at = next;
        match at.cmp(&index) {
            std::cmp::Ordering::Less => return None,
            std::cmp::Ordering::Equal => break,
            std::cmp::Ordering::Greater => problem = problem.at(place(at), "goes on here"),
        }
    }
    Some(problem.help("the last one must end: when_missing = \"refuse\", \"skip\" or \"use:address\""))
}

/// Redis Cluster: the buckets that one call decides on must lie in one slot, so limits that occur together need the same
/// `per`. A leased one needs not: its units are taken in the process, and put back unless the call grants the rest.
pub(crate) fn check_cluster(routes: &Routes, limits: &Limits, store: Option<&Store>, context: &mut Context<'_>) {
    if store.is_none_or(|store| store.topology != Topology::Cluster) {
        return;
    }
    let mut said: Vec<(usize, usize)> = Vec::new();
    for (route, place) in routes.list.iter().zip(&routes.places) {
        let bound: Vec<usize> = route
            .limits
            .iter()
            .map(|limit| limit.rule)
            .filter(|rule| {
                let live = &limits.rules[*rule].live;
                live.placement == Placement::Shared && live.mode != Mode::Off && !live.lease
            })
            .collect();
        let Some((first, rest)) = bound.split_first() else { continue };
        for other in rest.iter().filter(|other| limits.rules[**other].scope != limits.rules[*first].scope) {
            if said.contains(&(*first, *other)) {
                continue;
            }
            said.push((*first, *other));
            let (one, two) = (&limits.written[*first], &limits.written[*other]);
            let problem = Problem::error(format!(
                "limits `{}` and `{}` cannot occur together on a Redis Cluster",
                one.name.value, two.name.value
            ));
            let problem = problem
                .at(*place, "this route is charged on both")
                .at(one.name.place, format!("per {}", one.per.join(" and ")))
                .at(two.name.place, format!("per {}", two.per.join(" and ")))
                .note("a request is charged on all of its limits or on none, which takes one call, and a call reaches one slot");
            context
                .push(problem.help("give both the same `per`, or let gateways hold parts of one of them: lease = true; or keep one in each process: store = \"local\""));
        }
    }
}

/// What is written and never used, and what is legal and hardly meant.
pub(crate) fn warn(raw: &RawFile, policy: &Policy, server: &Server, context: &mut Context<'_>) {
    unused(raw, policy, context);
    tiers(raw, policy, context);
    unverified(raw, policy, context);
    unaddressed(raw, policy, server, context);
    without_limits(raw, policy, context);
    to_itself(raw, policy, server, context);
    held_in_places(raw, policy, context);
}

/// Requests that wait for a rate while they hold places of a concurrency limit.
fn held_in_places(raw: &RawFile, policy: &Policy, context: &mut Context<'_>) {
    let place = |rule: usize, of: fn(&crate::config::raw::RawLimit) -> Option<Place>| {
        let written = entries_of(&raw.limits).iter().find(|(name, _)| *name.value == *policy.rules[rule].name);
        written.map(|(name, limit)| of(limit).unwrap_or(name.place)).unwrap_or_default()
    };
    let mut said = Vec::new();
    for route in &policy.routes {
        let on = |rule: &usize| policy.rules[*rule].live.mode == Mode::Enforce;
        let rules: Vec<usize> = route.limits.iter().map(|limit| limit.rule).filter(on).collect();
        let find = |wanted: fn(&crate::limit::Algorithm) -> bool| {
            rules.iter().copied().find(|rule| wanted(&policy.rules[*rule].live.algorithm))
        };
        let waits = find(|algorithm| algorithm.max_wait() > Micros::ZERO);
        let Some((waits, places)) = waits.zip(find(|algorithm| algorithm.kind() == Kind::InFlight)) else { continue };
        if said.contains(&(waits, places)) {
            continue;
        }
        said.push((waits, places));
        let (one, other) = (&policy.rules[waits].name, &policy.rules[places].name);
        let problem = Problem::warning(format!("requests that wait for `{one}` hold places of `{other}`"));
        let problem = problem.at(place(waits, |limit| limit.max_wait.place()), "who is held here").at(
            place(places, |limit| limit.in_flight.place()),
            "has a place here already, and others are refused for it",
        );
        context.push(problem.help(
            "let `in_flight` be no less than may wait and be under way together, or put the two on different gateways",
        ));
    }
}

/// An upstream at one of the gateway's own listeners: every request would come back until it is refused.
fn to_itself(raw: &RawFile, policy: &Policy, server: &Server, context: &mut Context<'_>) {
    let own = |address: &ServerAddress| {
        server.listen.iter().any(|listener| match (listener, address) {
            (Listener::Unix(path), ServerAddress::Unix(other)) => path == other,
            (Listener::Tcp { address, .. }, ServerAddress::Tcp(host, port)) if address.port() == *port => {
                let local = |ip: IpAddr| ip == address.ip() || (address.ip().is_unspecified() && ip.is_loopback());
                let named = host == "localhost" && (address.ip().is_loopback() || address.ip().is_unspecified());
                named || host.parse().is_ok_and(local)
            }
            _ => false,
        })
    };
    for upstream in &policy.upstreams {
        if !upstream.servers.iter().any(|server| own(&server.address)) {
            continue;
        }
        let written = entries_of(&raw.upstreams).iter().find(|(name, _)| *name.value == *upstream.name);
        let route = || list_of(&raw.routes).iter().filter_map(|route| route.upstream.get());
        let place = written
            .map(|(name, at)| at.servers.place().unwrap_or(name.place))
            .or_else(|| route().find(|text| text.as_str() == &*upstream.name).map(|text| text.place));
        let problem = Problem::error(format!("upstream `{}` is this gateway itself", upstream.name));
        context.push(problem.at(place.unwrap_or_default(), "it listens here: every request would come back to it"));
    }
}

fn unused(raw: &RawFile, policy: &Policy, context: &mut Context<'_>) {
    for (name, _) in entries_of(&raw.limits) {
        let used = policy
            .routes
            .iter()
            .any(|route| route.limits.iter().any(|limit| *policy.rules[limit.rule].name == *name.value));
        if !used {
            let problem =
                Problem::warning(format!("limit `{}` is never used", name.value)).at(name.place, "no route names it");
            context.push(problem);
        }
    }
    let mut used = vec![false; policy.identities.len()];
    for rule in &policy.rules {
        if let Scope::Identities(parts) = &rule.scope {
            for part in parts {
                if let ScopePart::Identity(index) = part {
                    used[*index] = true;
                }
            }
        }
    }
    for identity in &policy.identities {
        if let WhenMissing::Use(index) = identity.when_missing {
            used[index] = true;
        }
    }
    for (name, _) in entries_of(&raw.identities) {
        let index = policy.identities.iter().position(|identity| *identity.name == *name.value);
        let templated = format!("identity:{}", name.value);
        let in_template = list_of(&raw.routes).iter().any(|route| {
            let sets = route.request_headers.get().into_iter().chain(route.response_headers.get());
            sets.flat_map(|edits| entries_of(&edits.set)).any(|(_, value)| {
                value.as_str().contains(&templated)
                    || value.as_str().contains("{tier}")
                    || value.as_str().contains("{caller}")
            })
        });
        if index.is_some_and(|index| !used[index]) && !in_template {
            context.push(
                Problem::warning(format!("identity `{}` is never used", name.value))
                    .at(name.place, "no limit is per this identity"),
            );
        }
    }
    for (name, _) in entries_of(&raw.upstreams) {
        let used = list_of(&raw.routes)
            .iter()
            .any(|route| route.upstream.get().is_some_and(|upstream| upstream.as_str() == name.value));
        if !used {
            context.push(
                Problem::warning(format!("upstream `{}` is never used", name.value))
                    .at(name.place, "no route goes there"),
            );
        }
    }
    for (name, limits) in entries_of(&raw.tiers) {
        if limits.entries.is_empty() && limits.broken.is_empty() {
            context.push(
                Problem::warning(format!("tier `{}` changes nothing", name.value))
                    .at(name.place, "no limit has numbers here"),
            );
        }
    }
}

/// Tiers that no caller has, and their limits on whose routes nobody's tier is known.
fn tiers(raw: &RawFile, policy: &Policy, context: &mut Context<'_>) {
    // A list in a file of its own may name any tier by the time it is read again.
    let own_file = |index: usize| {
        let written =
            entries_of(&raw.identities).iter().find(|(name, _)| *policy.identities[index].name == *name.value);
        written.and_then(|(_, identity)| identity.callers.get()).is_some_and(|at| matches!(at.value, ShortOr::Short(_)))
    };
    let gives = |index: usize, tier: &str| {
        let listed = policy.identities[index].callers.as_ref();
        listed.is_some_and(|callers| {
            own_file(index) || callers.load().iter().any(|caller| caller.tier.as_deref() == Some(tier))
        })
    };
    for (tier, limits) in entries_of(&raw.tiers) {
        if !(0..policy.identities.len()).any(|index| gives(index, &tier.value)) {
            let problem = Problem::warning(format!("no caller is of tier `{}`", tier.value));
            context.push(problem.at(tier.place, "no list of callers names it"));
            continue;
        }
        for (limit, _) in &limits.entries {
            let names = |route: &usize| {
                policy.routes[*route].limits.iter().any(|one| *policy.rules[one.rule].name == *limit.value)
            };
            let on: Vec<usize> = (0..policy.routes.len()).filter(names).collect();
            let known = |route: &usize| policy.identities_of(*route).iter().any(|index| gives(*index, &tier.value));
            if !on.is_empty() && !on.iter().any(known) {
                let problem = Problem::warning(format!("tier `{}` never changes limit `{}`", tier.value, limit.value));
                context.push(problem.at(limit.place, "no route of this limit learns who the caller is").help(
                    "a caller's tier is known where a limit of the route is `per` the identity that lists the caller",
                ));
            }
        }
    }
    for (index, route) in list_of(&raw.routes).iter().enumerate() {
        let lists = |index: &usize| policy.identities[*index].callers.is_some();
        if index >= policy.routes.len() || policy.identities_of(index).iter().any(lists) {
            continue;
        }
        let sets = route.request_headers.get().into_iter().chain(route.response_headers.get());
        for (_, value) in sets.flat_map(|edits| entries_of(&edits.set)) {
            if let Some(word) = ["{tier}", "{caller}"].into_iter().find(|word| value.as_str().contains(word)) {
                let problem =
                    Problem::warning(format!("`{word}` is always empty on route `{}`", policy.routes[index].name));
                context.push(problem.at(value.place, "no limit of this route is per an identity that lists callers"));
            }
        }
    }
}

/// Buckets that hang on what a caller can make up: a new value is a fresh bucket.
fn unverified(raw: &RawFile, policy: &Policy, context: &mut Context<'_>) {
    for (identity, (name, written)) in policy.identities.iter().zip(entries_of(&raw.identities)) {
        let made_up = identity.sources.iter().all(Source::is_unverified);
        let anyone = identity.callers.is_none() || identity.when_unknown == WhenUnknown::Accept;
        let index = policy.identities.iter().position(|other| other.name == identity.name);
        let alone: Vec<&str> = policy
            .rules
            .iter()
            .filter(|rule| matches!(&rule.scope, Scope::Identities(parts) if parts.iter().all(|part| matches!(part, ScopePart::Identity(at) if Some(*at) == index))))
            .map(|rule| &*rule.name)
            .collect();
        // A route that is also limited by address, or in all, bounds what made-up keys can get.
        let unbounded = policy.routes.iter().any(|route| {
            let names: Vec<&str> = route.limits.iter().map(|limit| &*policy.rules[limit.rule].name).collect();
            names.iter().any(|name| alone.contains(name)) && names.iter().all(|name| alone.contains(name))
        });
        if made_up && anyone && unbounded {
            let sources: Vec<String> = identity.sources.iter().map(Source::words).collect();
            let problem = Problem::warning(format!("identity `{}` is whatever a caller says it is", name.value));
            let problem = problem
                .at(
                    written.key.place().unwrap_or(name.place),
                    format!("nobody verifies `{}`: a made-up key is a fresh bucket", sources.join("`, `")),
                )
                .help("list the callers, or verify a token (jwt), or add a limit per \"address\" to the same routes");
            context.push(problem);
        }
    }
}

/// Listeners on which all callers have one address, or none.
fn unaddressed(raw: &RawFile, policy: &Policy, server: &Server, context: &mut Context<'_>) {
    let by_address = policy
        .rules
        .iter()
        .any(|rule| matches!(&rule.scope, Scope::Identities(parts) if parts.contains(&ScopePart::Address)));
    let named = raw.server.get().and_then(|server| server.listen.place());
    let trusted = !policy.address.trusted_proxies.is_empty();
    if let (true, false, Some(place)) =
        (server.proxy_protocol, trusted, raw.server.get().and_then(|server| server.proxy_protocol.place()))
    {
        let problem = Problem::warning("PROXY headers are believed from nobody").at(place, "no proxy is trusted");
        context.push(problem.help("[address] trusted_proxies = [\"10.0.0.0/8\"] names who may send them"));
    }
    if !by_address || server.proxy_protocol {
        return;
    }
    let Some(place) = named else { return };
    let loopback = server
        .listen
        .iter()
        .all(|listener| matches!(listener, Listener::Tcp { address, .. } if address.ip().is_loopback()));
    let unix = server.listen.iter().any(|listener| matches!(listener, Listener::Unix(_)));
    if unix && !policy.address.trust_unix {
        let problem = Problem::warning("callers on a Unix socket have no address")
            .at(place, "limits per address count them all together");
        context.push(problem.help("if a proxy of yours is the only one to connect: [address] trust_unix = true"));
    } else if loopback && !trusted {
        let problem = Problem::warning("only this machine can connect, and limits count addresses")
            .at(place, "behind a proxy all callers are 127.0.0.1");
        context.push(
            problem.help("if a proxy on this machine stands in front: [address] trusted_proxies = [\"127.0.0.1\"]"),
        );
    }
}

fn without_limits(raw: &RawFile, policy: &Policy, context: &mut Context<'_>) {
    for (route, written) in policy.routes.iter().zip(list_of(&raw.routes)) {
        if matches!(route.target, crate::policy::route::Target::Upstream(_))
            && written.limits.get().is_some_and(|limits| limits.is_empty())
        {
            let problem = Problem::warning(format!("route `{}` is charged on no limit", route.name));
            context.push(problem.at(written.limits.place().unwrap_or(written.place), "an empty list"));
        }
        for limit in list_of(&written.limits) {
            let name = match &limit.value {
                ShortOr::Short(text) => Some(text.value.as_str()),
                ShortOr::Table(table) => table.limit.get().map(|name| name.as_str()),
            };
            let off = policy
                .rules
                .iter()
                .any(|rule| Some(&*rule.name) == name && rule.live.mode == Mode::Off && rule.tiers.is_empty());
            let said = raw.limits.get().is_some_and(|limits| {
                limits
                    .entries
                    .iter()
                    .any(|(other, limit)| Some(other.value.as_str()) == name && !limit.mode.is_absent())
            });
            if off && !said {
                context.push(
                    Problem::warning(format!("limit `{}` is unlimited", name.unwrap_or_default()))
                        .at(limit.place, "it does nothing on this route"),
                );
            }
        }
    }
}
