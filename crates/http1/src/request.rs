//! Reads the head of a request: its line, its headers, and the framing of the body (RFC 9112 3, 6, 9.3).

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, EXPECT};
use http::{HeaderMap, Method, Request, Uri, Version, request};

use crate::head::{Framing, version};
use crate::{BodyLength, Bounds, Lines, Malformed, Message};

/// The limits of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest number of bytes.
    pub bytes: usize,
    /// The largest number of headers.
    pub fields: usize,
    /// The largest number of bytes of the target.
    pub target: usize,
}

/// The reason why a head is refused. The bytes after it are never read as a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadHead {
    /// It is not HTTP, or two parties could read it differently.
    Malformed,
    /// Its version of HTTP is not supported.
    Version,
    /// It has more bytes or headers than allowed.
    TooLarge,
    /// Its target is longer than allowed.
    TargetTooLong,
}

/// A request without its body.
#[derive(Debug)]
pub struct Head {
    /// The method, the target, the version and the headers.
    pub parts: request::Parts,
    /// The length of its body.
    pub body: BodyLength,
    /// Whether the connection can be used after it, according to the client.
    pub persists: bool,
    /// Whether the client waits for a `100 Continue` before it sends the body.
    pub expects: bool,
}

/// Reads heads; each byte is scanned once, however many pieces they arrive in.
#[derive(Debug, Default)]
pub struct Reader {
    lines: Lines,
    /// The number of blank lines before the request.
    blank: u8,
    /// The position in the first line after the bytes before `looked`.
    phase: Phase,
    looked: usize,
    /// How many of those bytes belong to the target.
    target: usize,
    /// The header table for the next head.
    spare: HeaderMap,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Method,
    Target,
    Rest,
}

impl Reader {
    /// Creates a reader at the beginning of a connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the head at the beginning of `input`; `None` if it is incomplete. `input` must be that
    /// of the last call, possibly with more bytes appended.
    ///
    /// # Errors
    /// If it is refused, as soon as that is certain; `input` still begins with the refused head.
    pub fn read(&mut self, input: &mut BytesMut, limits: Limits) -> Result<Option<Head>, BadHead> {
        let bounds = Bounds {
            bytes: limits.bytes,
            lines: limits.fields.saturating_add(1),
            bare_lf: false,
        };
        let length = loop {
            match self.lines.find(input, bounds) {
                // An extra line break after a body is allowed (RFC 9112 2.2), but not many of them.
                Ok(Some(length)) if self.lines.is_empty() => {
                    if self.blank == BLANKS_MAX {
                        return Err(BadHead::Malformed);
                    }
                    self.blank += 1;
                    input.advance(length);
                    self.lines.reset();
                    (self.phase, self.looked, self.target) = (Phase::Method, 0, 0);
                }
                Ok(Some(length)) => break length,
                Ok(None) => return self.look(input, limits).map(|()| None),
                Err(error) => {
                    // The target's reason comes first, as when the head arrives in pieces.
                    self.look(input, limits)?;
                    return Err(BadHead::of(error));
                }
            }
        };
        let head = input.split_to(length).freeze();
        match self.parse(&head, limits) {
            Ok(parsed) => {
                self.lines.reset();
                (self.phase, self.looked, self.target, self.blank) = (Phase::Method, 0, 0, 0);
                Ok(Some(parsed))
            }
            Err(error) => {
                // Put its beginning back for the log of refused heads.
                input.clear();
                input.extend_from_slice(&head[..head.len().min(REMEMBERED)]);
                self.look(&head, limits).and(Err(error))
            }
        }
    }

    /// Takes an unused header table, to reuse it for the next head.
    pub fn reuse(&mut self, headers: HeaderMap) {
        // A table with very many entries is not kept, nor an empty one.
        if (1..=KEPT).contains(&headers.capacity()) {
            self.spare = headers;
            if !self.spare.is_empty() {
                self.spare.clear();
            }
        }
    }

    /// Whether it has seen nothing of the next head, nor a blank line before it.
    pub(crate) fn is_at_start(&self) -> bool {
        self.lines.is_unused() && self.looked == 0 && self.blank == 0
    }

    /// Prepares it for the heads of another connection: it keeps the spellings of names, which many
    /// clients share, and no value.
    pub(crate) fn forget_values(&mut self) {
        self.lines.names.forget_values();
    }

    fn parse(&mut self, head: &Bytes, limits: Limits) -> Result<Head, BadHead> {
        let line = self.lines.line(head, 0);
        let method = memchr::memchr(b' ', line).ok_or(BadHead::Malformed)?;
        let target =
            memchr::memchr(b' ', &line[method + 1..]).ok_or(BadHead::Malformed)? + method + 1;
        let asked = &line[method + 1..target];
        if asked.len() > limits.target {
            return Err(BadHead::TargetTooLong);
        }
        if asked.iter().any(|&byte| byte < b' ' || byte == 0x7f) {
            return Err(BadHead::Malformed);
        }
        // Filled in place, because it is large.
        let parts = Request::new(()).into_parts().0;
        let mut parsed = Head {
            parts,
            body: BodyLength::Unknown,
            persists: false,
            expects: false,
        };
        let parts = &mut parsed.parts;
        parts.method = Method::from_bytes(&line[..method]).map_err(|_| BadHead::Malformed)?;
        parts.version =
            version(&line[target + 1..]).map_err(|_| BadHead::of_version(&line[target + 1..]))?;
        let asked = head.slice(method + 1..target);
        parts.uri = self::target(asked).ok_or(BadHead::Malformed)?;
        parts.headers = std::mem::take(&mut self.spare);
        // Reserve space for the gateway's headers, so that the map does not grow.
        let headers = &mut parts.headers;
        headers
            .try_reserve(self.lines.len() - 1 + ROOM)
            .map_err(|_| BadHead::TooLarge)?;
        let says = self.lines.fields(head, 1, &mut parts.headers);
        let says = says.map_err(BadHead::of)?;
        parsed.frame(says)?;
        Ok(parsed)
    }

    /// Checks the available part of a first line: invalid input is refused at once, for the same
    /// reason however much of it has arrived.
    #[cold]
    fn look(&mut self, input: &[u8], limits: Limits) -> Result<(), BadHead> {
        // Bytes beyond the size limit do not belong to the head.
        let input = &input[..input.len().min(limits.bytes)];
        while let Some(&byte) = input.get(self.looked) {
            match (self.phase, byte) {
                (Phase::Rest, _) => break,
                (Phase::Method, b' ') if self.looked > 0 => self.phase = Phase::Target,
                (Phase::Method, byte) if is_token(byte) => {}
                (Phase::Target, b' ' | b'\r' | b'\n') => self.phase = Phase::Rest,
                (Phase::Target, byte) if byte > b' ' && byte != 0x7f => {
                    self.target += 1;
                    if self.target > limits.target {
                        return Err(BadHead::TargetTooLong);
                    }
                }
                // An empty line may come first; it is checked when it is complete.
                (Phase::Method, b'\r') if self.looked == 0 => break,
                _ => return Err(BadHead::Malformed),
            }
            self.looked += 1;
        }
        Ok(())
    }
}

/// The URI of a target. Some clients send characters raw that no URI has (`"` in JSON, `<`, `>` and a
/// backtick); they become what a browser sends for them, and a server decodes both to the same value.
pub fn target(text: Bytes) -> Option<Uri> {
    if let Ok(uri) = Uri::from_maybe_shared(text.clone()) {
        return Some(uri);
    }
    let mut encoded = BytesMut::with_capacity(text.len() + 32);
    for &byte in &text {
        match byte {
            b'"' => encoded.extend_from_slice(b"%22"),
            b'<' => encoded.extend_from_slice(b"%3C"),
            b'>' => encoded.extend_from_slice(b"%3E"),
            b'`' => encoded.extend_from_slice(b"%60"),
            byte => encoded.extend_from_slice(&[byte]),
        }
    }
    Uri::from_maybe_shared(encoded.freeze()).ok()
}

impl Head {
    /// Reads the framing of the body and the connection from the headers; skipped unless a framing
    /// header is present (`says`).
    fn frame(&mut self, says: bool) -> Result<(), BadHead> {
        let parts = &mut self.parts;
        let framing = match if says {
            Framing::of(&parts.headers)
        } else {
            Ok(Framing::default())
        } {
            Ok(framing) => framing,
            // The server refuses it with a specific response; no bytes after it are read.
            Err(Malformed::TransferEncoding) => return Ok(()),
            Err(_) => return Err(BadHead::Malformed),
        };
        let Ok(body) = BodyLength::of(Message::Request, parts.version, framing) else {
            return Ok(());
        };
        self.body = body;
        self.persists = framing.persists(parts.version);
        if body == BodyLength::Chunked && framing.length.is_some() {
            // Only the chunks count, and no bytes after them are read (RFC 9112 6.1).
            parts.headers.remove(CONTENT_LENGTH);
            self.persists = false;
        }
        self.expects = body != BodyLength::None
            && parts.version == Version::HTTP_11
            && parts
                .headers
                .get(EXPECT)
                .is_some_and(|line| line.as_bytes().eq_ignore_ascii_case(b"100-continue"));
        Ok(())
    }
}

impl BadHead {
    const fn of(error: Malformed) -> Self {
        match error {
            Malformed::TooLarge | Malformed::TooManyFields => Self::TooLarge,
            _ => Self::Malformed,
        }
    }

    fn of_version(text: &[u8]) -> Self {
        match text {
            [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
                if major.is_ascii_digit() && minor.is_ascii_digit() =>
            {
                Self::Version
            }
            _ => Self::Malformed,
        }
    }
}

const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~'
        )
}

/// The largest number of blank lines before a request.
const BLANKS_MAX: u8 = 4;
/// The number of bytes of a refused head that are kept for the log.
const REMEMBERED: usize = 2048;
/// The number of headers that the gateway adds to most requests.
const ROOM: usize = 6;
/// The largest header table that is kept for the next head.
const KEPT: usize = 48;

#[cfg(test)]
mod tests;
