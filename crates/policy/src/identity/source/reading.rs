//! Reads the value of a source from a request.
//!
//! Gateway and upstream must read the same key, or one caller could spread over many buckets. So a
//! key that is given twice with different values is refused as malformed (400), never joined or
//! selected from. Spellings that an upstream may treat as equal (percent-encoding, quotes) are
//! normalised, and no value is truncated.

use std::borrow::Cow;

use http::HeaderName;
use http::header::COOKIE;

use super::{Ambiguous, has_odd_blanks_around, without_blanks};
use crate::descriptor::Descriptor;
use tollgate_limit::hex::percent_decoded;

/// The value of a header; absent or empty: `None`.
pub(crate) fn header<'r>(
    request: &Descriptor<'r>,
    name: &HeaderName,
) -> Result<Option<Cow<'r, [u8]>>, Ambiguous> {
    let values = request
        .headers
        .get_all(name)
        .iter()
        .map(|value| Cow::Borrowed(value.as_bytes().trim_ascii()));
    only(values)
}

/// A value as it is a key: without blanks around it, which servers and headers drop. White space
/// around it that only some servers drop is ambiguous. So is a control character, because a
/// placeholder cannot pass it on: two keys would be one for the upstream.
pub(crate) fn one_spelling(value: Cow<'_, [u8]>) -> Result<Option<Cow<'_, [u8]>>, Ambiguous> {
    let is_cut = |byte: &u8| byte.is_ascii_control() && *byte != b'\t';
    if value.iter().any(is_cut) {
        return Err(Ambiguous::Unclear);
    }
    let trimmed = value.trim_ascii();
    if has_odd_blanks_around(trimmed) {
        return Err(Ambiguous::Unclear);
    }
    let same = trimmed.len() == value.len();
    Ok(match value {
        _ if trimmed.is_empty() => None,
        value if same => Some(value),
        Cow::Borrowed(value) => Some(Cow::Borrowed(value.trim_ascii())),
        Cow::Owned(value) => Some(Cow::Owned(value.trim_ascii().to_vec())),
    })
}

/// The value of a cookie, over all Cookie lines (HTTP/2 splits them). Values that some server may
/// treat as equal are normalised: quotes around the value, percent-encoding and `+` for a space. A
/// value is ambiguous if servers read it in different ways: escapes within quotes (Python decodes
/// them, RFC 6265 does not), bytes above ASCII (some servers trim them), and a cookie of that name,
/// or one that some servers treat as that name, within another.
pub(crate) fn cookie<'r>(
    request: &Descriptor<'r>,
    name: &str,
) -> Result<Option<Cow<'r, [u8]>>, Ambiguous> {
    let lines = request.headers.get_all(COOKIE).iter();
    let mut found: Option<Cow<'r, [u8]>> = None;
    let mut open_quote = false;
    for pair in lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';')) {
        if holds_another(pair, name.as_bytes()) {
            return Err(Ambiguous::Twice);
        }
        let Some(equals) = memchr::memchr(b'=', pair) else {
            continue;
        };
        let (given, value) = (
            percent_decoded(pair[..equals].trim_ascii(), false),
            pair[equals + 1..].trim_ascii(),
        );
        open_quote |= value.starts_with(b"\"") && (value.len() == 1 || !value.ends_with(b"\""));
        if *given != *name.as_bytes() {
            if resembles(&given, name.as_bytes()) {
                return Err(Ambiguous::Twice);
            }
            continue;
        }
        let value = cookie_value(value)?;
        match &found {
            None => found = Some(value),
            Some(first) if *first != value => return Err(Ambiguous::Twice),
            Some(_) => {}
        }
    }
    // After an unclosed quote some servers look for no further cookie.
    if open_quote && found.is_some() {
        return Err(Ambiguous::Unclear);
    }
    Ok(found.filter(|value| !value.is_empty()))
}

pub(super) fn cookie_value(text: &[u8]) -> Result<Cow<'_, [u8]>, Ambiguous> {
    let (inside, quoted) = unquoted(text);
    // A comma starts another cookie in parsers of RFC 2965, and RFC 6265 allows none in a value.
    let is_odd = |byte: &u8| matches!(byte, b'"' | b',');
    if !text.is_ascii() || inside.iter().any(is_odd) || (quoted && inside.contains(&b'\\')) {
        return Err(Ambiguous::Unclear);
    }
    let mut value = percent_decoded(inside, false);
    // Encoded quotes are quotes to a server that decodes first.
    while let (inside, true) = unquoted(&value) {
        value = Cow::Owned(inside.to_vec());
    }
    if value.contains(&b' ') {
        value = Cow::Owned(
            value
                .iter()
                .map(|&byte| if byte == b' ' { b'+' } else { byte })
                .collect(),
        );
    }
    Ok(value)
}

/// The text within quotes, and whether there are quotes.
fn unquoted(text: &[u8]) -> (&[u8], bool) {
    match text {
        [b'"', inside @ .., b'"'] => (inside, true),
        _ => (text, false),
    }
}

/// Whether a server that also splits cookies at blanks or commas finds one of this name in the
/// middle of `pair`.
fn holds_another(pair: &[u8], name: &[u8]) -> bool {
    let is_separator = |byte: &u8| matches!(byte, b' ' | b'\t' | b',');
    let mut from = 0;
    for equals in memchr::memchr_iter(b'=', pair) {
        let before = pair[from..equals].trim_ascii_end();
        let start = before.iter().rposition(is_separator).map_or(0, |at| at + 1);
        let is_own = from == 0 && before[..start].iter().all(u8::is_ascii_whitespace);
        if !is_own && start > 0 {
            let given = percent_decoded(&before[start..], false);
            if *given == *name || resembles(&given, name) {
                return true;
            }
        }
        from = equals + 1;
    }
    false
}

/// Whether some servers treat `given` as the parameter or cookie `name`: ASP.NET ignores case; PHP
/// replaces `.`, ` ` and `[` by `_` (its older versions also `+` in a cookie), skips blanks before a
/// name, ends it at a NUL, and reads `name[…]` as a list called `name`; Express and Rack read `[name]`
/// as `name`; `URLSearchParams` drops a `?` before the first name; others drop any white space around
/// a name.
fn resembles(given: &[u8], name: &[u8]) -> bool {
    let folded = |byte: &u8| match byte {
        b'.' | b' ' | b'[' | b'+' => b'_',
        _ => byte.to_ascii_lowercase(),
    };
    let same = |given: &[u8]| {
        given.len() == name.len() && given.iter().map(folded).eq(name.iter().map(folded))
    };
    let ended = |text: &[u8], at: u8| memchr::memchr(at, text).unwrap_or(text.len());
    let trimmed = without_blanks(&given[..ended(given, 0)]);
    let text = trimmed.strip_prefix(b"?").unwrap_or(&trimmed);
    given != name
        && (same(text) || same(&text[..ended(text, b'[')]) || same(first_within_brackets(text)))
}

/// The first text between brackets, or before them: Rack's name of a parameter.
fn first_within_brackets(text: &[u8]) -> &[u8] {
    let is_bracket = |byte: &u8| matches!(byte, b'[' | b']');
    let mut parts = text.split(is_bracket);
    parts.find(|part| !part.is_empty()).unwrap_or_default()
}

pub(crate) fn query<'r>(
    request: &Descriptor<'r>,
    name: &str,
) -> Result<Option<Cow<'r, [u8]>>, Ambiguous> {
    request
        .query
        .map_or(Ok(None), |query| parameter(query.as_bytes(), name))
}

/// The value of a parameter in the form of a query. It is ambiguous if a server that splits the text
/// in another way, treats another name as this one, or decodes `%uXXXX` (ASP.NET) could find another value.
pub(crate) fn parameter<'r>(
    query: &'r [u8],
    name: &str,
) -> Result<Option<Cow<'r, [u8]>>, Ambiguous> {
    let mut found: Option<Cow<'r, [u8]>> = None;
    for part in parts(query) {
        let equals = memchr::memchr(b'=', part.text).unwrap_or(part.text.len());
        let (given, value) = part.text.split_at(equals);
        if has_wide_escape(given) {
            return Err(Ambiguous::Unclear);
        }
        let given = percent_decoded(given, true);
        if resembles(&given, name.as_bytes()) {
            return Err(Ambiguous::Twice);
        }
        if *given != *name.as_bytes() {
            continue;
        }
        if !part.is_certain || has_wide_escape(value) {
            return Err(Ambiguous::Unclear);
        }
        let value = percent_decoded(value.get(1..).unwrap_or_default(), true);
        match &found {
            Some(first) if *first != value => return Err(Ambiguous::Twice),
            Some(_) => {}
            None => found = Some(value),
        }
    }
    Ok(found.filter(|value| !value.is_empty()))
}

/// A text that some server takes for a parameter.
struct Part<'r> {
    text: &'r [u8],
    is_certain: bool,
}

/// The parameters of `query` by all ways to split it: every server splits at `&`, some also at `;`.
fn parts(query: &[u8]) -> impl Iterator<Item = Part<'_>> {
    query.split(|byte| *byte == b'&').flat_map(|whole| {
        let is_certain = memchr::memchr(b';', whole).is_none();
        let smaller = whole.split(|byte| *byte == b';');
        std::iter::once(whole)
            .chain(smaller.filter(move |_| !is_certain))
            .map(move |text| Part { text, is_certain })
    })
}

fn has_wide_escape(text: &[u8]) -> bool {
    memchr::memchr_iter(b'%', text).any(|at| {
        let escape = text.get(at + 1..at + 6);
        escape.is_some_and(|five| {
            five[0].eq_ignore_ascii_case(&b'u') && five[1..].iter().all(u8::is_ascii_hexdigit)
        })
    })
}

/// The only value; empty counts as absent, and two different values as ambiguous.
fn only<'r>(
    mut values: impl Iterator<Item = Cow<'r, [u8]>>,
) -> Result<Option<Cow<'r, [u8]>>, Ambiguous> {
    let Some(first) = values.next() else {
        return Ok(None);
    };
    if values.any(|other| other != first) {
        return Err(Ambiguous::Twice);
    }
    Ok((!first.is_empty()).then_some(first))
}
