//! The kind of a body, by its Content-Type.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

use super::BodyFlaw;
use crate::descriptor::{Several, only_line};

/// The kind of a body, by its Content-Type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// JSON, or no type: many servers then take it for JSON.
    Json,
    Form,
    Other,
}

/// The kind of a body with these headers.
pub(super) fn kind(headers: &HeaderMap) -> Result<Kind, BodyFlaw> {
    let given = only_line(headers, &CONTENT_TYPE).map_err(|Several| BodyFlaw::Ambiguous)?;
    let Some(given) = given else {
        return Ok(Kind::Json);
    };
    let text = given.to_str().map_err(|_| BodyFlaw::Ambiguous)?;
    let mut parts = text.split(';').map(str::trim);
    let named = parts.next().unwrap_or_default();
    for part in parts {
        let charset = part
            .split_once('=')
            .filter(|(parameter, _)| parameter.trim().eq_ignore_ascii_case("charset"))
            .map(|(_, name)| name.trim().trim_matches('"'));
        if charset.is_some_and(|name| !is_one_of(name, &["utf-8", "utf8", "us-ascii"])) {
            return Err(BodyFlaw::Charset);
        }
    }
    // Some servers end the type at a comma or a blank.
    let named = named.split([',', ' ', '\t']).next().unwrap_or_default();
    let suffix = named.rsplit_once('+').map_or("", |(_, suffix)| suffix);
    Ok(
        if is_one_of(named, &["", "application/json", "text/json"]) || is_one_of(suffix, &["json"])
        {
            Kind::Json
        } else if is_one_of(named, &["application/x-www-form-urlencoded"]) {
            Kind::Form
        } else {
            Kind::Other
        },
    )
}

/// Whether a name, whatever its case, is one of these.
fn is_one_of(name: &str, known: &[&str]) -> bool {
    known.iter().any(|known| name.eq_ignore_ascii_case(known))
}
