//! `match`: the requests that a route takes.

use crate::raw::{RawMatch, RawRoute};
use crate::reading::{At, Context, Field, Place, ShortOr, Text};
use crate::validate::{entries_of, is_read};
use crate::values::messages::headers_of;
use tollgate_policy::identity::source::Source;
use tollgate_policy::routes::pattern::Segment;
use tollgate_policy::routes::{HostPattern, Pattern};

pub(super) fn pattern(at: &At<RawRoute>, context: &mut Context<'_>) -> Option<Pattern> {
    let written = at.r#match.get()?;
    match &written.value {
        ShortOr::Short(text) => {
            let text = written.with(text.clone());
            let title = format!("`{}` is no pattern", text.as_str());
            let pattern = context.parsed(Pattern::parse(text.as_str()), title, &text)?;
            warn_of_slips(&pattern, &text, context);
            Some(pattern)
        }
        ShortOr::Table(table) => pattern_of(table, context),
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
            let title = format!("`{literal}` matches only these very characters");
            context
                .warning(title, text.place, "a segment of the path")
                .help(format!("for any one segment write `{{{name}}}`"));
        }
    }
    if let HostPattern::Exact(host) = &pattern.host
        && !host.contains(['.', ':'])
        && host != "localhost"
    {
        let title = format!("`{host}` is taken for a host: it is before the first `/`");
        let path = text.as_str().trim().rsplit(' ').next().unwrap_or_default();
        context
            .warning(title, text.place, "a path begins with `/`")
            .help(format!("if it is part of the path write `/{path}`"));
    }
}

fn pattern_of(raw: &RawMatch, context: &mut Context<'_>) -> Option<Pattern> {
    let path = raw.path.get()?;
    let title = format!("`{}` is no path", path.as_str());
    let mut pattern = context.parsed(Pattern::parse(path.as_str()), title.as_str(), path)?;
    if !pattern.methods.is_empty() || pattern.host != HostPattern::Any {
        context.error(title, path.place, "a path begins with `/`").help("in a table method and host have keys of their own: { methods = \"GET\", host = \"a.example\", path = \"/x\" }");
        return None;
    }
    let methods = raw.methods.or(Vec::new());
    pattern.methods = methods.into_iter().map(|method| method.value).collect();
    // Without one of its conditions the pattern is another one, which may tie with another route's.
    let mut is_whole = !matches!(raw.methods, Field::Broken)
        && !matches!(raw.host, Field::Broken)
        && is_read(&raw.headers)
        && is_read(&raw.body);
    if let Some(host) = raw.host.get() {
        let title = format!("`{}` is no host", host.as_str());
        let parsed = context.parsed(HostPattern::parse(host.as_str()), title, host);
        is_whole &= parsed.is_some();
        pattern.host = parsed.unwrap_or(HostPattern::Any);
    }
    let headers = entries_of(&raw.headers);
    for (name, value) in headers_of(headers, context) {
        pattern.headers.push((name, value.value.clone()));
    }
    is_whole &= pattern.headers.len() == headers.len();
    for (name, value) in entries_of(&raw.body) {
        match Source::parse(&name.value) {
            Ok(source) if source.is_of_body() && !matches!(source, Source::JsonDigest(_)) => {
                if value.value.as_deref() == Some("") {
                    never_empty(&name.value, value.place, context);
                }
                pattern.body.push((source, value.value.clone()));
            }
            parsed => {
                let title = format!("`{}` is no part of a body", name.value);
                let label = match parsed {
                    Err(error) if name.value.starts_with("json:") => error.message,
                    _ => "`json:PATH`, `form:NAME` or `graphql:operation` was expected".to_owned(),
                };
                context.error(title, name.place, label);
                is_whole = false;
            }
        }
    }
    is_whole.then_some(pattern)
}

fn never_empty(part: &str, place: Place, context: &mut Context<'_>) {
    let title = format!("`{part}` is never empty");
    let label = "an empty value counts as missing: no request has it";
    context
        .error(title, place, label)
        .help("write the value that the route takes, or \"*\" for any; requests without one take a route without this condition");
}
