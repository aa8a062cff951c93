//! Checks the spelling of methods: only capitals are accepted. Methods are case-sensitive (RFC 9110
//! 9.1), but several servers treat `post` as `POST`, so a request could be served as a method that
//! no route of its limits matches.

use http::HeaderName;

use crate::identity::lookalikes::looks_like;
use crate::identity::source;

pub fn is_in_capitals(method: &str) -> bool {
    !method.bytes().any(|byte| byte.is_ascii_lowercase())
}

/// Whether a header of this name makes servers treat the request as another method, in either
/// spelling that servers read.
pub fn is_override(name: &HeaderName) -> bool {
    OVERRIDES
        .iter()
        .any(|known| looks_like(known, name.as_str()))
}

/// Whether a query has the parameter that makes servers treat the request as another method, in any
/// spelling that servers read.
pub(crate) fn is_override_in(query: &[u8]) -> bool {
    !matches!(source::parameter(query, "_method"), Ok(None))
}

const OVERRIDES: [&str; 3] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn method_with_a_lower_case_letter_is_not_in_capitals() {
        for method in ["GET", "POST", "M-SEARCH", "VERSION-CONTROL", "X2"] {
            assert!(is_in_capitals(method), "{method}");
        }
        for method in ["post", "Post", "GEt", "m-SEARCH"] {
            assert!(!is_in_capitals(method), "{method}");
        }
    }
}
