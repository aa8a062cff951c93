//! Kong's declarative configuration: the `rate-limiting` plugin of services, routes, consumers and all.

mod entities;
mod limits;

use std::collections::BTreeSet;

use crate::draft::{Draft, Outcome, Place, clients, either};
use crate::tree::{self, Node};
use crate::words::{DAY, HOUR, MINUTE, SECOND, is_of_limiting};

use entities::{Plugin, Scope, ServiceRoute, identity, in_force, plugins, ways};
use limits::{Callers, limits, scope};

/// The periods that a plugin can name, and their microseconds.
const PERIODS: [(&str, u64); 6] = [
    ("second", SECOND),
    ("minute", MINUTE),
    ("hour", HOUR),
    ("day", DAY),
    ("month", 0),
    ("year", 0),
];

/// What the members of `config` say that are not read, where they say what holds without them.
const OF_CONFIG: [(&str, &str); 7] = [
    ("error_code", "429"),
    ("limit_by", "consumer"),
    ("error_message", "API rate limit exceeded"),
    ("fault_tolerant", "true"),
    ("hide_client_headers", "false"),
    ("sync_rate", "-1"),
    ("lock_dictionary_name", "kong_locks"),
];

const AUTH: [&str; 15] = [
    "ace",
    "basic-auth",
    "hmac-auth",
    "jwt",
    "jwt-signer",
    "key-auth-enc",
    "ldap-auth",
    "ldap-auth-advanced",
    "mtls-auth",
    "oauth2",
    "oauth2-introspection",
    "openid-connect",
    "saml",
    "session",
    "vault-auth",
];

pub(crate) fn draft(documents: &[Node], draft: &mut Draft) {
    for document in documents {
        read(document, draft);
    }
    if !draft.limits.is_empty() {
        draft.note(
            "nodes: with policy `local` each node of Kong counts for itself, as a gateway without a [store] does; \
             `cluster` and `redis` count together, as with a [store]",
        );
        draft.note("races: Kong adds a request up after it has let it pass, so requests at the same moment can pass together; here none do");
    }
}

fn read(root: &Node, draft: &mut Draft) {
    let plugins = plugins(root);
    let mut limiting = Vec::new();
    let mut auth = Vec::new();
    let mut others = Vec::new();
    let mut has_hidden_auth = false;
    for (scope, node) in plugins {
        let enabled = node.text_at("enabled") != Some("false");
        match node.text_at("name").unwrap_or_default() {
            "rate-limiting" if enabled => limiting.push(Plugin::new(scope, node)),
            "rate-limiting" => {
                tree::is_said(node);
                draft.nothing(
                    &Place::of(node),
                    "plugin rate-limiting",
                    "it is not enabled",
                )
            }
            "key-auth" if enabled => auth.push(Plugin::new(scope, node)),
            other if AUTH.contains(&other) && enabled => {
                // Callers of a single consumer's or group's plugin are known by no other.
                has_hidden_auth |= matches!(scope, Scope::Several | Scope::Group);
                others.push(Plugin::new(scope, node));
            }
            other if is_of_limiting(other) || other == "service-protection" => {
                tree::is_said(node);
                let why = "only the plugin `rate-limiting` is imported";
                draft.not_imported(&Place::of(node), &format!("plugin {other}"), why);
            }
            _ => {}
        }
    }
    if !auth.is_empty() {
        draft.note("authentication: key-auth refuses requests without a key; here only routes with a limit by consumer do");
        draft.identity = Some(identity(root, &auth));
    }
    let ways = ways(root);
    for index in 0..limiting.len() {
        let on = ways
            .iter()
            .filter(|way| in_force(&limiting, way) == Some(index));
        // Who authenticates a route's clients decides what a consumer is.
        let by = |plugins: &[Plugin<'_>], way: &ServiceRoute<'_>| in_force(plugins, way).is_some();
        let kinds: BTreeSet<(bool, bool)> =
            on.map(|way| (by(&auth, way), by(&others, way))).collect();
        let callers = match kinds.iter().collect::<Vec<_>>()[..] {
            [(true, false)] => Callers::ByKey,
            [(false, false)] if !has_hidden_auth => Callers::None,
            _ => Callers::Unknown,
        };
        limiting[index].limits = match scope(&limiting[index], callers, draft) {
            Ok(Some(scope)) => limits(&scope, draft),
            Ok(None) => Vec::new(),
            Err(why) => {
                let node = limiting[index].node;
                tree::is_said(node);
                draft.not_imported(&Place::of(node), "plugin rate-limiting", &why);
                Vec::new()
            }
        };
    }
    consumers(&limiting, draft);
    for plugin in &limiting {
        if let Some(config) = plugin.node.get("config") {
            // A note says what counts together, for all of them.
            let of_store = |key: &str| key == "policy" || key.starts_with("redis");
            let members = config.entries().iter().filter(|(key, _)| of_store(key));
            members.for_each(|(_, member)| tree::is_said(member));
            draft.unread_members(config, &OF_CONFIG);
        }
    }
    let is_apart = |plugin: &Plugin<'_>| matches!(plugin.scope, Scope::Group | Scope::Several);
    if limiting.iter().any(is_apart) {
        let apart = "consumers or groups with a plugin that is not imported have other numbers in Kong; here they have these";
        for (_, limit) in limiting.iter().flat_map(|plugin| &plugin.limits) {
            draft.differ(limit, &either(apart));
        }
    }
    for way in &ways {
        let limits = in_force(&limiting, way).map(|index| &limiting[index].limits);
        let limits = limits.into_iter().flatten();
        let limits: Vec<String> = limits.map(|(_, limit)| limit.clone()).collect();
        way.routes(root, &limits, draft);
    }
    draft.unread(root);
}

/// A consumer's own plugin takes the place of all others: its caller has numbers of its own.
fn consumers(plugins: &[Plugin<'_>], draft: &mut Draft) {
    for plugin in plugins {
        let Scope::Consumer(consumer) = &plugin.scope else {
            continue;
        };
        let place = Place::of(plugin.node);
        let what = format!("rate-limiting of consumer {consumer}");
        let Some(config) = plugin.node.get("config") else {
            draft.not_imported(&place, &what, "it has no config");
            continue;
        };
        let callers = draft.identity.iter().flat_map(|identity| &identity.callers);
        let has_key = callers.into_iter().any(|caller| caller.name == *consumer);
        if !has_key {
            let why = "its key is not in the file (keyauth_credentials), so its consumer cannot be told from others";
            draft.not_imported(&place, &what, why);
            tree::is_said(config);
            continue;
        }
        let mut numbers: Vec<(String, String)> = Vec::new();
        let limits = || plugins.iter().flat_map(|plugin| &plugin.limits);
        for (period, limit) in limits() {
            let named = draft.limits.iter().find(|named| named.name == *limit);
            if named.is_none_or(|named| named.limit.per != ["consumer"]) {
                continue;
            }
            let number = config
                .text_at(period)
                .and_then(|text| text.parse::<u64>().ok());
            let rate = match number {
                Some(number) => format!("{number}/{period}"),
                None => "unlimited".to_owned(),
            };
            numbers.push((limit.clone(), rate));
        }
        let is_left = |period: &&str| {
            config.get(period).is_some() && !limits().any(|(known, _)| known == period)
        };
        let periods = PERIODS.map(|(period, _)| period);
        let left: Vec<&str> = periods.into_iter().filter(is_left).collect();
        if !left.is_empty() || numbers.is_empty() {
            let periods = left.join(", ");
            let why =
                format!("no limit by consumer that others have counts the same period ({periods})");
            draft.not_imported(&place, &what, &why);
        }
        if numbers.is_empty() {
            continue;
        }
        let limits: Vec<String> = numbers.iter().map(|(limit, _)| limit.clone()).collect();
        let several = numbers.len() > 1;
        if let Some(identity) = &mut draft.identity {
            let mut callers = identity.callers.iter_mut();
            if let Some(caller) = callers.find(|caller| caller.name == *consumer) {
                caller.limits = numbers;
            }
        }
        for limit in &limits {
            draft.imported(&place, &what, limit, Outcome::Equal);
            if several {
                let over_all = "Kong counts a consumer's own plugin over all routes together; here each limit counts for itself";
                draft.differ(limit, &clients(over_all));
            }
        }
        let others = draft.limits.iter().map(|named| named.name.clone());
        let others: Vec<String> = others.filter(|name| !limits.contains(name)).collect();
        for limit in others {
            draft.differ(&limit, &either(
                "a consumer with a plugin of its own is not limited by others in Kong; here this limit holds for it as well",
            ));
        }
    }
}
