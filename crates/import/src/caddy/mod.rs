//! A Caddyfile with the `rate_limit` module (mholt/caddy-ratelimit): zones that log the events of a sliding window.

mod tree;
mod zones;

use std::collections::BTreeMap;

use crate::draft::{Draft, Outcome, Route, Target, clients};
use crate::{ImportError, Read, Source};

use crate::directive::Directive;
use zones::zones;

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
    let mut found = BTreeMap::new();
    occurrences(&sites, &mut found);
    unread(&found, draft);
    Ok(())
}

/// Zones and empty `rate_limit`s of all blocks by their places: what they are, and how often they are there.
type Found = BTreeMap<crate::Place, (String, usize)>;

fn occurrences(list: &[Directive], found: &mut Found) {
    for directive in list {
        if directive.name == "rate_limit" {
            let zones = || directive.block.iter().filter(|inner| inner.name == "zone");
            let alone = zones().next().is_none().then_some(directive);
            for one in zones().chain(alone) {
                let entry = found.entry(one.place.clone()).or_default();
                *entry = (one.words(), entry.1 + 1);
            }
        } else {
            occurrences(&directive.block, found);
        }
    }
}

/// Says of each `rate_limit` that nothing was said of that it is not imported, and of zones of one name how they differ.
fn unread(found: &Found, draft: &mut Draft) {
    let mut zones: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (place, (words, times)) in found {
        let here = draft.findings.iter();
        let here: Vec<_> = here.filter(|finding| finding.place == *place).collect();
        let limits = here.iter().filter_map(|finding| finding.limit.clone());
        zones.entry(words).or_default().extend(limits);
        let is_lost = |outcome: &Outcome| matches!(outcome, Outcome::NotImported(_));
        let is_said = here.len() >= *times || here.iter().any(|finding| is_lost(&finding.outcome));
        if !is_said {
            let why = "the block around it makes no route here";
            draft.not_imported(place, words, why);
        }
    }
    for (words, limits) in zones {
        if limits.len() < 2 {
            continue;
        }
        let several = clients(format!(
            "`{words}` is at several places, which count together in Caddy; here each has buckets of its own"
        ));
        for limit in limits {
            draft.differ(&limit, &several);
        }
    }
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
