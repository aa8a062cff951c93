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

/// The number of symbols of a Huffman-coded string: codes of one length are consecutive.
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
        let code = CODES.iter().find(|(_, end)| ahead < *end);
        let length = code.map_or(END_OF_STRING, |(length, _)| *length);
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
mod tests;
