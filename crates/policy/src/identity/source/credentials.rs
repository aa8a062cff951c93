//! Reads `Authorization`. Servers take it apart in many ways: at the first blank, at every blank, at
//! a comma, or by looking for the scheme anywhere. What they read differently is ambiguous.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::GeneralPurpose;
use base64::engine::{DecodePaddingMode, GeneralPurposeConfig};
use http::header::AUTHORIZATION;

use super::reading::header;
use super::{Ambiguous, has_odd_blanks};
use crate::descriptor::Descriptor;

pub(super) fn credentials<'r>(
    request: &Descriptor<'r>,
    scheme: &str,
) -> Result<Option<&'r [u8]>, Ambiguous> {
    match header(request, &AUTHORIZATION)? {
        Some(Cow::Borrowed(value)) => under(value, scheme),
        _ => Ok(None),
    }
}

fn under<'v>(value: &'v [u8], scheme: &str) -> Result<Option<&'v [u8]>, Ambiguous> {
    if has_odd_blanks(value) {
        return Err(Ambiguous::Unclear);
    }
    if let Some(rest) = after_scheme(value, scheme) {
        return Ok(Some(rest.trim_ascii()).filter(|rest| !rest.is_empty()));
    }
    if is_within(value, scheme) {
        Err(Ambiguous::Unclear)
    } else {
        Ok(None)
    }
}

/// Whether a server that looks for the scheme finds it behind something else. Scripts search for it
/// with expressions that are not anchored (`/Bearer\s(\S+)/`, `/Basic\s+(.*)$/i`), so they also find
/// it within words and quoted strings. Their decoders of Base64 skip other characters. Other
/// servers only test whether a value begins with the scheme, and then cut the scheme and one more
/// character off (`Bearer-TOKEN`).
pub(super) fn is_within(value: &[u8], scheme: &str) -> bool {
    let behind = begins_with(value, scheme).and_then(<[u8]>::first);
    behind.is_some_and(|next| !is_blank(next))
        || (1..value.len()).any(|at| after_scheme(&value[at..], scheme).is_some())
}

fn after_scheme<'v>(value: &'v [u8], scheme: &str) -> Option<&'v [u8]> {
    begins_with(value, scheme).filter(|rest| rest.first().is_some_and(is_blank))
}

/// The part of a value behind a scheme at its beginning.
fn begins_with<'v>(value: &'v [u8], scheme: &str) -> Option<&'v [u8]> {
    let (given, rest) = value.split_at_checked(scheme.len())?;
    given
        .eq_ignore_ascii_case(scheme.as_bytes())
        .then_some(rest)
}

pub(super) const fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

pub(crate) fn bearer<'r>(request: &Descriptor<'r>) -> Result<Option<&'r [u8]>, Ambiguous> {
    credentials(request, "bearer")?.map(token).transpose()
}

/// A token that all servers read alike: it is not cut, and not a parameter, as Rails reads it.
pub(super) fn token(text: &[u8]) -> Result<&[u8], Ambiguous> {
    if text.starts_with(b"token=") {
        return Err(Ambiguous::Unclear);
    }
    uncut(text)
}

/// Credentials that no server cuts: visible ASCII, without the characters at which some of them do.
pub(super) fn uncut(text: &[u8]) -> Result<&[u8], Ambiguous> {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b',' | b';' | b'"');
    if text.iter().all(is_plain) {
        Ok(text)
    } else {
        Err(Ambiguous::Unclear)
    }
}

/// The user of `Authorization: Basic` (RFC 7617): bytes before the first colon.
pub(crate) fn basic_user(request: &Descriptor<'_>) -> Result<Option<Vec<u8>>, Ambiguous> {
    let Some(encoded) = credentials(request, "basic")? else {
        return Ok(None);
    };
    let mut decoded = BASE64.decode(encoded).map_err(|_| Ambiguous::Unclear)?;
    let colon = decoded
        .iter()
        .position(|&byte| byte == b':')
        .ok_or(Ambiguous::Unclear)?;
    decoded.truncate(colon);
    Ok((!decoded.is_empty()).then_some(decoded))
}

/// With or without padding: both encode the same.
pub(super) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
