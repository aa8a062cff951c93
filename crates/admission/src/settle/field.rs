//! Finds numbers in a JSON or server-sent-events body while it streams past, in constant memory.
//!
//! The last number at each path wins: an event stream repeats a member until its final value.
//! Upstreams send this input, so malformed text finds nothing and never causes an error.

use std::sync::Arc;

use smallvec::SmallVec;

use tollgate_policy::body::json::{PathSet, Paths, Reader};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// The body is JSON (or one JSON text after another).
    Json,
    /// The body is `text/event-stream`; its `data:` lines contain the JSON.
    Events,
}

impl Carrier {
    /// The format for a Content-Type; `None`: it contains no JSON.
    pub fn of(content_type: &str) -> Option<Self> {
        let kind = content_type.split(';').next().unwrap_or_default();
        let kind = kind.trim().to_ascii_lowercase();
        match kind.as_str() {
            "text/event-stream" => Some(Self::Events),
            "application/json" | "application/x-ndjson" | "application/jsonl" => Some(Self::Json),
            _ if kind.ends_with("+json") => Some(Self::Json),
            _ => None,
        }
    }
}

/// Scans a body and remembers the last number at each path of member names.
#[derive(Debug)]
pub struct FieldScanner {
    carrier: Carrier,
    /// How many bytes of a byte order mark the body has begun with; all, once that is decided.
    mark: usize,
    line: Line,
    /// The name of the line's field, or after it its text: the first [`TEXT_MAX`] bytes, and one more.
    text: SmallVec<[u8; 24]>,
    /// Whether the previous byte was a CR that ended a line: a LF belongs to the same end.
    after_cr: bool,
    /// The names of events that end a stream, beside `data: [DONE]`.
    last_events: &'static [&'static str],
    /// The name of the event that is being read.
    event: SmallVec<[u8; 24]>,
    /// Whether the event that ends the stream has arrived.
    done: bool,
    json: Reader,
}

/// The position of the scanner in a line of an event stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// In the name of its field, or in a line of another field.
    Name,
    Data,
    Event,
}

impl FieldScanner {
    /// A scanner for the numbers at `paths`. `data: [DONE]` or one of these events ends a stream.
    pub fn new(carrier: Carrier, paths: &Arc<Paths>, last_events: &'static [&'static str]) -> Self {
        Self {
            carrier,
            mark: 0,
            last_events,
            event: SmallVec::new(),
            line: Line::Name,
            text: SmallVec::new(),
            after_cr: false,
            done: false,
            json: Reader::response(paths),
        }
    }

    /// The same scanner, which also keeps the last text at each of these paths.
    #[must_use]
    pub fn with_texts(self, texts: PathSet) -> Self {
        Self {
            json: self.json.with_texts(texts),
            ..self
        }
    }

    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.json.texts()
    }

    /// Scans the next piece of the body. A byte order mark at its beginning is no part of the text
    /// (HTML 9.2.6, RFC 8259 8.1).
    pub fn feed(&mut self, piece: &[u8]) {
        let mut rest = piece;
        while let (Some(expected), Some((byte, after))) = (MARK.get(self.mark), rest.split_first())
        {
            if byte != expected {
                let begun = std::mem::replace(&mut self.mark, MARK.len());
                self.scan(&MARK[..begun]);
                break;
            }
            self.mark += 1;
            rest = after;
        }
        self.scan(rest);
    }

    fn scan(&mut self, piece: &[u8]) {
        match self.carrier {
            Carrier::Json => self.json.feed(piece),
            Carrier::Events => {
                let mut rest = piece;
                while !rest.is_empty() {
                    let end = memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
                    let (part, after) = rest.split_at(end);
                    self.feed_line(part);
                    rest = after;
                    if let Some((&byte, after)) = after.split_first() {
                        self.end_line(byte);
                        rest = after;
                    }
                }
            }
        }
    }

    /// Whether the last event of a stream has arrived, where many clients disconnect.
    pub fn is_done(&self) -> bool {
        self.done
    }

    pub fn is_stream(&self) -> bool {
        self.carrier == Carrier::Events
    }

    /// The last number at each path, to be called when the body has ended; none where one of them
    /// is there and is no number: then the others are not the whole cost.
    pub fn finish(self) -> SmallVec<[Option<u64>; 2]> {
        let unreadable = self.json.is_unreadable();
        let mut numbers = self.json.numbers();
        if unreadable {
            numbers.fill(None);
        }
        numbers
    }

    /// Reads a part of a line.
    fn feed_line(&mut self, part: &[u8]) {
        let mut rest = part;
        while self.line == Line::Name
            && let Some((byte, after)) = rest.split_first()
        {
            rest = after;
            self.keep(std::slice::from_ref(byte));
            self.line = match &self.text[..] {
                b"data:" => Line::Data,
                b"event:" => Line::Event,
                _ => continue,
            };
            self.text.clear();
        }
        if self.line == Line::Data {
            self.json.feed(rest);
        }
        self.keep(rest);
        self.after_cr &= part.is_empty();
    }

    fn keep(&mut self, part: &[u8]) {
        let room = (TEXT_MAX + 1).saturating_sub(self.text.len());
        self.text.extend_from_slice(&part[..room.min(part.len())]);
    }

    /// Ends a line by one of the bytes of its end.
    fn end_line(&mut self, byte: u8) {
        if std::mem::replace(&mut self.after_cr, byte == b'\r') && byte == b'\n' {
            return;
        }
        if self.line == Line::Name && self.text.is_empty() {
            // A blank line ends the event, and discards its unfinished JSON.
            self.json.restart();
            // Its name may stand before its numbers: only here it is complete.
            let mut last = self.last_events.iter();
            self.done |= last.any(|last| *last.as_bytes() == self.event[..]);
            self.event.clear();
            return;
        }
        // One space after the colon does not belong to the text.
        let text = self.text.strip_prefix(b" ").unwrap_or(&self.text);
        match self.line {
            Line::Name => {}
            Line::Data => self.done |= text == DONE,
            Line::Event => self.event = text.into(),
        }
        // The data lines of an event are joined by line feeds.
        self.json.feed(b"\n");
        self.line = Line::Name;
        self.text.clear();
    }
}

/// The bytes of a line's text that are compared: longer than the name of any event.
const TEXT_MAX: usize = 64;
/// The byte order mark in UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";
/// The text of the event that ends a stream.
const DONE: &[u8] = b"[DONE]";

#[cfg(test)]
mod tests;
