//! The head of a request: its line, its fields, and what they say of the body behind it (RFC 9112 3, 6, 9.3).

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, EXPECT};
use http::{HeaderMap, Method, Request, Uri, Version, request};

use crate::head::{Framing, version};
use crate::{BodyLength, Bounds, Lines, Malformed, Message};

/// How much a head may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in all.
    pub bytes: usize,
    /// Fields.
    pub fields: usize,
    /// Bytes of the target.
    pub target: usize,
}

/// Why a head is refused. What stands behind it is never read as a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadHead {
    /// It is no HTTP, or two parties could read it differently.
    Malformed,
    /// It names a version of HTTP that is not spoken here.
    Version,
    /// It holds more bytes or fields than it may.
    TooLarge,
    /// Its target is longer than it may be.
    TargetTooLong,
}

/// A request as far as its head tells.
#[derive(Debug)]
pub struct Head {
    /// Method, target, version, fields.
    pub parts: request::Parts,
    /// The body behind it.
    pub body: BodyLength,
    /// Whether the connection outlives it, as far as the caller says.
    pub persists: bool,
    /// Whether the caller waits to be told that it may send the body.
    pub expects: bool,
}

/// Reads heads, each byte once however many pieces they come in.
#[derive(Debug, Default)]
pub struct Reader {
    lines: Lines,
    /// Blank lines before the request.
    blank: u8,
    /// How far into its first line the bytes before `looked` have come.
    phase: Phase,
    looked: usize,
    /// Bytes of the target among them.
    target: usize,
    /// Room for the next head's fields.
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
    /// At the beginning of a connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the head that `input` begins with; `None` when it has not come whole. `input` is that of the last call, and
    /// perhaps more behind it.
    ///
    /// # Errors
    /// When it is refused, as soon as that is certain; `input` still begins with the refused head.
    pub fn read(&mut self, input: &mut BytesMut, limits: Limits) -> Result<Option<Head>, BadHead> {
        let bounds = Bounds {
            bytes: limits.bytes,
            lines: limits.fields.saturating_add(1),
            bare_lf: false,
        };
        let length = loop {
            match self.lines.find(input, bounds) {
                // A line break too many behind a body is forgiven (RFC 9112 2.2), a stream of them is not.
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
                    // Of several reasons the target's comes first, as it does when the head comes in pieces.
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
                // Its beginning is put back: the log tells what was refused.
                input.clear();
                input.extend_from_slice(&head[..head.len().min(REMEMBERED)]);
                self.look(&head, limits).and(Err(error))
            }
        }
    }

    /// Takes a table that is of no more use to another, for the next head.
    pub fn reuse(&mut self, headers: HeaderMap) {
        // One that held very many fields is not kept, nor one that never held any.
        if (1..=KEPT).contains(&headers.capacity()) {
            self.spare = headers;
            if !self.spare.is_empty() {
                self.spare.clear();
            }
        }
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
        // Filled where it stays: it is large.
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
        parts.uri = Uri::from_maybe_shared(head.slice(method + 1..target))
            .map_err(|_| BadHead::Malformed)?;
        parts.headers = std::mem::take(&mut self.spare);
        // Room for what the gateway adds, so that the map does not grow.
        parts
            .headers
            .try_reserve(self.lines.len() - 1 + ROOM)
            .map_err(|_| BadHead::TooLarge)?;
        let says = self
            .lines
            .fields(head, 1, &mut parts.headers)
            .map_err(BadHead::of)?;
        parsed.frame(says)?;
        Ok(parsed)
    }

    /// Looks at a first line as far as it has come: what can become no request is refused at once, and for the same reason
    /// however much has come.
    #[cold]
    fn look(&mut self, input: &[u8], limits: Limits) -> Result<(), BadHead> {
        // What stands beyond the bound of a head is none of it.
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
                // An empty line may come first; it is looked at when it is whole.
                (Phase::Method, b'\r') if self.looked == 0 => break,
                _ => return Err(BadHead::Malformed),
            }
            self.looked += 1;
        }
        Ok(())
    }
}

impl Head {
    /// Takes what the fields say of the body and the connection; nothing, unless one `says` something.
    fn frame(&mut self, says: bool) -> Result<(), BadHead> {
        let parts = &mut self.parts;
        let framing = match if says {
            Framing::of(&parts.headers)
        } else {
            Ok(Framing::default())
        } {
            Ok(framing) => framing,
            // Refused with its own words by whoever answers; nothing behind it is read.
            Err(Malformed::TransferEncoding) => return Ok(()),
            Err(_) => return Err(BadHead::Malformed),
        };
        let Ok(body) = BodyLength::of(Message::Request, parts.version, framing) else {
            return Ok(());
        };
        self.body = body;
        self.persists = framing.persists(parts.version);
        if body == BodyLength::Chunked && framing.length.is_some() {
            // The chunks count alone, and nothing behind them is read (RFC 9112 6.1).
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

/// RFC 9110 5.6.2.
const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

/// Blank lines before a request.
const BLANKS_MAX: u8 = 4;
/// Bytes of a refused head that the log may tell of.
const REMEMBERED: usize = 2048;
/// Fields that the gateway adds to most requests.
const ROOM: usize = 6;
/// Fields of a table that is kept for the next head.
const KEPT: usize = 48;

#[cfg(test)]
mod tests;
