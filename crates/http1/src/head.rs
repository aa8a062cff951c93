//! The head of a message: where its lines end, and the fields in them.
//!
//! Names and values are checked by the types they become; what stands in no type, the ends of lines, is checked here.
//! Values are slices of the bytes that were read.

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
};
use http::{StatusCode, Version};

use super::Malformed;
use super::verbatim::Kind;

/// How much a head may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes in all.
    pub bytes: usize,
    /// Lines, the first one counted and the blank one not.
    pub lines: usize,
    /// Whether a line may end in LF alone, as a recipient may allow it (RFC 9112 2.2).
    pub bare_lf: bool,
}

/// Where the lines of a head end. Found as the bytes come, each looked at once however many pieces they come in.
#[derive(Debug, Default)]
pub struct Lines {
    /// Where the LF of each line stands.
    pub(super) ends: Vec<u32>,
    /// Bytes before this have been looked at.
    seen: usize,
    pub(super) names: Names,
}

impl Lines {
    /// None yet.
    pub const fn new() -> Self {
        Self {
            ends: Vec::new(),
            seen: 0,
            names: Names::new(),
        }
    }

    /// Forgets what was found: the next head begins. The names of the last one are remembered.
    pub fn reset(&mut self) {
        self.ends.clear();
        self.seen = 0;
    }

    /// The length of the head that `bytes` begin with, its blank line counted; `None` when it has not come whole. `bytes`
    /// are those of the last call and perhaps more.
    ///
    /// # Errors
    /// When it exceeds `bounds`, or a line ends as none may.
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

    /// How many lines were found, the blank one not counted.
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
    /// When there is no such line.
    pub fn line<'h>(&self, head: &'h [u8], index: usize) -> &'h [u8] {
        let line = &head[self.start(index)..self.ends[index] as usize];
        line.strip_suffix(b"\r").unwrap_or(line)
    }

    /// Adds the fields in the lines of `head` from the line `first` on (1 behind a start line) to `headers`; whether one of
    /// them is for [`Framing`].
    ///
    /// # Errors
    /// When a name or a value is malformed; lines that continue the one before (obs-fold) are.
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

/// The names of the last head, and the values that seldom change: over one connection nearly every head has the same in the
/// same order, and to compare is cheaper than to make and check them anew.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// As they were spelt, one behind the other.
    spelt: Vec<u8>,
    known: Vec<Known>,
    /// A head came before this one: there may be more. The only one is not worth remembering.
    pub(super) met: bool,
}

#[derive(Debug)]
struct Known {
    /// Where it ends in what was spelt.
    end: u16,
    kind: Kind,
    name: HeaderName,
    /// What it said last: a copy, which holds on to nothing that was read.
    value: Option<HeaderValue>,
    /// How often it said something else, less how often it did not.
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

    /// The name that `line`, the field number `index`, begins with, what it is, and how long. A colon follows it.
    fn of(&mut self, index: usize, line: &[u8]) -> Result<(HeaderName, Kind, usize), Malformed> {
        match self.known(index, line) {
            Some((known, colon)) => Ok((known.name.clone(), known.kind, colon)),
            None => self.learn(index, line).map(|(name, colon)| {
                let kind = Kind::of(name.as_str());
                (name, kind, colon)
            }),
        }
    }

    /// What the name is that `line`, the field number `index`, begins with, and how long it is.
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
            // At most so many names of so many bytes: it fits.
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

    /// The value `text` of the field number `index`, whose name was asked for just now, if it is one that seldom
    /// changes.
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
                // What changes more often than not is not worth its copies.
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

/// Lines of most heads.
const USUAL_LINES: usize = 16;
/// Names that are remembered, and how long each may be.
const NAMES: usize = 32;
const NAME_BYTES: usize = 40;
/// How long a value may be that is remembered.
const VALUE_BYTES: usize = 128;
/// Changes of a value after which it is remembered no more.
const CHANGES: u8 = 8;

const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// The version that `text` names (RFC 9112 2.3).
///
/// # Errors
/// When it is neither of the two that are understood.
pub fn version(text: &[u8]) -> Result<Version, Malformed> {
    match text {
        b"HTTP/1.1" => Ok(Version::HTTP_11),
        b"HTTP/1.0" => Ok(Version::HTTP_10),
        _ => Err(Malformed::Version),
    }
}

/// The parts of a status line (RFC 9112 4): version, status, reason.
///
/// # Errors
/// When it is none.
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

/// What the fields of a message say about its framing, as they stand (RFC 9112 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Framing {
    /// Transfer-Encoding is one `chunked`.
    pub chunked: bool,
    /// Content-Length.
    pub length: Option<u64>,
    /// Connection lists `close`.
    pub close: bool,
    /// Connection lists `keep-alive`.
    pub keep_alive: bool,
}

impl Framing {
    /// What `headers` say.
    ///
    /// # Errors
    /// [`Malformed::ContentLength`] when it is not one number, [`Malformed::TransferEncoding`] when that is anything but
    /// one `chunked`.
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

    /// Whether a body follows, as far as its sender says.
    pub const fn announces_body(self) -> bool {
        self.chunked || matches!(self.length, Some(1..))
    }

    /// Whether the connection outlives the message, as far as its sender says (RFC 9112 9.3).
    pub fn persists(&self, version: Version) -> bool {
        !self.close && (version >= Version::HTTP_11 || self.keep_alive)
    }
}

/// A number of digits and nothing else, that fits.
pub fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// Writes the fields of `headers`, each with its line's end.
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
