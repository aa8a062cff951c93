//! Common and combined logs, with or without a virtual host in front and with any tail; Traefik's among them.

use std::borrow::Cow;
use std::net::IpAddr;

use memchr::{memchr, memchr2};

use super::prefix;
use super::record::{Kind, Record, given, number, request_line, seconds, status, without_port};
use super::time::Times;
use tollgate_limit::hex;

/// Reads one line; `None`: it is none, or has no request.
pub(crate) fn parse<'a>(line: &'a [u8], times: &Times) -> Option<Record<'a>> {
    let open = memchr(b'[', line)?;
    // An IPv6 address in brackets may stand in front of the time.
    let open = if line.get(open + 27) == Some(&b']') {
        open
    } else {
        memchr::memmem::find(&line[open + 1..], b" [")? + open + 2
    };
    let stamp = line.get(open + 1..open + 27)?;
    if line.get(open + 27..open + 30) != Some(b"] \"") {
        return None;
    }
    let (at, resolution) = times.common(stamp)?;
    let [host, client, user] = front(&line[..open])?;
    let (request, rest) = quoted(&line[open + 29..])?;
    let (method, target) = request_line(request)?;
    let mut record = Record {
        kind: Kind::Combined,
        at,
        resolution,
        client: given(client),
        user: given(user),
        method: Cow::Borrowed(method),
        target: unescaped(target),
        host: given(host).map(|_| Cow::Borrowed(without_port(host))),
        ..Record::default()
    };
    let (code, rest) = token(rest)?;
    record.status = Some(status(code)?);
    let (sent, rest) = token(rest)?;
    if sent != b"-" {
        record.sent = Some(number(sent)?);
    }
    tail(&mut record, rest);
    Some(record)
}

/// The words before the time: `[HOST[:PORT]] CLIENT IDENT USER`. A user may hold blanks. Behind a host, the ident must
/// be the `-` that it hardly ever is not: words of another kind are taken for no client.
fn front(text: &[u8]) -> Option<[&[u8]; 3]> {
    let text = text.trim_ascii();
    let (first, rest) = token(text)?;
    let (second, rest) = token(rest)?;
    let rest = rest.trim_ascii_start();
    let Some(space) = memchr(b' ', rest) else {
        // No user is called by an address, and no ident is a bar: such words are a prefix, and the client's line follows.
        let is_user = std::str::from_utf8(rest).is_ok_and(|user| user.parse::<IpAddr>().is_err());
        return (!rest.is_empty() && is_user && second != b"|").then_some([&[][..], first, rest]);
    };
    // In `client ident user` the second word is hardly ever anything but `-`.
    if second == b"-" {
        return Some([&[][..], first, rest]);
    }
    let is_host = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-:[]".contains(byte);
    (rest[..space] == *b"-" && first.iter().all(is_host) && !prefix::is_time(first)).then(|| {
        let user = rest[space..].trim_ascii();
        [first, second, user]
    })
}

/// Referer, agent, and what some servers put behind.
fn tail<'a>(record: &mut Record<'a>, mut rest: &'a [u8]) {
    for name in ["referer", "user-agent"] {
        let Some((value, after)) = quoted(rest.trim_ascii_start()) else {
            break;
        };
        record.header(name, given(value));
        rest = after;
    }
    behind(record, rest);
}

/// `$request_time` of NGINX has a point; Apache's `%D` and `%T` have none, and are a stamp's that marks the start.
fn behind(record: &mut Record<'_>, rest: &[u8]) {
    let rest = rest.trim_ascii();
    if rest.is_empty() {
        return;
    }
    if let Some(millis) = rest.strip_suffix(b"ms")
        && let Some(space) = memchr::memrchr(b' ', millis)
        && let Some(millis) = number(&millis[space + 1..])
    {
        record.kind = Kind::TraefikClf;
        record.duration = millis.checked_mul(1_000);
        return;
    }
    let mut rest = rest;
    while let Some((word, after)) = word(rest) {
        rest = after;
        if memchr(b'.', word).is_some()
            && let Some(duration) = seconds(word)
        {
            record.duration = Some(duration);
            return;
        }
    }
}

/// The next word, or the text in the next quotes.
fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = text.trim_ascii_start();
    if text.is_empty() {
        None
    } else {
        quoted(text).or_else(|| token(text))
    }
}

/// The next word of a line, and what follows its blank.
#[inline]
pub(crate) fn token(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = match text.first() {
        Some(b' ' | b'\t') => text.trim_ascii_start(),
        _ => text,
    };
    if text.is_empty() {
        return None;
    }
    let end = memchr2(b' ', b'\t', text).unwrap_or(text.len());
    Some((&text[..end], text.get(end + 1..).unwrap_or_default()))
}

/// The next words of a line, and what follows them.
pub(crate) fn tokens<const N: usize>(text: &[u8]) -> Option<([&[u8]; N], &[u8])> {
    let (mut words, mut rest) = ([&[][..]; N], text);
    for word in &mut words {
        (*word, rest) = token(rest)?;
    }
    Some((words, rest))
}

/// The text in the quotes that `text` begins with, including escapes, and the rest after them.
#[inline]
pub(crate) fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let inside = text.strip_prefix(b"\"")?;
    let mut from = 0;
    loop {
        let at = from + memchr(b'"', &inside[from..])?;
        let backslashes = inside[..at]
            .iter()
            .rev()
            .take_while(|byte| **byte == b'\\')
            .count();
        if backslashes.is_multiple_of(2) {
            return Some((&inside[..at], &inside[at + 1..]));
        }
        from = at + 1;
    }
}

/// Undoes `\xHH`, `\"` and `\\` of NGINX and Apache.
pub(crate) fn unescaped(text: &[u8]) -> Cow<'_, [u8]> {
    let Some(first) = memchr(b'\\', text) else {
        return Cow::Borrowed(text);
    };
    let mut bytes = text[..first].to_vec();
    let mut rest = &text[first..];
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match after {
            [b'x', high, low, more @ ..] => match hex::byte(*high, *low) {
                Some(value) => {
                    bytes.push(value);
                    rest = more;
                }
                None => bytes.push(b'\\'),
            },
            [escaped @ (b'"' | b'\\'), more @ ..] => {
                bytes.push(*escaped);
                rest = more;
            }
            _ => bytes.push(b'\\'),
        }
    }
    Cow::Owned(bytes)
}
