//! The pattern of a route: `[METHOD[|METHOD]] [HOST]/PATH`, parsed with the position of every
//! mistake. Matching is in the router.

use std::fmt;

use http::{HeaderName, HeaderValue, Method};

use super::method::is_in_capitals;
use super::path;
use crate::errors::ParseError;
use crate::identity::source::Source;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    pub methods: Vec<Method>,
    pub host: HostPattern,
    pub path: Vec<Segment>,
    /// Headers that must be present, with a value or with any.
    pub headers: Vec<(HeaderName, Option<HeaderValue>)>,
    /// What the body must say, with a value or with any.
    pub body: Vec<(Source, Option<String>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    Any,
    Exact(String),
    /// `*.example.com`: one or more labels before this suffix (`example.com`).
    Wildcard(String),
}

impl HostPattern {
    /// Whether it matches `host`, which is in its normal form.
    pub fn matches(&self, host: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(name) => name == host,
            Self::Wildcard(suffix) => host
                .strip_suffix(suffix.as_str())
                .is_some_and(|front| front.len() > 1 && front.ends_with('.')),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    Literal(String),
    Capture(String),
    /// `**`: the rest of the path, which may be empty. Only allowed last.
    Rest,
}

impl Pattern {
    /// Parses `[METHOD[|METHOD]] [HOST]/PATH`, such as `POST|PUT *.example.com/v1/{id}/**`. Headers are added by the
    /// caller.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let start = text.len() - text.trim_start().len();
        let trimmed = text.trim();
        if trimmed.is_empty() {
            let what = "a route needs a path, such as `/**`";
            return Err(ParseError::new(0..text.len(), what));
        }
        let slash = trimmed.find('/');
        let head = &trimmed[..slash.unwrap_or(trimmed.len())];
        let (methods, host_at) = match head.find(char::is_whitespace) {
            None => match slash {
                Some(_) => (Vec::new(), 0),
                None => {
                    let what = "there is no path: write `METHOD HOST/PATH`, such as `GET /v1/**`";
                    return Err(ParseError::new(start..start + trimmed.len(), what));
                }
            },
            Some(space) => {
                let methods =
                    parse_methods(&trimmed[..space]).map_err(|error| error.shifted(start))?;
                (
                    methods,
                    space + (trimmed[space..].len() - trimmed[space..].trim_start().len()),
                )
            }
        };
        let Some(slash) = slash else {
            let what =
                "there is no path after the method: write `METHOD HOST/PATH`, such as `GET /v1/**`";
            return Err(ParseError::new(start..start + trimmed.len(), what));
        };
        let host = HostPattern::parse(&trimmed[host_at..slash])
            .map_err(|error| error.shifted(start + host_at))?;
        let path = parse_path(&trimmed[slash..]).map_err(|error| error.shifted(start + slash))?;
        Ok(Self {
            methods,
            host,
            path,
            headers: Vec::new(),
            body: Vec::new(),
        })
    }

    pub fn captures(&self) -> impl Iterator<Item = &str> {
        self.path.iter().filter_map(|segment| match segment {
            Segment::Capture(name) => Some(name.as_str()),
            _ => None,
        })
    }

    pub fn has_encoded_slash(&self) -> bool {
        self.path
            .iter()
            .any(|segment| matches!(segment, Segment::Literal(text) if text.contains("%2F")))
    }

    pub fn capture(&self, name: &str) -> Option<usize> {
        self.captures().position(|capture| capture == name)
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => Ok(()),
            Self::Exact(host) => f.write_str(host),
            Self::Wildcard(suffix) => write!(f, "*.{suffix}"),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, method) in self.methods.iter().enumerate() {
            write!(f, "{}{method}", if index == 0 { "" } else { "|" })?;
        }
        if !self.methods.is_empty() {
            f.write_str(" ")?;
        }
        write!(f, "{}", self.host)?;
        if self.path.is_empty() {
            f.write_str("/")?;
        }
        for segment in &self.path {
            match segment {
                Segment::Literal(text) => write!(f, "/{text}")?,
                Segment::Capture(name) => write!(f, "/{{{name}}}")?,
                Segment::Rest => f.write_str("/**")?,
            }
        }
        Ok(())
    }
}

impl HostPattern {
    /// Parses a host: empty or `*` for any, `example.com`, `*.example.com`, `[::1]`.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let whole = 0..text.len();
        if text.is_empty() || text == "*" {
            return Ok(Self::Any);
        }
        if let Some(at) = text.find(char::is_whitespace) {
            let what = "a space inside the host: write `METHOD HOST/PATH`";
            return Err(ParseError::new(at..text.len(), what));
        }
        if text.starts_with('[') {
            let error = || ParseError::new(whole, "this is no IPv6 address in brackets");
            let host = crate::identity::address::parse_host_address(text).ok_or_else(error)?;
            return Ok(Self::Exact(host));
        }
        if let Some(colon) = text.find(':') {
            let what = "routes match hosts without their port: the listener decides that";
            return Err(ParseError::new(colon..text.len(), what));
        }
        let (wildcard, name) = match text.strip_prefix("*.") {
            Some(suffix) => (true, suffix),
            None => (false, text),
        };
        let offset = text.len() - name.len();
        if let Some(at) = name.find('*') {
            let what = "`*` stands only for whole labels at the start: `*.example.com`";
            return Err(ParseError::new(offset + at..offset + at + 1, what));
        }
        let name = name.strip_suffix('.').unwrap_or(name);
        if let Some(bad) = name.find(|c: char| !is_host_character(c)) {
            let width = name[bad..].chars().next().map_or(0, char::len_utf8);
            let what = "a host name has letters, digits, `-`, `_` and dots (international names in their xn-- form)";
            return Err(ParseError::new(offset + bad..offset + bad + width, what));
        }
        if name.is_empty() || name.len() > HOST_MAX || name.split('.').any(str::is_empty) {
            let what = "this is no host name: a label is empty, or it is over 253 bytes";
            return Err(ParseError::new(whole, what));
        }
        let name = name.to_ascii_lowercase();
        Ok(if wildcard {
            Self::Wildcard(name)
        } else {
            Self::Exact(name)
        })
    }
}

pub(crate) fn is_host_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.' | '~')
}

fn parse_methods(text: &str) -> Result<Vec<Method>, ParseError> {
    let mut methods: Vec<Method> = Vec::new();
    let mut at = 0;
    if text == "*" {
        return Ok(methods);
    }
    for name in text.split('|') {
        let place = at..at + name.len();
        if name.is_empty() {
            let place = at.saturating_sub(1)..(at + 1).min(text.len());
            return Err(ParseError::new(place, "a method is missing beside `|`"));
        }
        if !is_in_capitals(name) {
            let what = format!(
                "methods are case-sensitive: write `{}`",
                name.to_ascii_uppercase()
            );
            return Err(ParseError::new(place, what));
        }
        let method = Method::from_bytes(name.as_bytes())
            .map_err(|_| ParseError::new(place.clone(), format!("`{name}` is no HTTP method")))?;
        if methods.contains(&method) {
            return Err(ParseError::new(place, format!("`{name}` is listed twice")));
        }
        methods.push(method);
        at += name.len() + 1;
    }
    Ok(methods)
}

fn parse_path(text: &str) -> Result<Vec<Segment>, ParseError> {
    let mut segments: Vec<Segment> = Vec::new();
    let mut at = 1;
    let body = &text[1..];
    // A trailing slash is dropped in the normal form, so it is dropped here too.
    let body = body.strip_suffix('/').unwrap_or(body);
    if body.is_empty() {
        return Ok(segments);
    }
    for part in body.split('/') {
        let place = at..at + part.len();
        if matches!(segments.last(), Some(Segment::Rest)) {
            let what = "`**` takes the rest of the path, so nothing can follow it";
            return Err(ParseError::new(at.saturating_sub(3)..at + part.len(), what));
        }
        segments.push(parse_segment(part, place.clone(), &segments)?);
        if segments.len() > SEGMENTS_MAX {
            let what = format!("a pattern has at most {SEGMENTS_MAX} segments");
            return Err(ParseError::new(place, what));
        }
        at += part.len() + 1;
    }
    Ok(segments)
}

fn parse_segment(
    part: &str,
    place: std::ops::Range<usize>,
    before: &[Segment],
) -> Result<Segment, ParseError> {
    let error = |what: &str| Err(ParseError::new(place.clone(), what));
    let from = |odd: usize, what: &str| Err(ParseError::new(place.start + odd..place.end, what));
    if part.is_empty() {
        let place = place.start.saturating_sub(1)..place.end + 1;
        let what = "an empty segment can never match: `//` is read as `/`";
        return Err(ParseError::new(place, what));
    }
    if part == "**" {
        return Ok(Segment::Rest);
    }
    if let Some(name) = part
        .strip_prefix('{')
        .and_then(|name| name.strip_suffix('}'))
    {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if name.is_empty() || !name.bytes().all(is_letter) {
            return error("a capture is `{name}` with letters, digits, `_` and `-`");
        }
        let capture = Segment::Capture(name.to_owned());
        if before.contains(&capture) {
            return error(&format!("`{{{name}}}` stands here twice"));
        }
        return Ok(capture);
    }
    if let Some(odd) = part.find(['{', '}']) {
        let what = "a capture takes a whole segment: `/{name}/`, not a part of one";
        return from(odd, what);
    }
    if let Some(star) = part.find('*') {
        let what = "write `{name}` for one segment, `/**` at the end for the rest";
        return from(star, what);
    }
    if let Some(odd) = part.find([';', '?', '#']) {
        let what = "`;` parameters are dropped before matching, and the query and fragment are no part of the path";
        return from(odd, what);
    }
    if part.contains(char::is_whitespace) {
        return error("a space inside the path: write it as `%20`");
    }
    match path::normalise_with_slashes(&format!("/{part}")) {
        Ok(normal) if normal.len() > 1 => Ok(Segment::Literal(normal[1..].to_owned())),
        Ok(_) => error("a dot segment can never match: paths are normalised before matching"),
        Err(why) => error(&format!("no request can match this: {why}")),
    }
}

/// The most segments a pattern may have: matching recurses once for each.
const SEGMENTS_MAX: usize = 64;

/// Whether a route that lists `methods` takes `method`: none listed means all, and `GET` also takes `HEAD`.
pub fn takes_method(methods: &[Method], method: &Method) -> bool {
    let is_implied = *method == Method::HEAD && methods.contains(&Method::GET);
    methods.is_empty() || methods.contains(method) || is_implied
}

/// Whether a route that lists `methods` takes all methods that a route with `others` takes.
pub fn takes_methods(methods: &[Method], others: &[Method]) -> bool {
    let is_taken = |method: &Method| takes_method(methods, method);
    methods.is_empty() || !others.is_empty() && others.iter().all(is_taken)
}

/// Whether two conditions want other values of the same thing. A header may appear twice in a
/// request, but two values of one header are meant as alternatives.
pub fn are_alternatives<N: PartialEq, V: PartialEq>(
    one: &[(N, Option<V>)],
    other: &[(N, Option<V>)],
) -> bool {
    let differ = |(name, value): &(N, Option<V>)| {
        let mut others = other.iter().filter(|(other, _)| other == name);
        value.is_some() && others.any(|(_, wanted)| wanted.is_some() && wanted != value)
    };
    one.iter().any(differ)
}

/// The longest host name (RFC 1035 section 3.1, in text form).
pub(crate) const HOST_MAX: usize = 253;

#[cfg(test)]
mod tests;
