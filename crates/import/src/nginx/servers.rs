//! The servers and locations of `nginx.conf`: each becomes a route, with the limits that are in force there.

use super::directive::Directive;
use super::routes::{self, Path};
use super::{Applied, Context, Kind, Use, Walk};
use crate::compare::{Takes, Theirs, Turn};
use crate::draft::{Draft, Place, Route, Target, distinct, either};

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
            let words = format!(
                "server_name {host} ({place}) has no counterpart: its requests are those of the default server here"
            );
            draft.differ_on_host(Some(""), either(words));
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
                used.said.set(true);
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
        // What a server returns itself it returns before it looks for a location.
        let is_closed = block.name == "server" && block.has("return");
        for location in block.all("location").filter(|_| !is_closed) {
            let context = self.context(location, around, draft);
            self.locations(location, host, server, &context, draft);
            rewritten(location, host, draft);
            match routes::path(location) {
                Path::Of(path, takes, turn) => {
                    has_root |= path == "/**";
                    let mut route = Route::new(
                        Some(location.place.clone()),
                        format!("{host}{path}"),
                        Target::Unknown,
                    );
                    // Of regular expressions the first one counts, of paths the longest.
                    let rank = match (turn, &takes) {
                        (Turn::Expression, _) => u64::MAX - self.planned.len() as u64,
                        (_, Takes::Exact(_)) => u64::MAX,
                        (_, Takes::Prefix(path) | Takes::Below(path)) => path.len() as u64,
                    };
                    route = route.taking(takes, turn, rank);
                    self.plan(location, route, server, &context, draft);
                }
                Path::Not(why) => {
                    let words = location.words();
                    let place = &location.place;
                    if !location.arg(0).starts_with('@') {
                        let words = format!(
                            "`{words}` ({place}) takes requests that go to other routes here: {why}"
                        );
                        draft.differ_on_host(Some(host), either(words));
                    }
                    let why = format!("{why}: its requests are limited by the other routes only");
                    for (used, _) in context
                        .uses()
                        .filter(|_| Kind::ALL.iter().any(|kind| location.has(kind.name())))
                    {
                        used.said.set(true);
                        let what = format!("{} in {words}", used.words);
                        draft.not_imported(&used.place, &what, &why);
                    }
                }
            }
        }
        if block.name != "server" {
            return;
        }
        rewritten(block, host, draft);
        // What no location takes is the server's own.
        let is_limited = around.uses().next().is_some();
        if !has_root && (is_limited || is_closed || !block.has("location")) {
            let route = Route::new(
                Some(block.place.clone()),
                format!("{host}/**"),
                Target::Unknown,
            );
            let route = route.taking(Takes::Prefix("/".to_owned()), Turn::Ranked, 0);
            self.plan(block, route, server, around, draft);
        } else if !has_root {
            draft.theirs.push(Theirs {
                host: host.to_owned(),
                takes: Takes::Prefix("/".to_owned()),
                methods: Vec::new(),
                headers: Vec::new(),
                turn: Turn::Ranked,
                rank: 0,
                limits: Vec::new(),
            });
        }
    }

    fn plan(
        &mut self,
        block: &Directive,
        mut route: Route,
        server: &str,
        context: &Context,
        draft: &mut Draft,
    ) {
        if self.planned.len() >= 4_000 {
            return draft.note("more than 4000 locations: the rest is left out");
        }
        let (target, uri) = routes::target(block, &self.upstreams);
        route.target = target;
        if block.has("internal") {
            // NGINX answers so to a client that asks for it.
            route.target = Target::Respond(404, String::new());
            for (used, _) in context
                .uses()
                .filter(|_| Kind::ALL.iter().any(|kind| block.has(kind.name())))
            {
                used.said.set(true);
                let why = "its location is `internal`: only requests that other locations send there meet it";
                draft.not_imported(&used.place, &used.words, why);
            }
            return self.planned.push((route, Vec::new()));
        }
        if !uri.is_empty() {
            // With a URI, `proxy_pass` puts it in the place of what the location matched.
            let path = route
                .pattern
                .find('/')
                .map_or("", |slash| &route.pattern[slash..]);
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
                used.said.set(true);
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
                    Err(why) => {
                        used.said.set(true);
                        draft.nothing(&used.place, &used.words, why);
                    }
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

/// Says what sends requests to other locations, or answers them, before a limit is asked.
fn rewritten(block: &Directive, host: &str, draft: &mut Draft) {
    for directive in &block.block {
        let moves = |one: &Directive| matches!(one.name.as_str(), "rewrite" | "return");
        let is_condition = directive.name == "if" && directive.block.iter().any(moves);
        if directive.name == "rewrite" || is_condition {
            let (words, place) = (directive.words(), &directive.place);
            let words = format!(
                "`{words}` ({place}) decides in NGINX which location and limits a request meets; here its path does"
            );
            draft.differ_on_host(Some(host), either(words));
        }
    }
}
