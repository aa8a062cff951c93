//! A Caddyfile with the `rate_limit` module (mholt/caddy-ratelimit): zones that log the events of a sliding window.

mod tree;

use crate::draft::{Counting, Difference, Draft, Limit, Route, Target, clients, either};
use crate::words::{duration, go_duration};
use crate::{ImportError, Read, Source};

use tree::Directive;

/// What a block of a site says of the requests that reach it.
#[derive(Clone, Default)]
struct Context {
    /// The path of the block, `/**` or `/api/**`.
    path: String,
    /// Paths with the limits on them.
    limits: Vec<(String, String)>,
}

/// Reads the files into the draft.
pub(crate) fn draft(
    sources: &[Source],
    read: Read<'_>,
    draft: &mut Draft,
) -> Result<(), ImportError> {
    let mut sites = tree::read(sources, read, draft)?;
    // One site needs no braces: its address is the first line, its directives the rest.
    let has_sites = sites
        .iter()
        .any(|site| !site.name.is_empty() && !site.block.is_empty() && is_address(&site.name));
    if !has_sites
        && sites
            .first()
            .is_some_and(|first| first.block.is_empty() && is_address(&first.name))
    {
        let mut first = sites.remove(0);
        first.block = std::mem::take(&mut sites);
        sites.push(first);
    }
    for site in &sites {
        if site.name.is_empty() {
            options(site, draft);
            continue;
        }
        let mut hosts: Vec<String> = Vec::new();
        for address in std::iter::once(&site.name).chain(&site.args) {
            let address = address.trim_end_matches(',');
            if !address.is_empty() {
                hosts.push(host(address));
            }
        }
        let context = Context {
            path: "/**".to_owned(),
            limits: Vec::new(),
        };
        let mut made = Vec::new();
        block(&site.block, &site.block, &context, &mut made, draft);
        for host in hosts.iter().take(200) {
            for (path, target, limits, place) in &made {
                let mut route =
                    Route::new(Some(place.clone()), format!("{host}{path}"), target.clone());
                route.limits.clone_from(limits);
                draft.route(route);
            }
        }
    }
    Ok(())
}

fn is_address(name: &str) -> bool {
    name.starts_with(':') || name.contains(['.', '/', ':']) || name == "localhost" || name == "*"
}

fn options(site: &Directive, draft: &mut Draft) {
    let limiting = site
        .block
        .iter()
        .filter(|option| option.name.contains("limit"));
    for option in limiting {
        draft.not_imported(&option.place, &option.words(), "it is not understood");
    }
}

/// An address without scheme, port and path.
fn host(address: &str) -> String {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let rest = rest.split('/').next().unwrap_or_default();
    let host = match rest.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() => host,
        _ => rest,
    };
    if host == "*" {
        String::new()
    } else {
        host.to_owned()
    }
}

type Made = Vec<(String, Target, Vec<String>, crate::Place)>;

/// The routes of a block. `site`: where matchers are defined.
fn block(
    list: &[Directive],
    site: &[Directive],
    around: &Context,
    made: &mut Made,
    draft: &mut Draft,
) {
    let mut context = around.clone();
    let mut targets: Vec<(String, Target, &Directive)> = Vec::new();
    for directive in list {
        match directive.name.as_str() {
            "rate_limit" => match path(directive, site, &context.path) {
                Ok(path) => {
                    for limit in zones(directive, draft) {
                        context.limits.push((path.clone(), limit));
                    }
                }
                Err(why) => draft.not_imported(&directive.place, &directive.words(), &why),
            },
            "reverse_proxy" => match path(directive, site, &context.path) {
                Ok(path) => targets.push((path, target(directive), directive)),
                Err(why) => draft.note(format!(
                    "{}: {}: {why}; it is left out",
                    directive.place,
                    directive.words()
                )),
            },
            name if name.contains("limit") && name != "request_body" => {
                draft.not_imported(&directive.place, &directive.words(), "it is not understood");
            }
            _ => {}
        }
    }
    for (path, target, directive) in &targets {
        add(path, target.clone(), &context, &directive.place, made);
    }
    // A path with a limit of its own is a route of its own, to where its requests go anyway.
    for (path, limit) in &context.limits {
        let place = list
            .iter()
            .find(|directive| directive.name == "rate_limit")
            .map(|directive| directive.place.clone());
        let known = made
            .iter()
            .any(|(known, _, limits, _)| known == path && limits.contains(limit));
        let Some(place) = place.filter(|_| !known) else {
            continue;
        };
        let longest = targets
            .iter()
            .filter(|(known, _, _)| covers(known, path))
            .max_by_key(|(known, _, _)| known.len());
        let target = longest.map_or(Target::Unknown, |(_, target, _)| target.clone());
        add(path, target, &context, &place, made);
    }
    for directive in list {
        let nested = match directive.name.as_str() {
            "handle" | "route" | "handle_path" => path(directive, site, &context.path),
            _ => continue,
        };
        match nested {
            Ok(path) => {
                let inner = Context {
                    path,
                    limits: context.limits.clone(),
                };
                block(&directive.block, site, &inner, made, draft);
            }
            Err(why) => {
                let has_limits = directive
                    .block
                    .iter()
                    .any(|inner| inner.name == "rate_limit");
                let text = directive.words();
                if has_limits {
                    draft.not_imported(&directive.place, &text, &why);
                } else {
                    draft.note(format!(
                        "{}: {text}: {why}; it is left out",
                        directive.place
                    ));
                }
            }
        }
    }
}

fn add(path: &str, target: Target, context: &Context, place: &crate::Place, made: &mut Made) {
    if made.len() >= 1_000 {
        return;
    }
    let mut limits: Vec<String> = Vec::new();
    for (on, limit) in &context.limits {
        if covers(on, path) && !limits.contains(limit) {
            limits.push(limit.clone());
        }
    }
    made.push((path.to_owned(), target, limits, place.clone()));
}

/// Whether every path of `inner` is one of `outer`.
fn covers(outer: &str, inner: &str) -> bool {
    outer == inner
        || outer.strip_suffix("/**").is_some_and(|front| {
            inner
                .strip_prefix(front)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
}

/// The path of a directive's matcher within the path of its block.
fn path(directive: &Directive, site: &[Directive], around: &str) -> Result<String, String> {
    let matcher = directive.args.first().map_or("", String::as_str);
    let pattern = match matcher.chars().next() {
        Some('/') => matcher.to_owned(),
        Some('@') => named(matcher, site)?,
        _ => return Ok(around.to_owned()),
    };
    let path = route_path(&pattern)?;
    if !covers(around, &path) {
        return Err(format!("`{pattern}` is not within `{around}`"));
    }
    Ok(path)
}

/// `/api/*` as `/api/**`.
fn route_path(pattern: &str) -> Result<String, String> {
    if pattern == "*" || pattern == "/*" {
        return Ok("/**".to_owned());
    }
    let path = match pattern.strip_suffix("/*") {
        Some(front) => format!("{front}/**"),
        None => pattern.to_owned(),
    };
    match path.trim_end_matches("/**").contains(['*', '{']) {
        true => Err(format!("a route has no path like `{pattern}`")),
        false => Ok(path),
    }
}

/// A named matcher that is no more than a path.
fn named(name: &str, site: &[Directive]) -> Result<String, String> {
    let no = || format!("the matcher `{name}` has no counterpart: a route matches one path here");
    let found = site
        .iter()
        .find(|directive| directive.name == name)
        .ok_or_else(|| format!("there is no matcher `{name}`"))?;
    match (&found.args[..], &found.block[..]) {
        ([kind, path], []) if kind == "path" => Ok(path.clone()),
        ([], [only]) if only.name == "path" && only.args.len() == 1 => Ok(only.arg(0).to_owned()),
        _ => Err(no()),
    }
}

fn target(directive: &Directive) -> Target {
    let to = directive.block.iter().find(|inner| inner.name == "to");
    let args = directive
        .args
        .iter()
        .chain(to.into_iter().flat_map(|to| &to.args));
    let mut servers = args.filter(|arg| !arg.starts_with(['/', '@']) && *arg != "*");
    match (servers.next(), servers.next()) {
        (Some(server), None) if server.contains("://") => Target::Upstream(server.clone()),
        (Some(server), None) if !server.contains('{') => Target::Upstream(format!(
            "http://{}{server}",
            if server.starts_with(':') {
                "127.0.0.1"
            } else {
                ""
            }
        )),
        _ => Target::Unknown,
    }
}

fn zones(directive: &Directive, draft: &mut Draft) -> Vec<String> {
    let mut made = Vec::new();
    let is_several = directive
        .block
        .iter()
        .filter(|inner| inner.name == "zone")
        .count()
        > 1;
    for inner in &directive.block {
        match inner.name.as_str() {
            "zone" => match zone(inner, is_several) {
                Ok((limit, differences, what)) => {
                    let wanted = if inner.arg(0).is_empty() { "zone" } else { inner.arg(0) };
                    made.extend(draft.limit(wanted, &inner.place, &what, limit, differences));
                }
                Err(why) => draft.not_imported(&inner.place, &inner.words(), &why),
            },
            "distributed" | "storage" => draft.not_imported(
                &inner.place,
                &inner.words(),
                "Caddy's instances tell each other their counts every few seconds; gateways count together in a [store]",
            ),
            "jitter" => draft.not_imported(&inner.place, &inner.words(), "Retry-After is exact here and has no jitter"),
            "sweep_interval" | "log_key" => {}
            _ => draft.not_imported(&inner.place, &inner.words(), "it is not understood"),
        }
    }
    made
}

fn zone(zone: &Directive, is_several: bool) -> Result<(Limit, Vec<Difference>, String), String> {
    let (mut key, mut window, mut events) = (String::new(), None, None);
    for inner in &zone.block {
        let value = inner.arg(0);
        match inner.name.as_str() {
            "key" => key = value.to_owned(),
            "window" => {
                window = Some(
                    go_duration(value)
                        .ok_or_else(|| format!("the window `{value}` is not understood"))?,
                )
            }
            "events" => {
                events = Some(
                    value
                        .parse::<u64>()
                        .map_err(|_| format!("the number of events `{value}` is not understood"))?,
                )
            }
            "match" => {
                return Err(
                    "a `match` within a zone has no counterpart: put the limit on a route"
                        .to_owned(),
                );
            }
            "ipv4_prefix" | "ipv6_prefix" => {
                return Err(format!(
                    "`{}` is [address] ipv6_prefix for all limits here",
                    inner.words()
                ));
            }
            other => return Err(format!("`{other}` is not understood")),
        }
    }
    let (Some(window), Some(events)) = (
        window.filter(|window| *window > 0),
        events.filter(|events| *events > 0),
    ) else {
        return Err("a zone needs a window and events above 0".to_owned());
    };
    let mut limit = Limit::new(Counting::SlidingLog, events, window);
    let mut differences = vec![clients(format!(
        "Caddy refuses a request exactly {} after the event it waits for, and admits it a moment later; here it is admitted then",
        duration(window)
    ))];
    if is_several {
        differences.push(clients(
            "Caddy has counted a request in one zone when another refuses it; here it is charged on none",
        ));
    }
    scope(&key, &mut limit, &mut differences)?;
    let what = format!(
        "zone {} key {key} window {} events {events}",
        zone.arg(0),
        duration(window)
    );
    Ok((limit, differences, what))
}

fn scope(key: &str, limit: &mut Limit, differences: &mut Vec<Difference>) -> Result<(), String> {
    let mut per = Vec::new();
    let mut rest = key;
    while let Some(open) = rest.find('{') {
        let close = rest[open..].find('}').ok_or("the key has an open brace")? + open;
        let name = &rest[open + 1..close];
        let bare = name.strip_prefix("http.request.").unwrap_or(name);
        per.push(match bare {
            "remote_host"
            | "remote.host"
            | "client_ip"
            | "http.vars.client_ip"
            | "http.request.remote.host" => "address".to_owned(),
            "host" | "hostport" => {
                differences.push(either("hosts that no route names share one bucket here"));
                "host".to_owned()
            }
            "method" => {
                differences.push(either(
                    "HEAD counts as GET here, and methods that no route names share one bucket",
                ));
                "method".to_owned()
            }
            "http.auth.user.id" => "basic".to_owned(),
            _ => {
                let source = [
                    ("header.", "header:"),
                    ("cookie.", "cookie:"),
                    ("query.", "query:"),
                    ("uri.query.", "query:"),
                ]
                .into_iter()
                .find_map(|(prefix, kind)| Some((kind, bare.strip_prefix(prefix)?)));
                let (kind, name) =
                    source.ok_or_else(|| format!("the key `{{{name}}}` has no counterpart"))?;
                let name = if kind == "header:" {
                    name.to_ascii_lowercase()
                } else {
                    name.to_owned()
                };
                format!("{kind}{name}")
            }
        });
        rest = &rest[close + 1..];
    }
    if per.is_empty() {
        per.push("everyone".to_owned());
    }
    if per.iter().any(|per| per.contains(':') || per == "basic") {
        limit.when_missing = "use:address";
        if !per.iter().any(|per| per == "address") {
            differences.push(clients(
                "without the key all requests share one bucket in Caddy; here each address has one",
            ));
        }
    }
    limit.per = per;
    Ok(())
}
