//! The part of HPACK (RFC 7541) that tells whether a header block contains a pseudo-header.
//!
//! The protocol library silently drops pseudo-headers in trailers. To detect one, this module must
//! follow the client's dynamic table, because the meaning of an index depends on all blocks before.

use std::collections::VecDeque;

/// The table of one direction: for each entry whether it is a pseudo-header, and its sizes.
#[derive(Debug)]
pub(super) struct Table {
    entries: VecDeque<Entry>,
    size: usize,
    most: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    is_pseudo: bool,
    name: usize,
    size: usize,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            size: 0,
            most: DEFAULT_SIZE,
        }
    }
}

impl Table {
    /// Follows a complete header block; returns whether it contains a pseudo-header. `None`: it is
    /// malformed, and the table unusable from then on.
    pub(super) fn follow(&mut self, mut block: &[u8]) -> Option<bool> {
        let mut found = false;
        while let Some(&first) = block.first() {
            match first {
                0x80.. => found |= self.name(integer(&mut block, 7)?)?.0,
                0x40..=0x7f => {
                    let index = integer(&mut block, 6)?;
                    let (is_pseudo, name) = self.field_name(index, &mut block)?;
                    let value = string(&mut block)?.1;
                    found |= is_pseudo;
                    self.insert(Entry {
                        is_pseudo,
                        name,
                        size: name + value + OVERHEAD,
                    });
                }
                0x20..=0x3f => {
                    self.most = integer(&mut block, 5)?;
                    if self.most > DEFAULT_SIZE {
                        return None;
                    }
                    self.evict(0);
                }
                _ => {
                    let index = integer(&mut block, 4)?;
                    found |= self.field_name(index, &mut block)?.0;
                    string(&mut block)?;
                }
            }
        }
        Some(found)
    }

    /// Whether the name of a literal is that of a pseudo-header, and its length.
    fn field_name(&self, index: usize, block: &mut &[u8]) -> Option<(bool, usize)> {
        if index == 0 {
            string(block)
        } else {
            self.name(index)
        }
    }

    /// The same for a table entry.
    fn name(&self, index: usize) -> Option<(bool, usize)> {
        match index.checked_sub(1)?.checked_sub(STATIC_NAMES.len()) {
            None => Some((index <= STATIC_PSEUDO, usize::from(STATIC_NAMES[index - 1]))),
            Some(index) => self
                .entries
                .get(index)
                .map(|entry| (entry.is_pseudo, entry.name)),
        }
    }

    fn insert(&mut self, entry: Entry) {
        self.evict(entry.size);
        // An entry larger than the table empties it (RFC 7541 4.4).
        if entry.size <= self.most {
            self.size += entry.size;
            self.entries.push_front(entry);
        }
    }

    fn evict(&mut self, room: usize) {
        while self.size + room > self.most
            && let Some(entry) = self.entries.pop_back()
        {
            self.size -= entry.size;
        }
    }
}

/// Reads an integer with a prefix of `bits` bits (RFC 7541 5.1).
fn integer(block: &mut &[u8], bits: u32) -> Option<usize> {
    let mask = (1_usize << bits) - 1;
    let mut value = usize::from(next(block)?) & mask;
    if value < mask {
        return Some(value);
    }
    for shift in [0, 7, 14, 21] {
        let byte = next(block)?;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn next(block: &mut &[u8]) -> Option<u8> {
    block.split_off_first().copied()
}

/// Whether a string begins with a colon, and its decoded length (RFC 7541 5.2).
fn string(block: &mut &[u8]) -> Option<(bool, usize)> {
    let is_coded = block.first()? & 0x80 != 0;
    let length = integer(block, 7)?;
    let text = block.split_off(..length)?;
    if is_coded {
        // The Huffman code of a colon is `1011100`.
        Some((
            text.first().is_some_and(|byte| byte >> 1 == 0x5c),
            plain_length(text)?,
        ))
    } else {
        Some((text.first() == Some(&b':'), length))
    }
}

/// The number of symbols of a Huffman-coded string. The code is canonical: all codes of one length
/// are consecutive.
fn plain_length(text: &[u8]) -> Option<usize> {
    let (mut window, mut held, mut symbols) = (0_u64, 0_u32, 0);
    let mut bytes = text.iter();
    loop {
        while held <= 32
            && let Some(&byte) = bytes.next()
        {
            window |= u64::from(byte) << (56 - held);
            held += 8;
        }
        // The end is followed by ones, as in the padding.
        let ahead = u32::try_from((window | u64::MAX.checked_shr(held).unwrap_or(0)) >> 32).ok()?;
        let length = CODES
            .iter()
            .find(|(_, end)| ahead < *end)
            .map_or(END_OF_STRING, |(length, _)| *length);
        if length > held {
            return (held < 8).then_some(symbols);
        }
        if length == END_OF_STRING && ahead >> 2 == u32::MAX >> 2 {
            return None;
        }
        window <<= length;
        held -= length;
        symbols += 1;
    }
}

/// For each code length: the first value above its codes, left-aligned in 32 bits.
const CODES: [(u32, u32); 20] = {
    let mut codes = [(0, 0); 20];
    let (mut index, mut end, mut before) = (0, 0_u32, 0);
    while index < COUNTS.len() {
        let (length, count) = COUNTS[index];
        end = (end << (length - before)) + count;
        codes[index] = (length, end << (32 - length));
        before = length;
        index += 1;
    }
    codes
};

/// How many codes have which length (RFC 7541 appendix B), without those of 30 bits.
const COUNTS: [(u32, u32); 20] = [
    (5, 10),
    (6, 26),
    (7, 32),
    (8, 6),
    (10, 5),
    (11, 3),
    (12, 2),
    (13, 6),
    (14, 2),
    (15, 3),
    (19, 3),
    (20, 8),
    (21, 13),
    (22, 26),
    (23, 29),
    (24, 12),
    (25, 4),
    (26, 15),
    (27, 19),
    (28, 29),
];
/// The longest codes: three symbols and the end-of-string symbol, which must not occur in a string.
const END_OF_STRING: u32 = 30;

/// The lengths of the names in the static table (RFC 7541 appendix A).
const STATIC_NAMES: [u8; 61] = [
    10, 7, 7, 5, 5, 7, 7, 7, 7, 7, 7, 7, 7, 7, 14, 15, 15, 13, 6, 27, 3, 5, 13, 13, 19, 16, 16, 14,
    16, 13, 12, 6, 4, 4, 6, 7, 4, 4, 8, 17, 13, 8, 19, 13, 4, 8, 12, 18, 19, 5, 7, 7, 11, 6, 10,
    25, 17, 10, 4, 3, 16,
];
/// The first of them are pseudo-headers.
const STATIC_PSEUDO: usize = 14;
/// The overhead of an entry beside its name and value (RFC 7541 4.1).
const OVERHEAD: usize = 32;
/// The default size of the table (RFC 9113 6.5.2); we announce no other.
const DEFAULT_SIZE: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| {
            u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16).expect("a byte")
        };
        digits.chunks(2).map(byte).collect()
    }

    #[test]
    fn hpack_table_is_as_large_as_in_the_examples() {
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
            let mut table = Table::default();
            for (block, size) in blocks.into_iter().zip([57, 110, 164]) {
                assert_eq!(table.follow(&bytes(block)), Some(true), "{block}");
                assert_eq!(table.size, size, "{block}");
            }
            // `custom-key` by its index, then `:authority` by its own.
            assert_eq!(table.follow(&[0xbe]), Some(false));
            assert_eq!(table.follow(&[0xc0]), Some(true));
        }
    }

    #[test]
    fn hpack_entries_leave_a_table_that_is_full() {
        // RFC 7541 C.6: responses, Huffman-coded, in a table of 256 bytes.
        let mut table = Table {
            most: 256,
            ..Table::default()
        };
        for (block, size) in [
            (
                "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
                222,
            ),
            ("4883 640e ffc1 c0bf", 222),
            (
                "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
                215,
            ),
        ] {
            assert_eq!(table.follow(&bytes(block)), Some(true), "{block}");
            assert_eq!(table.size, size, "{block}");
        }
        assert_eq!(table.follow(&[0x20]), Some(false));
        assert_eq!((table.size, table.entries.len()), (0, 0));
    }

    #[test]
    fn hpack_names_are_read_in_every_representation() {
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
            (&[0xbe], None),
            (&[0x00, 5, b':'], None),
            (&[0x3f, 0xff, 0xff, 0xff, 0xff, 0xff], None),
            (&[], Some(false)),
        ] {
            assert_eq!(Table::default().follow(block), expected, "{block:x?}");
        }
    }
}
