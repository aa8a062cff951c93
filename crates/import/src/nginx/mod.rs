//! `nginx.conf`: `limit_req` and `limit_conn` with their zones, and the locations they are in force in.

pub(crate) mod keys;
pub(crate) mod numbers;
mod lexer;
mod limits;
mod others;
mod routes;
mod servers;
mod tree;

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::draft::{Draft, Place, Route};
use crate::{ImportError, Read, Source};

use keys::{Key, Table};
use numbers::Rate;
use others::{others, real_ip};
use routes::Upstreams;
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
}
