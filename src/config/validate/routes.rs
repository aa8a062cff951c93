//! `[[routes]]`: what is matched, where it goes, which limits it is charged on.

use std::sync::Arc;

use http::{HeaderValue, Method, Uri};

use super::limits::Limits;
use super::responses::{header_value, refusal};
use super::upstreams::Upstreams;
use super::{Context, costs, entries_of, list_of, names_of};
use crate::config::problem::Problem;
use crate::config::quantity::Size;
use crate::config::raw::{self, RawHeaders, RawMatch, RawRedirect, RawRespond, RawRoute, RawRouteLimit};
use crate::config::reader::Field;
use crate::config::scalar::{OneOrMany, ShortOr, Text};
use crate::config::source::{At, Place};
use crate::policy::route::{HeaderEdits, HostPattern, Pattern, Route, RouteLimit, Segment, Target, Template};

/// The routes of a file.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    /// In the order of the file.
    pub(crate) list: Vec<Route>,
    /// Where each one says what it matches.
    pub(crate) places: Vec<Place>,
    /// Whether one of them could not be made.
    pub(crate) broken: bool,
}

/// What routes refer to.
pub(crate) struct Known<'k> {
    /// Identities by index.
    pub(crate) identities: &'k [&'k str],
    /// The limits.
    pub(crate) limits: &'k Limits,
    /// The largest body, where a route says none of its own.
    pub(crate) body: Option<u64>,
}

/// Compiles `[[routes]]`.
pub(crate) fn routes(
    raw: &raw::RawFile,
    known: &Known<'_>,
    upstreams: &mut Upstreams,
    context: &mut Context<'_>,
) -> Routes {
    let mut made = Routes::default();
    if raw.routes.is_absent() {
        let problem = Problem::error("there are no routes: every request would be answered with 404");
        context.push(problem.help("add [[routes]] with match = \"/**\" and upstream = \"http://127.0.0.1:3000\""));
    }
    let mut named: Vec<&At<Text>> = Vec::new();
    for at in list_of(&raw.routes) {
        if let Some(name) = at.name.get() {
            match named.iter().find(|other| other.as_str() == name.as_str()) {
                Some(first) => {
                    let problem = Problem::error(format!("two routes are called `{}`", name.as_str()));
                    context.push(problem.at(name.place, "again here").at(first.place, "first here"));
                }
                None => named.push(name),
            }
        }
        match route(at, raw, known, upstreams, context) {
            Some(route) => {
                made.list.push(route);
                made.places.push(at.r#match.place().unwrap_or(at.place));
            }
            None => made.broken = true,
        }
    }
    made
}

fn route(
    at: &At<RawRoute>,
    raw: &raw::RawFile,
    known: &Known<'_>,
    upstreams: &mut Upstreams,
    context: &mut Context<'_>,
) -> Option<Route> {
    let pattern = pattern(at, context);
    let limits = limits(at, raw, known, context);
    let target = target(at, raw, known, upstreams, context);
    let identity = |name: &str| known.identities.iter().position(|identity| *identity == name);
    let request_headers = edits(&at.request_headers, &identity, context);
    let response_headers = edits(&at.response_headers, &identity, context);
    let strip_prefix = prefix("strip_prefix", &at.strip_prefix, context);
    let add_prefix = prefix("add_prefix", &at.add_prefix, context);
    let refusal = refusal(&at.refusal, context);
    if let (Some(pattern), Some(prefix)) = (&pattern, &strip_prefix) {
        check_strip(pattern, prefix, at, context);
    }
    if !matches!(target, Some(Target::Upstream(_) | Target::Echo)) && target.is_some() {
        let fields = [
            ("strip_prefix", at.strip_prefix.place()),
            ("add_prefix", at.add_prefix.place()),
            ("request_headers", at.request_headers.place()),
        ];
        for (key, place) in fields {
            if let Some(place) = place {
                context.push(
                    Problem::error(format!("`{key}` means nothing where nothing is forwarded"))
                        .at(place, "the gateway answers by itself"),
                );
            }
        }
    }
    let pattern = pattern?;
    let name = at.name.get().map_or_else(|| pattern.to_string(), |name| name.as_str().to_owned());
    Some(Route {
        name: Arc::from(name),
        pattern,
        target: target?,
        limits: limits?,
        strip_prefix,
        add_prefix,
        request_headers,
        response_headers,
        refusal,
        body_max: match at.body.get().map(|body| body.value) {
            None => known.body,
            Some(Size::Unlimited) => None,
            Some(Size::Bytes(bytes)) => Some(bytes),
        },
    })
}

/// `match`.
fn pattern(at: &At<RawRoute>, context: &mut Context<'_>) -> Option<Pattern> {
    if at.r#match.is_absent() {
        let problem = Problem::error("a route does not say what it matches").at(at.place, "`match` is missing");
        context.push(problem.help("match = \"GET /v1/{id}\" matches one path, match = \"/**\" everything"));
    }
    let written = at.r#match.get()?;
    match &written.value {
        ShortOr::Short(text) => {
            let text = written.with(text.clone());
            match Pattern::parse(text.as_str()) {
                Ok(pattern) => Some(pattern),
                Err(error) => {
                    context.parse_error(format!("`{}` is no pattern", text.as_str()), error, &text);
                    None
                }
            }
        }
        ShortOr::Table(table) => pattern_of(table, written.place, context),
    }
}

fn pattern_of(raw: &RawMatch, place: Place, context: &mut Context<'_>) -> Option<Pattern> {
    if raw.path.is_absent() {
        context.push(Problem::error("a route does not say which path it matches").at(place, "`path` is missing"));
    }
    let path = raw.path.get()?;
    let mut pattern = match Pattern::parse(path.as_str()) {
        Ok(pattern) if pattern.methods.is_empty() && pattern.host == HostPattern::Any => pattern,
        Ok(_) => {
            let problem =
                Problem::error(format!("`{}` is no path", path.as_str())).at(path.place, "a path begins with `/`");
            context.push(problem.help("in a table method and host have keys of their own: { methods = \"GET\", host = \"a.example\", path = \"/x\" }"));
            return None;
        }
        Err(error) => {
            context.parse_error(format!("`{}` is no path", path.as_str()), error, path);
            return None;
        }
    };
    for method in raw.methods.get().map_or(&[][..], |list| list.list.as_slice()) {
        match method.as_str().parse::<Method>() {
            Ok(name) if method.as_str().bytes().all(|byte| byte.is_ascii_uppercase()) => pattern.methods.push(name),
            _ => {
                let problem = Problem::error(format!("`{}` is no method", method.as_str()));
                context.push(problem.at(method.place, "methods are written in capitals, like `GET`"));
            }
        }
    }
    if let Some(host) = raw.host.get() {
        match HostPattern::parse(host.as_str()) {
            Ok(parsed) => pattern.host = parsed,
            Err(error) => context.parse_error(format!("`{}` is no host", host.as_str()), error, host),
        }
    }
    for (name, value) in entries_of(&raw.headers) {
        let Some(name) = costs::header_name_of(&name.value, name.place, context) else { continue };
        let value = if value.as_str() == "*" { None } else { Some(header_value(value, context)?) };
        pattern.headers.push((name, value));
    }
    Some(pattern)
}

/// `limits`.
fn limits(
    at: &At<RawRoute>,
    raw: &raw::RawFile,
    known: &Known<'_>,
    context: &mut Context<'_>,
) -> Option<Vec<RouteLimit>> {
    let mut made: Vec<RouteLimit> = Vec::new();
    let mut seen: Vec<(&str, Place)> = Vec::new();
    let mut whole = true;
    for entry in list_of(&at.limits) {
        let default = RawRouteLimit::default();
        let (name, place, table) = match &entry.value {
            ShortOr::Short(text) => (text.value.as_str(), entry.place, &default),
            ShortOr::Table(table) => match table.limit.get() {
                Some(name) => (name.as_str(), name.place, table),
                None => {
                    if table.limit.is_absent() {
                        let problem = Problem::error("which limit?").at(entry.place, "`limit` is missing");
                        context.push(problem.help("{ limit = \"search\", cost = 2 }"));
                    }
                    whole = false;
                    continue;
                }
            },
        };
        if let Some((_, first)) = seen.iter().find(|(other, _)| *other == name) {
            let problem = Problem::error(format!("a route names limit `{name}` twice"));
            context.push(
                problem
                    .at(place, "again here")
                    .at(*first, "first here")
                    .help("for a higher price write { limit = \"…\", cost = 2 }"),
            );
            continue;
        }
        seen.push((name, place));
        let names = names_of(&raw.limits);
        let Some(rule) = known.limits.rules.iter().position(|rule| &*rule.name == name) else {
            whole = false;
            if !names.contains(&name) {
                context.unknown("limit", name, place, &names);
            }
            continue;
        };
        let cost = table.cost.get().map(|field| {
            let cost = costs::cost(&table.cost, context);
            costs::check_payable(name, &cost, field.place, &known.limits.written[rule].amounts, context);
            cost
        });
        if let (Some(cost), true) = (table.cost.place(), known.limits.rules[rule].settle.is_some()) {
            let problem = Problem::error(format!("limit `{name}` is settled from the response"))
                .at(cost, "a price of its own means nothing here");
            context.push(problem);
        }
        made.push(RouteLimit { rule, cost });
    }
    let claims: usize =
        made.iter().map(|limit| 1 + usize::from(known.limits.rules[limit.rule].candidate.is_some())).sum();
    if claims > crate::limit::CLAIMS_MAX {
        let label = format!("{claims}, candidates among them");
        let problem = Problem::error(format!("a route is charged on more than {} limits", crate::limit::CLAIMS_MAX));
        context.push(problem.at(at.limits.place().unwrap_or(at.place), label));
        return None;
    }
    whole.then_some(made)
}

/// `upstream`, `respond` or `redirect`.
fn target(
    at: &At<RawRoute>,
    raw: &raw::RawFile,
    known: &Known<'_>,
    upstreams: &mut Upstreams,
    context: &mut Context<'_>,
) -> Option<Target> {
    let written: Vec<(&str, Option<Place>)> = [
        ("upstream", at.upstream.is_absent(), at.upstream.place()),
        ("respond", at.respond.is_absent(), at.respond.place()),
        ("redirect", at.redirect.is_absent(), at.redirect.place()),
    ]
    .into_iter()
    .filter(|(_, absent, _)| !absent)
    .map(|(name, _, place)| (name, place))
    .collect();
    match written.as_slice() {
        [] => {
            let problem =
                Problem::error("a route does not say where its requests go").at(at.place, "`upstream` is missing");
            context.push(problem.help("upstream = \"http://127.0.0.1:3000\", a name of [upstreams], or \"builtin:echo\"; or `respond`, or `redirect`"));
            return None;
        }
        [(first, first_place), (second, second_place), ..] => {
            let problem = Problem::error(format!("a route has `{first}` and `{second}`"));
            context.push(
                problem
                    .at(second_place.unwrap_or(at.place), "one of them must go")
                    .at(first_place.unwrap_or(at.place), "the other"),
            );
            return None;
        }
        [_] => {}
    }
    if let Some(text) = at.upstream.get() {
        return upstream(text, raw, upstreams, context);
    }
    if let Some(respond) = at.respond.get() {
        return fixed(respond, context);
    }
    at.redirect.get().and_then(|redirect| self::redirect(redirect, known, context))
}

fn upstream(
    text: &At<Text>,
    raw: &raw::RawFile,
    upstreams: &mut Upstreams,
    context: &mut Context<'_>,
) -> Option<Target> {
    let name = text.as_str();
    if name == "builtin:echo" {
        return Some(Target::Echo);
    }
    if let Some(builtin) = name.strip_prefix("builtin:") {
        context.unknown("builtin", builtin, text.part(8, name.len()), &["echo"]);
        return None;
    }
    if name.contains("://") || name.starts_with("unix:") {
        return upstreams.at_url(text, context).map(Target::Upstream);
    }
    if let Some(index) = upstreams.written.iter().position(|written| written.value == name) {
        return Some(Target::Upstream(index));
    }
    let names = names_of(&raw.upstreams);
    if !names.contains(&name) {
        if name.contains([':', '.', '/']) {
            let problem = Problem::error(format!("unknown upstream `{name}`"))
                .at(text.place, "a URL begins with `http://` or `https://`");
            context.push(problem.help(format!("did you mean \"http://{name}\"?")));
        } else {
            context.unknown("upstream", name, text.place, &names);
        }
    }
    None
}

fn fixed(raw: &At<RawRespond>, context: &mut Context<'_>) -> Option<Target> {
    let status = context.within("status", &raw.status, 200, 200, 599);
    let content_type = match raw.content_type.get() {
        Some(text) => header_value(text, context)?,
        None => HeaderValue::from_static("text/plain; charset=utf-8"),
    };
    let body = raw.body.get().map_or("", At::as_str).to_owned();
    Some(Target::Fixed { status: u16::try_from(status).unwrap_or(200), body, content_type })
}

fn redirect(raw: &At<ShortOr<Text, RawRedirect>>, known: &Known<'_>, context: &mut Context<'_>) -> Option<Target> {
    let (to, status) = match &raw.value {
        ShortOr::Short(text) => (raw.with(text.clone()), 308),
        ShortOr::Table(table) => {
            if table.to.is_absent() {
                context.push(Problem::error("a redirect without a target").at(raw.place, "`to` is missing"));
            }
            let status = match table.status.get() {
                None => 308,
                Some(status) if matches!(status.value, 301 | 302 | 303 | 307 | 308) => {
                    u16::try_from(status.value).unwrap_or(308)
                }
                Some(status) => {
                    let problem = Problem::error(format!("{} is no redirect", status.value));
                    context.push(problem.at(status.place, "301, 302, 303, 307 or 308 was expected"));
                    308
                }
            };
            (table.to.get()?.clone(), status)
        }
    };
    let identity = |name: &str| known.identities.iter().position(|identity| *identity == name);
    Some(Target::Redirect { status, location: template(&to, &identity, context)? })
}

fn template(text: &At<Text>, identity: &dyn Fn(&str) -> Option<usize>, context: &mut Context<'_>) -> Option<Template> {
    match Template::parse(text.as_str(), identity) {
        Ok(template) => Some(template),
        Err(error) => {
            context.parse_error("a placeholder that cannot be filled", error, text);
            None
        }
    }
}

/// `request_headers`, `response_headers`.
fn edits(
    field: &Field<RawHeaders>,
    identity: &dyn Fn(&str) -> Option<usize>,
    context: &mut Context<'_>,
) -> HeaderEdits {
    let Some(raw) = field.get() else { return HeaderEdits::default() };
    let mut edits = HeaderEdits::default();
    for (name, value) in entries_of(&raw.set) {
        let header = costs::header_name_of(&name.value, name.place, context);
        if let Some(header) = &header
            && FRAMING.contains(&header.as_str())
        {
            let problem = Problem::error(format!("`{header}` cannot be set"));
            context.push(problem.at(name.place, "the connection's own, not the message's"));
        }
        if let (Some(header), Some(template)) = (header, template(value, identity, context)) {
            edits.set.push((header, template));
        }
    }
    let remove: &[At<Text>] = raw.remove.get().map_or(&[], |list: &At<OneOrMany<Text>>| list.list.as_slice());
    edits.remove = remove.iter().filter_map(|name| costs::header_name(name, context)).collect();
    edits
}

fn prefix(key: &str, field: &Field<Text>, context: &mut Context<'_>) -> Option<String> {
    let text = field.get()?;
    let written = text.as_str();
    let valid = written.starts_with('/') && !written.contains(['?', '#', '{']) && written.parse::<Uri>().is_ok();
    if !valid {
        let label = if written.starts_with('/') { "a literal path was expected" } else { "it begins with `/`" };
        context.push(Problem::error(format!("`{key}` must be a path")).at(text.place, label));
        return None;
    }
    Some(written.trim_end_matches('/').to_owned())
}

/// A prefix that no path of the route begins with could never be stripped.
fn check_strip(pattern: &Pattern, prefix: &str, at: &At<RawRoute>, context: &mut Context<'_>) {
    let literals: Vec<&str> = prefix.split('/').skip(1).collect();
    let fits = literals.iter().enumerate().all(|(index, literal)| match pattern.path.get(index) {
        Some(Segment::Literal(segment)) => segment == literal,
        // What a capture or the rest holds may begin with it.
        Some(_) => true,
        None => matches!(pattern.path.last(), Some(Segment::Rest)),
    });
    if !fits {
        let problem = Problem::error("`strip_prefix` never matches")
            .at(at.strip_prefix.place().unwrap_or(at.place), "no path of this route begins like this");
        context.push(problem.at(at.r#match.place().unwrap_or(at.place), "the paths of this route"));
    }
}

/// Headers that frame a message or belong to one connection.
const FRAMING: [&str; 8] =
    ["content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "keep-alive", "host"];
