//! Finds the most specific route: a tree of path segments per host, so that a look-up in thousands
//! of routes costs as much as in ten.
//!
//! Among the routes whose every condition a request meets, the most specific wins:
//! 1. *host*: an exact name, then wildcards by the length of their suffix, then any;
//! 2. *path*, segment by segment from the left: a literal, then a capture, then `**`;
//! 3. *method*: listed, then any (a route for `GET` also takes `HEAD`, after a route that lists
//!    `HEAD` itself);
//! 4. *headers and body*: more conditions, then more of them with a value.
//!
//! A route that this order does not separate from another, or that can never win, is an error when
//! the router is built. A look-up visits a node of a tree at most once, however the literals and
//! captures are interleaved: each node has one path from its root, so no branch is searched twice.

mod candidate;
mod tree;

use std::cell::RefCell;

use hashbrown::HashMap;
use http::{HeaderMap, Method};
use smallvec::SmallVec;

use super::pattern::{HostPattern, Pattern};
use crate::body::BodyFacts;
use tree::{ROOT, Search, Tree};

pub(crate) use candidate::{body_matches, header_matches};

/// The captured segments of a match, in the order of the pattern.
pub type Captures<'d> = SmallVec<[&'d str; 4]>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match<'d> {
    pub route: usize,
    /// What its `{name}` segments captured, in the order of the pattern.
    pub captures: Captures<'d>,
}

/// What is wrong with routes together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// Two routes match the same requests, and neither is more specific.
    Tie { first: usize, second: usize },
    /// More specific routes take every request that a route matches.
    Unreachable { route: usize, by: Vec<usize> },
}

#[derive(Debug, Default)]
pub struct Router {
    exact: HashMap<String, Tree>,
    wildcard: HashMap<String, Tree>,
    any: Tree,
}

impl Router {
    pub fn new<'p>(patterns: impl IntoIterator<Item = &'p Pattern>) -> Result<Self, Vec<Conflict>> {
        let mut router = Self::default();
        for (route, pattern) in patterns.into_iter().enumerate() {
            let tree = match &pattern.host {
                HostPattern::Any => &mut router.any,
                HostPattern::Exact(host) => router.exact.entry_ref(host.as_str()).or_default(),
                HostPattern::Wildcard(suffix) => {
                    router.wildcard.entry_ref(suffix.as_str()).or_default()
                }
            };
            tree.insert(route, pattern);
        }
        let mut conflicts = Vec::new();
        for tree in router
            .exact
            .values_mut()
            .chain(router.wildcard.values_mut())
            .chain([&mut router.any])
        {
            tree.settle(&mut conflicts);
        }
        conflicts.sort_by_key(|conflict| match conflict {
            Conflict::Tie { first, second } => (*second, *first),
            Conflict::Unreachable { route, .. } => (*route, 0),
        });
        if conflicts.is_empty() {
            Ok(router)
        } else {
            Err(conflicts)
        }
    }

    /// The most specific route for a request: `host` in lower case, `path` in its normal form.
    /// `body`: what its body says; `None`: it was not read, and then no condition on it holds.
    pub fn find<'d>(
        &self,
        method: &Method,
        host: &str,
        path: &'d str,
        headers: &HeaderMap,
        body: Option<&BodyFacts>,
    ) -> RouteSearch<'d> {
        let mut search = Search {
            method,
            headers,
            body,
            asking: RefCell::default(),
            captures: Captures::new(),
            visited: 0,
        };
        let rest = path.strip_prefix('/').unwrap_or(path);
        let route = self
            .trees(host)
            .find_map(|tree| tree.walk(ROOT, rest, &mut search));
        RouteSearch {
            matched: route.map(|route| Match {
                route,
                captures: search.captures,
            }),
            asking: search.asking.into_inner(),
            visited: search.visited,
        }
    }

    /// The methods listed by routes that match everything in a request except its method. Visits
    /// every branch that fits the path: for requests that no route takes.
    pub fn methods(&self, host: &str, path: &str, headers: &HeaderMap) -> Vec<Method> {
        let rest = path.strip_prefix('/').unwrap_or(path);
        let mut methods = Vec::new();
        for tree in self.trees(host) {
            tree.methods(ROOT, rest, headers, &mut methods);
        }
        methods
    }

    /// The trees that may hold a route for `host`, most specific first.
    fn trees<'s>(&'s self, host: &'s str) -> impl Iterator<Item = &'s Tree> {
        let exact = self.exact.get(host);
        let suffixes = if self.wildcard.is_empty() { "" } else { host };
        let wildcards = suffixes
            .match_indices('.')
            .filter_map(|(dot, _)| self.wildcard.get(&suffixes[dot + 1..]));
        exact.into_iter().chain(wildcards).chain([&self.any])
    }
}

#[derive(Clone, Debug)]
pub struct RouteSearch<'d> {
    pub matched: Option<Match<'d>>,
    /// Routes that are more specific, and would take the request if its body met their conditions.
    pub asking: SmallVec<[usize; 2]>,
    /// The number of visited nodes, which is the cost of the look-up.
    pub visited: usize,
}

#[cfg(test)]
mod tests;
