//! The target of a route's requests: an upstream, or the gateway's own response.

use super::Compiler;
use super::edits::template;
use crate::raw::{RawRedirect, RawRespond, RawRoute};
use crate::reading::{At, Context, Program, ShortOr, Text};
use crate::validate::names_of;
use tollgate_policy::routes::Target;

impl Compiler<'_, '_> {
    pub(super) fn target(&mut self, at: &At<RawRoute>) -> Option<Target> {
        let targets = [
            ("upstream", at.upstream.is_absent(), at.upstream.place()),
            ("respond", at.respond.is_absent(), at.respond.place()),
            ("redirect", at.redirect.is_absent(), at.redirect.place()),
        ];
        let written = targets.into_iter().filter(|(_, absent, _)| !absent);
        let mut written = written.map(|(name, _, place)| (name, place.unwrap_or(at.place)));
        match (written.next(), written.next()) {
            (None, _) if self.context.program == Program::Service => return Some(Target::Service),
            (None, _) => {
                let title = "a route does not say where its requests go";
                self.context.error(title, at.place, "`upstream` is missing").help("upstream = \"http://127.0.0.1:3000\", a name of [upstreams], or \"builtin:echo\"; or `respond`, or `redirect`");
                return None;
            }
            (Some((first, place)), Some((second, other))) => {
                let title = format!("a route has `{first}` and `{second}`");
                self.context.either(title, other, place);
                return None;
            }
            (Some(_), None) => {}
        }
        if let Some(text) = at.upstream.get() {
            return self.upstream(text);
        }
        if let Some(respond) = at.respond.get() {
            return fixed(respond, self.context);
        }
        self.redirect(at.redirect.get()?)
    }

    pub(super) fn upstream(&mut self, text: &At<Text>) -> Option<Target> {
        let context = &mut *self.context;
        let name = text.as_str();
        if name == "builtin:echo" {
            return Some(Target::Echo);
        }
        if let Some(builtin) = name.strip_prefix("builtin:") {
            context.unknown("builtin", builtin, text.part(8, name.len()), &["echo"]);
            return None;
        }
        if name.contains("://") || name.starts_with("unix:") {
            return self.upstreams.at_url(text, context).map(Target::Upstream);
        }
        if let Some(index) = self.upstreams.index(name) {
            return Some(Target::Upstream(index));
        }
        let names = names_of(&self.raw.upstreams);
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

    fn redirect(&mut self, raw: &At<ShortOr<Text, RawRedirect>>) -> Option<Target> {
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
            self.context.error(title, status.place, label);
            return None;
        }
        Some(Target::Redirect {
            status: status.value,
            location: template(&to?, self.identities, self.context)?,
        })
    }
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
