//! Finds trailers with pseudo-fields among what an HTTP/2 caller sends. They are malformed (RFC 9113 8.1), and the protocol
//! library drops such fields without a word.

use super::hpack::Table;

/// Follows the header blocks of one caller.
#[derive(Debug)]
pub(super) struct Trailers {
    /// Bytes of the preface to come.
    preface: usize,
    /// The header of the frame under way.
    head: [u8; FRAME],
    filled: usize,
    /// Bytes of its payload to come.
    left: usize,
    /// The payload of a frame with fields, then the block's earlier fragments before it.
    payload: Vec<u8>,
    block: Vec<u8>,
    table: Table,
    /// The highest stream that a request came on.
    highest: u32,
    /// Something was out of order: the library ends the connection, or what it does is not followed any more.
    lost: bool,
}

impl Trailers {
    /// At the beginning of a connection.
    pub(super) fn new() -> Self {
        Self {
            preface: PREFACE,
            head: [0; FRAME],
            filled: 0,
            left: 0,
            payload: Vec::new(),
            block: Vec::new(),
            table: Table::default(),
            highest: 0,
            lost: false,
        }
    }

    /// Follows `bytes` up to the end of trailers with a pseudo-field: how many bytes that is, and their stream. `None`: there
    /// are none in all of them.
    pub(super) fn follow(&mut self, bytes: &[u8]) -> Option<(usize, u32)> {
        let mut rest = bytes;
        while !rest.is_empty() && !self.lost {
            if self.preface > 0 {
                let passed = self.preface.min(rest.len());
                self.preface -= passed;
                rest = &rest[passed..];
                continue;
            }
            if self.filled < FRAME {
                let taken = (FRAME - self.filled).min(rest.len());
                self.head[self.filled..self.filled + taken].copy_from_slice(&rest[..taken]);
                self.filled += taken;
                rest = &rest[taken..];
                if self.filled < FRAME {
                    break;
                }
                self.left = self.head[..3].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
            }
            let taken = self.left.min(rest.len());
            if self.has_fields() {
                self.payload.extend_from_slice(&rest[..taken]);
                self.lost |= self.payload.len() + self.block.len() > BLOCK_MAX;
            }
            self.left -= taken;
            rest = &rest[taken..];
            if self.left > 0 {
                break;
            }
            self.filled = 0;
            if self.has_fields()
                && let Some(stream) = self.fields()
            {
                return Some((bytes.len() - rest.len(), stream));
            }
        }
        None
    }

    const fn has_fields(&self) -> bool {
        matches!(self.head[3], HEADERS | CONTINUATION)
    }

    /// Takes the fields of a whole frame; the stream of malformed trailers that it is the end of.
    fn fields(&mut self) -> Option<u32> {
        let flags = self.head[4];
        let mut fragment = &self.payload[..];
        if self.head[3] == HEADERS {
            self.block.clear();
            let padding = if flags & PADDED == 0 { Some(0) } else { fragment.split_off_first().copied() };
            let before = if flags & PRIORITY == 0 { 0 } else { PRIORITY_BYTES };
            let fields = fragment.len().checked_sub(before + usize::from(padding.unwrap_or(0)));
            match fields.filter(|_| padding.is_some()) {
                Some(length) => fragment = &fragment[before..before + length],
                None => self.lost = true,
            }
        }
        self.block.extend_from_slice(fragment);
        self.payload.clear();
        if flags & END_HEADERS == 0 || self.lost {
            return None;
        }
        let [.., a, b, c, d] = self.head;
        let stream = u32::from_be_bytes([a, b, c, d]) & !RESERVED;
        let is_first = stream > self.highest;
        self.highest = self.highest.max(stream);
        let found = self.table.follow(&self.block);
        self.lost |= found.is_none();
        if self.block.capacity() > KEPT {
            self.block = Vec::new();
            self.payload = Vec::new();
        }
        (found == Some(true) && !is_first).then_some(stream)
    }

    /// A frame that, behind trailers, has the library refuse the stream as malformed: fields without the end of the stream.
    pub(super) fn refusal(stream: u32) -> [u8; FRAME] {
        let [a, b, c, d] = stream.to_be_bytes();
        [0, 0, 0, HEADERS, END_HEADERS, a, b, c, d]
    }
}

/// A frame's header (RFC 9113 4.1).
const FRAME: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;
/// Bytes of a priority before the fields.
const PRIORITY_BYTES: usize = 5;
/// The first bit of a stream's number.
const RESERVED: u32 = 1 << 31;
/// Bytes before a caller's first frame (RFC 9113 3.4).
const PREFACE: usize = 24;
/// Bytes of one block: more than the library takes.
const BLOCK_MAX: usize = 1 << 20;
/// Bytes of room that an idle connection keeps.
const KEPT: usize = 1 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).expect("short");
        [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
    }

    #[test]
    fn trailers_with_a_pseudo_field_are_found_however_the_bytes_are_cut() {
        let mut wire = vec![b'x'; PREFACE];
        // `:path: /a` goes into the table; trailers then say it by index, in a second fragment.
        wire.extend(frame(HEADERS, END_HEADERS, 1, &[0x82, 0x86, 0x44, 2, b'/', b'a']));
        wire.extend(frame(0, 0, 1, b"body"));
        wire.extend(frame(HEADERS, 1, 1, &[0x0f, 0x00, 1, b'x']));
        wire.extend(frame(CONTINUATION, END_HEADERS, 1, &[0xbe]));
        let first = wire.len();
        wire.extend(frame(HEADERS, END_HEADERS | PADDED | PRIORITY, 3, &[1, 0, 0, 0, 0, 9, 0x82, 0x84, 0]));
        wire.extend(frame(HEADERS, END_HEADERS | 1, 3, &[0x0f, 0x00, 1, b'x']));
        wire.extend(frame(HEADERS, END_HEADERS, 5, &[0x82, 0x84]));
        wire.extend(frame(HEADERS, END_HEADERS | PADDED | 1, 5, &[1, 0x84, 0]));
        let second = wire.len();
        wire.extend(frame(6, 0, 0, &[0; 8]));
        for size in 1..=wire.len() {
            let mut trailers = Trailers::new();
            let mut found = Vec::new();
            for (index, piece) in wire.chunks(size).enumerate() {
                let mut at = 0;
                while let Some((taken, stream)) = trailers.follow(&piece[at..]) {
                    at += taken;
                    found.push((index * size + at, stream));
                }
            }
            assert_eq!(found, [(first, 1), (second, 5)], "pieces of {size}");
        }
    }
}
