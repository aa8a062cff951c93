//! Splits the head of a message into lines and headers.
//!
//! Names and values are checked by the types that they become; line ends are checked here. Values
//! are slices of the read buffer.

mod framing;
mod names;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderValue};
use http::{StatusCode, Version};

use self::names::Names;
use super::Malformed;
use super::verbatim::Kind;
pub use framing::{Framing, idle_timeout, number};

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
    /// Creates the list without any line.
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

    /// Whether nothing was read since it was reset.
    pub(crate) const fn is_unused(&self) -> bool {
        self.seen == 0
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

    /// Whether the head has no line so far.
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

/// The number of lines of most heads.
const USUAL_LINES: usize = 16;

const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Whether a byte is a control character other than a tab.
pub(crate) const fn is_control(byte: u8) -> bool {
    (byte < b' ' && byte != b'\t') || byte == 0x7f
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
    if reason.iter().copied().any(is_control) {
        return Err(Malformed::StartLine);
    }
    Ok((version, status, reason))
}

/// Writes the headers of `headers`, each with its line end.
pub fn write_fields(out: &mut Vec<u8>, headers: &HeaderMap) {
    for (name, value) in headers {
        write_header(out, name.as_str(), value.as_bytes());
    }
}

/// Writes a header with its line end.
pub fn write_header(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests;
