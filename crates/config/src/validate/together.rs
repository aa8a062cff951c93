//! Checks between tables: routes against routes, limits against the store, names against their use.
//!
//! This module reports legal but probably unintended settings. `conflicts` reports what a policy
//! finds wrong with its parts, `cluster` what a Redis Cluster cannot decide together, `unused`
//! settings without effect.

mod ceilings;
mod cluster;
mod conflicts;
mod unused;

use std::net::IpAddr;

use super::{entries_of, entry_of, list_of};
use crate::raw::RawFile;
use crate::reading::{Context, Problem};
use crate::settings::{Listener, Server};
pub(crate) use cluster::check_cluster;
pub(crate) use conflicts::{IdentityPlace, Places, build_error};
use tollgate_policy::claims::prices::Price;
use tollgate_policy::identity::{Identity, Source, WhenUnknown};
use tollgate_policy::routes::{HostPattern, Piece, Placeholder, Route, RouteLimit, Target};
use tollgate_policy::upstream::ServerAddress;
use tollgate_policy::{Count, Policy, Rule, ScopePart, StatusMatch};

pub(crate) fn warn(raw: &RawFile, policy: &Policy, server: &Server, context: &mut Context<'_>) {
    unused::names(raw, policy, context);
    unused::tiers(raw, policy, context);
    unverified(raw, policy, context);
    unaddressed(policy, server, context);
    to_itself(raw, policy, server, context);
    redirected_to_itself(raw, policy, server, context);
    unnamed_hosts(raw, policy, context);
    ceilings::warn(raw, policy, context);
    warn_of_penalties(raw, policy, context);
}

/// Routes for more than one host, under limits that are split by host.
fn unnamed_hosts(raw: &RawFile, policy: &Policy, context: &mut Context<'_>) {
    for (route, written) in policy.routes.iter().zip(list_of(&raw.routes)) {
        let mut rules = route.all_limits().map(|limit| &policy.rules[limit.rule]);
        let by_host = rules.find(|rule| rule.scope.parts().contains(&ScopePart::Host));
        if let (Some(rule), false) = (by_host, matches!(route.pattern.host, HostPattern::Exact(_)))
        {
            let title = format!(
                "all hosts of route `{}` share one bucket of `{}`",
                route.name, rule.name
            );
            let place = written.r#match.place().unwrap_or(written.place);
            context
                .warning(
                    title,
                    place,
                    "it names no single host, and clients can make hosts up",
                )
                .help("write a route for each host: match = \"api.example.com/**\"");
        }
    }
}

/// An upstream at one of the gateway's own listeners: every request would return until it is
/// refused.
fn to_itself(raw: &RawFile, policy: &Policy, server: &Server, context: &mut Context<'_>) {
    let own = |address: &ServerAddress| {
        server
            .listen
            .iter()
            .any(|listener| match (listener, address) {
                (Listener::Unix(path), ServerAddress::Unix(other)) => path == other,
                (Listener::Tcp { address, .. }, ServerAddress::Tcp(host, port))
                    if address.port() == *port =>
                {
                    let local = |ip: IpAddr| {
                        ip == address.ip() || (address.ip().is_unspecified() && ip.is_loopback())
                    };
                    let named = host == "localhost"
                        && (address.ip().is_loopback() || address.ip().is_unspecified());
                    named || host.parse().is_ok_and(local)
                }
                _ => false,
            })
    };
    for upstream in &policy.upstreams {
        if !upstream.servers.iter().any(|server| own(&server.address)) {
            continue;
        }
        let mut routes = list_of(&raw.routes)
            .iter()
            .filter_map(|route| route.upstream.get());
        let url = routes.find(|text| text.as_str() == &*upstream.name);
        let place = context
            .place(&format!("upstreams.{}.servers", upstream.name))
            .or(url.map(|text| text.place));
        let title = format!("upstream `{}` is this gateway itself", upstream.name);
        let label = "it listens here: every request would come back to it";
        context.error(title, place.unwrap_or_default(), label);
    }
}

/// Redirects to https that requests over https get too: a client would follow them for ever.
fn redirected_to_itself(
    raw: &RawFile,
    policy: &Policy,
    server: &Server,
    context: &mut Context<'_>,
) {
    let is_tls = |listener: &Listener| matches!(listener, Listener::Tcp { tls: true, .. });
    if !server.listen.iter().any(is_tls) {
        return;
    }
    for (route, written) in policy.routes.iter().zip(list_of(&raw.routes)) {
        if returns_to_itself(route) {
            let title = format!(
                "route `{}` redirects https requests to themselves",
                route.name
            );
            let place = written.redirect.place().unwrap_or(written.place);
            context
                .warning(title, place, "the route also takes requests to the https listener")
                .help("a route takes requests of every listener: `redirect_to_https = true` in [server] redirects those of the http listeners only");
        }
    }
}

/// Whether a GET over https that `route` redirects comes to the same route again.
fn returns_to_itself(route: &Route) -> bool {
    let Target::Redirect { location, .. } = &route.target else {
        return false;
    };
    let [
        Piece::Text(scheme),
        Piece::Placeholder(Placeholder::Host),
        Piece::Placeholder(Placeholder::RequestPath),
        rest @ ..,
    ] = &location.pieces[..]
    else {
        return false;
    };
    let is_query = |piece: &Piece| *piece == Piece::Placeholder(Placeholder::Query);
    let pattern = &route.pattern;
    // Another method or header may lead to another route.
    scheme == "https://"
        && rest.iter().all(is_query)
        && pattern.headers.is_empty()
        && pattern.body.is_empty()
        && (pattern.methods.is_empty() || pattern.methods.contains(&http::Method::GET))
}

/// Buckets by values that a client can invent, alone or beside values that it cannot: a new value
/// gets a fresh bucket.
fn unverified(raw: &RawFile, policy: &Policy, context: &mut Context<'_>) {
    let identities = policy.identities.iter().zip(entries_of(&raw.identities));
    for (index, (identity, (name, written))) in identities.enumerate() {
        // Each of several sources is a part of the key.
        if !can_be_made_up(identity) {
            continue;
        }
        let unverified = identity
            .sources
            .iter()
            .filter(|source| source.is_unverified());
        let made_up: Vec<&Source> = unverified.collect();
        let is_fresh = |limit: &RouteLimit| {
            let parts = policy.rules[limit.rule].scope.parts();
            // Descriptors come from a program that asks, not from clients.
            parts.contains(&ScopePart::Identity(index)) && !parts.contains(&ScopePart::Descriptor)
        };
        // A limit without made-up parts on the same route bounds the gain from invented keys, unless
        // it gives back what an invented key that the upstream refuses was charged.
        let is_evaded = |limit: &RouteLimit| {
            let rule = &policy.rules[limit.rule];
            let mut identities = rule.scope.identities();
            is_fresh(limit)
                || gives_errors_back(rule)
                || identities.any(|other| can_be_made_up(&policy.identities[other]))
        };
        let unbounded = policy.routes.iter().any(|route| {
            route.limits.iter().any(is_fresh)
                && route.limits.iter().all(is_evaded)
                && !is_priced(route, &made_up, policy)
        });
        if unbounded {
            let sources: Vec<String> = made_up.iter().map(|source| source.words()).collect();
            let title = format!("a client can make up keys of identity `{}`", name.value);
            let label = format!(
                "`{}` is not verified: a made-up key is a fresh bucket",
                sources.join("`, `")
            );
            context
                .warning(title, written.key.place().unwrap_or(name.place), label)
                .help("list the callers, or verify a token (jwt), or add a limit to the same routes that is split by none of these, such as one per \"address\"");
        }
    }
}

/// Whether a request that the upstream refuses with a 4xx can be charged nothing.
fn gives_errors_back(rule: &Rule) -> bool {
    let is_error = |status: &StatusMatch| status.from <= 499 && status.to >= 400;
    rule.count != Count::All || rule.refund_on.iter().any(is_error)
}

fn can_be_made_up(identity: &Identity) -> bool {
    let listed = identity.callers.is_some() && identity.when_unknown != WhenUnknown::Accept;
    !listed && identity.sources.iter().any(Source::is_unverified)
}

/// Whether requests of this route that name a model without a price are refused, and nothing but
/// the model can be made up: the models with prices are all there are.
fn is_priced(route: &Route, made_up: &[&Source], policy: &Policy) -> bool {
    let mut prices = route
        .limits
        .iter()
        .filter_map(|limit| policy.rules[limit.rule].prices.as_ref());
    prices.any(|prices| {
        let source = prices.source(&route.pattern);
        let names_one = |price: &Price| !price.name.contains('*');
        prices.unknown.is_none()
            && made_up.iter().all(|one| Some(*one) == source)
            && prices.prices.list().all(names_one)
    })
}

/// Listeners on which all clients have one address, or none.
fn unaddressed(policy: &Policy, server: &Server, context: &mut Context<'_>) {
    let is_by_address = |rule: &Rule| rule.scope.parts().contains(&ScopePart::Address);
    let by_address = policy.rules.iter().any(is_by_address);
    let trusted = !policy.address.trusted_proxies.is_empty();
    if let (true, false, Some(place)) = (
        server.proxy_protocol,
        trusted,
        context.place("server.proxy_protocol"),
    ) {
        let title = "no PROXY header is believed";
        context
            .warning(title, place, "`trusted_proxies` is empty")
            .help("[address] trusted_proxies = [\"10.0.0.0/8\"] names the proxies whose headers are believed");
    }
    if !by_address || server.proxy_protocol {
        return;
    }
    if !context.is_listener_written() {
        return;
    }
    let mut listeners = server.listen.iter();
    let loopback = listeners.clone().all(
        |listener| matches!(listener, Listener::Tcp { address, .. } if address.ip().is_loopback()),
    );
    let unix = listeners.any(|listener| matches!(listener, Listener::Unix(_)));
    if unix && !policy.address.trust_unix {
        let title = "clients on a Unix socket have no address";
        of_listener(title, "limits per address count them all together", context)
            .help("if a proxy of yours is the only one to connect: [address] trust_unix = true");
    } else if loopback && !trusted && context.place("decide.listen").is_none() {
        // With `[decide]` the clients are those of the program that asks.
        let title = "only this machine can connect, and limits count addresses";
        of_listener(title, "behind a proxy all clients are 127.0.0.1", context)
            .help("if a proxy on this machine forwards to the gateway: [address] trusted_proxies = [\"127.0.0.1\"]");
    }
}

/// A warning about the listener for clients: at its place in the file, unless another one is in force.
fn of_listener<'c>(title: &str, label: &str, context: &'c mut Context<'_>) -> &'c mut Problem {
    let replaced = context.replaces_listener;
    match context.place("server.listen") {
        Some(place) if !replaced => context.warning(title, place, label),
        _ => {
            let title = format!("{title} (`--listen`): {label}");
            context.problems.push(Problem::warning(title))
        }
    }
}

/// Penalties of limits whose keys any client can spend.
fn warn_of_penalties(raw: &RawFile, policy: &Policy, context: &mut Context<'_>) {
    for rule in &policy.rules {
        if rule.live.penalty.is_none() {
            continue;
        }
        let named = |part: &ScopePart| match part {
            ScopePart::Identity(at) => policy.identities.get(*at),
            _ => None,
        };
        let tells = |part: &ScopePart| match part {
            ScopePart::Address | ScopePart::Descriptor => true,
            ScopePart::Identity(_) => !named(part).is_some_and(is_claimed),
            ScopePart::Route | ScopePart::Method | ScopePart::Host => false,
        };
        let parts = rule.scope.parts();
        if parts.iter().any(tells) {
            continue;
        }
        let limit = &rule.name;
        let title = match parts.iter().find_map(named) {
            Some(identity) => format!(
                "a client can have others blocked by the penalty of `{limit}`: nothing proves `{}`",
                identity.name
            ),
            None => format!(
                "a client can have all others blocked by the penalty of `{limit}`: they share a bucket"
            ),
        };
        let place = entry_of(&raw.limits, &rule.name)
            .map(|(name, limit)| limit.penalty.place().unwrap_or(name.place));
        context
            .warning(title, place.unwrap_or_default(), "it blocks a key that others can spend")
            .help("give a penalty only to keys that one caller alone can spend: list the callers, or verify a token (jwt), or limit per \"address\"");
    }
}

/// Whether a client can send the key of another one: it only claims to be who it is. A bearer token
/// is known to its caller alone.
fn is_claimed(identity: &Identity) -> bool {
    let claimed = |source: &Source| source.is_unverified() && !matches!(source, Source::Bearer);
    let is_anyone = identity.callers.is_none() || identity.when_unknown == WhenUnknown::Accept;
    is_anyone && identity.sources.iter().all(claimed)
}

#[cfg(test)]
mod tests;
