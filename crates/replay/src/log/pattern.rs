//! An NGINX `log_format`, given as text: literals with variables between them.

use std::borrow::Cow;

use memchr::{memchr, memmem};

use super::clf::unescaped;
use super::record::{
    Kind, Record, Text, given, is_method, number, request_line, seconds, status, without_port,
};
use super::text::last_hop;
use super::time::Times;

#[derive(Clone, Debug)]
pub struct Pattern {
    opening: Vec<u8>,
    /// Each variable with the literal behind it.
    parts: Vec<(Variable, Vec<u8>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Variable {
    TimeLocal,
    TimeIso,
    Msec,
    Client,
    /// `$proxy_add_x_forwarded_for`: X-Forwarded-For with the client behind it.
    Forwarded,
    User,
    Request,
    Method,
    Uri,
    Args,
    Host,
    Status,
    Sent,
    Received,
    Duration,
    Header(String),
    Cookie(String),
    Argument(String),
    Other,
}

impl Pattern {
    /// Compiles the text: the variables and the text between them, or the whole directive as the file has it.
    pub fn new(text: &str) -> Result<Self, String> {
        let text = directive(text);
        let mut opening = String::new();
        let mut parts: Vec<(Variable, Vec<u8>)> = Vec::new();
        let mut rest = text.as_str();
        while let Some(dollar) = rest.find('$') {
            let (literal, variable) = rest.split_at(dollar);
            let name = variable[1..].strip_prefix('{').unwrap_or(&variable[1..]);
            let length = name
                .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .unwrap_or(name.len());
            if length == 0 {
                return Err(format!("`{variable}`: a variable's name is missing"));
            }
            match parts.last_mut() {
                Some((_, behind)) => behind.extend_from_slice(literal.as_bytes()),
                None => opening.push_str(literal),
            }
            let named = Variable::named(&name[..length]);
            let before = parts.last().filter(|(_, behind)| behind.is_empty());
            let is_query = matches!(&name[..length], "is_args" | "args" | "query_string");
            let is_joined = matches!(before, Some((Variable::Uri, _))) && is_query;
            // A path begins with a slash, which ends a host.
            let is_path = matches!(before, Some((Variable::Host, _))) && named == Variable::Uri;
            if before.is_some() && !is_joined && !is_path {
                return Err(format!(
                    "`${}` follows another variable at once: the end of the first is not known",
                    &name[..length]
                ));
            }
            if !is_joined {
                parts.push((named, Vec::new()));
            }
            rest = &name[length..];
            if variable.starts_with("${") {
                rest = rest.strip_prefix('}').unwrap_or(rest);
            }
        }
        if let Some((_, behind)) = parts.last_mut() {
            behind.extend_from_slice(rest.as_bytes());
        }
        let has = |wanted: &[Variable]| parts.iter().any(|(given, _)| wanted.contains(given));
        if !has(&[Variable::TimeLocal, Variable::TimeIso, Variable::Msec]) {
            return Err("it has no time: $time_local, $time_iso8601 or $msec".into());
        }
        if !has(&[Variable::Request, Variable::Method]) {
            return Err("it has no request: $request, or $request_method with $request_uri".into());
        }
        let opening = opening.into_bytes();
        Ok(Self { opening, parts })
    }

    pub(crate) fn parse<'a>(&self, line: &'a [u8], times: &Times) -> Option<Record<'a>> {
        let mut rest = line.strip_prefix(self.opening.as_slice())?;
        let mut record = Record {
            kind: Kind::LogFormat,
            ..Record::default()
        };
        let mut arguments = None;
        let mut extra = Vec::new();
        let last = self.parts.len().saturating_sub(1);
        for (place, (variable, literal)) in self.parts.iter().enumerate() {
            let end = if literal.is_empty() && place < last {
                memchr(b'/', rest)?
            } else if literal.is_empty() {
                rest.len()
            } else if place == last {
                rest.len()
                    .checked_sub(literal.len())
                    .filter(|end| rest[*end..] == **literal)?
            } else {
                variable.end(rest, literal)?
            };
            let (value, after) = rest.split_at(end);
            rest = &after[literal.len()..];
            let moment = match variable {
                Variable::TimeLocal => times.common(value).map(Some)?,
                Variable::TimeIso => times.iso(value).map(Some)?,
                Variable::Msec => Times::unix(value).map(Some)?,
                _ => None,
            };
            if let Some((at, resolution)) = moment
                && (record.resolution == 0 || resolution < record.resolution)
            {
                (record.at, record.resolution) = (at, resolution);
            }
            set(&mut record, variable, value, &mut arguments, &mut extra)?;
        }
        if !is_method(&record.method) || record.target.is_empty() {
            return None;
        }
        finish(&mut record, arguments, &extra);
        Some(record)
    }
}

/// Takes a value over; `None`: it is none of its kind.
fn set<'a>(
    record: &mut Record<'a>,
    variable: &Variable,
    value: &'a [u8],
    arguments: &mut Option<Text<'a>>,
    extra: &mut Vec<u8>,
) -> Option<()> {
    match variable {
        Variable::Client => record.client = given(value),
        Variable::Forwarded => {
            record.client = last_hop(value);
            let before = memchr::memrchr(b',', value).map_or(&[][..], |comma| &value[..comma]);
            record.header("x-forwarded-for", given(before));
        }
        Variable::User => record.user = given(value),
        Variable::Request => {
            let (method, target) = request_line(value)?;
            record.method = Cow::Borrowed(method);
            record.target = unescaped(target);
        }
        Variable::Method => record.method = Cow::Borrowed(value),
        Variable::Uri if record.target.is_empty() => record.target = unescaped(value),
        Variable::Args => *arguments = given(value),
        Variable::Host if record.host.is_none() => record.host = given(without_port(value)),
        Variable::Status => record.status = Some(status(value)?),
        Variable::Sent if record.sent.is_none() && value != b"-" => {
            record.sent = Some(number(value)?);
        }
        Variable::Received => record.received = number(value),
        Variable::Duration => record.duration = seconds(value),
        Variable::Header(name) if given(value).is_some() => {
            let name = name.clone().into_bytes();
            record.headers.push((name.into(), unescaped(value)));
        }
        Variable::Cookie(name) if given(value).is_some() => {
            let cookie = [name.as_bytes(), b"=", value].concat();
            let name = Cow::Borrowed(&b"cookie"[..]);
            record.headers.push((name, cookie.into()));
        }
        Variable::Argument(name) if given(value).is_some() => {
            extra.extend_from_slice(if extra.is_empty() { b"" } else { b"&" });
            extra.extend_from_slice(name.as_bytes());
            extra.push(b'=');
            extra.extend_from_slice(value);
        }
        _ => {}
    }
    Some(())
}

/// A query that is logged apart from its path joins it.
fn finish(record: &mut Record<'_>, arguments: Option<Text<'_>>, extra: &[u8]) {
    let query = arguments.as_deref().unwrap_or(extra);
    if !query.is_empty() && !record.target.contains(&b'?') {
        let target = [&record.target, &b"?"[..], query].concat();
        record.target = target.into();
    }
}

impl Variable {
    /// Where its value ends: before the literal that follows it, which is none between the addresses of a list.
    fn end(&self, text: &[u8], literal: &[u8]) -> Option<usize> {
        let is_list = match self {
            Self::Forwarded => true,
            Self::Header(name) => name == "x-forwarded-for" || name == "forwarded",
            _ => false,
        };
        let mut ends = memmem::find_iter(text, literal);
        ends.find(|end| !is_list || !text[..*end].ends_with(b","))
    }

    fn named(name: &str) -> Self {
        match name {
            "time_local" => Self::TimeLocal,
            "time_iso8601" => Self::TimeIso,
            "msec" => Self::Msec,
            "remote_addr" => Self::Client,
            "proxy_add_x_forwarded_for" => Self::Forwarded,
            "remote_user" => Self::User,
            "request" => Self::Request,
            "request_method" => Self::Method,
            "request_uri" | "uri" | "document_uri" => Self::Uri,
            "args" | "query_string" => Self::Args,
            "host" | "http_host" | "server_name" => Self::Host,
            "status" => Self::Status,
            "body_bytes_sent" | "bytes_sent" => Self::Sent,
            "content_length" => Self::Received,
            "request_time" => Self::Duration,
            other => {
                let dashed = |name: &str| name.replace('_', "-");
                if let Some(header) = other.strip_prefix("http_") {
                    Self::Header(dashed(header))
                } else if let Some(cookie) = other.strip_prefix("cookie_") {
                    Self::Cookie(cookie.to_owned())
                } else if let Some(argument) = other.strip_prefix("arg_") {
                    Self::Argument(argument.to_owned())
                } else {
                    Self::Other
                }
            }
        }
    }
}

/// The format within `log_format NAME [escape=..] 'a' 'b';`; other text is taken as it is. Escapes are those of NGINX.
fn directive(text: &str) -> String {
    let text = text.trim();
    let body = text.strip_prefix("log_format");
    let mut joined = String::new();
    let mut quote = None;
    let mut letters = body.unwrap_or(text).chars().peekable();
    while let Some(letter) = letters.next() {
        let is_kept = body.is_none() || quote.is_some();
        let escaped = match (letter, letters.peek()) {
            ('\\', Some('t')) => Some('\t'),
            ('\\', Some('r')) => Some('\r'),
            ('\\', Some('n')) => Some('\n'),
            ('\\', Some(next @ ('\'' | '"' | '\\'))) => Some(*next),
            _ => None,
        };
        if escaped.is_some() {
            letters.next();
        }
        match quote {
            _ if escaped.is_some() && is_kept => joined.extend(escaped),
            None if body.is_some() && matches!(letter, '\'' | '"') => quote = Some(letter),
            Some(open) if letter == open => quote = None,
            _ if is_kept => joined.push(letter),
            _ => {}
        }
    }
    joined
}
