//! The target of a route's requests: an upstream, or the gateway's own response.

use super::Known;
use super::edits::template;
use crate::Reader;
use crate::context::Context;
use crate::lists::ShortOr;
use crate::raw::{RawFile, RawRedirect, RawRespond, RawRoute};
use crate::source::{At, Place};
use crate::text::Text;
use crate::validate::names_of;
use crate::validate::upstreams::Upstreams;
use tollgate_policy::route::Target;

/// `upstream`, `respond` or `redirect`.
pub(super) fn target(
    at: &At<RawRoute>,
    raw: &RawFile,
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
        [] if context.reader == Reader::Service => return Some(Target::Service),
        [] => {
            let title = "a route does not say where its requests go";
            context.error(title, at.place, "`upstream` is missing").help("upstream = \"http://127.0.0.1:3000\", a name of [upstreams], or \"builtin:echo\"; or `respond`, or `redirect`");
            return None;
        }
        [(first, first_place), (second, second_place), ..] => {
            let title = format!("a route has `{first}` and `{second}`");
            let (first, second) = (
                first_place.unwrap_or(at.place),
                second_place.unwrap_or(at.place),
            );
            context.either(title, second, first);
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
    at.redirect
        .get()
        .and_then(|redirect| self::redirect(redirect, known, context))
}

pub(super) fn upstream(
    text: &At<Text>,
    raw: &RawFile,
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
    if let Some(index) = upstreams.index(name) {
        return Some(Target::Upstream(index));
    }
    let names = names_of(&raw.upstreams);
    if !names.contains(&name) {
        if name.contains([':', '.', '/']) {
            let label = "a URL begins with `http://` or `https://`";
            context
                .error(format!("unknown upstream `{name}`"), text.place, label)
                .help(format!("did you mean \"http://{name}\"?"));
        } else {
            context.unknown("upstream", name, text.place, &names);
        }
    }
    None
}

fn fixed(raw: &RawRespond, context: &mut Context<'_>) -> Option<Target> {
    let status = raw.status().value;
    let body = raw.body.get().filter(|body| !body.as_str().is_empty());
    if let (204 | 304, Some(body)) = (status, body) {
        let title = format!("a response with status {status} has no body");
        context
            .warning(title, body.place, "this is never sent")
            .help("leave `body` out, or write another status");
    }
    Some(Target::Fixed {
        status,
        body: body.map_or("", At::as_str).to_owned(),
        content_type: raw.content_type().value,
    })
}

fn redirect(
    raw: &At<ShortOr<Text, RawRedirect>>,
    known: &Known<'_>,
    context: &mut Context<'_>,
) -> Option<Target> {
    let (to, status) = match &raw.value {
        ShortOr::Short(text) => (
            Some(raw.with(text.clone())),
            RawRedirect::default().status(),
        ),
        ShortOr::Table(table) => (table.to.get().cloned(), table.status()),
    };
    if !matches!(status.value, 301 | 302 | 303 | 307 | 308) {
        let title = format!("{} is no redirect", status.value);
        let label = "301, 302, 303, 307 or 308 was expected";
        context.error(title, status.place, label);
        return None;
    }
    Some(Target::Redirect {
        status: status.value,
        location: template(&to?, &|name| known.identity(name), context)?,
    })
}
