//! The report that `tollgate check` prints for a valid file: every limit in words, and what applies where.

mod limits;

use super::Config;
use super::settings::{AccessLog, StoreKind, Topology, Word as _};
use limits::{cost, limit};
use tollgate_limit::{Algorithm, WhenDown, words};
use tollgate_policy::identity::jwt::{JwtPolicy, without_query};
use tollgate_policy::identity::{Source, WhenMissing, WhenUnknown};
use tollgate_policy::routes::{Route, RouteLimit, Target};
use tollgate_policy::{Policy, Rule, Scope};

/// A valid configuration in words; its warnings are in [`Config::warnings`].
pub fn report(config: &Config) -> String {
    let mut lines = Vec::new();
    let policy = &config.policy;
    listeners(config, &mut lines);
    lines.push("\nLimits".to_owned());
    if policy.rules.is_empty() {
        lines.push("  none: every request is admitted".to_owned());
    }
    for rule in &policy.rules {
        limit(rule, policy, &mut lines);
    }
    if !policy.identities.is_empty() {
        lines.push("\nIdentities".to_owned());
        for index in 0..policy.identities.len() {
            identity(index, policy, &mut lines);
        }
    }
    if !policy.routes.is_empty() {
        lines.push("\nRoutes, each request on the most specific".to_owned());
    }
    for index in 0..policy.routes.len() {
        route(index, policy, &mut lines);
    }
    lines.join("\n") + "\n"
}

fn listeners(config: &Config, lines: &mut Vec<String>) {
    let listen = &config.server.listen;
    if !listen.is_empty() {
        lines.push(format!("Listens on {}", joined(listen)));
    }
    if config.server.redirect_to_https {
        lines.push("Redirects http requests to https".to_owned());
    }
    if let Some(acme) = &config.server.acme {
        lines.push(format!(
            "Orders the certificate of {} from {} by {}, and keeps it in {}",
            joined(&acme.hosts),
            acme.directory,
            acme.challenge.word(),
            acme.state.display()
        ));
    }
    let names = match config.admin.hosts.as_slice() {
        [] => String::new(),
        hosts => format!(", asked by the name {}", hosts.join(", ")),
    };
    match &config.admin.listen {
        Some(listener) => lines.push(format!("Admin on {listener}{names}")),
        None => lines.push("Admin off".to_owned()),
    }
    if let Some(decide) = &config.decide {
        let listen = joined(&decide.listen);
        lines.push(format!("Decides for other proxies on {listen}"));
    }
    match &config.log.access {
        AccessLog::Off => lines.push("No access log".to_owned()),
        AccessLog::Stdout => lines.push("Access log on standard output".to_owned()),
        AccessLog::Stderr => lines.push("Access log on standard error".to_owned()),
        AccessLog::File(path) => lines.push(format!("Access log in {}", path.display())),
    }
    match &config.store {
        None => lines.push("Buckets live in this process".to_owned()),
        Some(store) => {
            let kind = match (store.kind, store.topology) {
                (StoreKind::Postgres, _) => "PostgreSQL",
                (StoreKind::Mysql, _) => "MariaDB or MySQL",
                (StoreKind::Redis, Topology::Single) => "Redis",
                (StoreKind::Redis, Topology::Sentinel) => "Redis behind Sentinel",
                (StoreKind::Redis, Topology::Cluster) => "a Redis Cluster",
            };
            lines.push(format!(
                "Buckets live in {kind}, which answers within {} or else {}",
                words::span(store.answer_within),
                when_down(store.when_down)
            ));
        }
    }
}

fn joined(list: &[impl ToString]) -> String {
    let texts: Vec<String> = list.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

const fn when_down(answer: WhenDown) -> &'static str {
    match answer {
        WhenDown::Allow => "requests are admitted",
        WhenDown::Refuse => "requests are refused with 503",
        WhenDown::LocalShare => "each gateway enforces its share",
    }
}

fn per(scope: &Scope, policy: &Policy) -> String {
    match scope {
        Scope::Everyone => "for all callers together".to_owned(),
        scope => format!("for each {}", scope.names(policy).join(" and ")),
    }
}

fn identity(index: usize, policy: &Policy, lines: &mut Vec<String>) {
    let identity = &policy.identities[index];
    let sources: Vec<String> = identity.sources.iter().map(Source::words).collect();
    let missing = match identity.when_missing {
        WhenMissing::Refuse if identity.missing().is_malformed() => "400".to_owned(),
        WhenMissing::Refuse => "401".to_owned(),
        WhenMissing::Skip => "no limit by it".to_owned(),
        WhenMissing::UseAddress => match &identity.address_tier {
            Some(tier) => format!("the address counts, as tier {tier}"),
            None => "the address counts".to_owned(),
        },
        WhenMissing::Use(other) => format!("{} counts", policy.identities[other].name),
    };
    let mut line = format!(
        "  {}: {}; missing: {missing}",
        identity.name,
        sources.join(if identity.first_of { " or " } else { " and " })
    );
    if let Some(callers) = &identity.callers {
        let unknown = match identity.when_unknown {
            WhenUnknown::Refuse => "401",
            WhenUnknown::UseAddress => "the address counts",
            WhenUnknown::Accept => "a caller like any other",
        };
        line += &format!("; {} known; unknown: {unknown}", callers.load().len());
    }
    if let Some(from) = identity.jwt.as_ref().and_then(JwtPolicy::fetched_from) {
        line += &format!(
            "; a gateway fetches its keys from {}, every {} at least",
            without_query(&from.url),
            words::span(from.settings.refresh)
        );
    }
    lines.push(line);
}

fn route(index: usize, policy: &Policy, lines: &mut Vec<String>) {
    let route = &policy.routes[index];
    let target = match &route.target {
        Target::Upstream(upstream) => policy.upstreams[*upstream].name.to_string(),
        Target::Echo => "the built-in echo".to_owned(),
        Target::Service => "the service".to_owned(),
        Target::Fixed { status, .. } => format!("a fixed {status}"),
        Target::Redirect { status, .. } => format!("a redirect ({status})"),
    };
    let limits = charged(&route.limits, policy);
    let pattern = route.pattern.to_string();
    let named = if pattern == *route.name {
        pattern
    } else {
        format!("{pattern} ({})", route.name)
    };
    lines.push(format!("  {named} -> {target}: {limits}"));
    idle(route, policy, lines);
    for over in &route.over_limit {
        let name = |rule: &usize| &*policy.rules[*rule].name;
        let names: Vec<&str> = over.instead_of.iter().map(name).collect();
        lines.push(format!(
            "    where {} refuses -> {}: {}",
            names.join(" or "),
            policy.upstreams[over.upstream].name,
            charged(&over.limits, policy)
        ));
    }
}

/// The limits that a request to one target is charged on.
fn charged(limits: &[RouteLimit], policy: &Policy) -> String {
    if limits.is_empty() {
        return "no limit".to_owned();
    }
    let words = |limit: &RouteLimit| {
        let name = &policy.rules[limit.rule].name;
        match limit.cost.as_ref().and_then(cost) {
            Some(cost) => format!("{name} (a request costs {cost})"),
            None => name.to_string(),
        }
    };
    limits.iter().map(words).collect::<Vec<_>>().join(" + ")
}

/// What reservations hold at most, where a concurrency limit bounds the requests under way.
fn idle(route: &Route, policy: &Policy, lines: &mut Vec<String>) {
    let rules = || {
        route
            .limits
            .iter()
            .map(|limit| (&policy.rules[limit.rule], limit))
    };
    for (rule, limit) in rules().filter(|(rule, _)| rule.reserves()) {
        let bounds = |other: &Rule| match other.live.algorithm {
            Algorithm::InFlight(_) => other.scope == rule.scope || other.scope == Scope::Everyone,
            _ => false,
        };
        let places = rules()
            .filter(|(other, _)| bounds(other))
            .map(|(other, _)| other.live.algorithm.capacity())
            .min();
        let Some(places) = places else { continue };
        let bytes = policy.body.most as u64;
        let most = rule.most_charged(limit.cost.as_ref(), bytes);
        let capacity = rule.live.algorithm.capacity();
        let idle = places.saturating_mul(most).min(capacity);
        let currency = rule.live.currency.as_deref();
        lines.push(format!("    {places} requests under way{} reserve at most {} of the {} of {}, which are idle until they settle",
            limits::of_body(rule, bytes, "bodies"),
            words::amount(idle, currency),
            words::units(capacity, currency),
            rule.name));
    }
}

#[cfg(test)]
mod tests {
    use super::limits::percent;
    use super::*;
    use crate::parse;
    use tollgate_limit::Timestamp;

    #[test]
    fn a_good_file_is_said_back_in_words() {
        let config = parse(
            include_str!("../../../gateway.toml"),
            "gateway.toml",
            &|_| None,
            Timestamp::default(),
        )
        .expect("the shipped file is right");
        let said = report(&config);
        assert!(
            said.contains("per_caller: 5 at once, then one every 2 s"),
            "{said}"
        );
        assert!(
            said.contains("/** -> the built-in echo: per_caller + total"),
            "{said}"
        );
        assert!(said.contains("shadow: counted, never refusing"), "{said}");
        assert!(config.warnings.is_empty(), "{said}");
        assert_eq!(config.tests.len(), 2);
    }

    #[test]
    fn settle_default_of_its_maximum_is_lowered_to_what_the_store_can_count() {
        let file = |max: &str| {
            format!(
                "[store]\nkind = \"redis\"\nurl = \"${{REDIS_URL}}\"\nwhen_down = \"refuse\"\nkey_secret = \"${{SECRET}}\"\n\
                 [limits.a]\nrate = \"100/month\"\nalgorithm = \"fixed_window\"\nwindow = {{ align = \"calendar\" }}\nper = \"address\"\n\
                 cost = {{ json = \"max_tokens\", max = 100 }}\nsettle = {{ from = \"json:used\"{max} }}\n\
                 [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"a\"]\n"
            )
        };
        let environment = |name: &str| match name {
            "REDIS_URL" => Some("redis://127.0.0.1:6379/0".to_owned()),
            _ => Some("0123456789abcdef0123456789abcdef".to_owned()),
        };
        let read = |max: &str| {
            parse(
                &file(max),
                "gateway.toml",
                &environment,
                Timestamp::default(),
            )
        };
        let config = read("").expect("a good file");
        // A calendar's debt is paid back within 64 windows: 100 x 100 units take 101.
        let said = report(&config);
        let words = "the response then costs what used in the response says, at most 5000, or what was reserved";
        assert!(said.contains(words), "{said}");
        assert!(read(", max = 6000").is_ok());
        let error = read(", max = 10000")
            .expect_err("it is written")
            .to_string();
        assert!(error.contains("up to 101 windows"), "{error}");
    }

    #[test]
    fn shares_read_well() {
        assert_eq!(
            (percent(2_500), percent(50)),
            ("25%".to_owned(), "0.50%".to_owned())
        );
    }

    #[test]
    fn report_says_the_status_of_a_request_without_its_key() {
        let missing = |key: &str| {
            let file = format!(
                "[identities.who]\nkey = [\"{key}\"]\nwhen_missing = \"refuse\"\n\
                 [limits.each]\nrate = \"1/s\"\nper = \"who\"\n\
                 [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"each\"]\n"
            );
            let now = tollgate_limit::Timestamp::default();
            let config = crate::parse(&file, "test", &|_| None, now);
            super::report(&config.expect("a valid file"))
        };
        assert!(missing("header:x-api-key").contains("missing: 401"));
        assert!(missing("json:model").contains("missing: 400"));
    }
}
