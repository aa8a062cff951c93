//! Describes the changes of a reload: a line for each limit, route and upstream that was added,
//! removed or changed.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;

use tollgate_config::settings::Word as _;
use tollgate_limit::{Limit, Role, words};
use tollgate_policy::routes::{Route, Target};
use tollgate_policy::upstream::{Server, ServerAddress, Upstream};
use tollgate_policy::{Policy, Settle, SettleFrom};

/// The differences between two policies, in at most [`LINES_MAX`] lines and one that counts the
/// rest.
pub(super) fn between(old: &Policy, new: &Policy) -> Vec<String> {
    let mut lines = compare("limit", limits(old), limits(new));
    lines.extend(compare("route", routes(old), routes(new)));
    lines.extend(compare("upstream", upstreams(old), upstreams(new)));
    if lines.len() > LINES_MAX {
        let rest = lines.len() - LINES_MAX;
        lines.truncate(LINES_MAX);
        lines.push(format!("and {rest} more changes"));
    }
    lines
}

struct Item {
    name: String,
    parts: Vec<Part>,
}

struct Part {
    name: &'static str,
    value: String,
    /// Whether the value is readable; otherwise the line only says that it differs.
    readable: bool,
}

fn readable(name: &'static str, value: impl Into<String>) -> Part {
    Part {
        name,
        value: value.into(),
        readable: true,
    }
}

fn opaque(name: &'static str, value: impl Debug) -> Part {
    Part {
        name,
        value: format!("{value:?}"),
        readable: false,
    }
}

fn compare(kind: &str, old: Vec<Item>, new: Vec<Item>) -> Vec<String> {
    let before: HashMap<&str, &Item> = old.iter().map(|item| (&*item.name, item)).collect();
    let after: HashSet<&str> = new.iter().map(|item| &*item.name).collect();
    let mut lines = Vec::new();
    for Item { name, parts } in &new {
        let Some(before) = before.get(&**name) else {
            let first = parts.first().map_or("", |part| &part.value);
            lines.push(format!("{kind} {name}: added: {first}"));
            continue;
        };
        let pairs = before.parts.iter().zip(parts);
        let changes: Vec<String> = pairs
            .filter(|(before, after)| before.value != after.value)
            .map(|(before, after)| match after.readable {
                true => format!("{}: {} -> {}", after.name, before.value, after.value),
                false => format!("{}: changed", after.name),
            })
            .collect();
        if !changes.is_empty() {
            lines.push(format!("{kind} {name}: {}", changes.join("; ")));
        }
    }
    let removed = old.iter().filter(|item| !after.contains(&*item.name));
    lines.extend(removed.map(|item| format!("{kind} {}: removed", item.name)));
    lines
}

fn limits(policy: &Policy) -> Vec<Item> {
    let rules: HashMap<_, _> = policy.rules.iter().map(|rule| (&rule.name, rule)).collect();
    let item = |limit: &Arc<Limit>| {
        let mut name = limit.name.to_string();
        if let Some(tier) = &limit.tier {
            name += &format!(" (tier {tier})");
        }
        if limit.role == Role::Candidate {
            name += " (candidate)";
        }
        let mut parts = vec![
            readable("numbers", limit.words()),
            readable("mode", limit.mode.word()),
            readable(
                "enforce_for",
                format!(
                    "{}.{:02}% of keys",
                    limit.enforce_for / 100,
                    limit.enforce_for % 100
                ),
            ),
            readable("store", limit.placement.word()),
            readable("when_down", limit.when_down.word()),
            readable("on_failover", limit.on_failover.word()),
            readable("lease", limit.lease.to_string()),
            readable("memory", format!("{} bytes", limit.memory)),
        ];
        if let Some(rule) = rules.get(&limit.name) {
            parts.push(opaque("per", &rule.scope));
            parts.push(opaque("cost", &rule.cost));
            parts.push(opaque("prices", &rule.prices));
            parts.extend(settle(rule.settle.as_ref()));
            parts.push(opaque("count", &rule.count));
            parts.push(opaque("refund_on", &rule.refund_on));
            parts.push(readable("refuse_status", rule.refuse_status.as_str()));
            let wait = words::span(rule.max_wait);
            parts.push(readable("max_wait for reservations", wait));
            let events = limit.events.iter().map(|percent| format!("{percent}%"));
            parts.push(readable("events", events.collect::<Vec<_>>().join(", ")));
        }
        Item { name, parts }
    };
    policy.limits.iter().map(item).collect()
}

/// Every setting of `settle`, by its key in the file.
fn settle(settle: Option<&Settle>) -> [Part; 6] {
    let names = [
        "settle.from",
        "settle.per",
        "settle.estimate",
        "settle.max",
        "settle.broken_off_per",
        "settle.untold",
    ];
    let Some(settle) = settle else {
        return names.map(|name| readable(name, "none"));
    };
    let or_default = |value: Option<String>| value.unwrap_or_else(|| "default".to_owned());
    let bytes = |per: u64| format!("{per} bytes");
    let (from, per) = match &settle.from {
        SettleFrom::Header(name) => (format!("header:{name}"), None),
        SettleFrom::Bytes { per } => ("bytes".to_owned(), Some(bytes(*per))),
        SettleFrom::Json(usage) => (format!("json:{}", usage.words()), None),
    };
    let (estimate, untold) = match settle.estimate {
        Some(units) => (units.to_string(), "estimate"),
        None => ("the cost is reserved".to_owned(), "the reservation"),
    };
    let untold = if settle.untold_costs_most {
        "max"
    } else {
        untold
    };
    let max = (settle.most > 0).then(|| settle.most.to_string());
    let mut values = [
        from,
        or_default(per),
        estimate,
        or_default(max),
        or_default(settle.broken_off_per.map(bytes)),
        untold.to_owned(),
    ]
    .into_iter();
    names.map(|name| readable(name, values.next().unwrap_or_default()))
}

fn routes(policy: &Policy) -> Vec<Item> {
    let item = |route: &Route| {
        let limits: Vec<String> = route
            .limits
            .iter()
            .map(|limit| policy.rules[limit.rule].name.to_string())
            .collect();
        let costs: Vec<_> = route.limits.iter().map(|limit| &limit.cost).collect();
        let target = match &route.target {
            Target::Upstream(upstream) => policy.upstreams[*upstream].name.to_string(),
            Target::Echo => "builtin:echo".to_owned(),
            Target::Service => "the service".to_owned(),
            Target::Fixed { status, .. } => format!("a fixed response {status}"),
            Target::Redirect { status, .. } => format!("a redirect {status}"),
        };
        let own = match &route.target {
            Target::Upstream(_) => String::new(),
            own => format!("{own:?}"),
        };
        let parts = vec![
            readable("target", target),
            readable("limits", format!("[{}]", limits.join(", "))),
            opaque("over_limit", &route.over_limit),
            opaque("response", own),
            opaque("cost", costs),
            opaque("headers to match", &route.pattern.headers),
            opaque("body to match", &route.pattern.body),
            opaque("strip_prefix", &route.strip_prefix),
            opaque("add_prefix", &route.add_prefix),
            opaque("request_headers", &route.request_headers),
            opaque("response_headers", &route.response_headers),
            opaque("refusal", &route.refusal),
            opaque("body", route.body_max),
        ];
        Item {
            name: route.name.to_string(),
            parts,
        }
    };
    policy.routes.iter().map(item).collect()
}

fn upstreams(policy: &Policy) -> Vec<Item> {
    let server = |server: &Server| {
        let scheme = if server.tls.is_some() {
            "https://"
        } else {
            "http://"
        };
        let place = match &server.address {
            ServerAddress::Tcp(host, port) => format!("{scheme}{host}:{port}{}", server.base_path),
            ServerAddress::Unix(path) => format!("unix:{}", path.display()),
        };
        match server.weight {
            1 => place,
            weight => format!("{place} (weight {weight})"),
        }
    };
    let item = |upstream: &Arc<Upstream>| {
        let servers: Vec<String> = upstream.servers.iter().map(server).collect();
        let Upstream {
            http2,
            early_hints,
            proxy_protocol,
            idle_connections,
            pending,
            queue_timeout,
            ..
        } = &**upstream;
        let protocol = (http2, early_hints, proxy_protocol);
        let queue = (idle_connections, pending, queue_timeout);
        let parts = vec![
            readable("servers", format!("[{}]", servers.join(", "))),
            readable("connections", upstream.connections.to_string()),
            opaque("balance", upstream.balance),
            opaque("timeouts", upstream.timeouts),
            opaque("health", &upstream.health),
            opaque("eject", upstream.eject),
            opaque("retries", (&upstream.retry, upstream.attempts)),
            opaque("tls", &upstream.tls),
            opaque("host", &upstream.host),
            opaque("protocol", protocol),
            opaque("queue", queue),
            opaque("resolving", (upstream.resolve_every, upstream.slow_start)),
        ];
        Item {
            name: upstream.name.to_string(),
            parts,
        }
    };
    policy.upstreams.iter().map(item).collect()
}

const LINES_MAX: usize = 50;
