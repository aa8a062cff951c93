//! The tree of path segments of one host.

use std::cell::RefCell;

use hashbrown::HashMap;
use http::{HeaderMap, Method};
use smallvec::SmallVec;

use super::candidate::{Candidate, Leaf};
use super::{Captures, Conflict};
use crate::body::BodyFacts;
use crate::routes::pattern::{Pattern, Segment};

pub(super) struct Search<'r, 'd> {
    pub(super) method: &'r Method,
    pub(super) headers: &'r HeaderMap,
    pub(super) body: Option<&'r BodyFacts>,
    pub(super) asking: RefCell<SmallVec<[usize; 2]>>,
    pub(super) captures: Captures<'d>,
    pub(super) visited: usize,
}

#[derive(Debug)]
pub(super) struct Tree {
    pub(super) nodes: Vec<Node>,
}

impl Default for Tree {
    fn default() -> Self {
        Self {
            nodes: vec![Node::default()],
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Node {
    literals: HashMap<String, usize>,
    capture: Option<usize>,
    end: Leaf,
    /// Routes whose `**` starts here.
    rest: Leaf,
}

impl Tree {
    pub(super) fn insert(&mut self, route: usize, pattern: &Pattern) {
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
    pub(super) fn settle(&mut self, conflicts: &mut Vec<Conflict>) {
        for node in &mut self.nodes {
            node.end.settle(conflicts);
            node.rest.settle(conflicts);
        }
        for (at, node) in self.nodes.iter().enumerate() {
            for candidate in &node.rest.0 {
                let mut by = Vec::new();
                if self.takes_all(at, candidate, &mut by) {
                    by.dedup();
                    conflicts.push(Conflict::Unreachable {
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
    pub(super) fn walk<'d>(
        &self,
        at: usize,
        rest: &'d str,
        search: &mut Search<'_, 'd>,
    ) -> Option<usize> {
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
    pub(super) fn methods(
        &self,
        at: usize,
        rest: &str,
        headers: &HeaderMap,
        into: &mut Vec<Method>,
    ) {
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
        node.literals
            .get(segment)
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

pub(super) const ROOT: usize = 0;
