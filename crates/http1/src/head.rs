//! Splits the head of a message into lines and headers.
//!
//! Names and values are checked by the types that they become; line ends are checked here. Values
//! are slices of the read buffer.

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
};
use http::{StatusCode, Version};

use super::Malformed;
use super::verbatim::Kind;

/// The limits of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The largest number of bytes.
    pub bytes: usize,
    /// The largest number of lines, including the first and excluding the blank one.
    pub lines: usize,
    /// Whether a line may end in LF alone, which RFC 9112 2.2 allows a recipient to accept.
    pub bare_lf: bool,
}

/// The line ends of a head. Each byte is scanned once, however many pieces they arrive in.
#[derive(Debug, Default)]
pub struct Lines {
    /// The position of the LF of each line.
    pub(super) ends: Vec<u32>,
    /// The number of bytes that have been scanned.
    seen: usize,
    pub(super) names: Names,
}

impl Lines {
    /// Creates it without lines.
    pub const fn new() -> Self {
        Self {
            ends: Vec::new(),
            seen: 0,
            names: Names::new(),
        }
    }

    /// Resets it for the next head. The names of the last head are remembered.
    pub fn reset(&mut self) {
        self.ends.clear();
        self.seen = 0;
    }

    /// Returns the length of the head at the beginning of `bytes`, including its blank line; `None`
    /// if it is incomplete. `bytes` must be those of the last call, possibly with more appended.
    ///
    /// # Errors
    /// If it exceeds `bounds`, or if a line end is invalid.
    pub fn find(&mut self, bytes: &[u8], bounds: Bounds) -> Result<Option<usize>, Malformed> {
        while let Some(offset) = memchr::memchr(b'\n', &bytes[self.seen..]) {
            let end = self.seen + offset;
            if end >= bounds.bytes {
                return Err(Malformed::TooLarge);
            }
            let start = self.start(self.ends.len());
            let returned = end > start && bytes[end - 1] == b'\r';
            if !returned && !bounds.bare_lf {
                return Err(Malformed::LineEnd);
            }
            self.seen = end + 1;
            if end - usize::from(returned) == start {
                return Ok(Some(end + 1));
            }
            if self.ends.len() >= bounds.lines {
                return Err(Malformed::TooManyFields);
            }
            if self.ends.capacity() == 0 {
                self.ends.reserve(USUAL_LINES);
            }
            self.ends
                .push(u32::try_from(end).map_err(|_| Malformed::TooLarge)?);
        }
        self.seen = bytes.len();
        if bytes.len() >= bounds.bytes {
            Err(Malformed::TooLarge)
        } else {
            Ok(None)
        }
    }

    /// The number of lines, without the blank one.
    pub const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The line `index` of `head`, without its end.
    ///
    /// # Panics
    /// If there is no such line.
    pub fn line<'h>(&self, head: &'h [u8], index: usize) -> &'h [u8] {
        let line = &head[self.start(index)..self.ends[index] as usize];
        line.strip_suffix(b"\r").unwrap_or(line)
    }

    /// Adds the headers in the lines of `head` from the line `first` on (1 after a start line) to
    /// `headers`; returns whether one of them belongs to [`Framing`].
    ///
    /// # Errors
    /// If a name or a value is malformed, or a line continues the one before (obs-fold).
    pub fn fields(
        &mut self,
        head: &Bytes,
        first: usize,
        headers: &mut HeaderMap,
    ) -> Result<bool, Malformed> {
        let mut framed = false;
        headers
            .try_reserve(self.len().saturating_sub(first))
            .map_err(|_| Malformed::TooManyFields)?;
        for index in first..self.len() {
            let start = self.start(index);
            let line = &head[start..self.ends[index] as usize];
            let (name, kind, colon) = self.names.of(index - first, line)?;
            framed |= matches!(
                kind,
                Kind::Connection | Kind::ContentLength | Kind::TransferEncoding
            );
            let (mut from, mut to) = (colon + 1, line.len() - usize::from(line.ends_with(b"\r")));
            while from < to && is_blank(line[from]) {
                from += 1;
            }
            while to > from && is_blank(line[to - 1]) {
                to -= 1;
            }
            let value = match self.names.value(index - first, &line[from..to]) {
                Some(known) => known,
                None => HeaderValue::from_maybe_shared(head.slice(start + from..start + to))
                    .map_err(|_| Malformed::FieldValue)?,
            };
            headers
                .try_append(name, value)
                .map_err(|_| Malformed::TooManyFields)?;
        }
        self.names.met = true;
        Ok(framed)
    }

    fn start(&self, index: usize) -> usize {
        match index.checked_sub(1) {
            Some(before) => self.ends[before] as usize + 1,
            None => 0,
        }
    }
}

/// The names of the last head, and the values that seldom change: on one connection nearly every
/// head has the same ones in the same order, and comparing is cheaper than parsing them again.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Their spellings, concatenated.
    spelt: Vec<u8>,
    known: Vec<Known>,
    /// Whether a head came before this one, so that more may follow. A single head is not worth
    /// remembering.
    pub(super) met: bool,
}

#[derive(Debug)]
struct Known {
    /// The end of its spelling.
    end: u16,
    kind: Kind,
    name: HeaderName,
    /// Its last value: a copy, which does not keep a read buffer alive.
    value: Option<HeaderValue>,
    /// Saturating score: +2 when the value changes, -1 when it repeats.
    changes: u8,
}

impl Names {
    const fn new() -> Self {
        Self {
            spelt: Vec::new(),
            known: Vec::new(),
            met: false,
        }
    }

    /// The name at the beginning of `line`, header number `index`, with its kind and length. A
    /// colon follows it.
    fn of(&mut self, index: usize, line: &[u8]) -> Result<(HeaderName, Kind, usize), Malformed> {
        match self.known(index, line) {
            Some((known, colon)) => Ok((known.name.clone(), known.kind, colon)),
            None => self.learn(index, line).map(|(name, colon)| {
                let kind = Kind::of(name.as_str());
                (name, kind, colon)
            }),
        }
    }

    /// The kind and length of the name at the beginning of `line`, header number `index`.
    pub(super) fn kind(&mut self, index: usize, line: &[u8]) -> Result<(Kind, usize), Malformed> {
        match self.known(index, line) {
            Some((known, colon)) => Ok((known.kind, colon)),
            None => self
                .learn(index, line)
                .map(|(name, colon)| (Kind::of(name.as_str()), colon)),
        }
    }

    fn known(&self, index: usize, line: &[u8]) -> Option<(&Known, usize)> {
        let known = self.known.get(index)?;
        let spelt = &self.spelt[self.start(index)..usize::from(known.end)];
        (line.get(spelt.len()) == Some(&b':') && line.starts_with(spelt))
            .then_some((known, spelt.len()))
    }

    #[inline(never)]
    fn learn(&mut self, index: usize, line: &[u8]) -> Result<(HeaderName, usize), Malformed> {
        let colon = line
            .iter()
            .position(|&byte| byte == b':')
            .ok_or(Malformed::FieldName)?;
        let name = HeaderName::from_bytes(&line[..colon]).map_err(|_| Malformed::FieldName)?;
        if self.met && index <= self.known.len() && index < NAMES && colon <= NAME_BYTES {
            self.spelt.truncate(self.start(index));
            self.known.truncate(index);
            self.spelt.extend_from_slice(&line[..colon]);
            // It fits, because the number and length of names are bounded.
            let end = u16::try_from(self.spelt.len()).unwrap_or(u16::MAX);
            let kind = Kind::of(name.as_str());
            self.known.push(Known {
                end,
                kind,
                name: name.clone(),
                value: None,
                changes: 0,
            });
        }
        Ok((name, colon))
    }

    /// The value `text` of header number `index`, whose name was just looked up, if it is one that
    /// seldom changes.
    fn value(&mut self, index: usize, text: &[u8]) -> Option<HeaderValue> {
        let known = self.known.get_mut(index)?;
        if known.changes > CHANGES {
            return None;
        }
        match &known.value {
            Some(value) if value.as_bytes() == text => {
                known.changes = known.changes.saturating_sub(1)
            }
            value => {
                // A value that changes more often than not is not worth copying.
                known.changes += u8::from(value.is_some()) * 2;
                let worth = known.changes <= CHANGES && text.len() <= VALUE_BYTES;
                known.value = if worth {
                    HeaderValue::from_bytes(text).ok()
                } else {
                    None
                };
            }
        }
        known.value.clone()
    }

    fn start(&self, index: usize) -> usize {
        index
            .checked_sub(1)
            .map_or(0, |before| usize::from(self.known[before].end))
    }
}

/// The number of lines of most heads.
const USUAL_LINES: usize = 16;
/// The number of remembered names, and their largest length.
const NAMES: usize = 32;
const NAME_BYTES: usize = 40;
/// The largest length of a remembered value.
const VALUE_BYTES: usize = 128;
/// The score from which a value is no longer remembered.
const CHANGES: u8 = 8;

const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Parses the HTTP version `text` (RFC 9112 2.3).
///
/// # Errors
/// If it is neither of the two supported versions.
pub fn version(text: &[u8]) -> Result<Version, Malformed> {
    match text {
        b"HTTP/1.1" => Ok(Version::HTTP_11),
        b"HTTP/1.0" => Ok(Version::HTTP_10),
        _ => Err(Malformed::Version),
    }
}

/// Parses a status line (RFC 9112 4) into version, status and reason.
///
/// # Errors
/// If it is invalid.
pub fn status_line(line: &[u8]) -> Result<(Version, StatusCode, &[u8]), Malformed> {
    let Some((start, rest)) = line.split_at_checked(8) else {
        return Err(Malformed::StartLine);
    };
    let version = version(start).map_err(|error| {
        if start.starts_with(b"HTTP/") {
            error
        } else {
            Malformed::StartLine
        }
    })?;
    let Some(([b' ', code @ ..], rest)) = rest.split_at_checked(4) else {
        return Err(Malformed::StartLine);
    };
    let status = StatusCode::from_bytes(code).map_err(|_| Malformed::StartLine)?;
    let reason = match rest {
        [] => rest,
        [b' ', reason @ ..] => reason,
        _ => return Err(Malformed::StartLine),
    };
    if reason
        .iter()
        .any(|&byte| (byte < b' ' && byte != b'\t') || byte == 0x7f)
    {
        return Err(Malformed::StartLine);
    }
    Ok((version, status, reason))
}

/// The framing that the headers of a message announce (RFC 9112 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Framing {
    /// Whether Transfer-Encoding is exactly one `chunked`.
    pub chunked: bool,
    /// Content-Length.
    pub length: Option<u64>,
    /// Whether Connection lists `close`.
    pub close: bool,
    /// Whether Connection lists `keep-alive`.
    pub keep_alive: bool,
}

impl Framing {
    /// Reads the framing from `headers`.
    ///
    /// # Errors
    /// [`Malformed::ContentLength`] if it is not one number, [`Malformed::TransferEncoding`] if it
    /// is not exactly one `chunked`.
    pub fn of(headers: &HeaderMap) -> Result<Self, Malformed> {
        let mut framing = Self::default();
        let (mut lengths, mut codings) = (0, 0);
        for (name, value) in headers {
            if *name == CONTENT_LENGTH {
                lengths += 1;
                framing.length = Some(number(value.as_bytes()).ok_or(Malformed::ContentLength)?);
            } else if *name == TRANSFER_ENCODING {
                codings += 1;
                framing.chunked = value.as_bytes().eq_ignore_ascii_case(b"chunked");
            } else if *name == CONNECTION {
                for token in value
                    .as_bytes()
                    .split(|&byte| byte == b',')
                    .map(<[u8]>::trim_ascii)
                {
                    framing.close |= token.eq_ignore_ascii_case(b"close");
                    framing.keep_alive |= token.eq_ignore_ascii_case(b"keep-alive");
                }
            }
        }
        if codings > 1 || (codings == 1 && !framing.chunked) {
            return Err(Malformed::TransferEncoding);
        }
        if lengths > 1 {
            return Err(Malformed::ContentLength);
        }
        Ok(framing)
    }

    /// Whether the headers announce a body.
    pub const fn announces_body(self) -> bool {
        self.chunked || matches!(self.length, Some(1..))
    }

    /// Whether the connection can be used after the message, according to its sender (RFC 9112
    /// 9.3).
    pub fn persists(&self, version: Version) -> bool {
        !self.close && (version >= Version::HTTP_11 || self.keep_alive)
    }
}

/// Parses a number that consists only of digits, if it fits.
pub fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// Writes the headers of `headers`, each with its line end.
pub fn write_fields(out: &mut Vec<u8>, headers: &HeaderMap) {
    for (name, value) in headers {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests;
