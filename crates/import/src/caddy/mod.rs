//! A Caddyfile with the `rate_limit` module (mholt/caddy-ratelimit): zones that log the events of a sliding window.

mod tree;
mod zones;

use std::collections::BTreeMap;

use crate::draft::{Draft, Outcome, Place, Route, Target, clients, distinct};
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
    let is_site = |site: &Directive| !site.block.is_empty() && is_address(&site.name);
    let is_bare = |first: &Directive| first.block.is_empty() && is_address(&first.name);
    if !sites.iter().any(is_site) && sites.first().is_some_and(is_bare) {
        let mut first = sites.remove(0);
        first.block = sites;
        sites = vec![first];
    }
    for site in &sites {
        if site.name.is_empty() {
            let options = site.block.iter();
            for option in options.filter(|option| option.name.contains("limit")) {
                draft.lost(option, "it is not understood");
            }
            continue;
        }
        let context = Context {
            path: "/**".to_owned(),
            limits: Vec::new(),
        };
        let mut made = Vec::new();
        block(&site.block, &site.block, &context, &mut made, draft);
        let addresses = std::iter::once(&site.name).chain(&site.args);
        let addresses = addresses.map(|address| address.trim_end_matches(','));
        let hosts = addresses.filter(|address| !address.is_empty()).map(host);
        for host in hosts.take(200) {
            for route in &made {
                let pattern = format!("{host}{}", route.pattern);
                draft.route(Route {
                    pattern,
                    ..route.clone()
                });
            }
        }
    }
    let mut found = BTreeMap::new();
    occurrences(&sites, &mut found);
    unread(&found, draft);
    Ok(())
}

/// Zones and empty `rate_limit`s of all blocks by their places: what they are, and how often they are there.
type Found = BTreeMap<Place, (String, usize)>;

fn occurrences(list: &[Directive], found: &mut Found) {
    for directive in list {
        if directive.name == "rate_limit" {
            let alone = (!directive.has("zone")).then_some(directive);
            for one in directive.all("zone").chain(alone) {
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

/// The routes of a block, without their hosts. `site`: where matchers are defined.
fn block(
    list: &[Directive],
    site: &[Directive],
    around: &Context,
    made: &mut Vec<Route>,
    draft: &mut Draft,
) {
    let mut context = around.clone();
    let mut targets: Vec<(String, Target, &Place)> = Vec::new();
    for directive in list {
        match directive.name.as_str() {
            "rate_limit" => match path(directive, site, &context.path) {
                Ok(path) => {
                    let limits = zones(directive, draft).into_iter();
                    context
                        .limits
                        .extend(limits.map(|limit| (path.clone(), limit)));
                }
                Err(why) => draft.lost(directive, &why),
            },
            "reverse_proxy" => match path(directive, site, &context.path) {
                Ok(path) => targets.push((path, target(directive), &directive.place)),
                Err(why) => left_out(directive, &why, draft),
            },
            name if name.contains("limit") && name != "request_body" => {
                draft.lost(directive, "it is not understood");
            }
            _ => {}
        }
    }
    for (path, target, place) in &targets {
        context.add(path, target.clone(), place, made);
    }
    // A path with a limit of its own is a route of its own, to where its requests go anyway.
    let first = list.iter().find(|directive| directive.name == "rate_limit");
    for (path, limit) in &context.limits {
        let mut known = made.iter();
        let is_known = known.any(|route| route.pattern == *path && route.limits.contains(limit));
        let Some(first) = first.filter(|_| !is_known) else {
            continue;
        };
        let covering = targets.iter().filter(|(known, ..)| covers(known, path));
        let longest = covering.max_by_key(|(known, ..)| known.len());
        let target = longest.map_or(Target::Unknown, |(_, target, _)| target.clone());
        context.add(path, target, &first.place, made);
    }
    for directive in list {
        if !matches!(&*directive.name, "handle" | "route" | "handle_path") {
            continue;
        }
        match path(directive, site, &context.path) {
            Ok(path) => {
                let limits = context.limits.clone();
                let inner = Context { path, limits };
                block(&directive.block, site, &inner, made, draft);
            }
            Err(why) if directive.has("rate_limit") => draft.lost(directive, &why),
            Err(why) => left_out(directive, &why, draft),
        }
    }
}

fn left_out(directive: &Directive, why: &str, draft: &mut Draft) {
    let (place, words) = (&directive.place, directive.words());
    draft.note(format!("{place}: {words}: {why}; it is left out"));
}

impl Context {
    /// Adds a route with the limits on its path.
    fn add(&self, path: &str, target: Target, place: &Place, made: &mut Vec<Route>) {
        if made.len() >= 1_000 {
            return;
        }
        let limits = self.limits.iter().filter(|(on, _)| covers(on, path));
        let mut route = Route::new(Some(place.clone()), path, target);
        route.limits = distinct(limits.map(|(_, limit)| limit.clone()).collect());
        made.push(route);
    }
}

/// Whether every path of `inner` is one of `outer`.
fn covers(outer: &str, inner: &str) -> bool {
    let below = |front: &str| inner.strip_prefix(front);
    outer == inner
        || outer
            .strip_suffix("/**")
            .and_then(below)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The path of a directive's matcher within the path of its block.
fn path(directive: &Directive, site: &[Directive], around: &str) -> Result<String, String> {
    let matcher = directive.arg(0);
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
    if path.trim_end_matches("/**").contains(['*', '{']) {
        return Err(format!("a route has no path like `{pattern}`"));
    }
    Ok(path)
}

/// A named matcher that is no more than a path.
fn named(name: &str, site: &[Directive]) -> Result<String, String> {
    let mut named = site.iter().filter(|directive| directive.name == name);
    let found = named
        .next()
        .ok_or_else(|| format!("there is no matcher `{name}`"))?;
    match (&found.args[..], &found.block[..]) {
        ([kind, path], []) if kind == "path" => Ok(path.clone()),
        ([], [only]) if only.name == "path" && only.args.len() == 1 => Ok(only.arg(0).to_owned()),
        _ => Err(format!(
            "the matcher `{name}` has no counterpart: a route matches one path here"
        )),
    }
}

fn target(directive: &Directive) -> Target {
    let to = directive.all("to").next();
    let to = to.into_iter().flat_map(|to| &to.args);
    let args = directive.args.iter().chain(to);
    let mut servers = args.filter(|arg| !arg.starts_with(['/', '@']) && *arg != "*");
    match (servers.next(), servers.next()) {
        (Some(url), None) if url.contains("://") => Target::Upstream(url.clone()),
        (Some(port), None) if port.starts_with(':') && !port.contains('{') => {
            Target::Upstream(format!("http://127.0.0.1{port}"))
        }
        (Some(server), None) if !server.contains('{') => {
            Target::Upstream(format!("http://{server}"))
        }
        _ => Target::Unknown,
    }
}
