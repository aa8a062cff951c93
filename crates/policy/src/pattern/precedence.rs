//! Which of two routes comes first for a request that meets both, as far as hosts, paths and listed
//! methods decide it. The router finds routes in this order; the checks of the file compare them.

use super::{HostPattern, Pattern, Segment};

/// The place of a pattern in the order of the router. Of two patterns that take the same request, the
/// greater one comes first. Conditions on headers and the body, which come after the method, are no
/// part of it, nor is the method that is listed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Precedence {
    host: HostRank,
    path: Vec<SegmentRank>,
    lists_methods: bool,
}

/// Any host, then wildcards by the length of their suffix, then one host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum HostRank {
    Any,
    Wildcard(usize),
    Exact,
}

/// The last of a path is its end, or `**`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SegmentRank {
    Rest,
    End,
    Capture,
    Literal,
}

impl Pattern {
    /// Its place in the order of the router.
    pub fn precedence(&self) -> Precedence {
        let host = match &self.host {
            HostPattern::Any => HostRank::Any,
            HostPattern::Wildcard(suffix) => HostRank::Wildcard(suffix.len()),
            HostPattern::Exact(_) => HostRank::Exact,
        };
        let segments = self.path.iter().map(|segment| match segment {
            Segment::Literal(_) => SegmentRank::Literal,
            Segment::Capture(_) => SegmentRank::Capture,
            Segment::Rest => SegmentRank::Rest,
        });
        Precedence {
            host,
            path: segments.chain([SegmentRank::End]).collect(),
            lists_methods: !self.methods.is_empty(),
        }
    }
}
