//! Decodes and normalises a request path once, so that no spelling bypasses a limit. The forwarded
//! path keeps its spelling, but for the slashes that it begins with: they become one.
//!
//! Routes are matched against the *normal form*. Two spellings that an upstream may treat as the
//! same resource have one normal form. A spelling that upstreams read in different ways is
//! [`Malformed`], because under either reading some upstream would serve it past a limit.
//!
//! | in the path | becomes |
//! |---|---|
//! | `%41`, `%7e`, `%7E` | the character: `A`, `~` |
//! | `%25` | stays `%25`: nothing is ever decoded twice, and the normal form of a normal form is itself |
//! | `//`, `///` | `/` |
//! | `/./`, `/%2e/` | `/` |
//! | `/a/../`, `/a/%2E./` | `/` |
//! | a trailing `/` | dropped (`/a/` is `/a`), except in `/` itself |
//! | `;…` up to the next `/`, also `%3b` | dropped: path parameters (servlet containers drop them) |
//! | `..` above the root | malformed |
//! | `.;x`, `..;x` | malformed: a dot segment to some upstreams, a name to others |
//! | `\`, `%5c` | malformed: a separator to some upstreams, a character to others |
//! | `%2f` | `%2F`: a character of its segment; malformed beside `.`, `..` or parameters |
//! | `%2f` where it is refused | malformed, for upstreams that take it for a separator |
//! | `%00`-`%1f`, `%7f` and the bare characters | malformed |
//! | bytes that are not UTF-8 once decoded (overlong forms, lone surrogates, Latin-1) | malformed |
//! | `%` without two hex digits | malformed |
//! | no `/` at the start (but `*` of `OPTIONS *`) | malformed |
//!
//! Letters keep their case, and Unicode is not folded. An upstream that ignores case, folds Unicode
//! or decodes twice needs routes written for that.

use std::borrow::Cow;
use tollgate_limit::hex;

/// Why a request cannot be matched safely; the response is 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("the path does not start with `/`")]
    NotAbsolute,
    #[error("the path holds a `%` without two hex digits")]
    Escape,
    #[error("the path holds a backslash or an encoded slash, which upstreams read differently")]
    Separator,
    #[error("the path holds a control character")]
    Control,
    #[error("the decoded path is not UTF-8")]
    Encoding,
    #[error("the path leads above its root")]
    AboveRoot,
    #[error("the path holds a dot segment with parameters, which upstreams read differently")]
    DotParameters,
    #[error("the host is not valid")]
    Host,
    #[error("the method is not in capitals, and some upstreams ignore that")]
    Method,
    #[error("the forwarding headers name different clients, and only one can be right")]
    Client,
}

/// The normal form of `path` (without its query), with encoded slashes refused. Borrowed if the
/// path is already normal, as nearly all are.
/// It is an error if upstreams read the spelling in different ways, or none can read it.
pub fn normalise(path: &str) -> Result<Cow<'_, str>, Malformed> {
    normal_form(path, false)
}

/// Like [`normalise`], but an encoded slash is a character of its segment: no route matches it as a
/// separator. A segment that would contain `..` if the slash were a separator (`a%2f..%2fb`) is
/// still malformed.
pub fn normalise_with_slashes(path: &str) -> Result<Cow<'_, str>, Malformed> {
    normal_form(path, true)
}

/// A path as it is forwarded: its leading slashes are one. Many servers resolve the target as a
/// reference to a URL, to which `//a/login` is the path `/login` on the host `a`.
pub fn with_one_slash(path: &str) -> &str {
    let more = path.bytes().take_while(|byte| *byte == b'/').count();
    &path[more.saturating_sub(1)..]
}

fn normal_form(path: &str, keeps_slashes: bool) -> Result<Cow<'_, str>, Malformed> {
    if path == "*" {
        // `OPTIONS *` asks about the server: only routes that match everything take it.
        return Ok(Cow::Borrowed("/*"));
    }
    match path.as_bytes().first() {
        None => return Ok(Cow::Borrowed("/")),
        Some(b'/') => {}
        Some(_) => return Err(Malformed::NotAbsolute),
    }
    if is_normal(path.as_bytes()) {
        Ok(Cow::Borrowed(path))
    } else {
        rewrite(path, keeps_slashes).map(Cow::Owned)
    }
}

/// Whether `path` is certainly normal. May return false for a normal path (one with a `%25`, or a
/// segment that starts with a dot), never true for another.
fn is_normal(path: &[u8]) -> bool {
    let mut after_slash = false;
    for &byte in path {
        let plain = match byte {
            b'/' | b'.' => !after_slash,
            b'%' | b';' | b'\\' | 0..=0x1f | 0x7f => false,
            _ => true,
        };
        if !plain {
            return false;
        }
        after_slash = byte == b'/';
    }
    !after_slash || path.len() == 1
}

fn rewrite(path: &str, keeps_slashes: bool) -> Result<String, Malformed> {
    let mut normal: Vec<u8> = Vec::with_capacity(path.len());
    for segment in path.split('/') {
        let start = normal.len();
        normal.push(b'/');
        let parameters = decode(segment.as_bytes(), keeps_slashes, &mut normal)?;
        if keeps_slashes && climbs(&normal[start + 1..]) {
            return Err(Malformed::Separator);
        }
        match &normal[start + 1..] {
            b"." | b".." if parameters => return Err(Malformed::DotParameters),
            b"" | b"." => normal.truncate(start),
            b".." => {
                normal.truncate(start);
                let parent = normal
                    .iter()
                    .rposition(|&byte| byte == b'/')
                    .ok_or(Malformed::AboveRoot)?;
                normal.truncate(parent);
            }
            _ => {}
        }
    }
    if normal.is_empty() {
        normal.push(b'/');
    }
    String::from_utf8(normal).map_err(|_| Malformed::Encoding)
}

/// Appends the decoded segment up to its parameters; returns whether there were any. Parameters are
/// checked like the rest, so that they cannot hide forbidden characters.
fn decode(segment: &[u8], keeps_slashes: bool, into: &mut Vec<u8>) -> Result<bool, Malformed> {
    let mut parameters = false;
    let mut rest = segment;
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = byte == b'%';
        let (byte, after) = if escaped {
            unescape(after)?
        } else {
            (byte, after)
        };
        let literal_percent = byte == b'%';
        match byte {
            b'/' if escaped && keeps_slashes && !parameters => into.extend_from_slice(KEPT),
            b'\\' | b'/' => return Err(Malformed::Separator),
            0..=0x1f | 0x7f => return Err(Malformed::Control),
            b';' => parameters = true,
            _ if parameters => {}
            _ if literal_percent => into.extend_from_slice(b"%25"),
            _ => into.push(byte),
        }
        rest = after;
    }
    Ok(parameters)
}

/// Whether a normalised segment contains a dot segment if its kept slashes are read as separators.
fn climbs(segment: &[u8]) -> bool {
    let mut rest = segment;
    let mut kept = false;
    loop {
        let next = rest.windows(KEPT.len()).position(|three| three == KEPT);
        let piece = &rest[..next.unwrap_or(rest.len())];
        kept |= next.is_some();
        if kept && matches!(piece, b"." | b"..") {
            return true;
        }
        let Some(at) = next else { return false };
        rest = &rest[at + KEPT.len()..];
    }
}

/// A slash that is a character of its segment. A literal percent sign becomes `%25`, so no other
/// text has this form.
const KEPT: &[u8] = b"%2F";

fn unescape(after: &[u8]) -> Result<(u8, &[u8]), Malformed> {
    match after {
        [high, low, rest @ ..] => {
            let byte = hex::byte(*high, *low).ok_or(Malformed::Escape)?;
            Ok((byte, rest))
        }
        _ => Err(Malformed::Escape),
    }
}

#[cfg(test)]
mod tests;
