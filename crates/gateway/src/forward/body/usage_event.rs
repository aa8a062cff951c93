//! Takes out of a stream of chat completions the event that states their usage, where the gateway asked
//! for it and the client did not. Every other byte passes as it came.

use bytes::{Bytes, BytesMut};

/// A stream whose event with the usage is taken out.
#[derive(Debug, Default)]
pub(super) struct UsageEvent {
    /// The beginning of an event that has not ended.
    held: BytesMut,
    /// Whether the rest of an event that is too long passes unread.
    passes: bool,
}

impl UsageEvent {
    /// What passes now that this piece has come. An unfinished event is held back: no client reads it
    /// before its end.
    pub(super) fn feed(&mut self, piece: Bytes) -> Bytes {
        if self.held.is_empty() && !self.passes && end(&piece) == Some(piece.len()) {
            return if states_usage(&piece) {
                Bytes::new()
            } else {
                piece
            };
        }
        self.held.extend_from_slice(&piece);
        let mut passed = BytesMut::new();
        while let Some(end) = end(&self.held) {
            let event = self.held.split_to(end);
            if std::mem::take(&mut self.passes) || !states_usage(&event) {
                passed.unsplit(event);
            }
        }
        if self.passes || self.held.len() > EVENT_MAX {
            self.passes = true;
            // Two line ends may be cut in the middle.
            let cut = self.held.len().saturating_sub(3);
            passed.unsplit(self.held.split_to(cut));
        }
        passed.freeze()
    }

    /// What is held back when the stream ends.
    pub(super) fn finish(&mut self) -> Bytes {
        self.held.split().freeze()
    }
}

/// The length of the first event, with the blank line at its end.
fn end(text: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + memchr::memchr2(b'\n', b'\r', &text[from..])?;
        let line = |at: usize| match text.get(at..) {
            Some([b'\r', b'\n', ..]) => 2,
            Some([b'\n' | b'\r', ..]) => 1,
            _ => 0,
        };
        let first = line(at);
        let second = line(at + first);
        // A CR at the end may be half of a line end.
        if second > 0 && !(second == 1 && text[at + first..] == *b"\r") {
            return Some(at + first + second);
        }
        from = at + first;
    }
}

/// Whether an event has a usage and no choices.
fn states_usage(event: &[u8]) -> bool {
    let member = |name: &[u8], value: &[u8]| {
        let mut at = memchr::memmem::find_iter(event, name);
        at.any(|at| {
            let mut rest = event[at + name.len()..]
                .iter()
                .filter(|byte| !byte.is_ascii_whitespace());
            rest.next() == Some(&b':') && value.iter().all(|byte| rest.next() == Some(byte))
        })
    };
    member(b"\"usage\"", b"{") && member(b"\"choices\"", b"[]")
}

/// A longer event passes unread: one that states a usage has a few hundred bytes.
const EVENT_MAX: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"total_tokens\":3}}";

    #[test]
    fn usage_event_is_taken_out_wherever_the_stream_is_cut_and_all_else_passes() {
        for line in ["\n", "\r\n", "\r"] {
            let long = format!("data: {}", "x".repeat(EVENT_MAX));
            let tricky = r#"data: {"choices":[{"delta":{"content":"\"usage\":{ \"choices\":[]"}}],"usage":null}"#;
            let others = [
                tricky,
                r#"data: {"choices":[],"prompt_filter_results":[],"usage":null}"#,
                r#"data: {"choices":[{"delta":{}}],"usage":{"total_tokens":3}}"#,
                &long,
                ": comment",
                "data: [DONE]",
            ];
            let events = |list: &[&str]| -> String {
                list.iter()
                    .map(|event| format!("{event}{line}{line}"))
                    .collect()
            };
            let mut with: Vec<&str> = others.to_vec();
            let spaced = "event: x\ndata: { \"usage\" : { }, \"choices\" : [ ] }";
            with.insert(4, USAGE);
            with.insert(1, spaced);
            let (with, expected) = (events(&with) + "data: cut", events(&others) + "data: cut");
            for size in [1, 2, 7, 100, 5_000, with.len()] {
                let mut filter = UsageEvent::default();
                let mut passed = Vec::new();
                for piece in with.as_bytes().chunks(size) {
                    passed.extend_from_slice(&filter.feed(Bytes::copy_from_slice(piece)));
                }
                passed.extend_from_slice(&filter.finish());
                assert_eq!(
                    String::from_utf8_lossy(&passed),
                    expected,
                    "{line:?} {size}"
                );
            }
        }
    }
}
