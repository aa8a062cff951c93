//! `match` of a route: the requests that it takes.

use http::{HeaderName, HeaderValue};

use super::messages::{HeaderPattern, MethodText, headers_of};
use crate::reading::{At, Context, Named, OneOrMany, Text, forms, table};
use tollgate_policy::identity::source::Source;
use tollgate_policy::routes::pattern::Segment;
use tollgate_policy::routes::{HostPattern, Pattern};

table! {
    /// The requests that a route matches, as a table.
    RawMatch {
        /// Methods. Default: all.
        methods: OneOrMany<MethodText> => ["GET", "POST"],
        /// The host: a name, or `*.example.com` for every name below it. Default: every host.
        host: HostText => "api.example.com",
        /// The path: `{name}` is one segment, `**` the rest.
        @required("path = \"/v1/**\"") path: PathText => "/v1/{name}/**",
        /// Headers that must be present with this value; `*` stands for any value.
        headers: HeaderConditions => { "x-version" = "2" },
        /// What the body must say: `json:PATH`, `form:NAME` or `graphql:operation` with this value; `*` stands for any value.
        body: BodyConditions => { "json:method" = "tools/call", "json:params.name" = "search" },
    }
}

forms! {
    /// `[METHOD[|METHOD]] [HOST]/PATH`.
    PatternText -> Pattern = |text, context| {
        let title = format!("`{}` is no pattern", text.as_str());
        let pattern = context.parsed(Pattern::parse(text.as_str()), title, text)?;
        warn_of_slips(&pattern, text, context);
        Some(pattern)
    };
    /// A pattern as a table. Without a condition that cannot be read it would be another pattern, which may tie with
    /// another route's.
    PatternTable -> Pattern as RawMatch = |raw, _context| {
        let methods = raw.methods.unless_broken(Vec::new())?;
        Some(Pattern {
            methods: methods.into_iter().map(|method| method.value).collect(),
            host: raw.host.unless_broken(HostPattern::Any)?,
            headers: raw.headers.unless_broken(Vec::new())?,
            body: raw.body.unless_broken(Vec::new())?,
            ..raw.path.get()?.value.clone()
        })
    };
    HostText -> HostPattern = |text, context| {
        let title = format!("`{}` is no host", text.as_str());
        context.parsed(HostPattern::parse(text.as_str()), title, text)
    };
    PathText -> Pattern = path;
    HeaderConditions -> Vec<(HeaderName, Option<HeaderValue>)> as Named<HeaderPattern> = |named, context| {
        let headers = headers_of(&named.entries, context);
        let whole = named.broken.is_empty() && headers.len() == named.entries.len();
        let headers = headers.into_iter().map(|(name, value)| (name, value.value.clone()));
        whole.then(|| headers.collect())
    };
    /// The value that a part of the body must have, or `*`.
    BodyPattern -> Option<String> = |text, _context| {
        Some((text.as_str() != "*").then(|| text.as_str().to_owned()))
    };
    BodyConditions -> Vec<(Source, Option<String>)> as Named<BodyPattern> = |named, context| {
        let conditions = named.entries.iter();
        let read: Vec<_> = conditions.map(|(name, value)| body_condition(name, value, context)).collect();
        read.into_iter().collect::<Option<_>>().filter(|_| named.broken.is_empty())
    };
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

fn path(text: &At<Text>, context: &mut Context<'_>) -> Option<Pattern> {
    let title = format!("`{}` is no path", text.as_str());
    let pattern = context.parsed(Pattern::parse(text.as_str()), title.as_str(), text)?;
    if !pattern.methods.is_empty() || pattern.host != HostPattern::Any {
        context.error(title, text.place, "a path begins with `/`").help("in a table method and host have keys of their own: { methods = \"GET\", host = \"a.example\", path = \"/x\" }");
        return None;
    }
    Some(pattern)
}

fn body_condition(
    name: &At<String>,
    value: &At<Option<String>>,
    context: &mut Context<'_>,
) -> Option<(Source, Option<String>)> {
    let part = &name.value;
    match Source::parse(part) {
        Ok(source) if source.is_of_body() && !matches!(source, Source::JsonDigest(_)) => {
            if value.as_deref() == Some("") {
                let title = format!("`{part}` is never empty");
                let label = "an empty value counts as missing: no request has it";
                context
                    .error(title, value.place, label)
                    .help("write the value that the route takes, or \"*\" for any; requests without one take a route without this condition");
            }
            Some((source, value.value.clone()))
        }
        parsed => {
            let title = format!("`{part}` is no part of a body");
            let label = match parsed {
                Err(error) if part.starts_with("json:") => error.message,
                _ => "`json:PATH`, `form:NAME` or `graphql:operation` was expected".to_owned(),
            };
            context.error(title, name.place, label);
            None
        }
    }
}
