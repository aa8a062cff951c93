//! Checks between tables: routes against routes, limits against the store, names against their use.
//!
//! This module reports what a policy finds wrong with its parts, and legal but probably unintended
//! settings. `cluster` reports what a Redis Cluster cannot decide together, `unused` settings
//! without effect.

mod ceilings;
mod cluster;
mod unused;

use std::net::IpAddr;

use super::{entries_of, entry_of, list_of};
use crate::raw::RawFile;
use crate::reading::{Context, Place, Problem};
use crate::settings::{Listener, Server};
pub(crate) use cluster::check_cluster;
use tollgate_policy::claims::prices::Price;
use tollgate_policy::identity::{Identity, Source, WhenUnknown};
use tollgate_policy::routes::{Route, RouteLimit};
use tollgate_policy::upstream::ServerAddress;
use tollgate_policy::{BuildError, Part, Policy, Rule, ScopePart};

/// Reports a mistake from the policy's own checks at its places in the file. `routes`: their places.
pub(crate) fn build_error(
    error: BuildError,
    raw: &RawFile,
    routes: &[Place],
    context: &mut Context<'_>,
) {
    let place = |part| match part {
        Part::Route(index) => routes.get(index).copied(),
        Part::Identity(index) | Part::WhenMissing(index) => {
            let (name, identity) = entries_of(&raw.identities).get(index)?;
            let key = match part {
                Part::WhenMissing(_) => identity.when_missing.place(),
                _ => identity.key.place(),
            };
            Some(key.unwrap_or(name.place))
        }
    };
    let problem = context.problems.push(Problem::error(error.title));
    for (part, label) in error.marks {
        problem.at(place(part).unwrap_or_default(), label);
    }
    problem.maybe_help(error.help);
}

pub(crate) fn warn(raw: &RawFile, policy: &Policy, server: &Server, context: &mut Context<'_>) {
    unused::names(raw, policy, context);
    unused::tiers(raw, policy, context);
    unverified(raw, policy, context);
    to_itself(raw, policy, server, context);
    ceilings::warn(raw, policy, context);
    warn_of_penalties(raw, policy, context);
}

/// An upstream at one of the gateway's own listeners: every request would return until it is refused.
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
        // A limit without made-up parts on the same route bounds the gain from invented keys.
        let is_evaded = |limit: &RouteLimit| {
            let mut identities = policy.rules[limit.rule].scope.identities();
            is_fresh(limit) || identities.any(|other| can_be_made_up(&policy.identities[other]))
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

/// Listeners of the file on which all clients have one address, or none; `listen`: where the file names them.
pub(crate) fn unaddressed(
    policy: &Policy,
    server: &Server,
    listen: Option<Place>,
    context: &mut Context<'_>,
) {
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
    let Some(place) = listen else {
        return;
    };
    if !by_address || server.proxy_protocol {
        return;
    }
    let mut listeners = server.listen.iter();
    let loopback = listeners.clone().all(
        |listener| matches!(listener, Listener::Tcp { address, .. } if address.ip().is_loopback()),
    );
    let unix = listeners.any(|listener| matches!(listener, Listener::Unix(_)));
    if unix && !policy.address.trust_unix {
        let title = "clients on a Unix socket have no address";
        context
            .warning(title, place, "limits per address count them all together")
            .help("if a proxy of yours is the only one to connect: [address] trust_unix = true");
    } else if loopback && !trusted && context.place("decide.listen").is_none() {
        // With `[decide]` the clients are those of the program that asks.
        let title = "only this machine can connect, and limits count addresses";
        context
            .warning(title, place, "behind a proxy all clients are 127.0.0.1")
            .help("if a proxy on this machine forwards to the gateway: [address] trusted_proxies = [\"127.0.0.1\"]");
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
