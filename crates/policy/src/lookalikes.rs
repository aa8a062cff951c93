//! Header names that some upstreams confuse: CGI and similar interfaces read `x_api_key` as
//! `x-api-key`.

use http::{HeaderMap, HeaderName};

/// Whether a name has an underscore.
pub fn has_underscore(name: &[u8]) -> bool {
    memchr::memchr(b'_', name).is_some()
}

/// Removes every header whose name, with underscores read as hyphens, equals another name for which
/// `guarded` holds.
pub fn drop_lookalikes(headers: &mut HeaderMap, guarded: impl Fn(&str) -> bool) {
    let underscored = |name: &HeaderName| has_underscore(name.as_str().as_bytes());
    if !headers.keys().any(underscored) {
        return;
    }
    let lookalike =
        |name: &&HeaderName| underscored(name) && guarded(&name.as_str().replace('_', "-"));
    let found: Vec<HeaderName> = headers.keys().filter(lookalike).cloned().collect();
    for name in found {
        headers.remove(name);
    }
}

/// The names of the headers that decide how a request is limited, routed or served.
#[derive(Debug, Default)]
pub struct Guarded {
    names: Vec<HeaderName>,
    underscored: bool,
}

impl Guarded {
    /// Guards `names`.
    pub fn new<'n>(names: impl Iterator<Item = &'n HeaderName>) -> Self {
        let mut names: Vec<HeaderName> = names.cloned().collect();
        names.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
        names.dedup();
        let underscored = names
            .iter()
            .any(|name| has_underscore(name.as_str().as_bytes()));
        Self { names, underscored }
    }

    /// Whether a name without an underscore may resemble one of these.
    pub const fn is_underscored(&self) -> bool {
        self.underscored
    }

    /// Whether `name` is one of these, or resembles one.
    pub fn covers(&self, name: &HeaderName) -> bool {
        self.names
            .iter()
            .any(|known| looks_like(known.as_str(), name.as_str()))
    }

    /// Removes the headers that resemble one of these but are not one of them.
    pub fn drop_lookalikes(&self, headers: &mut HeaderMap) {
        let odd = |name: &&HeaderName| {
            (self.underscored || has_underscore(name.as_str().as_bytes()))
                && self.covers(name)
                && !self.names.contains(name)
        };
        let found: Vec<HeaderName> = headers.keys().filter(odd).cloned().collect();
        for name in found {
            headers.remove(name);
        }
    }
}

/// Whether two names are equal when underscores are read as hyphens.
pub fn looks_like(one: &str, other: &str) -> bool {
    let folded = |byte: u8| if byte == b'_' { b'-' } else { byte };
    one.len() == other.len()
        && one
            .bytes()
            .zip(other.bytes())
            .all(|(one, other)| folded(one) == folded(other))
}
