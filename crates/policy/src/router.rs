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

use std::cell::RefCell;

use hashbrown::HashMap;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use smallvec::SmallVec;

use super::body::BodyFacts;
use super::pattern::{HostPattern, Pattern, Segment};
use super::source::Source;

/// The captured segments of a match, in the order of the pattern.
pub type Captures<'d> = SmallVec<[&'d str; 4]>;

/// The route a request takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match<'d> {
    /// Its index in [`super::Policy::routes`].
    pub route: usize,
    /// What its `{name}` segments captured, in the order of the pattern.
    pub captures: Captures<'d>,
}

/// Finds the most specific route for a request.
#[derive(Debug, Default)]
pub struct Router {
    exact: HashMap<String, Tree>,
    wildcard: HashMap<String, Tree>,
    any: Tree,
}

/// A conflict between routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteConflict {
    /// Two routes match the same requests, and neither is more specific.
    Tie {
        /// The earlier one's index.
        first: usize,
        /// The later one's.
        second: usize,
    },
    /// Every request a route matches is taken by more specific ones.
    Unreachable {
        /// Its index.
        route: usize,
        /// The routes that take its requests.
        by: Vec<usize>,
    },
}

impl Router {
    /// Builds the table.
    ///
    /// # Errors
    /// Every tie and every unreachable route.
    pub fn new<'p>(
        patterns: impl IntoIterator<Item = &'p Pattern>,
    ) -> Result<Self, Vec<RouteConflict>> {
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
            RouteConflict::Tie { first, second } => (*second, *first),
            RouteConflict::Unreachable { route, .. } => (*route, 0),
        });
        if conflicts.is_empty() {
            Ok(router)
        } else {
            Err(conflicts)
        }
    }

    /// The most specific route for a request: `host` in lower case, `path` in its normal form.
    pub fn find<'d>(
        &self,
        method: &Method,
        host: &str,
        path: &'d str,
        headers: &HeaderMap,
    ) -> Option<Match<'d>> {
        self.find_counted(method, host, path, headers).0
    }

    /// Like `find`; also returns the number of visited nodes, which is the cost of the look-up.
    pub fn find_counted<'d>(
        &self,
        method: &Method,
        host: &str,
        path: &'d str,
        headers: &HeaderMap,
    ) -> (Option<Match<'d>>, usize) {
        let found = self.look_up(method, host, path, headers, None);
        (found.matched, found.visited)
    }

    /// Like `find`, for a request whose body says `body`; `None`: it was not read, and then no
    /// condition on it holds.
    pub fn look_up<'d>(
        &self,
        method: &Method,
        host: &str,
        path: &'d str,
        headers: &HeaderMap,
        body: Option<&BodyFacts>,
    ) -> Found<'d> {
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
        Found {
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
        let exact = if self.exact.is_empty() {
            None
        } else {
            self.exact.get(host)
        };
        let suffixes = if self.wildcard.is_empty() { "" } else { host };
        let wildcards = suffixes
            .match_indices('.')
            .filter_map(|(dot, _)| self.wildcard.get(&suffixes[dot + 1..]));
        exact.into_iter().chain(wildcards).chain([&self.any])
    }
}

/// The result of a look-up.
#[derive(Clone, Debug)]
pub struct Found<'d> {
    /// The most specific route, if there is one.
    pub matched: Option<Match<'d>>,
    /// Routes that are more specific, and would take the request if its body met their conditions.
    pub asking: SmallVec<[usize; 2]>,
    visited: usize,
}

/// The state of one look-up.
struct Search<'r, 'd> {
    method: &'r Method,
    headers: &'r HeaderMap,
    body: Option<&'r BodyFacts>,
    asking: RefCell<SmallVec<[usize; 2]>>,
    captures: Captures<'d>,
    visited: usize,
}

#[derive(Debug)]
struct Tree {
    nodes: Vec<Node>,
}

impl Default for Tree {
    fn default() -> Self {
        Self {
            nodes: vec![Node::default()],
        }
    }
}

#[derive(Debug, Default)]
struct Node {
    literals: HashMap<String, usize>,
    capture: Option<usize>,
    /// Routes whose pattern ends here.
    end: Leaf,
    /// Routes whose `**` starts here.
    rest: Leaf,
}

impl Tree {
    fn insert(&mut self, route: usize, pattern: &Pattern) {
        let candidate = Candidate::new(route, pattern);
        let mut at = ROOT;
        for segment in &pattern.path {
            let next = self.nodes.len();
            let node = &mut self.nodes[at];
            let child = match segment {
                Segment::Literal(text) => *node.literals.entry_ref(text.as_str()).or_insert(next),
                Segment::Capture(_) => *node.capture.get_or_insert(next),
                Segment::Rest => return node.rest.0.push(candidate),
            };
            if child == next {
                self.nodes.push(Node::default());
            }
            at = child;
        }
        self.nodes[at].end.0.push(candidate);
    }

    /// Sorts every leaf by the order above and reports ties and unreachable routes.
    fn settle(&mut self, conflicts: &mut Vec<RouteConflict>) {
        for node in &mut self.nodes {
            node.end.settle(conflicts);
            node.rest.settle(conflicts);
        }
        for (at, node) in self.nodes.iter().enumerate() {
            for candidate in &node.rest.0 {
                let mut by = Vec::new();
                if self.takes_all(at, candidate, &mut by) {
                    by.dedup();
                    conflicts.push(RouteConflict::Unreachable {
                        route: candidate.route,
                        by,
                    });
                }
            }
        }
    }

    /// Whether routes below `at` take every request that `candidate`'s `**` at `at` would match.
    fn takes_all(&self, at: usize, candidate: &Candidate, by: &mut Vec<usize>) -> bool {
        let node = &self.nodes[at];
        let Some(here) = node.end.0.iter().find(|other| other.covers(candidate)) else {
            return false;
        };
        by.push(here.route);
        let Some(below) = node.capture else {
            return false;
        };
        match self.nodes[below]
            .rest
            .0
            .iter()
            .find(|other| other.covers(candidate))
        {
            Some(rest) => {
                by.push(rest.route);
                true
            }
            None => self.takes_all(below, candidate, by),
        }
    }

    /// The best route at or below `at` for `rest`, the remaining path (empty: the path ends here).
    /// Recurses once per segment of the deepest pattern, which the parser bounds.
    fn walk<'d>(&self, at: usize, rest: &'d str, search: &mut Search<'_, 'd>) -> Option<usize> {
        search.visited += 1;
        let node = &self.nodes[at];
        let found = if rest.is_empty() {
            node.end.find(search)
        } else {
            self.walk_below(node, rest, search)
        };
        found.or_else(|| node.rest.find(search))
    }

    /// Adds the methods of all routes at or below `at` for `rest`, whose headers match. Recurses as [`Tree::walk`] does.
    fn methods(&self, at: usize, rest: &str, headers: &HeaderMap, into: &mut Vec<Method>) {
        let node = &self.nodes[at];
        node.rest.methods(headers, into);
        if rest.is_empty() {
            return node.end.methods(headers, into);
        }
        let (segment, below) = rest.split_once('/').unwrap_or((rest, ""));
        for child in node.literals.get(segment).into_iter().chain(&node.capture) {
            self.methods(*child, below, headers, into);
        }
    }

    /// The best route below `node`, where the path continues.
    fn walk_below<'d>(
        &self,
        node: &Node,
        rest: &'d str,
        search: &mut Search<'_, 'd>,
    ) -> Option<usize> {
        if node.literals.is_empty() && node.capture.is_none() {
            return None;
        }
        // Byte by byte: segments are short.
        let end = rest.bytes().position(|byte| byte == b'/');
        let (segment, below) = end.map_or((rest, ""), |end| (&rest[..end], &rest[end + 1..]));
        let literal = if node.literals.is_empty() {
            None
        } else {
            node.literals.get(segment)
        };
        literal
            .and_then(|&child| self.walk(child, below, search))
            .or_else(|| {
                let child = node.capture?;
                search.captures.push(segment);
                let found = self.walk(child, below, search);
                if found.is_none() {
                    search.captures.pop();
                }
                found
            })
    }
}

/// The routes with one host and path, most specific first.
#[derive(Debug, Default)]
struct Leaf(Vec<Candidate>);

impl Leaf {
    fn settle(&mut self, conflicts: &mut Vec<RouteConflict>) {
        for (index, second) in self.0.iter().enumerate() {
            if let Some(first) = self.0[..index].iter().find(|first| first.ties_with(second)) {
                conflicts.push(RouteConflict::Tie {
                    first: first.route,
                    second: second.route,
                });
            }
        }
        self.0
            .sort_by_key(|candidate| std::cmp::Reverse(candidate.rank()));
    }

    fn methods(&self, headers: &HeaderMap, into: &mut Vec<Method>) {
        for candidate in self
            .0
            .iter()
            .filter(|candidate| candidate.headers_match(headers))
        {
            into.extend(
                candidate
                    .methods
                    .iter()
                    .filter(|method| !into.contains(method))
                    .cloned()
                    .collect::<Vec<_>>(),
            );
        }
    }

    fn find(&self, search: &Search<'_, '_>) -> Option<usize> {
        let listed = self
            .0
            .iter()
            .take_while(|candidate| !candidate.methods.is_empty());
        let by_method = |method: &Method| {
            listed
                .clone()
                .find(|candidate| candidate.methods.contains(method) && candidate.matches(search))
        };
        by_method(search.method)
            .or_else(|| {
                if search.method == Method::HEAD {
                    by_method(&Method::GET)
                } else {
                    None
                }
            })
            .or_else(|| {
                let mut unlisted = self
                    .0
                    .iter()
                    .filter(|candidate| candidate.methods.is_empty());
                unlisted.find(|candidate| candidate.matches(search))
            })
            .map(|candidate| candidate.route)
    }
}

/// The conditions of one route beyond host and path.
#[derive(Debug)]
struct Candidate {
    route: usize,
    methods: Vec<Method>,
    headers: Vec<(HeaderName, Option<HeaderValue>)>,
    body: Vec<(Source, Option<String>)>,
}

impl Candidate {
    fn new(route: usize, pattern: &Pattern) -> Self {
        Self {
            route,
            methods: pattern.methods.clone(),
            headers: pattern.headers.clone(),
            body: pattern.body.clone(),
        }
    }

    /// Its rank in points 3 and 4 of the order; higher is more specific.
    fn rank(&self) -> (bool, usize, usize) {
        let valued = self
            .headers
            .iter()
            .filter(|(_, value)| value.is_some())
            .count();
        let said = self.body.iter().filter(|(_, value)| value.is_some());
        let conditions = self.headers.len() + self.body.len();
        (!self.methods.is_empty(), conditions, valued + said.count())
    }

    fn matches(&self, search: &Search<'_, '_>) -> bool {
        if !self.headers_match(search.headers) {
            return false;
        }
        if self.body.is_empty() {
            return true;
        }
        let Some(body) = search.body else {
            search.asking.borrow_mut().push(self.route);
            return false;
        };
        self.body
            .iter()
            .all(|(source, wanted)| body_matches(body, source, wanted.as_deref()))
    }

    fn headers_match(&self, headers: &HeaderMap) -> bool {
        self.headers
            .iter()
            .all(|(name, wanted)| header_matches(headers, name, wanted.as_ref()))
    }

    /// Whether some request meets both, and the order does not separate them.
    fn ties_with(&self, other: &Self) -> bool {
        let methods_meet = self.methods.is_empty()
            || self
                .methods
                .iter()
                .any(|method| other.methods.contains(method));
        // A header may appear twice in a request, but two values of one header are meant as
        // alternatives.
        let headers_meet = !self.headers.iter().any(|(name, value)| {
            value.is_some()
                && other
                    .headers
                    .iter()
                    .any(|(other, wanted)| other == name && wanted.is_some() && wanted != value)
        });
        let bodies_meet = !self.body.iter().any(|(source, value)| {
            let alternative = |(other, wanted): &(Source, Option<String>)| {
                other == source && wanted.is_some() && wanted != value
            };
            value.is_some() && other.body.iter().any(alternative)
        });
        self.rank() == other.rank() && methods_meet && headers_meet && bodies_meet
    }

    /// Whether it matches every request that `other` matches, apart from host and path.
    fn covers(&self, other: &Self) -> bool {
        let answers = |method: &Method| {
            self.methods.contains(method)
                || (method == Method::HEAD && self.methods.contains(&Method::GET))
        };
        let methods = self.methods.is_empty()
            || (!other.methods.is_empty() && other.methods.iter().all(answers));
        let headers = self.headers.iter().all(|(name, value)| {
            other
                .headers
                .iter()
                .any(|(other, wanted)| other == name && (value.is_none() || value == wanted))
        });
        let body = self.body.iter().all(|(source, value)| {
            let met = |(other, wanted): &(Source, Option<String>)| {
                other == source && (value.is_none() || value == wanted)
            };
            other.body.iter().any(met)
        });
        methods && headers && body
    }
}

/// Whether a condition on the body holds: the value is there, or it is this one.
pub(super) fn body_matches(body: &BodyFacts, source: &Source, wanted: Option<&str>) -> bool {
    let value = body.value(source);
    value.is_some_and(|value| wanted.is_none_or(|wanted| *value == *wanted.as_bytes()))
}

/// Whether a header condition holds: present, or with this value on one of its lines.
pub(super) fn header_matches(
    headers: &HeaderMap,
    name: &HeaderName,
    wanted: Option<&HeaderValue>,
) -> bool {
    match wanted {
        None => headers.contains_key(name),
        Some(wanted) => headers
            .get_all(name)
            .iter()
            .any(|value| value.as_bytes().trim_ascii() == wanted.as_bytes().trim_ascii()),
    }
}

const ROOT: usize = 0;

#[cfg(test)]
mod tests;
