//! Finds trailers with pseudo-headers in the input of an HTTP/2 client, and reports its DATA frames.
//! Such trailers are malformed (RFC 9113 8.1), but the protocol library silently drops the fields.

use std::borrow::Cow;

/// Follows the frames of one client, and holds each header block back until it is complete.
#[derive(Debug)]
pub(crate) struct Trailers {
    /// The number of bytes that pass unread: the preface, then the rest of a frame without fields.
    unread: usize,
    /// The beginning of a frame's header or of a header block.
    held: Vec<u8>,
    /// The library ends the connection of a client whose header block is larger.
    block_max: usize,
    /// The position in that block of the first frame that is not complete.
    next: usize,
    names: RecentNames,
    /// The highest stream so far: a block on this stream or a lower one is trailers.
    highest: u32,
    /// Whether the input was invalid: the library ends the connection then.
    lost: bool,
}

impl Trailers {
    /// `header_bytes`: the size of a header list that the library advertises.
    pub(crate) fn new(header_bytes: usize) -> Self {
        Self {
            unread: PREFACE,
            held: Vec::new(),
            // The library accepts HEADERS, as many CONTINUATION frames as hold a quarter more than
            // the list (but always 5), and the last one. One more is the room for frame headers.
            block_max: header_bytes / 4 * 5 + 8 * (FRAME + PAYLOAD_MAX),
            next: 0,
            names: RecentNames::default(),
            highest: 0,
            lost: false,
        }
    }

    /// Follows the input, and passes the length of each DATA frame to `on_data`. `None`: the input
    /// passes unchanged. Otherwise returns the bytes to pass instead, which may be fewer if some are
    /// held back, or more. Malformed trailers lose their `END_STREAM` flag, so that the library
    /// refuses them.
    pub(crate) fn pass(&mut self, bytes: &mut [u8], on_data: impl FnMut(u32)) -> Option<Vec<u8>> {
        if self.held.is_empty() {
            let whole = self.check(bytes, on_data);
            if whole == bytes.len() {
                return None;
            }
            self.held.extend_from_slice(&bytes[whole..]);
            return Some(bytes[..whole].to_vec());
        }
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(bytes);
        let whole = self.check(&mut all, on_data);
        self.held = all.split_off(whole);
        Some(all)
    }

    /// Checks the frames in `input`; returns the number of bytes before what must be held back.
    fn check(&mut self, input: &mut [u8], mut on_data: impl FnMut(u32)) -> usize {
        let mut at = 0;
        while !self.lost {
            let passed = self.unread.min(input.len() - at);
            self.unread -= passed;
            at += passed;
            let Some(header) = Header::at(&input[at..], 0) else {
                return at;
            };
            if header.kind != HEADERS {
                if header.kind == DATA {
                    on_data(u32::try_from(header.length).unwrap_or(u32::MAX));
                }
                at += FRAME;
                self.unread = header.length;
                continue;
            }
            match self.check_block(&mut input[at..]) {
                Some(length) => at += length,
                None if input.len() - at > self.block_max => self.lost = true,
                None if !self.lost => return at,
                None => {}
            }
        }
        input.len()
    }

    /// Checks the header block at the beginning of `input` and returns its length. `None`: it is not
    /// complete, or invalid.
    fn check_block(&mut self, input: &mut [u8]) -> Option<usize> {
        loop {
            let header = Header::at(input, self.next)?;
            let is_interrupted = self.next > 0 && header.kind != CONTINUATION;
            if is_interrupted || header.length > PAYLOAD_MAX {
                self.lost = true;
                return None;
            }
            let end = self.next + FRAME + header.length;
            if end > input.len() {
                return None;
            }
            self.next = end;
            if header.flags & END_HEADERS != 0 {
                break;
            }
        }
        let length = std::mem::take(&mut self.next);
        let stream = Header::at(input, 0)?.stream;
        let is_trailers = stream <= self.highest;
        self.highest = self.highest.max(stream);
        match block(&input[..length]).and_then(|block| self.names.follow(&block)) {
            Some(true) if is_trailers => input[FLAGS] &= !END_STREAM,
            Some(_) => {}
            None => self.lost = true,
        }
        Some(length)
    }
}

/// The header of a frame (RFC 9113 4.1).
struct Header {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Header {
    fn at(input: &[u8], at: usize) -> Option<Self> {
        let [a, b, c, kind, flags, stream @ ..] = *input.get(at..)?.first_chunk::<FRAME>()?;
        Some(Self {
            length: usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c),
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & !RESERVED,
        })
    }
}

/// The fields that the library decodes of these frames, HEADERS and what continues it; `None`: the
/// padding is malformed.
fn block(mut frames: &[u8]) -> Option<Cow<'_, [u8]>> {
    let mut block = Cow::Borrowed(&[][..]);
    while let Some(header) = Header::at(frames, 0) {
        let (frame, rest) = frames.split_at_checked(FRAME + header.length)?;
        frames = rest;
        let mut fields = &frame[FRAME..];
        if header.kind == HEADERS {
            let padding = match header.flags & PADDED {
                0 => 0,
                _ => usize::from(*fields.split_off_first()?),
            };
            if header.flags & PRIORITY != 0 {
                // The library resets a stream that depends on itself, and does not decode its block.
                let priority = fields.split_off(..PRIORITY_BYTES)?;
                if u32::from_be_bytes(*priority.first_chunk()?) & !RESERVED == header.stream {
                    return Some(Cow::default());
                }
            }
            fields = fields.get(..fields.len().checked_sub(padding)?)?;
        }
        if block.is_empty() {
            block = Cow::Borrowed(fields);
        } else {
            block.to_mut().extend_from_slice(fields);
        }
    }
    Some(block)
}

/// The part of HPACK's dynamic table (RFC 7541) that matters here: for each of its names, the newest
/// first, whether it is that of a pseudo-header.
///
/// An index counts from the newest entry, and entries leave the table at its old end only. So this list
/// needs no sizes: an index of an entry that has left the table is invalid, and the library ends the
/// connection for it. A table of 4096 bytes, the default and never changed here, has at most 128 entries.
#[derive(Debug, Default)]
struct RecentNames(u128);

impl RecentNames {
    /// Follows a complete header block; returns whether it contains a pseudo-header. `None`: it is malformed.
    fn follow(&mut self, mut block: &[u8]) -> Option<bool> {
        let mut found = false;
        while let Some(&first) = block.first() {
            let (is_pseudo, is_added) = match first {
                0x80.. => {
                    let index = integer(&mut block, 7)?;
                    (self.is_pseudo(index)?, false)
                }
                0x20..=0x3f => {
                    integer(&mut block, 5)?; // the new size of the table
                    continue;
                }
                0x40.. => (self.literal(&mut block, 6)?, true),
                _ => (self.literal(&mut block, 4)?, false),
            };
            if is_added {
                self.0 = self.0 << 1 | u128::from(is_pseudo);
            }
            found |= is_pseudo;
        }
        Some(found)
    }

    /// Reads a literal field; returns whether it is a pseudo-header.
    fn literal(&self, block: &mut &[u8], prefix: u32) -> Option<bool> {
        let is_pseudo = match integer(block, prefix)? {
            0 => begins_with_colon(block)?,
            index => self.is_pseudo(index)?,
        };
        begins_with_colon(block)?; // the value
        Some(is_pseudo)
    }

    fn is_pseudo(&self, index: usize) -> Option<bool> {
        match index {
            0 => None,
            1..=STATIC_NAMES => Some(index <= STATIC_PSEUDO),
            _ => {
                let age = u32::try_from(index - STATIC_NAMES - 1).ok()?;
                Some(self.0.checked_shr(age)? & 1 == 1)
            }
        }
    }
}

/// Reads an integer with a prefix of `bits` bits (RFC 7541 5.1).
fn integer(block: &mut &[u8], bits: u32) -> Option<usize> {
    let mask = (1_usize << bits) - 1;
    let mut value = usize::from(*block.split_off_first()?) & mask;
    if value < mask {
        return Some(value);
    }
    for shift in [0, 7, 14, 21] {
        let byte = *block.split_off_first()?;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Reads a string (RFC 7541 5.2); returns whether it begins with a colon.
fn begins_with_colon(block: &mut &[u8]) -> Option<bool> {
    let is_coded = block.first()? & 0x80 != 0;
    let length = integer(block, 7)?;
    let first = block.split_off(..length)?.first();
    // The Huffman code of a colon is `1011100`.
    Some(first.is_some_and(|byte| {
        if is_coded {
            byte >> 1 == 0x5c
        } else {
            *byte == b':'
        }
    }))
}

/// The length of a frame's header.
const FRAME: usize = 9;
const DATA: u8 = 0;
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
/// The first bit of a stream's number is reserved; in a priority it means an exclusive dependency.
const RESERVED: u32 = 1 << 31;
/// The bytes before a client's first frame (RFC 9113 3.4).
const PREFACE: usize = 24;
/// The library ends the connection of a client whose frame has a longer payload.
const PAYLOAD_MAX: usize = 16 << 10;
/// The number of names in the static table (RFC 7541 appendix A).
const STATIC_NAMES: usize = 61;
/// The first of them are pseudo-headers.
const STATIC_PSEUDO: usize = 14;

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short");
        let [_, a, b, c] = length.to_be_bytes();
        [&[a, b, c, kind, flags, 0, 0, 0, stream], payload].concat()
    }

    const HEADER_BYTES: usize = 64 << 10;

    /// A follower after the preface.
    fn begun(header_bytes: usize) -> Trailers {
        let mut trailers = Trailers::new(header_bytes);
        trailers.pass(&mut [b'x'; PREFACE], |_| ());
        trailers
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
            let (mut trailers, mut passed, mut data) = (Trailers::new(HEADER_BYTES), Vec::new(), 0);
            for piece in wire.chunks(size) {
                let mut piece = piece.to_vec();
                let instead = trailers.pass(&mut piece, |length| data += length);
                passed.extend(instead.unwrap_or(piece));
            }
            assert_eq!((passed, data), (expected.clone(), 4), "pieces of {size}");
        }
    }

    #[test]
    fn trailers_block_that_does_not_end_is_not_kept_beyond_its_bound() {
        let mut trailers = begun(HEADER_BYTES);
        trailers.pass(&mut frame(HEADERS, 0, 1, &[0x82]), |_| ());
        for _ in 0..2 * trailers.block_max / 255 {
            trailers.pass(&mut frame(CONTINUATION, 0, 1, &[0; 255]), |_| ());
            assert!(trailers.held.len() <= trailers.block_max);
        }
        assert!(trailers.lost && trailers.held.is_empty());
    }

    #[test]
    fn trailers_after_the_largest_block_that_the_library_accepts_are_followed() {
        for header_bytes in [8 << 10, 64 << 10, 100_000, 1 << 20] {
            let mut trailers = begun(header_bytes);
            let full = [0x82; PAYLOAD_MAX];
            trailers.pass(&mut frame(HEADERS, 0, 1, &full), |_| ());
            // As `calc_max_continuation_frames` of `h2` counts them.
            let least = (header_bytes / PAYLOAD_MAX).max(1);
            for _ in 0..(least + least / 4).max(5) {
                trailers.pass(&mut frame(CONTINUATION, 0, 1, &full), |_| ());
            }
            trailers.pass(&mut frame(CONTINUATION, END_HEADERS, 1, &full), |_| ());
            assert!(trailers.held.is_empty() && !trailers.lost, "{header_bytes}");
            let mut data = 0;
            trailers.pass(&mut frame(DATA, 0, 1, b"body"), |length| data += length);
            assert_eq!(data, 4, "{header_bytes}");
        }
    }

    #[test]
    fn trailers_frame_that_is_too_long_is_passed_at_once() {
        let mut trailers = begun(HEADER_BYTES);
        let mut long = frame(HEADERS, END_HEADERS, 1, &[0x82; PAYLOAD_MAX + 1]);
        assert_eq!(trailers.pass(&mut long[..FRAME], |_| ()), None);
    }

    #[test]
    fn trailers_block_of_a_stream_that_depends_on_itself_is_not_decoded() {
        let mut trailers = begun(HEADER_BYTES);
        // `:path: /a` would go into the table.
        let block = [0x80, 0, 0, 1, 9, 0x44, 2, b'/', b'a'];
        for (stream, names) in [(1, 0), (3, 1)] {
            let mut headers = frame(HEADERS, END_HEADERS | PRIORITY, stream, &block);
            assert_eq!(trailers.pass(&mut headers, |_| ()), None);
            assert_eq!(trailers.names.0, names, "{stream}");
        }
    }

    #[test]
    fn trailers_of_an_interrupted_block_are_passed_at_once() {
        let mut trailers = begun(HEADER_BYTES);
        let mut block = frame(HEADERS, 0, 1, &[0x82]);
        assert_eq!(trailers.pass(&mut block, |_| ()), Some(Vec::new()));
        let mut other = frame(DATA, 0, 1, b"x");
        let passed = [&block[..], &other].concat();
        assert_eq!(trailers.pass(&mut other, |_| ()), Some(passed));
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| {
            u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16).expect("a byte")
        };
        digits.chunks(2).map(byte).collect()
    }

    #[test]
    fn trailers_names_are_followed_through_the_table() {
        // RFC 7541 C.3 and C.4: the same three requests, plain and Huffman-coded.
        for blocks in [
            [
                "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
                "8286 84be 5808 6e6f 2d63 6163 6865",
                "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
            ],
            [
                "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
                "8286 84be 5886 a8eb 1064 9cbf",
                "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
            ],
        ] {
            let mut names = RecentNames::default();
            for block in blocks {
                assert_eq!(names.follow(&bytes(block)), Some(true), "{block}");
            }
            // `custom-key` and `cache-control` by their indices, then `:authority` by its own.
            assert_eq!(names.follow(&[0xbe, 0xbf]), Some(false));
            assert_eq!(names.follow(&[0xc0]), Some(true));
            // A table without room has lost its entries; what is added later counts from the newest.
            assert_eq!(names.follow(&[0x20, 0x3f, 0xe1, 0x1f]), Some(false));
            assert_eq!(names.follow(&[0x40, 1, b'x', 0, 0xbe]), Some(false));
        }
    }

    #[test]
    fn trailers_names_are_read_in_every_representation() {
        for (block, expected) in [
            (&[0x82][..], Some(true)),
            (&[0x8f], Some(false)),
            (&[0x04, 1, b'/'], Some(true)),
            (&[0x14, 1, b'/'], Some(true)),
            (
                &[0x00, 5, b':', b'p', b'a', b't', b'h', 1, b'/'],
                Some(true),
            ),
            (&[0x00, 1, b'x', 1, b':'], Some(false)),
            (&[0x00, 0x81, 0xb9, 0], Some(true)),
            (&[0x80], None),
            (&[0x00, 5, b':'], None),
            (&[0x3f, 0xff, 0xff, 0xff, 0xff, 0xff], None),
            (&[], Some(false)),
        ] {
            assert_eq!(RecentNames::default().follow(block), expected, "{block:x?}");
        }
    }
}
