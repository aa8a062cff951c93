//! `nginx.conf`: `limit_req` and `limit_conn` with their zones, and the locations they are in force in.

mod directive;
pub(crate) mod keys;
pub(crate) mod numbers;
mod lexer;
mod limits;
mod others;
mod routes;
mod servers;
mod tree;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::compare::Choice;
use crate::draft::{Draft, Place, Route};
use crate::words::number;
use crate::{ImportError, Read, SourceFile};
use directive::Directive;

use keys::{Key, Table};
use numbers::Rate;
use others::real_ip;
use routes::Upstreams;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Requests,
    Connections,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Requests, Self::Connections];

    /// Its directive, with which the names of its other settings begin.
    const fn name(self) -> &'static str {
        match self {
            Self::Requests => "limit_req",
            Self::Connections => "limit_conn",
        }
    }

    /// The kind whose directive has this name, with this ending.
    fn named(name: &str, ending: &str) -> Option<Self> {
        let name = name.strip_suffix(ending)?;
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

type ZoneName = (Kind, String);

/// A zone: what it counts by, and for `limit_req` how much.
struct Zone {
    place: Place,
    words: String,
    key: Result<Key, String>,
    rate: Option<Rate>,
    is_used: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Use {
    place: Place,
    words: String,
    zone: ZoneName,
    amount: Amount,
    /// Whether the report says what became of it.
    said: Rc<Cell<bool>>,
}

/// What a use says beside its zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Amount {
    Requests { burst: u64, delay: Option<u64> },
    Connections(u64),
}

/// What is in force at a place of the file, by kind.
#[derive(Clone, Default)]
struct Context([InForce; 2]);

#[derive(Clone, Default)]
struct InForce {
    uses: Rc<Vec<Use>>,
    dry_run: bool,
}

impl Context {
    /// The limits, and whether they are only counted.
    fn uses(&self) -> impl Iterator<Item = (&Use, bool)> {
        let kinds = self.0.iter();
        kinds.flat_map(|of| of.uses.iter().map(|used| (used, of.dry_run)))
    }
}

/// A use as one route has it. Routes with the same share buckets.
#[derive(Clone, Debug)]
struct Applied {
    used: Use,
    shadow: bool,
    /// The server, where the zone tells servers apart.
    server: Option<String>,
}

impl Applied {
    fn shares_with(&self, other: &Self) -> bool {
        self.counts_with(other)
            && self.used.amount == other.used.amount
            && self.shadow == other.shadow
    }

    fn counts_with(&self, other: &Self) -> bool {
        self.used.zone == other.used.zone && self.server == other.server
    }
}

pub(crate) fn draft(
    sources: &[SourceFile],
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
    real_ip(&http, draft);
    draft.choice = Choice {
        by_host: true,
        decodes_slashes: true,
    };
    let context = http.iter().fold(Context::default(), |context, block| {
        walk.context(block, &context, draft)
    });
    walk.servers(&http, &context, draft);
    walk.finish(&root, draft);
    Ok(())
}

struct Walk {
    zones: BTreeMap<ZoneName, Zone>,
    tables: Vec<Table>,
    upstreams: Upstreams,
    planned: Vec<(Route, Vec<Applied>)>,
}

impl Walk {
    fn zones(&mut self, http: &[&Directive], draft: &mut Draft) {
        for directive in http.iter().flat_map(|block| &block.block) {
            let Some(kind) = Kind::named(&directive.name, "_zone") else {
                continue;
            };
            let named = |prefix: &str| {
                let mut args = directive.args.iter().skip(1);
                args.find_map(|arg| arg.strip_prefix(prefix))
            };
            let name = named("zone=").and_then(|zone| zone.split(':').next());
            let name = name.unwrap_or_default();
            let rate = named("rate=").and_then(Rate::parse);
            if name.is_empty() || (kind == Kind::Requests && rate.is_none()) {
                let why = "a zone has a key, `zone=NAME:SIZE` and `rate=Nr/s` or `rate=Nr/m`";
                draft.lost(directive, why);
                continue;
            }
            let zone = Zone {
                place: directive.place.clone(),
                words: directive.words(),
                key: keys::key(directive.arg(0), &self.tables),
                rate,
                is_used: false,
            };
            self.zones.insert((kind, name.to_owned()), zone);
        }
    }

    /// What is in force within a block: its own limits, or those around it where it has none.
    fn context(&mut self, block: &Directive, around: &Context, draft: &mut Draft) -> Context {
        let mut own: [Vec<Use>; 2] = Default::default();
        for directive in &block.block {
            let Some(kind) = Kind::named(&directive.name, "") else {
                continue;
            };
            match self.read_use(kind, directive) {
                Ok(used) => own[kind as usize].push(used),
                Err(why) => draft.lost(directive, &why),
            }
        }
        let mut context = around.clone();
        for ((kind, of), own) in Kind::ALL.into_iter().zip(&mut context.0).zip(own) {
            let dry_run = format!("{}_dry_run", kind.name());
            if let Some(directive) = block.all(&dry_run).last() {
                of.dry_run = directive.arg(0) == "on";
            }
            // A block with one of its own has none of those around it, also where its own is not understood.
            if block.has(kind.name()) {
                of.uses = Rc::new(own);
            }
        }
        context
    }

    fn read_use(&mut self, kind: Kind, directive: &Directive) -> Result<Use, String> {
        let is_connections = kind == Kind::Connections;
        let mut zone = String::new();
        let mut burst = 0;
        let mut delay = Some(0);
        let mut most = None;
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
        let amount = match (kind, most) {
            (Kind::Connections, Some(most)) if most > 0 => Amount::Connections(most),
            (Kind::Connections, _) => return Err("a number of connections was expected".to_owned()),
            (Kind::Requests, _) => Amount::Requests { burst, delay },
        };
        let zone = (kind, zone);
        let known = self.zones.get_mut(&zone);
        let known = known.ok_or_else(|| format!("there is no zone `{}`", zone.1))?;
        known.is_used = true;
        if let Err(why) = &known.key {
            return Err(format!("{why} ({})", known.place));
        }
        Ok(Use {
            place: directive.place.clone(),
            words: directive.words(),
            zone,
            amount,
            said: Rc::clone(&directive.said),
        })
    }
}
