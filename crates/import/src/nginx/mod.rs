//! `nginx.conf`: `limit_req` and `limit_conn` with their zones, and the locations they are in force in.

pub(crate) mod keys;
pub(crate) mod numbers;
mod lexer;
mod limits;
mod others;
mod routes;
mod tree;

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::draft::{Draft, Place, Route};
use crate::{ImportError, Read, Source};

use keys::{Key, Table};
use numbers::Rate;
use others::{others, real_ip};
use routes::{Path, Upstreams};
use tree::Directive;

/// A zone: what it counts by, and for `limit_req` how much.
struct Zone {
    place: Place,
    words: String,
    key: Result<Key, String>,
    rate: Option<Rate>,
    is_used: bool,
}

/// A `limit_req` or `limit_conn`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Use {
    place: Place,
    words: String,
    zone: String,
    amount: Amount,
}

/// What a use says beside its zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Amount {
    Requests { burst: u64, delay: Option<u64> },
    Connections(u64),
}

impl Amount {
    const fn is_connections(self) -> bool {
        matches!(self, Self::Connections(_))
    }
}

/// What is in force at a place of the file.
#[derive(Clone, Default)]
struct Context {
    requests: Rc<Vec<Use>>,
    connections: Rc<Vec<Use>>,
    dry_run: bool,
    connections_dry_run: bool,
}

/// A use as one route has it. Routes with the same share buckets.
#[derive(Clone, Debug)]
struct Applied {
    used: Use,
    shadow: bool,
    /// The server, where the zone tells servers apart.
    server: Option<String>,
    limit: Option<String>,
}

impl Applied {
    fn shares_with(&self, other: &Self) -> bool {
        self.used.zone == other.used.zone
            && self.used.amount == other.used.amount
            && self.shadow == other.shadow
            && self.server == other.server
    }

    fn counts_with(&self, other: &Self) -> bool {
        self.used.zone == other.used.zone
            && self.used.amount.is_connections() == other.used.amount.is_connections()
            && self.server == other.server
    }
}

/// Reads the files into the draft.
pub(crate) fn draft(
    sources: &[Source],
    read: Read<'_>,
    draft: &mut Draft,
) -> Result<(), ImportError> {
    let root = tree::read(sources, read, draft)?;
    // A file of `conf.d` has no `http` around it.
    let mut http: Vec<&Directive> = root.all("http").collect();
    http.push(&root);
    let tables = keys::tables(&http);
    let upstreams = routes::upstreams(&http, draft);
    let mut walk = Walk {
        zones: BTreeMap::new(),
        tables,
        upstreams,
        planned: Vec::new(),
    };
    walk.zones(&http, draft);
    others(&root, false, draft);
    real_ip(&http, draft);
    let context = http.iter().fold(Context::default(), |context, block| {
        walk.context(block, &context, draft)
    });
    walk.servers(&http, &context, draft);
    walk.finish(&root, draft);
    Ok(())
}

struct Walk {
    zones: BTreeMap<(bool, String), Zone>,
    tables: Vec<Table>,
    upstreams: Upstreams,
    planned: Vec<(Route, Vec<Applied>)>,
}

impl Walk {
    fn zones(&mut self, http: &[&Directive], draft: &mut Draft) {
        for directive in http.iter().flat_map(|block| block.children()) {
            let is_connections = directive.name == "limit_conn_zone";
            if !is_connections && directive.name != "limit_req_zone" {
                continue;
            }
            let named = |prefix: &str| {
                directive
                    .args
                    .iter()
                    .skip(1)
                    .find_map(|arg| arg.strip_prefix(prefix))
            };
            let zone = named("zone=")
                .and_then(|zone| zone.split(':').next())
                .unwrap_or_default();
            let rate = named("rate=").and_then(Rate::parse);
            if zone.is_empty() || (!is_connections && rate.is_none()) {
                let why = "a zone has a key, `zone=NAME:SIZE` and `rate=Nr/s` or `rate=Nr/m`";
                draft.not_imported(&directive.place(), &directive.words(), why);
                continue;
            }
            let zone = (is_connections, zone.to_owned());
            self.zones.insert(
                zone,
                Zone {
                    place: directive.place(),
                    words: directive.words(),
                    key: keys::key(directive.arg(0), &self.tables),
                    rate,
                    is_used: false,
                },
            );
        }
    }

    /// What is in force within a block: its own limits, or those around it where it has none.
    fn context(&mut self, block: &Directive, around: &Context, draft: &mut Draft) -> Context {
        let mut context = around.clone();
        let switch = |name: &str, before: bool| {
            block
                .all(name)
                .last()
                .map_or(before, |directive| directive.arg(0) == "on")
        };
        context.dry_run = switch("limit_req_dry_run", around.dry_run);
        context.connections_dry_run = switch("limit_conn_dry_run", around.connections_dry_run);
        let mut requests = Vec::new();
        let mut connections = Vec::new();
        for directive in block.children() {
            let list = match directive.name.as_str() {
                "limit_req" => &mut requests,
                "limit_conn" => &mut connections,
                _ => continue,
            };
            match self.read_use(directive) {
                Ok(used) => list.push(used),
                Err(why) => draft.not_imported(&directive.place(), &directive.words(), &why),
            }
        }
        // A block with one of its own has none of those around it, also where its own is not understood.
        if block.all("limit_req").next().is_some() {
            context.requests = Rc::new(requests);
        }
        if block.all("limit_conn").next().is_some() {
            context.connections = Rc::new(connections);
        }
        context
    }

    fn read_use(&mut self, directive: &Directive) -> Result<Use, String> {
        let is_connections = directive.name == "limit_conn";
        let mut zone = String::new();
        let mut burst = 0;
        let mut delay = Some(0);
        let mut most = None;
        let number = |text: &str| {
            text.parse::<u64>()
                .ok()
                .filter(|number| *number <= 1_000_000_000)
        };
        for (place, arg) in directive.args.iter().enumerate() {
            let (key, value) = arg.split_once('=').unwrap_or((arg, ""));
            let bad = || format!("`{arg}` is not understood");
            match key {
                _ if is_connections && place == 0 => zone = arg.clone(),
                _ if is_connections && place == 1 => most = Some(number(arg).ok_or_else(bad)?),
                "zone" => zone = value.to_owned(),
                "burst" => burst = number(value).ok_or_else(bad)?,
                "nodelay" if value.is_empty() => delay = None,
                "delay" => delay = Some(number(value).ok_or_else(bad)?),
                _ => return Err(bad()),
            }
        }
        let amount = match (is_connections, most) {
            (true, Some(most)) if most > 0 => Amount::Connections(most),
            (true, _) => return Err("a number of connections was expected".to_owned()),
            (false, _) => Amount::Requests { burst, delay },
        };
        let known = self.zones.get_mut(&(is_connections, zone.clone()));
        let known = known.ok_or_else(|| format!("there is no zone `{zone}`"))?;
        known.is_used = true;
        if let Err(why) = &known.key {
            return Err(format!("{why} ({})", known.place));
        }
        Ok(Use {
            place: directive.place(),
            words: directive.words(),
            zone,
            amount,
        })
    }

    fn servers(&mut self, http: &[&Directive], context: &Context, draft: &mut Draft) {
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
