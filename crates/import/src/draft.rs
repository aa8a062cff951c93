//! What a peer's files become before they are written: limits, routes, and what is said about them.

mod routes;

use std::collections::BTreeSet;

use crate::compare::{Choice, Theirs};
pub(crate) use crate::finding::{
    Difference, Finding, Outcome, Place, by_method, clients, either, upstream,
};
use crate::words::{plain, rate};
use crate::{SourceFile, write};
pub(crate) use routes::{Route, Target, methods};

/// The most limits and the most routes that one import makes.
const MOST: usize = 2_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    TokenBucket,
    /// Windows at multiples of the period since 1970.
    ClockWindow,
    CalendarMonth,
    InFlight,
}

#[derive(Clone, Debug)]
pub(crate) struct Limit {
    pub(crate) counting: Counting,
    /// Units per period, or requests at the same time.
    pub(crate) amount: u64,
    pub(crate) period: u64,
    pub(crate) burst: Option<u64>,
    pub(crate) max_wait: u64,
    pub(crate) per: Vec<String>,
    pub(crate) when_missing: &'static str,
    pub(crate) shadow: bool,
}

impl Limit {
    /// A limit by address; the rest is filled in by the peer.
    pub(crate) fn new(counting: Counting, amount: u64, period: u64) -> Self {
        Self {
            counting,
            amount,
            period,
            burst: None,
            max_wait: 0,
            per: vec!["address".to_owned()],
            when_missing: "",
            shadow: false,
        }
    }

    pub(crate) fn rate(&self) -> String {
        match self.counting {
            Counting::CalendarMonth => format!("{}/month", self.amount),
            _ => rate(self.amount, self.period),
        }
    }
}

/// A limit with its name and what is said above it.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) comments: Vec<String>,
    pub(crate) limit: Limit,
}

#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) digest: String,
    pub(crate) name: String,
    /// Its own numbers, by limit.
    pub(crate) limits: Vec<(String, String)>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Identity {
    pub(crate) keys: Vec<String>,
    pub(crate) when_missing: &'static str,
    pub(crate) callers: Vec<Caller>,
}

#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) limits: Vec<Named>,
    pub(crate) routes: Vec<Route>,
    /// Names with the URLs of servers and their weights.
    pub(crate) upstreams: Vec<(String, Vec<(String, u64)>)>,
    pub(crate) identity: Option<Identity>,
    pub(crate) trusted: Vec<String>,
    /// The header that has the client alone: `[address] header`.
    pub(crate) header: Option<&'static str>,
    pub(crate) exempt: Vec<String>,
    pub(crate) findings: Vec<Finding>,
    pub(crate) notes: Vec<String>,
    /// The routes as the other gateway has them, and how it chooses among them.
    pub(crate) theirs: Vec<Theirs>,
    pub(crate) choice: Choice,
    /// How all limits of a host differ (`None`: all limits), because its routes are not what the file says alone.
    unclear: Vec<(Option<String>, Difference)>,
    /// How all limits by address differ.
    addresses: Vec<Difference>,
    names: BTreeSet<String>,
}

impl Draft {
    /// Adds a limit and what is said of it. `None`: Tollgate cannot count it, which is said instead.
    pub(crate) fn limit(
        &mut self,
        wanted: &str,
        place: &Place,
        what: &str,
        limit: Limit,
        differences: Vec<Difference>,
    ) -> Option<String> {
        if self.limits.len() >= MOST {
            self.not_imported(place, what, &format!("more than {MOST} limits"));
            return None;
        }
        let name = self.unique(wanted);
        let mut named = Named {
            name: name.clone(),
            comments: Vec::new(),
            limit,
        };
        if let Err(why) = write::check_limit(&named, self.identity.is_some()) {
            self.not_imported(place, what, &format!("Tollgate cannot count it: {why}"));
            return None;
        }
        named.comments.push(format!("{place} {what}"));
        named
            .comments
            .extend(differences.iter().map(Difference::words));
        self.limits.push(named);
        self.imported(place, what, &name, Outcome::of(differences));
        Some(name)
    }

    pub(crate) fn imported(&mut self, place: &Place, what: &str, limit: &str, outcome: Outcome) {
        self.find(place, what, Some(limit.to_owned()), outcome);
    }

    pub(crate) fn differ(&mut self, limit: &str, difference: &Difference) {
        let words = difference.words();
        for named in self.limits.iter_mut().filter(|named| named.name == limit) {
            if !named.comments.contains(&words) {
                named.comments.push(words.clone());
            }
        }
        for finding in &mut self.findings {
            if finding.limit.as_deref() == Some(limit) {
                finding.add(difference.clone());
            }
        }
    }

    /// Says how the limits of all routes of a host differ; of all routes where none is named.
    pub(crate) fn differ_on_host(&mut self, host: Option<&str>, difference: Difference) {
        self.unclear.push((host.map(str::to_owned), difference));
    }

    pub(crate) fn differ_by_address(&mut self, difference: Difference) {
        self.addresses.push(difference);
    }

    /// Says of limits what concerns all of a host or all by address, now that they are known.
    pub(crate) fn settle(&mut self) {
        for (host, difference) in std::mem::take(&mut self.unclear) {
            let of_host = |one: &&Theirs| host.as_ref().is_none_or(|host| one.host == *host);
            let limits = self
                .theirs
                .iter()
                .filter(of_host)
                .flat_map(|one| &one.limits);
            let limits: BTreeSet<String> = limits.cloned().collect();
            for limit in limits {
                self.differ(&limit, &difference);
            }
        }
        let is_by_address = |named: &&Named| {
            let limit = &named.limit;
            limit.when_missing == "use:address" || limit.per.iter().any(|per| per == "address")
        };
        let limits = self.limits.iter().filter(is_by_address);
        let limits: Vec<String> = limits.map(|named| named.name.clone()).collect();
        for difference in std::mem::take(&mut self.addresses) {
            for limit in &limits {
                self.differ(limit, &difference);
            }
        }
    }

    pub(crate) fn not_imported(&mut self, place: &Place, what: &str, why: &str) {
        self.find(place, what, None, Outcome::NotImported(plain(why, 400)));
    }

    pub(crate) fn nothing(&mut self, place: &Place, what: &str, why: &str) {
        self.find(place, what, None, Outcome::Nothing(plain(why, 400)));
    }

    fn find(&mut self, place: &Place, what: &str, limit: Option<String>, outcome: Outcome) {
        let finding = Finding {
            place: place.clone(),
            what: plain(what, 200),
            limit,
            outcome,
        };
        if !self.findings.contains(&finding) && self.findings.len() < 4 * MOST {
            self.findings.push(finding);
        }
    }

    /// Says something once that concerns no single limit.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        let text = plain(&text.into(), 600);
        if !self.notes.contains(&text) && self.notes.len() < MOST {
            self.notes.push(text);
        }
    }

    /// Leaves a network out of all limits.
    pub(crate) fn leave_out(&mut self, network: &str) {
        if !self.exempt.iter().any(|known| known == network) {
            self.exempt.push(network.to_owned());
        }
    }

    /// Removes the limits that no route names. Whether there were any.
    pub(crate) fn drop_unrouted(&mut self) -> bool {
        let used: BTreeSet<&String> = self.routes.iter().flat_map(|route| &route.limits).collect();
        let before = self.limits.len();
        self.limits.retain(|named| used.contains(&named.name));
        let is_gone = |limit: &String| !used.contains(limit);
        for finding in &mut self.findings {
            if finding.limit.take_if(|limit| is_gone(limit)).is_some() {
                let why = "no route of the file made here uses it";
                finding.outcome = Outcome::NotImported(why.to_owned());
            }
        }
        for caller in self.identity.iter_mut().flat_map(|all| &mut all.callers) {
            caller.limits.retain(|(limit, _)| !is_gone(limit));
        }
        self.limits.len() < before
    }

    pub(crate) fn is_by_address(&self) -> bool {
        let mut scopes = self.limits.iter().flat_map(|named| &named.limit.per);
        scopes.any(|per| per == "address")
    }

    /// Puts findings in the order of the files; those of included files follow.
    pub(crate) fn sort(&mut self, sources: &[SourceFile]) {
        self.findings.sort_by_cached_key(|finding| {
            let place = &finding.place;
            let file = sources.iter().position(|source| source.name == place.file);
            (file.unwrap_or(sources.len()), place.clone())
        });
    }

    /// A name that no limit has: letters, digits, `_` and `-`.
    pub(crate) fn unique(&mut self, wanted: &str) -> String {
        let name = free(name(wanted, "limit"), |name| self.names.contains(name));
        self.names.insert(name.clone());
        name
    }
}

/// The name, with a number behind it where it is taken.
fn free(base: String, is_taken: impl Fn(&str) -> bool) -> String {
    let numbered = (2_u64..).map(|number| format!("{base}_{number}"));
    let mut names = std::iter::once(base.clone()).chain(numbered);
    names.find(|name| !is_taken(name)).unwrap_or(base)
}

pub(crate) fn distinct(texts: Vec<String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let is_new = |text: &String| seen.insert(text.clone());
    texts.into_iter().filter(is_new).collect()
}

/// A bare TOML key made of this text.
pub(crate) fn name(text: &str, empty: &str) -> String {
    let mut name = String::new();
    for letter in text.chars() {
        let letter = match letter {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-' => letter,
            _ => '_',
        };
        if letter != '_' || !name.ends_with('_') {
            name.push(letter);
        }
    }
    name.truncate(48);
    let name = name.trim_matches(['_', '-']);
    if name.is_empty() {
        empty.to_owned()
    } else {
        name.to_owned()
    }
}
