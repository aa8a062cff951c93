//! Writes a draft as `gateway.toml`, and holds everything to what `tollgate check` accepts.

mod toml;

use tollgate_config::ConfigError;
use tollgate_limit::Timestamp;

use crate::compare::compare;
use crate::draft::{Draft, Identity, Named, Route, Target, either};
use crate::words::plain;
use crate::{ImportError, Peer, SourceFile};
use toml::Toml;

/// Writes the draft. Routes that contradict others are taken out and noted.
pub(crate) fn checked(
    draft: &mut Draft,
    peer: Peer,
    sources: &[SourceFile],
) -> Result<String, ImportError> {
    if draft.routes.is_empty() {
        let mut route = Route::new(None, "/**", Target::Unknown);
        let limits = draft.limits.iter().map(|limit| limit.name.clone());
        route.limits = limits.collect();
        draft.routes.push(route);
    }
    let is_made_up = |route: &&Route| {
        route.place.is_none() && route.pattern == "/**" && route.headers.is_empty()
    };
    let made_up = draft.routes.iter().filter(is_made_up);
    let everywhere: Vec<String> = made_up.flat_map(|route| route.limits.clone()).collect();
    for limit in everywhere {
        draft.differ(&limit, &either(EVERYWHERE));
    }
    if draft.is_by_address() {
        draft.note(format!(
            "addresses: {} counts each IPv6 address for itself, so [address] ipv6_prefix is 128. With 64, the default, \
             one customer's network counts together",
            peer.name()
        ));
    }
    let mut routes = draft.routes.iter();
    if routes.any(|route| route.target == Target::Unknown) {
        draft.note(
            "routes: where a route says `builtin:echo`, the files do not tell its upstream as Tollgate needs it: \
             put yours in its place",
        );
    }
    let mut text = text(draft, peer, sources);
    if check(&text).is_err() {
        // Two routes can contradict each other in ways that only the router knows.
        let routes = std::mem::take(&mut draft.routes);
        if routes.len() <= 200 {
            for route in routes {
                draft.routes.push(route);
                if check(&self::text(draft, peer, sources)).is_err()
                    && let Some(route) = draft.routes.pop()
                {
                    leave_out(draft, &route);
                }
            }
        }
        text = self::text(draft, peer, sources);
    }
    if draft.drop_unrouted() {
        text = self::text(draft, peer, sources);
    }
    let parsed = |text: &str| {
        let error = |error: ConfigError| ImportError::Unsound(error.render(false));
        tollgate_config::parse(text, "gateway.toml", &|_| None, Timestamp::default()).map_err(error)
    };
    compare(draft, &parsed(&text)?, peer.name());
    let text = self::text(draft, peer, sources);
    parsed(&text)?;
    Ok(text)
}

/// Of a limit for which the importer made a route.
const EVERYWHERE: &str =
    "the files do not say which requests meet it; here it is on a route that takes all";

fn leave_out(draft: &mut Draft, route: &Route) {
    let why = "another route takes the same requests";
    if route.limits.is_empty() {
        let pattern = plain(&route.pattern, 200);
        draft.note(format!("route {pattern}: {why}; it is left out"));
    } else {
        draft.unlimited(route, why);
    }
}

fn check(text: &str) -> Result<(), ConfigError> {
    tollgate_config::parse(text, "gateway.toml", &|_| None, Timestamp::default()).map(|_| ())
}

pub(crate) fn check_limit(named: &Named, has_identity: bool) -> Result<(), String> {
    let mut toml = Toml::default();
    if has_identity {
        toml.identity(&Identity {
            keys: vec!["header:x-key".to_owned()],
            when_missing: "use:address",
            callers: Vec::new(),
        });
    }
    toml.limit(named);
    let mut route = Route::new(None, "/**", Target::Unknown);
    route.limits.push(named.name.clone());
    toml.route(&route);
    said(&toml.0)
}

/// Whether a pattern and a target are those of a route. The limits are checked elsewhere.
pub(crate) fn check_route(route: &Route) -> Result<(), String> {
    let mut alone = route.clone();
    alone.limits.clear();
    if let Target::Upstream(name) = &alone.target
        && !name.contains(':')
    {
        alone.target = Target::Unknown;
    }
    let mut toml = Toml::default();
    toml.route(&alone);
    said(&toml.0)
}

pub(crate) fn check_upstream(servers: &[(String, u64)]) -> Result<(), String> {
    let mut toml = Toml::default();
    toml.upstream("app", servers);
    toml.route(&Route::new(None, "/**", Target::Upstream("app".to_owned())));
    said(&toml.0)
}

fn said(text: &str) -> Result<(), String> {
    check(text).map_err(|error| plain(&error.words().join("; "), 300))
}

fn text(draft: &Draft, peer: Peer, sources: &[SourceFile]) -> String {
    let mut toml = Toml::default();
    let names = sources.iter().map(|source| plain(&source.name, 100));
    let names: Vec<String> = names.collect();
    toml.line(format_args!(
        "# Made by `tollgate import` from {} ({}). The report says what differs; `tollgate check` says what it means.",
        plain(&names.join(", "), 300),
        peer.name()
    ));
    let by_address = draft.is_by_address();
    if by_address || !draft.trusted.is_empty() || !draft.exempt.is_empty() {
        toml.line("\n[address]");
        toml.list("trusted_proxies", &draft.trusted);
        if let Some(header) = draft.header {
            toml.line(format_args!("header = \"{header}\""));
        }
        toml.list("exempt", &draft.exempt);
        if by_address {
            toml.line("ipv6_prefix = 128                      # each address for itself");
        }
    }
    if let Some(identity) = &draft.identity {
        toml.line("");
        toml.identity(identity);
    }
    for limit in &draft.limits {
        toml.line("");
        toml.limit(limit);
    }
    for (name, servers) in &draft.upstreams {
        toml.line("");
        toml.upstream(name, servers);
    }
    for route in &draft.routes {
        toml.line("");
        toml.route(route);
    }
    toml.0
}
