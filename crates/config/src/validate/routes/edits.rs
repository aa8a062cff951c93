//! The changes a route makes to messages: headers and their templates, path prefixes.

use http::Uri;

use crate::raw::{RawHeaders, RawRoute};
use crate::reading::{At, Context, Field, Text};
use crate::validate::entries_of;
use crate::values::messages::headers_of;
use tollgate_policy::routes::{HeaderEdits, Pattern, Segment, Template};

pub(super) fn edits(
    field: &Field<RawHeaders>,
    identities: &[&str],
    context: &mut Context<'_>,
) -> HeaderEdits {
    let Some(raw) = field.get() else {
        return HeaderEdits::default();
    };
    let mut edits = HeaderEdits::default();
    for (name, _) in entries_of(&raw.set) {
        let header = name.to_ascii_lowercase();
        if FRAMING.contains(&header.as_str()) {
            let label = "the connection's own, not the message's";
            context.error(format!("`{header}` cannot be set"), name.place, label);
        }
    }
    for (header, value) in headers_of(entries_of(&raw.set), context) {
        let template = template(value, identities, context);
        edits
            .set
            .extend(template.map(|template| (header, template)));
    }
    let remove = raw.remove.or(Vec::new());
    edits.remove = remove.into_iter().map(|at| at.value).collect();
    edits
}

/// A string whose placeholders are filled for each request. `identities`: their names, by index.
pub(super) fn template(
    text: &At<Text>,
    identities: &[&str],
    context: &mut Context<'_>,
) -> Option<Template> {
    let index = |name: &str| identities.iter().position(|known| *known == name);
    let read = Template::parse(text.as_str(), index);
    context.parsed(read, "a placeholder that cannot be filled", text)
}

pub(super) fn prefix(key: &str, field: &Field<Text>, context: &mut Context<'_>) -> Option<String> {
    let text = field.get()?;
    let written = text.as_str();
    let valid = written.starts_with('/')
        && !written.contains(['?', '#', '{'])
        && written.parse::<Uri>().is_ok();
    if !valid {
        let label = if written.starts_with('/') {
            "a literal path was expected"
        } else {
            "it begins with `/`"
        };
        context.error(format!("`{key}` must be a path"), text.place, label);
        return None;
    }
    Some(written.trim_end_matches('/').to_owned())
}

/// A prefix that no path of the route begins with could never be removed.
pub(super) fn check_strip(
    pattern: &Pattern,
    prefix: &str,
    at: &At<RawRoute>,
    context: &mut Context<'_>,
) {
    let literals: Vec<&str> = prefix.split('/').skip(1).collect();
    let fits = literals
        .iter()
        .enumerate()
        .all(|(index, literal)| match pattern.path.get(index) {
            Some(Segment::Literal(segment)) => segment == literal,
            // The text of a capture or of the rest may begin with it.
            Some(_) => true,
            None => matches!(pattern.path.last(), Some(Segment::Rest)),
        });
    if !fits {
        let (strip, paths) = (at.strip_prefix.place(), at.r#match.place());
        let label = "no path of this route begins like this";
        context
            .error(
                "`strip_prefix` never matches",
                strip.unwrap_or(at.place),
                label,
            )
            .at(paths.unwrap_or(at.place), "the paths of this route");
    }
}

/// Headers that frame a message or belong to one connection.
const FRAMING: [&str; 8] = [
    "content-length",
    "transfer-encoding",
    "connection",
    "upgrade",
    "te",
    "trailer",
    "keep-alive",
    "host",
];
