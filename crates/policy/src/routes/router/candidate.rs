//! The routes with one host and path, and their conditions on method, headers and body.

use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::Conflict;
use super::tree::Search;
use crate::body::BodyFacts;
use crate::identity::source::Source;
use crate::routes::pattern::Pattern;
use crate::routes::pattern::{are_alternatives, takes_methods};

/// The routes with one host and path, most specific first.
#[derive(Debug, Default)]
pub(super) struct Leaf(pub(super) Vec<Candidate>);

impl Leaf {
    pub(super) fn settle(&mut self, conflicts: &mut Vec<Conflict>) {
        for (index, second) in self.0.iter().enumerate() {
            if let Some(first) = self.0[..index].iter().find(|first| first.ties_with(second)) {
                conflicts.push(Conflict::Tie {
                    first: first.route,
                    second: second.route,
                });
            }
        }
        self.0
            .sort_by_key(|candidate| std::cmp::Reverse(candidate.rank()));
    }

    pub(super) fn methods(&self, headers: &HeaderMap, into: &mut Vec<Method>) {
        let candidates = self.0.iter().filter(|one| one.headers_match(headers));
        for method in candidates.flat_map(|candidate| &candidate.methods) {
            if !into.contains(method) {
                into.push(method.clone());
            }
        }
    }

    pub(super) fn find(&self, search: &Search<'_, '_>) -> Option<usize> {
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
                let is_head = search.method == Method::HEAD;
                is_head.then(|| by_method(&Method::GET)).flatten()
            })
            .or_else(|| {
                let mut unlisted = self.0.iter().filter(|one| one.methods.is_empty());
                unlisted.find(|candidate| candidate.matches(search))
            })
            .map(|candidate| candidate.route)
    }
}

#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) route: usize,
    methods: Vec<Method>,
    headers: Vec<(HeaderName, Option<HeaderValue>)>,
    body: Vec<(Source, Option<String>)>,
}

impl Candidate {
    pub(super) fn new(route: usize, pattern: &Pattern) -> Self {
        Self {
            route,
            methods: pattern.methods.clone(),
            headers: pattern.headers.clone(),
            body: pattern.body.clone(),
        }
    }

    /// Its rank in points 3 and 4 of the order; higher is more specific.
    fn rank(&self) -> (bool, usize, usize) {
        let valued = self.headers.iter().filter(|(_, value)| value.is_some());
        let said = self.body.iter().filter(|(_, value)| value.is_some());
        let conditions = self.headers.len() + self.body.len();
        let with_value = valued.count() + said.count();
        (!self.methods.is_empty(), conditions, with_value)
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
        self.rank() == other.rank()
            && methods_meet
            && !are_alternatives(&self.headers, &other.headers)
            && !are_alternatives(&self.body, &other.body)
    }

    /// Whether it matches every request that `other` matches, apart from host and path.
    pub(super) fn covers(&self, other: &Self) -> bool {
        takes_methods(&self.methods, &other.methods)
            && are_met(&self.headers, &other.headers)
            && are_met(&self.body, &other.body)
    }
}

/// Whether what meets all of `stricter` meets all of `conditions`.
fn are_met<N: PartialEq, V: PartialEq>(
    conditions: &[(N, Option<V>)],
    stricter: &[(N, Option<V>)],
) -> bool {
    conditions.iter().all(|(name, value)| {
        let mut same = stricter.iter().filter(|(other, _)| other == name);
        same.any(|(_, wanted)| value.is_none() || value == wanted)
    })
}

/// Whether a condition on the body holds: the value is there, or it is this one. Blanks around it
/// do not count, as in a key: servers drop them.
pub(crate) fn body_matches(body: &BodyFacts, source: &Source, wanted: Option<&str>) -> bool {
    let value = body.value(source);
    value.is_some_and(|value| {
        wanted.is_none_or(|wanted| value.trim_ascii() == wanted.as_bytes().trim_ascii())
    })
}

/// Whether a header condition holds: present, or with this value on one of its lines.
pub(crate) fn header_matches(
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
