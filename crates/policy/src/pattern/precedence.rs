//! The order of two routes that match the same request, by their hosts, their paths and whether they
//! list methods. The router finds routes in this order; the checks of the file compare them.

use super::{HostPattern, Pattern, Segment};

/// The place of a pattern in the order of the router. Of two patterns that take the same request, the
/// greater one comes first. It includes whether methods are listed, and not which. Conditions on
/// headers and the body rank lower and are not included.
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

/// The last segment of a path is always `End` or `Rest`.
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
