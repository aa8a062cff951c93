//! Text with `{…}` placeholders of the request, for header edits and redirects.
//!
//! Request data never ends a header line or starts another: control characters are removed from
//! header values, and everything except unreserved characters is percent-encoded in a Location. The
//! requested path and query keep their encoding, and cannot name another host.

use http::HeaderValue;

use crate::errors::ParseError;

/// Text with `{…}` placeholders of the request: `{tier}`, `{caller}`, `{route}`, `{address}`, `{host}`, `{path}`,
/// `{query}`, `{path:NAME}`, `{identity:NAME}`. `{{` and `}}` are braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pub pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Text(String),
    Placeholder(Placeholder),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placeholder {
    Tier,
    Caller,
    Route,
    Address,
    Host,
    RequestPath,
    Query,
    Path(String),
    Identity(usize),
}

impl Template {
    /// Parses a template; `identity` gives the index of a named identity.
    pub fn parse(text: &str, identity: impl Fn(&str) -> Option<usize>) -> Result<Self, ParseError> {
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut at = 0;
        while let Some(brace) = text[at..].find(['{', '}']).map(|found| at + found) {
            plain.push_str(&text[at..brace]);
            let rest = &text[brace..];
            if rest.starts_with("{{") || rest.starts_with("}}") {
                plain.push_str(&rest[..1]);
                at = brace + 2;
                continue;
            }
            if rest.starts_with('}') {
                let what = "a `}` without its `{`; a brace itself is `}}`";
                return Err(ParseError::new(brace..brace + 1, what));
            }
            let Some(end) = rest.find('}').map(|found| brace + found) else {
                let what = "a `{` without its `}`; a brace itself is `{{`";
                return Err(ParseError::new(brace..text.len(), what));
            };
            let placeholder = Placeholder::parse(&text[brace + 1..end], &identity)
                .map_err(|message| ParseError::new(brace..end + 1, message))?;
            if !plain.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut plain)));
            }
            pieces.push(Piece::Placeholder(placeholder));
            at = end + 1;
        }
        plain.push_str(&text[at..]);
        if let Some(bad) = plain
            .bytes()
            .find(|byte| byte.is_ascii_control() && *byte != b'\t')
        {
            let at = text.bytes().position(|byte| byte == bad).unwrap_or(0);
            let what = "a control character cannot stand in a header";
            return Err(ParseError::new(at..at + 1, what));
        }
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        Ok(Self { pieces })
    }

    pub fn placeholders(&self) -> impl Iterator<Item = &Placeholder> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Placeholder(placeholder) => Some(placeholder),
            Piece::Text(_) => None,
        })
    }

    /// The template filled as a header value, without the request's control characters.
    pub fn header_value(&self, mut fill: impl FnMut(&Placeholder, &mut Vec<u8>)) -> HeaderValue {
        let mut bytes = Vec::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => bytes.extend_from_slice(text.as_bytes()),
                Piece::Placeholder(placeholder) => fill(placeholder, &mut bytes),
            }
        }
        bytes.retain(|byte| *byte == b'\t' || !byte.is_ascii_control());
        HeaderValue::from_bytes(bytes.trim_ascii()).expect("a value without control characters")
    }

    /// The template filled as a Location. Request data is percent-encoded, so that a captured
    /// segment stays one segment. A query adds the `?` or `&` that it needs; without a query there
    /// is none at the end.
    pub fn location(&self, mut fill: impl FnMut(&Placeholder, &mut Vec<u8>)) -> HeaderValue {
        let mut location = String::new();
        let mut value = Vec::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => encode(text.as_bytes(), is_uri_byte, &mut location),
                Piece::Placeholder(placeholder) => {
                    value.clear();
                    fill(placeholder, &mut value);
                    let is_plain =
                        |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
                    match placeholder {
                        Placeholder::RequestPath => join_path(&value, &mut location),
                        Placeholder::Query => join_query(&value, &mut location),
                        Placeholder::Host => {
                            let kept = |byte| is_plain(byte) || b"[:]".contains(&byte);
                            encode(&value, kept, &mut location);
                        }
                        _ => encode(&value, is_plain, &mut location),
                    }
                }
            }
        }
        HeaderValue::from_str(&location).expect("percent-encoding leaves visible ASCII")
    }
}

impl Placeholder {
    fn parse(text: &str, identity: impl Fn(&str) -> Option<usize>) -> Result<Self, String> {
        Ok(match text {
            "tier" => Self::Tier,
            "caller" => Self::Caller,
            "route" => Self::Route,
            "address" => Self::Address,
            "host" => Self::Host,
            "path" => Self::RequestPath,
            "query" => Self::Query,
            _ => match text.split_once(':') {
                Some(("path", name)) if !name.is_empty() => Self::Path(name.to_owned()),
                Some(("identity", name)) => Self::Identity(
                    identity(name).ok_or_else(|| format!("there is no identity `{name}`"))?,
                ),
                _ => {
                    let known = "{tier}, {caller}, {route}, {address}, {host}, {path}, {query}, {path:NAME}, {identity:NAME}";
                    return Err(format!(
                        "`{{{text}}}` is no placeholder; there are {known}; a brace itself is `{{{{`"
                    ));
                }
            },
        })
    }
}

/// Appends a path in its original encoding. At the start of the location, or after a `/`, its
/// leading slashes become one: a `//` at the start would name a host.
fn join_path(path: &[u8], location: &mut String) {
    let slashes = path.iter().take_while(|byte| **byte == b'/').count();
    if location.is_empty() || location.ends_with('/') || slashes == 0 {
        if !location.ends_with('/') {
            location.push('/');
        }
        encode(&path[slashes..], is_path_byte, location);
    } else {
        encode(path, is_path_byte, location);
    }
}

/// Appends a query in its original encoding, with its separator.
fn join_query(query: &[u8], location: &mut String) {
    let parted = location.ends_with(['?', '&']);
    if query.is_empty() {
        if parted {
            location.pop();
        }
        return;
    }
    if !parted {
        location.push(if location.contains('?') { '&' } else { '?' });
    }
    encode(query, |byte| is_path_byte(byte) || byte == b'?', location);
}

/// Bytes that need no encoding in a path (RFC 3986 section 3.3, and `%` of existing escapes).
fn is_path_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/%".contains(&byte)
}

/// Bytes that need no encoding in a URI (RFC 3986 section 2, and `%` of existing escapes).
fn is_uri_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=%".contains(&byte)
}

fn encode(bytes: &[u8], kept: impl Fn(u8) -> bool, into: &mut String) {
    for &byte in bytes {
        if kept(byte) {
            into.push(char::from(byte));
        } else {
            into.push('%');
            for digit in [byte >> 4, byte & 15] {
                into.push(char::from(b"0123456789ABCDEF"[usize::from(digit)]));
            }
        }
    }
}

#[cfg(test)]
mod tests;
