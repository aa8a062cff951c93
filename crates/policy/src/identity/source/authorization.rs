//! `Authorization` as a key: one form for each credential that is not made of parameters, however a
//! client writes the scheme and the blanks around it.

use std::borrow::Cow;

use base64::Engine;
use http::header::AUTHORIZATION;

use super::credentials::{BASE64, is_blank, is_within, token, uncut};
use super::reading::header;
use super::{Ambiguous, has_odd_blanks};
use crate::descriptor::Descriptor;

pub(crate) fn authorization<'r>(
    request: &Descriptor<'r>,
) -> Result<Option<Cow<'r, [u8]>>, Ambiguous> {
    header(request, &AUTHORIZATION)?.map(whole).transpose()
}

/// The key that a value makes: the scheme in its usual case, one blank, and the credentials. A value
/// without a scheme stays as it is. Parameters stay as well: the order of them and the blanks between
/// them mean nothing to servers, so a client can write one credential with many keys.
pub(super) fn whole(value: Cow<'_, [u8]>) -> Result<Cow<'_, [u8]>, Ambiguous> {
    let text = value.trim_ascii();
    let is_odd = has_odd_blanks(text) || SOUGHT.iter().any(|scheme| is_within(text, scheme));
    if is_odd {
        return Err(Ambiguous::Unclear);
    }
    let end = text.iter().position(is_blank).unwrap_or(text.len());
    let (scheme, rest) = text.split_at(end);
    if rest.is_empty() {
        return Ok(value);
    }
    if !scheme.iter().all(is_of_token) {
        // Servers that split at blanks read one credential, however many blanks there are.
        return if has_parameters(text) {
            Ok(value)
        } else {
            Err(Ambiguous::Unclear)
        };
    }
    let scheme = usual_case(scheme);
    let rest = one_form(&scheme, rest.trim_ascii_start())?;
    Ok(Cow::Owned([&scheme, &b" "[..], &rest].concat()))
}

const SOUGHT: [&str; 2] = ["bearer", "basic"];

fn one_form<'v>(scheme: &[u8], rest: &'v [u8]) -> Result<Cow<'v, [u8]>, Ambiguous> {
    Ok(match scheme {
        b"Bearer" => Cow::Borrowed(token(rest)?),
        b"Token" => Cow::Borrowed(token_of_rails(rest)?),
        // With or without padding: both encode the same.
        b"Basic" => {
            let decoded = BASE64.decode(rest).map_err(|_| Ambiguous::Unclear)?;
            Cow::Owned(BASE64.encode(decoded).into_bytes())
        }
        _ if has_parameters(rest) => Cow::Borrowed(rest),
        // Not `token`: only Rails takes `token=` off, and not under these schemes.
        _ => Cow::Borrowed(uncut(rest)?),
    })
}

/// The token of the scheme `Token`, alone or as the first of some parameters. Rails ignores the others,
/// so that each value of them would make another key.
fn token_of_rails(rest: &[u8]) -> Result<&[u8], Ambiguous> {
    const NAME: &[u8] = b"token=";
    let Some(rest) = rest.strip_prefix(NAME) else {
        return token(rest);
    };
    let mut parts = rest.split(|byte| matches!(byte, b',' | b';' | b'\t'));
    let first = parts.next().unwrap_or_default().trim_ascii();
    let is_another = |part: &[u8]| {
        let name = part.split(|byte| *byte == b'=').next();
        name.is_some_and(|name| name.trim_ascii().eq_ignore_ascii_case(b"token"))
    };
    if parts.any(is_another) {
        return Err(Ambiguous::Twice);
    }
    let unquoted = match first {
        [b'"', inside @ .., b'"'] => inside,
        _ => first,
    };
    if unquoted.is_empty() {
        return Err(Ambiguous::Unclear);
    }
    token(unquoted)
}

/// Whether credentials are parameters (RFC 9110, section 11.4): a name, `=` and a value, and more
/// after a comma or, as Akamai's clients write it, a `;`. A single one is known by its quoted value:
/// a token may have `=` in it. What ends at its `=` is padded.
fn has_parameters(rest: &[u8]) -> bool {
    let end = rest.iter().position(|byte| !is_of_token(byte));
    let (name, after) = rest.split_at(end.unwrap_or(rest.len()));
    let [b'=', value @ ..] = after else {
        return false;
    };
    let first = value.first();
    let begins = first.is_some_and(|byte| is_of_token(byte) || *byte == b'"');
    let is_single = match value {
        [b'"', inside @ .., b'"'] => !inside.contains(&b'"'),
        _ => false,
    };
    let has_more = rest.iter().any(|byte| matches!(byte, b',' | b';'));
    !name.is_empty() && begins && (has_more || is_single) && has_blanks_of_a_list(rest)
}

/// Whether each blank outside quoted strings follows a comma or a `;`, and each string has an end.
/// Servers that split at blanks read a credential up to any other blank: with text behind it, one
/// credential would make many keys.
fn has_blanks_of_a_list(rest: &[u8]) -> bool {
    let (mut is_quoted, mut is_escaped, mut before) = (false, false, b'=');
    for byte in rest {
        if is_quoted {
            is_quoted = is_escaped || *byte != b'"';
            is_escaped = !is_escaped && *byte == b'\\';
        } else if is_blank(byte) {
            if !matches!(before, b',' | b';') {
                return false;
            }
            continue;
        } else {
            is_quoted = *byte == b'"';
        }
        before = *byte;
    }
    !is_quoted
}

/// Whether a byte may be in a scheme or in the name of a parameter (RFC 9110, section 5.6.2).
fn is_of_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}

/// A scheme as its clients write it; one that is not listed, with one capital.
fn usual_case(scheme: &[u8]) -> Vec<u8> {
    let mut usual = USUAL.iter().map(|usual| usual.as_bytes());
    match usual.find(|usual| usual.eq_ignore_ascii_case(scheme)) {
        Some(usual) => usual.to_vec(),
        None => {
            let mut lower = scheme.to_ascii_lowercase();
            lower[..1].make_ascii_uppercase();
            lower
        }
    }
}

/// Schemes that their clients do not write with one capital, as far as the gateway knows them. One
/// that is not listed has a key of another look, and still one key for all its spellings.
const USUAL: [&str; 28] = [
    "ApiKey",
    "API-Key",
    "AWS",
    "AWS4-ECDSA-P256-SHA256",
    "AWS4-HMAC-SHA256",
    "DeepL-Auth-Key",
    "DPoP",
    "EG1-HMAC-SHA256",
    "GenieKey",
    "GNAP",
    "GOOG4-HMAC-SHA256",
    "GoogleLogin",
    "HMAC",
    "HOBA",
    "JWT",
    "KakaoAK",
    "Klaviyo-API-Key",
    "MAC",
    "NTLM",
    "OAuth",
    "PrivateToken",
    "SCRAM-SHA-1",
    "SCRAM-SHA-256",
    "SharedKey",
    "SharedKeyLite",
    "SSWS",
    "TC3-HMAC-SHA256",
    "vapid",
];

#[cfg(test)]
mod tests;
