//! Where one part of a key stands in a request, and how it is read from there.
//!
//! Gateway and upstream must read the same key, or one caller could split itself over many buckets. So a key that is
//! given twice with different values is refused as malformed (400), never joined or picked from; spellings that an
//! upstream may read alike (percent-encoding, quotes) are folded; and nothing is ever cut short.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::GeneralPurpose;
use base64::engine::{DecodePaddingMode, GeneralPurposeConfig};
use http::HeaderName;
use http::header::{AUTHORIZATION, COOKIE};

use super::descriptor::Descriptor;
use super::path::hex;
use super::pattern::ParseError;

/// Where one part of a key stands in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `address`
    Address,
    /// `header:NAME`
    Header(HeaderName),
    /// `bearer`: the token of `Authorization: Bearer`.
    Bearer,
    /// `basic`: the user of `Authorization: Basic`.
    BasicUser,
    /// `cookie:NAME`
    Cookie(String),
    /// `query:NAME`
    Query(String),
    /// `path:NAME`: a `{NAME}` segment of the route.
    Path(String),
    /// `jwt:CLAIM`: a claim of a verified token.
    JwtClaim(String),
    /// `client_certificate`: the subject of the verified client certificate.
    ClientCertificate,
}

/// A key that cannot be read in one way only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ambiguous;

impl Source {
    /// Parses a source as the file writes it.
    ///
    /// # Errors
    /// What is wrong, with the bytes it stands at.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let (kind, name) = text.split_once(':').map_or((text, None), |(kind, name)| (kind, Some(name)));
        let at = text.len() - name.map_or(0, str::len)..text.len();
        match (kind, name) {
            ("address", None) => Ok(Self::Address),
            ("bearer", None) => Ok(Self::Bearer),
            ("basic", None) => Ok(Self::BasicUser),
            ("client_certificate", None) => Ok(Self::ClientCertificate),
            ("address" | "bearer" | "basic" | "client_certificate", Some(_)) => {
                Err(ParseError::new(kind.len()..text.len(), format!("`{kind}` takes no name")))
            }
            ("header" | "cookie" | "query" | "path" | "jwt", None | Some("")) => {
                Err(ParseError::new(0..text.len(), format!("`{kind}` needs a name: `{kind}:NAME`")))
            }
            ("header", Some(name)) => HeaderName::try_from(name)
                .map(Self::Header)
                .map_err(|_| ParseError::new(at, format!("`{name}` is no header name"))),
            ("cookie", Some(name)) if name.contains([';', '=', ' ', ',']) => {
                Err(ParseError::new(at, format!("`{name}` is no cookie name")))
            }
            ("cookie", Some(name)) => Ok(Self::Cookie(name.to_owned())),
            ("query", Some(name)) => Ok(Self::Query(name.to_owned())),
            ("path", Some(name)) => Ok(Self::Path(name.to_owned())),
            ("jwt", Some(name)) => Ok(Self::JwtClaim(name.to_owned())),
            _ => {
                let what = "a key is `address`, `header:NAME`, `bearer`, `basic`, `cookie:NAME`, `query:NAME`, `path:NAME`, \
                            `jwt:CLAIM` or `client_certificate`";
                Err(ParseError::new(0..kind.len(), format!("`{kind}` is no source of a key: {what}")))
            }
        }
    }

    /// As the file writes it.
    pub fn words(&self) -> String {
        match self {
            Self::Address => "address".into(),
            Self::Header(name) => format!("header:{name}"),
            Self::Bearer => "bearer".into(),
            Self::BasicUser => "basic".into(),
            Self::Cookie(name) => format!("cookie:{name}"),
            Self::Query(name) => format!("query:{name}"),
            Self::Path(name) => format!("path:{name}"),
            Self::JwtClaim(name) => format!("jwt:{name}"),
            Self::ClientCertificate => "client_certificate".into(),
        }
    }

    /// Whether a caller can make its value up freely, so that a new one is a fresh bucket.
    pub fn is_unverified(&self) -> bool {
        matches!(
            self,
            Self::Header(_) | Self::Bearer | Self::BasicUser | Self::Cookie(_) | Self::Query(_) | Self::Path(_)
        )
    }
}

/// The value of a header; absent or empty: `None`.
pub(super) fn header<'r>(request: &Descriptor<'r>, name: &HeaderName) -> Result<Option<Cow<'r, [u8]>>, Ambiguous> {
    let values = request.headers.get_all(name).iter().map(|value| Cow::Borrowed(value.as_bytes().trim_ascii()));
    only(values)
}

/// The credentials of `Authorization` under a scheme.
pub(super) fn credentials<'r>(request: &Descriptor<'r>, scheme: &str) -> Result<Option<&'r [u8]>, Ambiguous> {
    let Some(value) = header(request, &AUTHORIZATION)? else { return Ok(None) };
    let Cow::Borrowed(value) = value else { return Ok(None) };
    let Some((given, rest)) = value.split_at_checked(scheme.len()) else { return Ok(None) };
    let separated = rest.first().is_some_and(|byte| *byte == b' ' || *byte == b'\t');
    let rest = rest.trim_ascii();
    Ok((given.eq_ignore_ascii_case(scheme.as_bytes()) && separated && !rest.is_empty()).then_some(rest))
}

/// The user of `Authorization: Basic` (RFC 7617): bytes before the first colon.
pub(super) fn basic_user(request: &Descriptor<'_>) -> Result<Option<Vec<u8>>, Ambiguous> {
    let Some(encoded) = credentials(request, "basic")? else { return Ok(None) };
    let mut decoded = BASE64.decode(encoded).map_err(|_| Ambiguous)?;
    let colon = decoded.iter().position(|&byte| byte == b':').ok_or(Ambiguous)?;
    decoded.truncate(colon);
    Ok((!decoded.is_empty()).then_some(decoded))
}

/// The value of a cookie, over all Cookie lines (HTTP/2 splits them); quotes and percent-encoding are folded.
pub(super) fn cookie<'r>(request: &Descriptor<'r>, name: &str) -> Result<Option<Cow<'r, [u8]>>, Ambiguous> {
    let lines = request.headers.get_all(COOKIE).iter();
    let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    only(pairs.filter_map(|pair| {
        let equals = memchr::memchr(b'=', pair)?;
        let (given, value) = (pair[..equals].trim_ascii(), pair[equals + 1..].trim_ascii());
        (*decoded(given, false) == *name.as_bytes()).then(|| {
            let unquoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
            decoded(unquoted, false)
        })
    }))
}

/// The value of a query parameter, decoded. Some upstreams separate parameters by `;` too: where that would change
/// this one, it is ambiguous.
pub(super) fn query<'r>(request: &Descriptor<'r>, name: &str) -> Result<Option<Cow<'r, [u8]>>, Ambiguous> {
    let Some(query) = request.query else { return Ok(None) };
    let read = |text: &'r [u8]| {
        let equals = memchr::memchr(b'=', text).unwrap_or(text.len());
        let value = text.get(equals + 1..).unwrap_or_default();
        (*decoded(&text[..equals], true) == *name.as_bytes()).then(|| decoded(value, true))
    };
    if memchr::memchr(b';', query.as_bytes()).is_some() {
        let odd = query.as_bytes().split(|byte| *byte == b'&').filter(|parameter| parameter.contains(&b';'));
        if odd.flat_map(|parameter| parameter.split(|byte| *byte == b';')).any(|part| read(part).is_some()) {
            return Err(Ambiguous);
        }
    }
    only(query.as_bytes().split(|byte| *byte == b'&').filter_map(read))
}

/// The one value there is; empty counts as absent, and two that differ as ambiguous.
fn only<'r>(mut values: impl Iterator<Item = Cow<'r, [u8]>>) -> Result<Option<Cow<'r, [u8]>>, Ambiguous> {
    let Some(first) = values.next() else { return Ok(None) };
    if values.any(|other| other != first) {
        return Err(Ambiguous);
    }
    Ok((!first.is_empty()).then_some(first))
}

/// Percent-decoded once; what is no escape stays. `plus`: `+` is a space.
fn decoded(text: &[u8], plus: bool) -> Cow<'_, [u8]> {
    if memchr::memchr2(b'%', if plus { b'+' } else { b'%' }, text).is_none() {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let escape = match after {
            [high, low, ..] if byte == b'%' => hex(*high).zip(hex(*low)),
            _ => None,
        };
        match escape {
            Some((high, low)) => {
                bytes.push(high << 4 | low);
                rest = &after[2..];
            }
            None if byte == b'+' && plus => bytes.push(b' '),
            None => bytes.push(byte),
        }
    }
    Cow::Owned(bytes)
}

/// Padding or none: both spell the same user.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

#[cfg(test)]
mod tests;
