//! `match`: the requests that a route takes.

use http::Method;

use crate::problem::Problem;
use crate::raw::{RawMatch, RawRoute};
use crate::scalar::{ShortOr, Text};
use crate::source::{At, Place};
use crate::validate::responses::header_value;
use crate::validate::{Context, costs, entries_of};
use tollgate_policy::method::is_in_capitals;
use tollgate_policy::pattern::Segment;
use tollgate_policy::route::{HostPattern, Pattern};

/// `match`.
pub(super) fn pattern(at: &At<RawRoute>, context: &mut Context<'_>) -> Option<Pattern> {
    if at.r#match.is_absent() {
        let problem = Problem::error("a route does not say what it matches")
            .at(at.place, "`match` is missing");
        context.push(
            problem.help("match = \"GET /v1/{id}\" matches one path, match = \"/**\" everything"),
        );
    }
    let written = at.r#match.get()?;
    match &written.value {
        ShortOr::Short(text) => {
            let text = written.with(text.clone());
            match Pattern::parse(text.as_str()) {
                Ok(pattern) => {
                    warn_of_slips(&pattern, &text, context);
                    Some(pattern)
                }
                Err(error) => {
                    context.parse_error(format!("`{}` is no pattern", text.as_str()), error, &text);
                    None
                }
            }
        }
        ShortOr::Table(table) => pattern_of(table, written.place, context),
    }
}

/// Warns of other routers' syntax that has another meaning here.
fn warn_of_slips(pattern: &Pattern, text: &At<Text>, context: &mut Context<'_>) {
    for segment in &pattern.path {
        if let Segment::Literal(literal) = segment
            && let Some(name) = literal
                .strip_prefix([':', '<'])
                .filter(|name| !name.is_empty())
        {
            let name = name.trim_end_matches('>');
            let problem =
                Problem::warning(format!("`{literal}` matches only these very characters"));
            context.push(
                problem
                    .at(text.place, "a segment of the path")
                    .help(format!("for any one segment write `{{{name}}}`")),
            );
        }
    }
    if let HostPattern::Exact(host) = &pattern.host
        && !host.contains(['.', ':'])
        && host != "localhost"
    {
        let problem = Problem::warning(format!(
            "`{host}` is taken for a host: what stands before the first `/`"
        ));
        let path = text.as_str().trim().rsplit(' ').next().unwrap_or_default();
        context.push(
            problem
                .at(text.place, "a path begins with `/`")
                .help(format!("if it is part of the path write `/{path}`")),
        );
    }
}

fn pattern_of(raw: &RawMatch, place: Place, context: &mut Context<'_>) -> Option<Pattern> {
    if raw.path.is_absent() {
        context.push(
            Problem::error("a route does not say which path it matches")
                .at(place, "`path` is missing"),
        );
    }
    let path = raw.path.get()?;
    let mut pattern = match Pattern::parse(path.as_str()) {
        Ok(pattern) if pattern.methods.is_empty() && pattern.host == HostPattern::Any => pattern,
        Ok(_) => {
            let problem = Problem::error(format!("`{}` is no path", path.as_str()))
                .at(path.place, "a path begins with `/`");
            context.push(problem.help("in a table method and host have keys of their own: { methods = \"GET\", host = \"a.example\", path = \"/x\" }"));
            return None;
        }
        Err(error) => {
            context.parse_error(format!("`{}` is no path", path.as_str()), error, path);
            return None;
        }
    };
    for method in raw
        .methods
        .get()
        .map_or(&[][..], |list| list.list.as_slice())
    {
        match method.as_str().parse::<Method>() {
            Ok(name) if is_in_capitals(method.as_str()) => pattern.methods.push(name),
            _ => {
                let problem = Problem::error(format!("`{}` is no method", method.as_str()));
                context
                    .push(problem.at(method.place, "methods are written in capitals, like `GET`"));
            }
        }
    }
    if let Some(host) = raw.host.get() {
        match HostPattern::parse(host.as_str()) {
            Ok(parsed) => pattern.host = parsed,
            Err(error) => {
                context.parse_error(format!("`{}` is no host", host.as_str()), error, host)
            }
        }
    }
    for (name, value) in entries_of(&raw.headers) {
        let Some(name) = costs::header_name_of(&name.value, name.place, context) else {
            continue;
        };
        let value = if value.as_str() == "*" {
            None
        } else {
            Some(header_value(value, context)?)
        };
        pattern.headers.push((name, value));
    }
    Some(pattern)
}
