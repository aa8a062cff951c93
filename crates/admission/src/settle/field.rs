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
    /// Whether the previous byte was a CR that ended a line: a LF belongs to the same end.
    after_cr: bool,
    /// The names of events that end a stream, beside `data: [DONE]`.
    last_events: &'static [&'static str],
    /// The name of the event that is being read, as far as it can be one of them.
    event: SmallVec<[u8; 24]>,
    /// Whether the event that ends the stream has arrived.
    done: bool,
    json: Reader,
}

/// The position of the scanner in a line of an event stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// This many bytes of `data:` have matched.
    Start(u8),
    /// In a `data:` line that matches this many bytes of [`DONE`]; `None`: it has other text.
    Data(Option<u8>),
    /// This many bytes of `event:` have matched.
    EventStart(u8),
    Event,
    Other,
}

impl FieldScanner {
    /// A scanner for the numbers at `paths`. `data: [DONE]` or one of these events ends a stream.
    pub fn new(carrier: Carrier, paths: &Arc<Paths>, last_events: &'static [&'static str]) -> Self {
        Self {
            carrier,
            mark: 0,
            last_events,
            event: SmallVec::new(),
            line: Line::Start(0),
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
                while let Some((&byte, after)) = rest.split_first() {
                    rest = if self.line == Line::Data(None) {
                        let end = memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
                        let (run, after) = rest.split_at(end);
                        self.json.feed(run);
                        match after.split_first() {
                            Some((&byte, after)) => {
                                self.feed_event(byte);
                                after
                            }
                            None => after,
                        }
                    } else {
                        self.feed_event(byte);
                        after
                    };
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

    fn feed_event(&mut self, byte: u8) {
        const DATA: &[u8] = b"data:";
        const EVENT: &[u8] = b"event:";
        let after_cr = std::mem::replace(&mut self.after_cr, byte == b'\r');
        match (self.line, byte) {
            (_, b'\n') if after_cr => {}
            // A blank line ends the event, and discards its unfinished JSON.
            (Line::Start(0), b'\n' | b'\r') => {
                self.json.restart();
                // Its name may stand before its numbers: only here it is complete.
                self.done |= self.is_last_event();
                self.event.clear();
            }
            (line, b'\n' | b'\r') => {
                self.done |= line == Line::Data(Some(DONE_LENGTH));
                // The data lines of an event are joined by line feeds.
                self.json.feed(b"\n");
                self.line = Line::Start(0);
            }
            (Line::Start(matched), byte) if DATA[usize::from(matched)] == byte => {
                let matched = matched + 1;
                self.line = if usize::from(matched) == DATA.len() {
                    Line::Data(Some(0))
                } else {
                    Line::Start(matched)
                };
            }
            (Line::Start(0), b'e') if !self.last_events.is_empty() => {
                self.event.clear();
                self.line = Line::EventStart(1);
            }
            (Line::EventStart(matched), byte) if EVENT[usize::from(matched)] == byte => {
                let matched = matched + 1;
                self.line = if usize::from(matched) == EVENT.len() {
                    Line::Event
                } else {
                    Line::EventStart(matched)
                };
            }
            // A longer name is none of them: one byte too many is kept.
            (Line::Event, byte) if self.event.len() <= NAME_MAX => self.event.push(byte),
            (Line::Start(_) | Line::EventStart(_), _) => self.line = Line::Other,
            (Line::Data(said), byte) => {
                self.line = Line::Data(match said {
                    // One space after the colon does not belong to the text.
                    Some(0) if byte == b' ' => Some(0),
                    Some(at) if DONE.get(usize::from(at)) == Some(&byte) => Some(at + 1),
                    _ => None,
                });
                self.json.feed(&[byte]);
            }
            (Line::Event | Line::Other, _) => {}
        }
    }

    /// Whether the event that is being read ends the stream.
    fn is_last_event(&self) -> bool {
        // One space after the colon does not belong to the name.
        let name = self.event.strip_prefix(b" ").unwrap_or(&self.event);
        self.last_events.iter().any(|last| last.as_bytes() == name)
    }
}

/// The bytes of an event's name that are kept, with the space before it.
const NAME_MAX: usize = 64;
/// The byte order mark in UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";
/// The text of the event that ends a stream.
const DONE: &[u8] = b"[DONE]";
const DONE_LENGTH: u8 = 6;

#[cfg(test)]
mod tests;
