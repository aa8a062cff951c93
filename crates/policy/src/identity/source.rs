//! The sources of one part of a key in a request, as the file writes them. Does not decide what a
//! missing key means.

mod authorization;
mod credentials;
mod reading;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::errors::ParseError;
pub(crate) use authorization::authorization;
pub(crate) use credentials::{basic_user, bearer};
pub(crate) use reading::{cookie, header, one_spelling, parameter, query};

/// The source of one part of a key in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Address,
    Header(HeaderName),
    /// `bearer`: the token of `Authorization: Bearer`.
    Bearer,
    /// `basic`: the user of `Authorization: Basic`.
    BasicUser,
    Cookie(String),
    Query(String),
    Path(String),
    JwtClaim(String),
    /// `client_certificate`: the subject of the verified client certificate.
    ClientCertificate,
    /// `application`: what a service says of its own request. A gateway has none.
    Application,
    /// `json:PATH`: a member of the JSON body, by the names that lead to it.
    Json(Vec<String>),
    /// `json-digest:PATH`: a digest of any member of the JSON body.
    JsonDigest(Vec<String>),
    Form(String),
    /// `graphql:operation`: the name of the operation that a GraphQL request executes.
    GraphqlOperation,
}

/// A key that can be read in more than one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Ambiguous {
    /// It is given twice with different values, or under a second name that servers take for its own.
    #[error("given twice")]
    Twice,
    #[error("not decodable in one way")]
    Unclear,
}

impl Source {
    /// Parses a source as the file writes it.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let (kind, name) = text
            .split_once(':')
            .map_or((text, None), |(kind, name)| (kind, Some(name)));
        let at = text.len() - name.map_or(0, str::len)..text.len();
        let whole = |what: String| Err(ParseError::new(0..text.len(), what));
        match (kind, name) {
            ("address", None) => Ok(Self::Address),
            ("bearer", None) => Ok(Self::Bearer),
            ("basic", None) => Ok(Self::BasicUser),
            ("client_certificate", None) => Ok(Self::ClientCertificate),
            ("application", None) => Ok(Self::Application),
            ("address" | "bearer" | "basic" | "client_certificate" | "application", Some(_)) => {
                let what = format!("`{kind}` takes no name");
                Err(ParseError::new(kind.len()..text.len(), what))
            }
            (
                "header" | "cookie" | "query" | "path" | "jwt" | "json" | "json-digest" | "form",
                None | Some(""),
            ) => whole(format!("`{kind}` needs a name: `{kind}:NAME`")),
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
            ("json", Some(path)) => json_path(path)
                .map(Self::Json)
                .map_err(|error| error.shifted(at.start)),
            ("json-digest", Some(path)) => json_path(path)
                .map(Self::JsonDigest)
                .map_err(|error| error.shifted(at.start)),
            ("form", Some(name)) => Ok(Self::Form(name.to_owned())),
            ("graphql", Some("operation")) => Ok(Self::GraphqlOperation),
            ("graphql", _) => whole("of a GraphQL request there is `graphql:operation`".to_owned()),
            _ => {
                let what = "a key is `address`, `header:NAME`, `bearer`, `basic`, `cookie:NAME`, `query:NAME`, `path:NAME`, \
                            `jwt:CLAIM`, `client_certificate`, `json:PATH`, `json-digest:PATH`, `form:NAME` or `graphql:operation`";
                let what = format!("`{kind}` is no source of a key: {what}");
                Err(ParseError::new(0..kind.len(), what))
            }
        }
    }

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
            Self::Application => "application".into(),
            Self::Json(path) => format!("json:{}", path.join(".")),
            Self::JsonDigest(path) => format!("json-digest:{}", path.join(".")),
            Self::Form(name) => format!("form:{name}"),
            Self::GraphqlOperation => "graphql:operation".into(),
        }
    }

    pub const fn is_of_body(&self) -> bool {
        matches!(
            self,
            Self::Json(_) | Self::JsonDigest(_) | Self::Form(_) | Self::GraphqlOperation
        )
    }

    /// A value that a program or a person writes, as this source reads it from a request: the value
    /// of a cookie may be written quoted or percent-encoded.
    pub(crate) fn spelling<'v>(&self, value: &'v str) -> Result<Option<Cow<'v, [u8]>>, Ambiguous> {
        one_spelling(match self {
            Self::Cookie(_) => reading::cookie_value(value.trim_ascii().as_bytes())?,
            Self::Header(AUTHORIZATION) => authorization::whole(Cow::Borrowed(value.as_bytes()))?,
            Self::Bearer => Cow::Borrowed(credentials::token(value.trim_ascii().as_bytes())?),
            _ => Cow::Borrowed(value.as_bytes()),
        })
    }

    /// Whether a client can invent its value, so that each new value gets a new bucket.
    pub fn is_unverified(&self) -> bool {
        !matches!(
            self,
            Self::Address | Self::JwtClaim(_) | Self::ClientCertificate | Self::Application
        )
    }
}

pub(crate) struct Several;

pub(crate) fn only_line<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'h HeaderValue>, Several> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (line, None) => Ok(line),
        _ => Err(Several),
    }
}

/// The names that lead to a member of a JSON text, as the file writes them: joined by dots.
/// A name may have any character except the dot; text meant as an index or a query would never be found.
pub fn json_path(path: &str) -> Result<Vec<String>, ParseError> {
    let empty = path.split('.').any(str::is_empty);
    let rooted = path.starts_with(['$', '/']).then_some(0);
    let wrong = rooted
        .or_else(|| path.find(['[', ']', '*', '"', '\'']))
        .or(empty.then_some(0));
    let Some(at) = wrong else {
        return Ok(path.split('.').map(str::to_owned).collect());
    };
    let end = if empty { path.len() } else { at + 1 };
    let what = "names joined by dots were expected, like `usage.total_tokens`";
    Err(ParseError::new(at..end, what))
}

// White space beyond that of ASCII: many servers drop it around a value or split at it (`.trim()`, `\s`,
// `.strip()`, `.split()`), and others do not.

/// Whether some servers take `character` for white space: Unicode's, and characters that have been,
/// or that JavaScript or .NET trim.
pub(crate) fn is_odd_blank(character: char) -> bool {
    let also = matches!(character, '\u{180e}' | '\u{200b}' | '\u{feff}');
    also || !character.is_ascii() && character.is_whitespace()
}

/// Whether a byte is white space in Latin-1, as which some servers read headers.
const fn is_odd_byte(byte: u8) -> bool {
    matches!(byte, 0x85 | 0xa0)
}

/// Whether some servers drop the first or the last character of `value`, which has no ASCII blanks
/// around it.
pub(crate) fn has_odd_blanks_around(value: &[u8]) -> bool {
    let ends = [value.first().copied(), value.last().copied()];
    if ends.iter().flatten().all(u8::is_ascii) {
        return false;
    }
    let text = String::from_utf8_lossy(value);
    let is_utf8 = matches!(text, Cow::Borrowed(_));
    let outer = [text.chars().next(), text.chars().next_back()];
    outer.into_iter().flatten().any(is_odd_blank)
        || !is_utf8 && ends.into_iter().flatten().any(is_odd_byte)
}

/// Whether some servers split `value` where others do not.
fn has_odd_blanks(value: &[u8]) -> bool {
    if value.is_ascii() {
        return false;
    }
    match std::str::from_utf8(value) {
        Ok(text) => text.contains(is_odd_blank),
        Err(_) => {
            value.iter().copied().any(is_odd_byte)
                || String::from_utf8_lossy(value).contains(is_odd_blank)
        }
    }
}

/// A name without any white space around it.
fn without_blanks(name: &[u8]) -> Cow<'_, [u8]> {
    if name.is_ascii() {
        return Cow::Borrowed(name.trim_ascii());
    }
    let is_dropped = |character: char| {
        // What is no UTF-8 may be a blank in Latin-1.
        let unknown = character == char::REPLACEMENT_CHARACTER;
        unknown || character.is_ascii_whitespace() || is_odd_blank(character)
    };
    let text = String::from_utf8_lossy(name);
    Cow::Owned(text.trim_matches(is_dropped).as_bytes().to_vec())
}
