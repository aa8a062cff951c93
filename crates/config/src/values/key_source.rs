//! Where the key of a caller is in a request.

use crate::reading::{At, Context, Program, Text, forms, near_or};
use tollgate_policy::identity::Source;

forms! {
    KeySource -> Source = source;
}

pub(crate) const WHEN_MISSING: &str = "when_missing = \"refuse\" answers 401 (400 for a key in the body), \"skip\" leaves out the limits by this identity, \"use:address\" counts the client's address instead";

/// Why a claim needs `jwt`.
pub(crate) const UNVERIFIED_CLAIM: &str =
    "a client can write any claim into a token that is not verified";

pub(crate) fn source(text: &At<Text>, context: &mut Context<'_>) -> Option<Source> {
    const KINDS: [&str; 12] = [
        "address",
        "header",
        "bearer",
        "basic",
        "cookie",
        "query",
        "path",
        "jwt",
        "client_certificate",
        "json",
        "form",
        "graphql",
    ];
    let error = match Source::parse(text.as_str()) {
        Ok(Source::Application) if context.program != Program::Service => {
            let title = "`application` is no source of a key for a gateway";
            let label = "only a service that has the limits in itself gives a request a key";
            context.error(title, text.place, label);
            return None;
        }
        Ok(source) => return Some(source),
        Err(error) => error,
    };
    let title = format!("`{}` is no source of a key", text.as_str());
    let kind = text.as_str().split(':').next().unwrap_or_default();
    if KINDS.contains(&kind) {
        return context.parsed(Err(error), title, text);
    }
    let label = near_or(kind, KINDS, "no such source");
    let header = kind
        .contains('-')
        .then(|| format!("write \"header:{kind}\" for a header"));
    context
        .error(title, text.part(0, kind.len()), label)
        .maybe_help(header)
        .note("sources are `address`, `header:NAME`, `bearer`, `basic`, `cookie:NAME`, `query:NAME`, `path:NAME`, `jwt:CLAIM`, `client_certificate`, `json:PATH`, `json-digest:PATH`, `form:NAME` and `graphql:operation`");
    None
}
