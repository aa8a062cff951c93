//! Finds trailers with pseudo-headers in the input of an HTTP/2 client. They are malformed (RFC
//! 9113 8.1), but the protocol library silently drops such fields.

use super::hpack::Table;

/// Follows the header blocks of one client, and holds trailers back until they are complete.
#[derive(Debug)]
pub(crate) struct Trailers {
    /// The number of bytes of the preface still to come.
    preface: usize,
    /// The number of bytes so far, and the number before the current frame.
    came: usize,
    start: usize,
    head: [u8; FRAME],
    filled: usize,
    left: usize,
    /// The payload so far of a frame with header fields, and the preceding fragments of its block.
    payload: Vec<u8>,
    block: Vec<u8>,
    table: Table,
    highest: u32,
    /// The number of bytes before the current trailers.
    trailers: Option<usize>,
    /// Whether the input was invalid: the library ends the connection then.
    lost: bool,
    held: Vec<u8>,
}

impl Trailers {
    pub(crate) fn new() -> Self {
        Self {
            preface: PREFACE,
            came: 0,
            start: 0,
            head: [0; FRAME],
            filled: 0,
            left: 0,
            payload: Vec::new(),
            block: Vec::new(),
            table: Table::default(),
            highest: 0,
            trailers: None,
            lost: false,
            held: Vec::new(),
        }
    }

    /// Follows the input. `None`: it passes unchanged. Otherwise returns the bytes to pass instead,
    /// which may be fewer if some are held back, or more. Malformed trailers lose their
    /// `END_STREAM` flag, so that the library refuses them.
    pub(crate) fn pass(&mut self, bytes: &mut [u8]) -> Option<Vec<u8>> {
        let first = self.came - self.held.len();
        let malformed = self.follow(bytes);
        let until = self.held_from();
        if self.held.is_empty() && until == self.came {
            for start in malformed {
                bytes[start - first + FLAGS] &= !END_STREAM;
            }
            return None;
        }
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(bytes);
        for start in malformed {
            all[start - first + FLAGS] &= !END_STREAM;
        }
        self.held = all.split_off(until - first);
        Some(all)
    }

    /// The position of held bytes: an incomplete frame header, or the current trailers.
    fn held_from(&self) -> usize {
        match self.trailers {
            _ if self.lost => self.came,
            Some(start) => start,
            None if (1..FRAME).contains(&self.filled) => self.start,
            None => self.came,
        }
    }

    /// Follows `bytes`; returns the positions of malformed trailers.
    fn follow(&mut self, bytes: &[u8]) -> Vec<usize> {
        let (mut rest, mut malformed) = (bytes, Vec::new());
        let end = self.came + bytes.len();
        while !rest.is_empty() && !self.lost {
            if self.preface > 0 {
                let passed = self.preface.min(rest.len());
                self.preface -= passed;
                rest = &rest[passed..];
                continue;
            }
            if self.filled < FRAME {
                if self.filled == 0 {
                    self.start = end - rest.len();
                }
                let taken = (FRAME - self.filled).min(rest.len());
                self.head[self.filled..self.filled + taken].copy_from_slice(&rest[..taken]);
                self.filled += taken;
                rest = &rest[taken..];
                if self.filled < FRAME {
                    break;
                }
                self.left = self.head[..3]
                    .iter()
                    .fold(0, |length, byte| length << 8 | usize::from(*byte));
                if self.head[3] == HEADERS && self.stream() <= self.highest {
                    self.trailers = Some(self.start);
                }
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
            if self.has_fields() && self.fields() == Some(true) {
                malformed.extend(self.trailers.take());
            }
        }
        self.came = end;
        malformed
    }

    const fn has_fields(&self) -> bool {
        matches!(self.head[3], HEADERS | CONTINUATION)
    }

    fn stream(&self) -> u32 {
        let [.., a, b, c, d] = self.head;
        u32::from_be_bytes([a, b, c, d]) & !RESERVED
    }

    /// Processes a complete frame; returns at the end of a block whether it is malformed trailers.
    fn fields(&mut self) -> Option<bool> {
        let flags = self.head[FLAGS];
        let mut fragment = &self.payload[..];
        if self.head[3] == HEADERS {
            self.block.clear();
            let padding = if flags & PADDED == 0 {
                Some(0)
            } else {
                fragment.split_off_first().copied()
            };
            let before = if flags & PRIORITY == 0 {
                0
            } else {
                PRIORITY_BYTES
            };
            let fields = fragment
                .len()
                .checked_sub(before + usize::from(padding.unwrap_or(0)));
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
        self.highest = self.highest.max(self.stream());
        let found = self.table.follow(&self.block);
        self.lost |= found.is_none();
        if self.block.capacity() > KEPT {
            self.block = Vec::new();
            self.payload = Vec::new();
        }
        let malformed = found == Some(true) && self.trailers.is_some();
        if !malformed {
            self.trailers = None;
        }
        Some(malformed)
    }
}

/// A frame's header (RFC 9113 4.1).
const FRAME: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
/// The position of the flags in a frame's header.
const FLAGS: usize = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;
/// The length of a priority before the fields.
const PRIORITY_BYTES: usize = 5;
const RESERVED: u32 = 1 << 31;
/// The bytes before a client's first frame (RFC 9113 3.4).
const PREFACE: usize = 24;
/// The largest block: more than the library accepts, which then ends the connection.
const BLOCK_MAX: usize = 256 << 10;
/// The buffer capacity that an idle connection keeps.
const KEPT: usize = 1 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).expect("short");
        [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
    }

    #[test]
    fn trailers_with_a_pseudo_header_do_not_end_their_stream_with_any_cut() {
        let mut wire = vec![b'x'; PREFACE];
        // `:path: /a` goes into the table; trailers then say it by index, in a second fragment.
        wire.extend(frame(
            HEADERS,
            END_HEADERS,
            1,
            &[0x82, 0x86, 0x44, 2, b'/', b'a'],
        ));
        wire.extend(frame(0, 0, 1, b"body"));
        let first = wire.len() + FLAGS;
        wire.extend(frame(HEADERS, END_STREAM, 1, &[0x0f, 0x00, 1, b'x']));
        wire.extend(frame(CONTINUATION, END_HEADERS, 1, &[0xbe]));
        wire.extend(frame(
            HEADERS,
            END_HEADERS | PADDED | PRIORITY,
            3,
            &[1, 0, 0, 0, 0, 9, 0x82, 0x84, 0],
        ));
        wire.extend(frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            3,
            &[0x0f, 0x00, 1, b'x'],
        ));
        wire.extend(frame(HEADERS, END_HEADERS, 5, &[0x82, 0x84]));
        let second = wire.len() + FLAGS;
        wire.extend(frame(
            HEADERS,
            END_HEADERS | PADDED | END_STREAM,
            5,
            &[1, 0x84, 0],
        ));
        wire.extend(frame(HEADERS, END_HEADERS | END_STREAM, 7, &[0x82, 0x84]));
        wire.extend(frame(6, 0, 0, &[0; 8]));
        let mut expected = wire.clone();
        for flags in [first, second] {
            assert_eq!(expected[flags] & END_STREAM, END_STREAM);
            expected[flags] &= !END_STREAM;
        }
        for size in 1..=wire.len() {
            let (mut trailers, mut passed) = (Trailers::new(), Vec::new());
            for piece in wire.chunks(size) {
                let mut piece = piece.to_vec();
                let instead = trailers.pass(&mut piece);
                passed.extend(instead.unwrap_or(piece));
                let stated = trailers.came - trailers.held.len();
                assert_eq!(passed.len(), stated, "pieces of {size}");
            }
            assert_eq!(passed, expected, "pieces of {size}");
        }
    }

    #[test]
    fn trailers_block_that_does_not_end_is_not_kept_beyond_its_bound() {
        let mut trailers = Trailers::new();
        trailers.pass(&mut [b'x'; PREFACE]);
        trailers.pass(&mut frame(HEADERS, 0, 1, &[0x82]));
        for _ in 0..2 * BLOCK_MAX / 255 {
            trailers.pass(&mut frame(CONTINUATION, 0, 1, &[0; 255]));
        }
        assert!(trailers.lost && trailers.block.len() <= BLOCK_MAX + 255);
    }
}
