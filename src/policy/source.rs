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
mod tests {
    use super::*;
    use crate::policy::Peer;
    use http::{HeaderMap, HeaderValue, Method, Uri};

    fn with<T>(uri: &str, headers: &[(&'static str, &str)], read: impl FnOnce(&Descriptor<'_>) -> T) -> T {
        let uri: Uri = uri.parse().expect("a URI");
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).expect("a value"));
        }
        let peer = Peer { address: None, port: 0, tls: false };
        let request = Descriptor::new(&Default::default(), &Method::GET, &uri, &map, peer, None).expect("well formed");
        read(&request)
    }

    fn text(value: Result<Option<Cow<'_, [u8]>>, Ambiguous>) -> String {
        match value {
            Ok(Some(value)) => String::from_utf8_lossy(&value).into_owned(),
            Ok(None) => "(none)".into(),
            Err(Ambiguous) => "(ambiguous)".into(),
        }
    }

    #[test]
    fn a_header_is_read_whole_and_once() {
        let name = HeaderName::from_static("x-api-key");
        let read = |values: &[&str]| {
            let headers: Vec<_> = values.iter().map(|value| ("x-api-key", *value)).collect();
            with("/", &headers, |request| text(header(request, &name)))
        };
        assert_eq!(read(&[]), "(none)");
        assert_eq!(read(&[" "]), "(none)");
        assert_eq!(read(&[" a, b "]), "a, b");
        assert_eq!(read(&["a", "a"]), "a");
        assert_eq!(read(&["a", "b"]), "(ambiguous)");
        assert_eq!(read(&["", "b"]), "(ambiguous)");
    }

    #[test]
    fn credentials_are_read_by_their_scheme() {
        let read = |value: &str, scheme| {
            with("/", &[("authorization", value)], |request| {
                text(credentials(request, scheme).map(|found| found.map(Cow::Borrowed)))
            })
        };
        assert_eq!(read("Bearer abc", "bearer"), "abc");
        assert_eq!(read("bEARER   abc ", "bearer"), "abc");
        for other in ["Bearer", "Bearer ", "Bearerabc", "Basic abc", "abc", ""] {
            assert_eq!(read(other, "bearer"), "(none)", "{other}");
        }
        let user = |value: &str| {
            with("/", &[("authorization", value)], |request| text(basic_user(request).map(|user| user.map(Cow::Owned))))
        };
        assert_eq!(user("Basic YWxhZGRpbjpvcGVuc2VzYW1l"), "aladdin");
        assert_eq!(user("Basic YTpiYw=="), "a");
        assert_eq!(user("Basic YTpiYw"), "a");
        assert_eq!(user("Basic OmI="), "(none)");
        assert_eq!(user("Basic YWI="), "(ambiguous)");
        assert_eq!(user("Basic !!"), "(ambiguous)");
    }

    #[test]
    fn a_cookie_has_one_value_however_it_is_spelt() {
        let read = |lines: &[&str]| {
            let headers: Vec<_> = lines.iter().map(|line| ("cookie", *line)).collect();
            with("/", &headers, |request| text(cookie(request, "sid")))
        };
        assert_eq!(read(&["a=1; sid=x=y"]), "x=y");
        assert_eq!(read(&["a=1", "sid=\"x\"; b"]), "x");
        assert_eq!(read(&["sid=%78; s%69d=x"]), "x");
        assert_eq!(read(&["xsid=1; SID=2; sid"]), "(none)");
        assert_eq!(read(&["sid=x", "sid=y"]), "(ambiguous)");
    }

    #[test]
    fn a_query_parameter_is_decoded_and_unambiguous() {
        let read = |uri: &str| with(uri, &[], |request| text(query(request, "key")));
        assert_eq!(read("/"), "(none)");
        assert_eq!(read("/?a=1&key=x%20y+z"), "x y z");
        assert_eq!(read("/?k%65y=%78"), "x");
        assert_eq!(read("/?key=100%"), "100%");
        assert_eq!(read("/?key"), "(none)");
        assert_eq!(read("/?key=x&key=x"), "x");
        assert_eq!(read("/?key=x&key=y"), "(ambiguous)");
        assert_eq!(read("/?a=1;key=x"), "(ambiguous)");
        assert_eq!(read("/?key=x;b=1"), "(ambiguous)");
        assert_eq!(read("/?a=1;b&key=x"), "x");
    }

    #[test]
    fn a_source_says_itself_back() {
        for text in [
            "address",
            "header:x-api-key",
            "bearer",
            "basic",
            "cookie:sid",
            "query:key",
            "path:id",
            "jwt:sub",
            "client_certificate",
        ] {
            assert_eq!(Source::parse(text).map(|source| source.words()).as_deref(), Ok(text));
        }
        for (text, wrong) in [
            ("adress", "adress"),
            ("header:", "header:"),
            ("jwt", "jwt"),
            ("bearer:x", ":x"),
            ("header:a b", "a b"),
            ("cookie:a;b", "a;b"),
        ] {
            let error = Source::parse(text).expect_err(text);
            assert_eq!(text.get(error.at.clone()), Some(wrong), "{text}: {error}");
        }
    }
}
