//! The servers and locations of `nginx.conf`: each becomes a route, with the limits that are in force there.

use super::directive::Directive;
use super::routes::{self, Path};
use super::{Applied, Context, Kind, Use, Walk};
use crate::draft::{Draft, Place, Route, distinct};

impl Walk {
    pub(super) fn servers(&mut self, http: &[&Directive], context: &Context, draft: &mut Draft) {
        let mut servers: Vec<&Directive> =
            http.iter().flat_map(|block| block.all("server")).collect();
        let is_default = |server: &&Directive| {
            server
                .all("listen")
                .any(|listen| listen.args.iter().any(|arg| arg.starts_with("default")))
        };
        // A server that only redirects to https: Tollgate's routes are the same on all ports.
        if servers.len() > 1 {
            servers.retain(|server| {
                let only = server.all("return").next().is_some_and(|answer| answer.words().contains("https://$"))
                    && !server.has("location");
                if only {
                    let place = &server.place;
                    draft.note(format!("{place}: a server that only redirects to https is left out: routes are the same on all ports"));
                }
                !only
            });
        }
        let listens = servers.iter().flat_map(|server| server.all("listen"));
        let ports = distinct(listens.map(Directive::words).collect());
        if !ports.is_empty() {
            draft.note(format!(
                "listeners: NGINX has `{}`, which [server] listen does not get: its default is 0.0.0.0:8080",
                ports.join("`, `")
            ));
        }
        let default = servers.iter().position(is_default).unwrap_or(0);
        for (index, server) in servers.iter().enumerate() {
            self.server(server, index == default, context, draft);
        }
    }

    fn server(
        &mut self,
        server: &Directive,
        is_default: bool,
        around: &Context,
        draft: &mut Draft,
    ) {
        let place = &server.place;
        let names = server.all("server_name").flat_map(|names| &names.args);
        let is_odd = |host: &&String| host.starts_with('~') || host.ends_with(".*");
        let (odd, plain): (Vec<&String>, Vec<&String>) = names.partition(is_odd);
        for host in &odd {
            draft.note(format!("{place}: server_name {host}: a route has no such pattern; its requests are those of the default server here"));
        }
        let mut hosts: Vec<String> = Vec::new();
        for host in plain
            .into_iter()
            .filter(|host| !matches!(host.as_str(), "_" | ""))
        {
            match host.strip_prefix('.') {
                Some(bare) => hosts.extend([bare.to_owned(), format!("*.{bare}")]),
                None => hosts.push(host.clone()),
            }
        }
        if is_default {
            hosts = vec![String::new()];
        } else if hosts.is_empty() {
            draft.note(format!(
                "{place}: a server without a name is chosen by its port only; it is left out"
            ));
        }
        let context = self.context(server, around, draft);
        let lost = match odd.first() {
            Some(host) => Some(format!("server_name {host}")),
            None => hosts
                .is_empty()
                .then(|| "a server without a name".to_owned()),
        };
        if let Some(lost) = lost.filter(|_| !is_default) {
            let why = format!("{lost} ({place}) has no route here, so its requests do not meet it");
            for (used, _) in context.uses() {
                draft.not_imported(&used.place, &used.words, &why);
            }
        }
        let primary = server.all("server_name").next();
        let primary = primary.map_or("", |names| names.arg(0));
        for host in &hosts {
            self.locations(server, host, primary, &context, draft);
        }
    }

    fn locations(
        &mut self,
        block: &Directive,
        host: &str,
        server: &str,
        around: &Context,
        draft: &mut Draft,
    ) {
        let mut has_root = false;
        for location in block.all("location") {
            let context = self.context(location, around, draft);
            self.locations(location, host, server, &context, draft);
            match routes::path(location, draft) {
                Path::Of(path) => {
                    has_root |= path == "/**";
                    let pattern = format!("{host}{path}");
                    self.plan(location, &pattern, &path, server, &context, draft);
                }
                Path::Not(why) => {
                    let words = location.words();
                    if !Kind::ALL.iter().any(|kind| location.has(kind.name())) {
                        let place = &location.place;
                        draft.note(format!("{place}: {words}: {why}; its requests go to the other routes, with the limits of those"));
                        continue;
                    }
                    let why = format!("{why}: its requests are limited by the other routes only");
                    for (used, _) in context.uses() {
                        let what = format!("{} in {words}", used.words);
                        draft.not_imported(&used.place, &what, &why);
                    }
                }
            }
        }
        // What no location takes is the server's own.
        let is_limited = around.uses().next().is_some();
        if block.name == "server" && !has_root && (is_limited || !block.has("location")) {
            self.plan(block, &format!("{host}/**"), "/**", server, around, draft);
        }
    }

    fn plan(
        &mut self,
        block: &Directive,
        pattern: &str,
        path: &str,
        server: &str,
        context: &Context,
        draft: &mut Draft,
    ) {
        if self.planned.len() >= 4_000 {
            return draft.note("more than 4000 locations: the rest is left out");
        }
        let (target, uri) = routes::target(block, &self.upstreams);
        let mut route = Route::new(Some(block.place.clone()), pattern, target);
        if !uri.is_empty() {
            // With a URI, `proxy_pass` puts it in the place of what the location matched.
            let prefix = path.trim_end_matches("**").trim_end_matches('/');
            route.strip_prefix = prefix.to_owned();
            route.add_prefix = uri.trim_end_matches('/').to_owned();
        }
        let mut applied = Vec::new();
        if block.has("return") {
            let why = format!(
                "`return` answers in {} before any limit is asked",
                block.place
            );
            let is_within = |at: &Place| at.line > block.place.line && at.file == block.place.file;
            for (used, _) in context.uses().filter(|(used, _)| is_within(&used.place)) {
                draft.nothing(&used.place, &used.words, &why);
            }
        } else {
            for (used, shadow) in context.uses() {
                match self.applied(used, server) {
                    Ok(server) => applied.push(Applied {
                        used: used.clone(),
                        shadow,
                        server,
                    }),
                    Err(why) => draft.nothing(&used.place, &used.words, why),
                }
            }
        }
        self.planned.push((route, applied));
    }

    /// The server that a use counts for, where its zone tells servers apart. The error: why it limits nothing.
    fn applied(&self, used: &Use, server: &str) -> Result<Option<String>, &'static str> {
        let zone = self.zones.get(&used.zone);
        let Some(key) = zone.and_then(|zone| zone.key.as_ref().ok()) else {
            return Ok(None);
        };
        if key.is_empty {
            return Err("the key is empty, and NGINX limits no request by it");
        }
        if key.by_server && key.per == ["everyone"] && server.is_empty() {
            return Err(
                "the server has no name, so the key is empty, and NGINX limits no request by it",
            );
        }
        Ok(key.by_server.then(|| server.to_owned()))
    }
}
