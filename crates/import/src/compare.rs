//! Puts requests to the routes that were made and to those of the other gateway: where the two choose routes with
//! other limits, the limits differ, whatever each of them says alone.

use std::collections::BTreeSet;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use tollgate_config::Config;
use tollgate_policy::{Peer, Policy};

use crate::draft::{Draft, clients, distinct, either, upstream};
use crate::words::plain;

/// The most requests that are put to both.
const MOST: usize = 20_000;

/// Which paths a route of the other gateway takes.
#[derive(Clone, Debug)]
pub(crate) enum Takes {
    Exact(String),
    Prefix(String),
    Below(String),
}

impl Takes {
    fn text(&self) -> &str {
        match self {
            Self::Exact(path) | Self::Prefix(path) | Self::Below(path) => path,
        }
    }

    fn has(&self, path: &str) -> bool {
        match self {
            Self::Exact(own) => path == own,
            Self::Prefix(own) => path.starts_with(own.as_str()),
            Self::Below(own) => {
                let rest = path.strip_prefix(own.trim_end_matches('/'));
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Of those that take a request, the one of the highest rank.
    #[default]
    Ranked,
    /// As ranked, and then no regular expression is asked.
    Final,
    /// A regular expression: before all that are ranked.
    Expression,
}

/// A route as the other gateway has it.
#[derive(Clone, Debug)]
pub(crate) struct Theirs {
    /// Empty: any; `*.example.com`: what is below it.
    pub(crate) host: String,
    pub(crate) takes: Takes,
    pub(crate) methods: Vec<String>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) turn: Turn,
    pub(crate) rank: u64,
    pub(crate) limits: Vec<String>,
}

/// How the other gateway chooses among its routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Whether the host is looked at first, and the path only among the routes of the best one.
    pub(crate) by_host: bool,
    /// Whether `%2f` is a slash.
    pub(crate) decodes_slashes: bool,
}

struct Probe<'d> {
    host: String,
    path: String,
    method: &'d str,
    headers: &'d [(String, String)],
}

impl Probe<'_> {
    fn words(&self) -> String {
        let host = if self.host == NO_HOST {
            ""
        } else {
            self.host.as_str()
        };
        plain(&format!("{} {host}{}", self.method, self.path), 200)
    }
}

impl Theirs {
    fn takes(&self, probe: &Probe<'_>, path: &str) -> bool {
        let of_host = match self.host.strip_prefix('*') {
            Some(suffix) => probe.host.ends_with(suffix) && probe.host.len() > suffix.len(),
            None => self.host.is_empty() || self.host.eq_ignore_ascii_case(&probe.host),
        };
        let has_header = |header: &(String, String)| probe.headers.contains(header);
        of_host
            && (self.methods.is_empty() || self.methods.iter().any(|method| method == probe.method))
            && self.headers.iter().all(has_header)
            && self.takes.has(path)
    }

    fn host_rank(&self) -> (bool, usize) {
        (
            !self.host.starts_with('*') && !self.host.is_empty(),
            self.host.len(),
        )
    }
}

/// The limits that a request meets in the other gateway.
fn theirs<'d>(draft: &'d Draft, probe: &Probe<'_>) -> &'d [String] {
    let choice = draft.choice;
    let decoded = probe
        .path
        .replace("%2f", if choice.decodes_slashes { "/" } else { "%2f" });
    let mut all: Vec<&Theirs> = draft
        .theirs
        .iter()
        .filter(|one| one.takes(probe, &decoded))
        .collect();
    if choice.by_host {
        let best = all.iter().map(|one| one.host_rank()).max();
        all.retain(|one| Some(one.host_rank()) == best);
    }
    let best = |is: fn(Turn) -> bool| {
        let mut best: Option<&Theirs> = None;
        for one in all.iter().filter(|one| is(one.turn)) {
            // Of two that rank alike the first one counts.
            if best.is_none_or(|known| one.rank > known.rank) {
                best = Some(*one);
            }
        }
        best
    };
    let ranked = best(|turn| turn != Turn::Expression);
    let chosen = match ranked {
        Some(one) if one.turn == Turn::Final => ranked,
        _ => best(|turn| turn == Turn::Expression).or(ranked),
    };
    chosen.map_or(&[], |one| one.limits.as_slice())
}

/// The limits that a request meets here; `None`: it is not forwarded.
fn ours(policy: &Policy, probe: &Probe<'_>) -> Option<Vec<String>> {
    let method = Method::from_bytes(probe.method.as_bytes()).ok()?;
    let uri: Uri = probe.path.parse().ok()?;
    let mut headers = HeaderMap::new();
    for (name, value) in probe.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        headers.append(name, HeaderValue::from_str(value).ok()?);
    }
    let peer = Peer {
        address: None,
        port: 0,
        tls: false,
        unnamed: false,
    };
    let host = Some(probe.host.as_str());
    let described = policy
        .describe(host, &method, &uri, &headers, peer, None)
        .ok()?;
    let matched = policy.route(&described)?;
    let limits = policy.routes[matched.route].limits.iter();
    Some(
        limits
            .map(|limit| policy.rules[limit.rule].name.to_string())
            .collect(),
    )
}

/// Says of each limit that some request meets in one of the two only how it differs.
pub(crate) fn compare(draft: &mut Draft, config: &Config, peer: &str) {
    if draft.theirs.is_empty() {
        return;
    }
    let known: BTreeSet<&str> = draft
        .limits
        .iter()
        .map(|named| named.name.as_str())
        .collect();
    let (mut lost, mut added) = (BTreeSet::new(), BTreeSet::new());
    let mut differences = Vec::new();
    for (count, probe) in probes(draft).into_iter().enumerate() {
        if count >= MOST {
            let words = "there are more routes than are compared one by one: which limits a request meets can differ";
            differences.extend(
                known
                    .iter()
                    .map(|limit| ((*limit).to_owned(), either(words))),
            );
            break;
        }
        let Some(ours) = ours(&config.policy, &probe) else {
            continue;
        };
        let theirs = theirs(draft, &probe);
        for limit in theirs.iter().filter(|limit| known.contains(limit.as_str())) {
            if !ours.contains(limit) && lost.insert(limit.clone()) {
                let words = format!("`{}` meets it in {peer} and not here", probe.words());
                differences.push((limit.clone(), clients(words)));
            }
        }
        for limit in ours.iter().filter(|limit| !theirs.contains(limit)) {
            if added.insert(limit.clone()) {
                let words = format!("`{}` meets it here and not in {peer}", probe.words());
                differences.push((limit.clone(), upstream(words)));
            }
        }
    }
    for (limit, difference) in differences {
        draft.differ(&limit, &difference);
    }
}

/// Each host with each path, as it is written and as it may be read otherwise.
fn probes(draft: &Draft) -> Vec<Probe<'_>> {
    let mut hosts = BTreeSet::from([NO_HOST.to_owned()]);
    let mut paths = vec!["/".to_owned(), "/x".to_owned()];
    let mut kinds: BTreeSet<(&str, &[(String, String)])> = BTreeSet::from([("GET", &[][..])]);
    for one in &draft.theirs {
        if !one.host.is_empty() {
            hosts.insert(one.host.replace('*', "any"));
        }
        let path = one.takes.text();
        let front = path.trim_end_matches('/');
        paths.push(path.to_owned());
        if !front.is_empty() {
            paths.extend(["", "/x", "x", "/", "%2fx"].map(|end| format!("{front}{end}")));
        }
        let method = one.methods.first().map_or("GET", String::as_str);
        kinds.insert((method, &one.headers));
    }
    let paths = distinct(paths);
    let mut probes = Vec::new();
    for path in &paths {
        for host in &hosts {
            for (method, headers) in &kinds {
                if probes.len() <= MOST {
                    probes.push(Probe {
                        host: host.clone(),
                        path: path.clone(),
                        method,
                        headers,
                    });
                }
            }
        }
    }
    probes
}

/// The host of requests to none that a route names.
const NO_HOST: &str = "none.invalid";
