//! The target of a route's requests: an upstream, or the gateway's own response.

use super::Known;
use super::edits::template;
use crate::problem::Problem;
use crate::raw::{self, RawRedirect, RawRespond, RawRoute};
use crate::scalar::{ShortOr, Text};
use crate::source::{At, Place};
use crate::validate::responses::header_value;
use crate::validate::upstreams::Upstreams;
use crate::validate::{Context, names_of};
use tollgate_policy::route::Target;

/// `upstream`, `respond` or `redirect`.
pub(super) fn target(
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
            let problem = Problem::error("a route does not say where its requests go")
                .at(at.place, "`upstream` is missing");
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
    at.redirect
        .get()
        .and_then(|redirect| self::redirect(redirect, known, context))
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
    if let Some(index) = upstreams
        .written
        .iter()
        .position(|written| written.value == name)
    {
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
    let status = context.within(raw.status(), 200, 599);
    let content_type = header_value(&raw.content_type().at(), context)?;
    let body = raw.body.get().map_or("", At::as_str).to_owned();
    if let (204 | 304, Some(text)) = (status, raw.body.get().filter(|_| !body.is_empty())) {
        let problem = Problem::warning(format!("a response with status {status} has no body"))
            .at(text.place, "this is never sent");
        context.push(problem.help("leave `body` out, or write another status"));
    }
    Some(Target::Fixed {
        status: u16::try_from(status).unwrap_or(200),
        body,
        content_type,
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
        ShortOr::Table(table) => {
            if table.to.is_absent() {
                context.push(
                    Problem::error("a redirect without a target").at(raw.place, "`to` is missing"),
                );
            }
            (table.to.get().cloned(), table.status())
        }
    };
    let redirects = |status: &u16| matches!(status, 301 | 302 | 303 | 307 | 308);
    let Some(status) = u16::try_from(status.value).ok().filter(redirects) else {
        let problem = Problem::error(format!("{} is no redirect", status.value));
        let place = status.place.unwrap_or_default();
        context.push(problem.at(place, "301, 302, 303, 307 or 308 was expected"));
        return None;
    };
    let identity = |name: &str| {
        known
            .identities
            .iter()
            .position(|identity| *identity == name)
    };
    Some(Target::Redirect {
        status,
        location: template(&to?, &identity, context)?,
    })
}
