//! Header names that some upstreams confuse, and requests that state one of the headers that decide
//! in several ways: CGI and similar interfaces read `x_api_key` and `x.api.key` as `x-api-key`.

use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, COOKIE};
use http::{HeaderMap, HeaderName};

use crate::identity::source::has_odd_blanks_around;

/// Whether a name has a character that is no letter, no digit and no hyphen: some servers take each
/// of them for an underscore, and that for a hyphen.
pub fn is_unusual(name: &[u8]) -> bool {
    name.iter()
        .any(|&byte| !byte.is_ascii_alphanumeric() && byte != b'-')
}

/// Removes every header whose name, with unusual characters read as hyphens, equals another name for
/// which `guarded` holds.
pub fn drop_lookalikes(headers: &mut HeaderMap, guarded: impl Fn(&str) -> bool) {
    let unusual = |name: &HeaderName| is_unusual(name.as_str().as_bytes());
    if !headers.keys().any(unusual) {
        return;
    }
    let usual = |name: &HeaderName| -> String {
        let bytes = name.as_str().bytes();
        bytes.map(|byte| char::from(folded(byte))).collect()
    };
    let lookalike = |name: &&HeaderName| unusual(name) && guarded(&usual(name));
    let found: Vec<HeaderName> = headers.keys().filter(lookalike).cloned().collect();
    for name in found {
        headers.remove(name);
    }
}

/// The names of the headers that decide how a request is limited, routed or served.
#[derive(Debug, Default)]
pub struct Guarded {
    names: Vec<HeaderName>,
    unusual: bool,
    compared: Vec<HeaderName>,
}

impl Guarded {
    /// Guards `names`; routes compare the values of `compared`.
    pub fn new<'n>(
        names: impl Iterator<Item = &'n HeaderName>,
        compared: impl Iterator<Item = &'n HeaderName>,
    ) -> Self {
        let names = sorted(names);
        let is_unusual = |name: &HeaderName| is_unusual(name.as_str().as_bytes());
        Self {
            unusual: names.iter().any(is_unusual),
            names,
            compared: sorted(compared),
        }
    }

    /// Whether a name of usual characters may resemble one of these.
    pub const fn is_unusual(&self) -> bool {
        self.unusual
    }

    /// Whether `name` is one of these, or resembles one.
    pub fn covers(&self, name: &HeaderName) -> bool {
        self.names
            .iter()
            .any(|known| looks_like(known.as_str(), name.as_str()))
    }

    /// Whether the next hop must receive this header because it decides, or because the body or the
    /// caller is read by it.
    pub fn must_arrive(&self, name: &HeaderName) -> bool {
        [CONTENT_TYPE, CONTENT_ENCODING, COOKIE, AUTHORIZATION].contains(name) || self.covers(name)
    }

    /// Whether a header whose value routes compare has several values, or white space around it that
    /// only some servers drop: the upstream may read another value.
    pub fn have_no_one_value(&self, headers: &HeaderMap) -> bool {
        self.compared.iter().any(|name| {
            let mut lines = headers.get_all(name).iter();
            let first = lines.next();
            lines.any(|line| Some(line) != first)
                || first.is_some_and(|line| has_odd_blanks_around(line.as_bytes().trim_ascii()))
        })
    }

    /// Removes the headers that resemble one of these but are not one of them.
    pub fn drop_lookalikes(&self, headers: &mut HeaderMap) {
        let odd = |name: &&HeaderName| {
            (self.unusual || is_unusual(name.as_str().as_bytes()))
                && self.covers(name)
                && !self.names.contains(name)
        };
        let found: Vec<HeaderName> = headers.keys().filter(odd).cloned().collect();
        for name in found {
            headers.remove(name);
        }
    }
}

fn sorted<'n>(names: impl Iterator<Item = &'n HeaderName>) -> Vec<HeaderName> {
    let mut names: Vec<HeaderName> = names.cloned().collect();
    names.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
    names.dedup();
    names
}

const fn folded(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() {
        byte
    } else {
        b'-'
    }
}

/// Whether two names are equal when unusual characters are read as hyphens.
pub fn looks_like(one: &str, other: &str) -> bool {
    one.len() == other.len()
        && one
            .bytes()
            .zip(other.bytes())
            .all(|(one, other)| folded(one) == folded(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn header_that_routes_compare_with_an_odd_blank_around_its_value_has_no_one_value() {
        let compared = HeaderName::from_static("x-version");
        let guarded = Guarded::new([&compared].into_iter(), [&compared].into_iter());
        let unclear = |value: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(&compared, HeaderValue::from_bytes(value).expect("a value"));
            guarded.have_no_one_value(&headers)
        };
        for value in [&b"2\xa0"[..], b"\xa02", b"\x852", "2\u{3000}".as_bytes()] {
            assert!(unclear(value), "{value:?}");
        }
        for value in [&b"2"[..], b"", b"a\xa0b"] {
            assert!(!unclear(value), "{value:?}");
        }
    }
}
