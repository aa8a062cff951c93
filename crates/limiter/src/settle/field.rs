//! Finds numbers in a JSON or server-sent-events body while it streams past, in constant memory.
//!
//! The last number at each path wins: an event stream repeats a member until its final value.
//! Upstreams send this input, so malformed text finds nothing and never causes an error.

use std::sync::Arc;

use smallvec::SmallVec;

use tollgate_policy::json::{PathSet, Paths, Reader};

/// The format in which a body contains its JSON.
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
        let kind = content_type
            .split(';')
            .next()
            .unwrap_or_default()
            .trim()
            .to_ascii_lowercase();
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
    line: Line,
    /// Whether the previous byte was a CR that ended a line; a LF directly after it belongs to the
    /// same line end.
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
    /// In an `event:` line.
    Event,
    /// In any other line.
    Other,
}

impl FieldScanner {
    /// A scanner for the numbers at `paths`. A stream ends with `data: [DONE]` or with one of these
    /// events.
    pub fn new(carrier: Carrier, paths: &Arc<Paths>, last_events: &'static [&'static str]) -> Self {
        Self {
            carrier,
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

    /// The last text at each of these paths.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.json.texts()
    }

    /// Scans the next piece of the body.
    pub fn feed(&mut self, piece: &[u8]) {
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

    /// Whether the event that ends a stream has arrived: the cost is final, and many clients
    /// disconnect there.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Whether the body is an event stream.
    pub fn is_stream(&self) -> bool {
        self.carrier == Carrier::Events
    }

    /// The last number at each path; to be called when the body has ended.
    pub fn finish(self) -> SmallVec<[Option<u64>; 2]> {
        self.json.numbers()
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
/// The text of the event that ends a stream.
const DONE: &[u8] = b"[DONE]";
const DONE_LENGTH: u8 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    fn path(names: &str) -> Arc<Paths> {
        let path: Vec<String> = names.split('.').map(str::to_owned).collect();
        let mut paths = Paths::default();
        paths.add(&path).expect("room for one");
        Arc::new(paths)
    }

    /// The number found, whichever way the body is cut into pieces.
    fn scan(carrier: Carrier, names: &str, body: &str) -> Option<u64> {
        let whole = {
            let mut scanner = FieldScanner::new(carrier, &path(names), &[]);
            scanner.feed(body.as_bytes());
            scanner.finish()[0]
        };
        for cut in 0..body.len() {
            let mut scanner = FieldScanner::new(carrier, &path(names), &[]);
            scanner.feed(&body.as_bytes()[..cut]);
            scanner.feed(&body.as_bytes()[cut..]);
            assert_eq!(scanner.finish()[0], whole, "cut at {cut}");
        }
        whole
    }

    fn json(names: &str, body: &str) -> Option<u64> {
        scan(Carrier::Json, names, body)
    }

    #[test]
    fn a_number_is_found_at_its_path_and_nowhere_else() {
        assert_eq!(
            json(
                "usage.total_tokens",
                r#"{"id":"x","usage":{"prompt":3,"total_tokens":41}}"#
            ),
            Some(41)
        );
        assert_eq!(
            json(
                "usage.total_tokens",
                r#"{ "usage" : { "total_tokens" : 7 } , "z" : 9 }"#
            ),
            Some(7)
        );
        assert_eq!(
            json(
                "usage.total_tokens",
                r#"{"total_tokens":5,"usage":{"other":{"total_tokens":6}}}"#
            ),
            None
        );
        assert_eq!(
            json(
                "usage.total_tokens",
                r#"{"other":{"usage":{"total_tokens":6}}}"#
            ),
            None
        );
        assert_eq!(json("a.b", r#"{"a":1,"c":{"b":2}}"#), None);
        assert_eq!(
            json("a.b", r#"{"a":[{"b":2}]}"#),
            None,
            "a path leads through objects only"
        );
        assert_eq!(json("a", r#"[{"a":2}]"#), None);
        assert_eq!(json("n", r#"{"n":12}"#), Some(12));
    }

    #[test]
    fn names_and_braces_inside_strings_do_not_mislead() {
        assert_eq!(json("n", r#"{"text":"\"n\":1,{\"n\":2}","n":3}"#), Some(3));
        assert_eq!(json("n", r#"{"text":"n","m":4}"#), None);
        assert_eq!(json("n", r#"{"m":"n","x":[1,2,{"n":5}]}"#), None);
        assert_eq!(json("n", r#"{"m":"\\","n":6}"#), Some(6));
        assert_eq!(json("n", r#"{"m":"n" ,"n":8}"#), Some(8));
    }

    #[test]
    fn only_numbers_count_and_fractions_round_up() {
        assert_eq!(json("n", r#"{"n":"12"}"#), None);
        assert_eq!(json("n", r#"{"n":null,"m":1}"#), None);
        assert_eq!(json("n", r#"{"n":-4}"#), None);
        assert_eq!(json("n", r#"{"n":2.5}"#), Some(3));
        assert_eq!(json("n", r#"{"n":2.0}"#), Some(2));
        assert_eq!(json("n", r#"{"n":1e3}"#), None);
        assert_eq!(
            json("n", r#"{"n":99999999999999999999999}"#),
            Some(u64::MAX),
            "it saturates"
        );
        assert_eq!(json("n", r#"{"n":1,"n":2}"#), Some(2), "the last one wins");
    }

    #[test]
    fn malformed_text_finds_nothing_and_breaks_nothing() {
        for body in [
            "",
            "}",
            "]]]]{",
            "{\"n\":",
            "\"",
            "{\"n\"",
            "{\"n\" 5}",
            ":::5",
            "{\"n\":}",
            "\\",
            "{\"n\":tru",
        ] {
            assert_eq!(json("n", body), None, "{body}");
        }
        assert_eq!(
            json(
                "n",
                &format!("{}{}", "[".repeat(100_000 / 100), r#"{"n":1}"#)
            ),
            None
        );
    }

    #[test]
    fn an_event_stream_is_read_from_its_data_lines() {
        let events = |names: &str, body: &str| scan(Carrier::Events, names, body);
        let body = "event: a\ndata: {\"usage\":null}\n\n: {\"usage\":{\"t\":1}}\n\ndata: {\"usage\":{\"t\":17}}\r\n\r\ndata: [DONE]\n\n";
        assert_eq!(events("usage.t", body), Some(17));
        assert_eq!(
            events("n", "data: {\"n\":\ndata: 5}\n\n"),
            Some(5),
            "an event's lines are one text"
        );
        assert_eq!(
            events("n", "data: {\"m\":{\n\ndata: {\"n\":4}\n\n"),
            Some(4),
            "a broken event does not spoil the next"
        );
        assert_eq!(events("n", "dat: {\"n\":4}\n\n"), None);
        assert_eq!(
            events("n", "data:{\"n\":9}"),
            Some(9),
            "a stream cut short keeps what it said"
        );
    }

    #[test]
    fn settle_event_of_several_data_lines_is_one_text_whatever_ends_its_lines() {
        let lines = [
            "event: usage",
            "data: {\"usage\":",
            "data: {\"t\":",
            "data: 17}}",
            "",
            ": end",
            "data: [DONE]",
            "",
            "",
        ];
        for end in ["\n", "\r", "\r\n"] {
            assert_eq!(
                scan(Carrier::Events, "usage.t", &lines.join(end)),
                Some(17),
                "{end:?}"
            );
            let broken = ["data: {\"usage\":", "", "data: {\"t\":5}", "", ""].join(end);
            assert_eq!(
                scan(Carrier::Events, "usage.t", &broken),
                None,
                "{end:?}: two events are two texts"
            );
        }
    }

    #[test]
    fn settle_stream_is_done_with_the_event_that_its_format_ends_with() {
        let done = |body: &str| {
            let mut done = None;
            for cut in 0..body.len() {
                let ends = &["message_stop", "response.completed"];
                let mut scanner = FieldScanner::new(Carrier::Events, &path("n"), ends);
                scanner.feed(&body.as_bytes()[..cut]);
                scanner.feed(&body.as_bytes()[cut..]);
                let now = scanner.is_done();
                assert_eq!(*done.get_or_insert(now), now, "{body:?} cut at {cut}");
                assert_eq!(
                    scanner.finish()[0].is_some(),
                    body.contains(":5"),
                    "{body:?}"
                );
            }
            done
        };
        for (name, end) in [
            ("event: message_stop", "\n"),
            ("event:response.completed", "\r\n"),
        ] {
            let last = format!("data: 1{end}{end}{name}{end}data: {{\"n\":5}}{end}");
            assert_eq!(done(&last), Some(false), "its number may still come");
            assert_eq!(done(&format!("{last}{end}")), Some(true), "{name}");
        }
        for body in [
            "event: message_stopped\ndata: {\"n\":5}\n\n",
            "event: x\ndata: event: message_stop\n\n",
            "data: {\"text\":\"event: message_stop\"}\n\n",
            ": event: message_stop\n\n",
            "event: message_stop\nevent: ping\n\n",
            " event: message_stop\n\n",
            "event: message_stop\ndata: {\"n\":5}\n",
        ] {
            assert_eq!(done(body), Some(false), "{body:?}");
        }
    }

    #[test]
    fn settle_name_with_escapes_is_the_name_that_it_spells() {
        for name in [
            r"us\u0061ge",
            r"\u0075\u0073\u0061\u0067\u0065",
            r"\u0075sa\u0067e",
        ] {
            assert_eq!(
                json("usage.t", &format!(r#"{{"{name}":{{"t":7}}}}"#)),
                Some(7),
                "{name}"
            );
            assert_eq!(
                json("a.t", &format!(r#"{{"a":{{"{name}":1,"t":8}}}}"#)),
                Some(8),
                "{name}"
            );
        }
        assert_eq!(json("a/b", r#"{"a\/b":1}"#), Some(1));
        assert_eq!(json("ü", r#"{"\u00fc":2}"#), Some(2));
        assert_eq!(json("ü", r#"{"\u00FC":2}"#), Some(2));
        assert_eq!(json("😀", r#"{"\ud83d\ude00":3}"#), Some(3));
        for other in [
            r"\ud83d",
            r"\ud83d\u0061",
            r"\ude00",
            r"\ud83dx",
            r"\ud83d\n",
            r"\u00zz",
            r"\x",
            r"us\u0062ge",
        ] {
            assert_eq!(
                json("😀", &format!(r#"{{"{other}":4,"😀":5}}"#)),
                Some(5),
                "{other}"
            );
            assert_eq!(
                json("usage", &format!(r#"{{"{other}":4}}"#)),
                None,
                "{other}"
            );
        }
    }

    #[test]
    fn settle_json_is_read_by_content_type() {
        assert_eq!(
            Carrier::of("application/json; charset=utf-8"),
            Some(Carrier::Json)
        );
        assert_eq!(Carrier::of("Application/Problem+JSON"), Some(Carrier::Json));
        assert_eq!(Carrier::of("text/event-stream"), Some(Carrier::Events));
        assert_eq!(Carrier::of("text/html"), None);
    }
}
