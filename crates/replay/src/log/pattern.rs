//! An NGINX `log_format`, given as text: literals with variables between them.

use memchr::{memchr, memmem};

use super::record::{Kind, Record, is_method};
use super::role::{Draft, Role};
use super::time::Times;

#[derive(Clone, Debug)]
pub struct Pattern {
    opening: Vec<u8>,
    /// Each variable with the literal behind it.
    parts: Vec<(Role, Vec<u8>)>,
}

impl Pattern {
    /// Compiles the text: the variables and the text between them, or the whole directive as the file has it.
    pub fn new(text: &str) -> Result<Self, String> {
        let text = directive(text);
        let mut opening = String::new();
        let mut parts: Vec<(Role, Vec<u8>)> = Vec::new();
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
            let named = named(&name[..length]);
            let before = parts.last().filter(|(_, behind)| behind.is_empty());
            let is_query = matches!(&name[..length], "is_args" | "args" | "query_string");
            let is_joined = matches!(before, Some((Role::Path, _))) && is_query;
            // A path begins with a slash, which ends a host.
            let is_path = matches!(before, Some((Role::Host, _))) && named == Role::Path;
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
        let has = |wanted: &[Role]| parts.iter().any(|(given, _)| wanted.contains(given));
        if !has(&[Role::Time]) {
            return Err("it has no time: $time_local, $time_iso8601 or $msec".into());
        }
        if !has(&[Role::Request, Role::Method]) {
            return Err("it has no request: $request, or $request_method with $request_uri".into());
        }
        let opening = opening.into_bytes();
        Ok(Self { opening, parts })
    }

    pub(crate) fn parse<'a>(&self, line: &[u8], times: &Times) -> Option<Record<'a>> {
        let mut rest = line.strip_prefix(self.opening.as_slice())?;
        let mut draft = Draft::new(Kind::LogFormat);
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
                end_of(variable, rest, literal)?
            };
            let (value, after) = rest.split_at(end);
            rest = &after[literal.len()..];
            draft.take(variable, value, times)?;
        }
        let record = draft.finished();
        (is_method(&record.method) && !record.target.is_empty()).then_some(record)
    }
}

/// Where a value ends: before the literal that follows it, which is none between the addresses of a list.
fn end_of(variable: &Role, text: &[u8], literal: &[u8]) -> Option<usize> {
    let is_list = match variable {
        Role::Forwarded => true,
        Role::Header(name) => name == "x-forwarded-for" || name == "forwarded",
        _ => false,
    };
    let mut ends = memmem::find_iter(text, literal);
    ends.find(|end| !is_list || !text[..*end].ends_with(b","))
}

fn named(variable: &str) -> Role {
    match variable {
        "time_local" | "time_iso8601" | "msec" => Role::Time,
        "remote_addr" => Role::Client,
        "proxy_add_x_forwarded_for" => Role::Forwarded,
        "remote_user" => Role::User,
        "request" => Role::Request,
        "request_method" => Role::Method,
        "request_uri" | "uri" | "document_uri" => Role::Path,
        "args" | "query_string" => Role::Query,
        "host" | "http_host" | "server_name" => Role::Host,
        "status" => Role::Status,
        "body_bytes_sent" | "bytes_sent" => Role::Sent,
        "content_length" => Role::Received,
        "request_time" => Role::Duration,
        other => match other.split_once('_') {
            Some(("http", header)) => Role::Header(header.replace('_', "-")),
            Some(("cookie", cookie)) => Role::Cookie(cookie.to_owned()),
            Some(("arg", argument)) => Role::Argument(argument.to_owned()),
            _ => Role::Other,
        },
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
