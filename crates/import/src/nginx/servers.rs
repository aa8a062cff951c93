//! The servers and locations of `nginx.conf`: each becomes a route, with the limits that are in force there.

use super::routes::{self, Path};
use super::tree::Directive;
use super::{Applied, Context, Walk};
use crate::draft::{Draft, Route};

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
                    && server.all("location").next().is_none();
                if only {
                    let place = server.place();
                    draft.note(format!("{place}: a server that only redirects to https is left out: routes are the same on all ports"));
                }
                !only
            });
        }
        let mut ports: Vec<String> = Vec::new();
        for listen in servers.iter().flat_map(|server| server.all("listen")) {
            let words = listen.words();
            if !ports.contains(&words) {
                ports.push(words);
            }
        }
        if !ports.is_empty() {
            draft.note(format!(
                "listeners: NGINX has `{}`, which [server] listen does not get: its default is 0.0.0.0:8080",
                ports.join("`, `")
            ));
        }
        let default = servers.iter().position(is_default).unwrap_or(0);
        for (index, server) in servers.iter().enumerate() {
            let names = server
                .all("server_name")
                .flat_map(|names| names.args.iter());
            let mut hosts: Vec<String> = Vec::new();
            for host in names {
                match host.as_str() {
                    "_" | "" => {}
                    host if host.starts_with('~') || host.ends_with(".*") => {
                        let place = server.place();
                        draft.note(format!("{place}: server_name {host}: a route has no such pattern; its requests are those of the default server here"));
                    }
                    host => match host.strip_prefix('.') {
                        Some(bare) => hosts.extend([bare.to_owned(), format!("*.{bare}")]),
                        None => hosts.push(host.to_owned()),
                    },
                }
            }
            let primary = server.all("server_name").next();
            let primary = primary.map_or_else(String::new, |names| names.arg(0).to_owned());
            if index == default {
                hosts = vec![String::new()];
            } else if hosts.is_empty() {
                let place = server.place();
                draft.note(format!("{place}: a server without a name is told apart by its port only; it is left out"));
            }
            let context = self.context(server, context, draft);
            let unmatched = server.all("server_name").flat_map(|names| &names.args);
            let mut unmatched =
                unmatched.filter(|host| host.starts_with('~') || host.ends_with(".*"));
            let lost = match unmatched.next() {
                Some(host) => Some(format!("server_name {host}")),
                None => hosts
                    .is_empty()
                    .then(|| "a server without a name".to_owned()),
            };
            if let Some(lost) = lost.filter(|_| index != default) {
                for used in context.requests.iter().chain(&*context.connections) {
                    let why = format!(
                        "{lost} ({}) has no route here, so its requests do not meet it",
                        server.place()
                    );
                    draft.not_imported(&used.place, &used.words, &why);
                }
            }
            for host in &hosts {
                self.locations(server, host, &primary, &context, draft);
            }
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
                    self.plan(
                        location,
                        &format!("{host}{path}"),
                        &path,
                        server,
                        &context,
                        draft,
                    );
                }
                Path::Not(why) => {
                    let own = |name| location.all(name).next().is_some();
                    if !own("limit_req") && !own("limit_conn") {
                        let (place, words) = (location.place(), location.words());
                        draft.note(format!("{place}: {words}: {why}; its requests go to the other routes, with the limits of those"));
                        continue;
                    }
                    for used in context.requests.iter().chain(&*context.connections) {
                        let what = format!("{} in {}", used.words, location.words());
                        let why =
                            format!("{why}: its requests are limited by the other routes only");
                        draft.not_imported(&used.place, &what, &why);
                    }
                }
            }
        }
        // What no location takes is the server's own.
        if block.name == "server"
            && !has_root
            && block
                .all("location")
                .next()
                .is_none_or(|_| !around.requests.is_empty() || !around.connections.is_empty())
        {
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
        let prefix = path.trim_end_matches("**");
        let (target, strip, add) = routes::target(block, prefix, &self.upstreams);
        let mut route = Route::new(Some(block.place()), pattern, target);
        (route.strip_prefix, route.add_prefix) = (strip, add);
        let mut applied = Vec::new();
        if block.all("return").next().is_some() {
            for used in context.requests.iter().chain(&*context.connections) {
                let why = format!(
                    "`return` answers in {} before any limit is asked",
                    block.place()
                );
                if used.place.line > block.line && used.place.file == *block.file {
                    draft.nothing(&used.place, &used.words, &why);
                }
            }
        } else {
            let requests = context.requests.iter().map(|used| (used, context.dry_run));
            let connections = context
                .connections
                .iter()
                .map(|used| (used, context.connections_dry_run));
            for (used, shadow) in requests.chain(connections) {
                let zone = self
                    .zones
                    .get(&(used.amount.is_connections(), used.zone.clone()));
                let key = zone.and_then(|zone| zone.key.as_ref().ok());
                if key.is_some_and(|key| key.is_empty) {
                    let why = "the key is empty, and NGINX limits no request by it";
                    draft.nothing(&used.place, &used.words, why);
                    continue;
                }
                let by_server = key.is_some_and(|key| key.by_server);
                let is_alone = key.is_some_and(|key| key.per == ["everyone"]);
                if by_server && is_alone && server.is_empty() {
                    let why = "the server has no name, so the key is empty, and NGINX limits no request by it";
                    draft.nothing(&used.place, &used.words, why);
                    continue;
                }
                let server = by_server.then(|| server.to_owned());
                applied.push(Applied {
                    used: used.clone(),
                    shadow,
                    server,
                    limit: None,
                });
            }
        }
        self.planned.push((route, applied));
    }
}
