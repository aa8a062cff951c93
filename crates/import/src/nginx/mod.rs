//! `nginx.conf`: `limit_req` and `limit_conn` with their zones, and the locations they are in force in.

pub(crate) mod keys;
pub(crate) mod numbers;
mod routes;
mod tree;

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::draft::{Counting, Draft, Limit, Place, Route, Target, clients, name};
use crate::{ImportError, Read, Source};

use keys::{Key, Table};
use numbers::Rate;
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
    walk.finish(draft);
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
                .is_none_or(|_| !around.requests.is_empty())
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
                let by_server = key.is_some_and(|key| key.by_server);
                let is_alone = key.is_some_and(|key| key.per == ["everyone"]);
                if by_server && is_alone && server.is_empty() {
                    let why = "the server has no name, so the key is empty, and NGINX limits nobody by it";
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

    /// Makes the limits, now that all uses of each zone are known, and then the routes.
    fn finish(mut self, draft: &mut Draft) {
        let mut made: Vec<(Applied, bool)> = Vec::new();
        for (_, applied) in &self.planned {
            let kinds = |wanted: bool| {
                applied
                    .iter()
                    .any(|one| one.used.amount.is_connections() == wanted)
            };
            let both = kinds(true) && kinds(false);
            for one in applied {
                match made.iter().position(|(other, _)| other.shares_with(one)) {
                    Some(index) => made[index].1 |= both,
                    None if made.len() < 2_000 => made.push((one.clone(), both)),
                    None => {}
                }
            }
        }
        let exempt = |zone: &Zone| {
            zone.key
                .as_ref()
                .map(|key| key.exempt.clone())
                .unwrap_or_default()
        };
        for zone in self.zones.values().filter(|zone| zone.is_used) {
            for network in exempt(zone) {
                if !draft.exempt.contains(&network) {
                    draft.exempt.push(network);
                }
            }
        }
        for index in 0..made.len() {
            let (one, both) = made[index].clone();
            let Some(zone) = self
                .zones
                .get(&(one.used.amount.is_connections(), one.used.zone.clone()))
            else {
                continue;
            };
            let Ok(key) = &zone.key else { continue };
            let (mut limit, mut differences) = match (one.used.amount, zone.rate) {
                (Amount::Requests { burst, delay }, Some(rate)) => {
                    numbers::limit(rate, burst, delay)
                }
                (Amount::Connections(most), _) => {
                    (Limit::new(Counting::InFlight, most, 0), Vec::new())
                }
                (Amount::Requests { .. }, None) => continue,
            };
            limit.per.clone_from(&key.per);
            limit.when_missing = key.when_missing;
            limit.shadow = one.shadow;
            differences.extend(key.differences.iter().cloned());
            if both {
                differences.push(clients(
                    "a request that `limit_conn` refuses has spent its `limit_req` in NGINX; here it is charged on neither",
                ));
            }
            if made
                .iter()
                .any(|(other, _)| other.counts_with(&one) && !other.shares_with(&one))
            {
                differences.push(clients(format!(
                    "NGINX counts all uses of zone `{}` together; here those with other numbers have buckets of their own",
                    one.used.zone
                )));
            }
            if exempt(zone).len() < draft.exempt.len() {
                differences.push(clients(
                    "`exempt` is in force for every limit here, also for this one",
                ));
            }
            let server = one.server.as_deref().filter(|server| !server.is_empty());
            let wanted = match server {
                Some(server) => format!("{}_{}", one.used.zone, name(server, "server")),
                None => one.used.zone.clone(),
            };
            let words = format!("{} (zone {}: {})", one.used.words, zone.place, zone.words);
            made[index].0.limit = draft.limit(&wanted, &one.used.place, &words, limit, differences);
        }
        for (mut route, applied) in std::mem::take(&mut self.planned) {
            for one in applied {
                let Some((limit, _)) = made.iter().find(|(other, _)| other.shares_with(&one))
                else {
                    continue;
                };
                let Some(name) = &limit.limit else { continue };
                if limit.used.place != one.used.place {
                    let found = draft
                        .findings
                        .iter()
                        .find(|finding| finding.limit.as_ref() == Some(name));
                    if let Some(outcome) = found.map(|finding| finding.outcome.clone()) {
                        draft.again(&one.used.place, &one.used.words, name, outcome);
                    }
                }
                if !route.limits.contains(name) {
                    route.limits.push(name.clone());
                }
            }
            draft.route(route);
        }
        for zone in self.zones.values().filter(|zone| !zone.is_used) {
            draft.nothing(
                &zone.place,
                &zone.words,
                "no `limit_req` or `limit_conn` uses this zone",
            );
        }
        self.close(draft);
    }

    fn close(&self, draft: &mut Draft) {
        if draft
            .limits
            .iter()
            .any(|named| named.limit.counting == Counting::TokenBucket)
        {
            draft.note(
                "time: NGINX counts whole milliseconds, Tollgate microseconds: a live request within a millisecond of \
                 its turn can be judged otherwise, one of a log cannot",
            );
        }
        if !draft.limits.is_empty() {
            draft.note(
                "status: NGINX refuses with 503 unless limit_req_status and limit_conn_status say otherwise, Tollgate \
                 with 429 and Retry-After",
            );
        }
        if draft
            .routes
            .iter()
            .any(|route| matches!(route.target, Target::Upstream(_)) && route.limits.is_empty())
        {
            draft.note("routes without limits are those of locations that NGINX does not limit");
        }
    }
}

/// Settings that concern limiting and have no counterpart, wherever they are.
fn others(block: &Directive, in_stream: bool, draft: &mut Draft) {
    for directive in block.children() {
        let in_stream = in_stream || directive.name == "stream";
        others(directive, in_stream, draft);
        let why = match directive.name.as_str() {
            "limit_conn" | "limit_conn_zone" if in_stream => {
                "it limits TCP connections; Tollgate limits HTTP requests"
            }
            "limit_req" | "limit_conn" if block.name == "if" => "a route has no `if`",
            "limit_zone" => {
                "`limit_zone` is of NGINX before 1.1.8; `limit_conn_zone` took its place"
            }
            "limit_rate" | "limit_rate_after" | "proxy_limit_rate" => {
                "Tollgate does not limit bandwidth"
            }
            "limit_req" | "limit_req_zone" | "limit_conn" | "limit_conn_zone" | "limit_except" => {
                continue;
            }
            "limit_req_log_level"
            | "limit_conn_log_level"
            | "limit_req_status"
            | "limit_conn_status"
            | "limit_req_dry_run"
            | "limit_conn_dry_run" => continue,
            name if name.starts_with("limit_") => "it is not understood",
            _ => continue,
        };
        draft.not_imported(&directive.place(), &directive.words(), why);
    }
}

/// `set_real_ip_from` is `trusted_proxies`.
fn real_ip(http: &[&Directive], draft: &mut Draft) {
    let servers = http.iter().flat_map(|block| block.all("server"));
    let blocks: Vec<&Directive> = http.iter().copied().chain(servers).collect();
    let mut header = "X-Real-IP".to_owned();
    for block in &blocks {
        for from in block.all("set_real_ip_from") {
            let network = from.arg(0);
            let known = network.parse::<ipnet::IpNet>().is_ok()
                || network.parse::<std::net::IpAddr>().is_ok();
            if known && !draft.trusted.iter().any(|other| other == network) {
                draft.trusted.push(network.to_owned());
            } else if !known {
                let place = from.place();
                draft.note(format!("{place}: set_real_ip_from {network}: trusted_proxies lists networks; put its addresses there"));
            }
        }
        if let Some(directive) = block.all("real_ip_header").last() {
            header = directive.arg(0).to_owned();
        }
    }
    if draft.trusted.is_empty() {
        return;
    }
    if !header.eq_ignore_ascii_case("x-forwarded-for") {
        draft.note(format!(
            "addresses: NGINX takes them from {header}, Tollgate from X-Forwarded-For or Forwarded of trusted_proxies \
             (PROXY protocol: [server] proxy_protocol)"
        ));
    }
    let recursive = blocks.iter().any(|block| {
        block
            .all("real_ip_recursive")
            .any(|directive| directive.arg(0) == "on")
    });
    if !recursive {
        draft.note(
            "addresses: without real_ip_recursive NGINX takes the last address of X-Forwarded-For, Tollgate the last \
             that is not of a trusted proxy",
        );
    }
}
