//! Escapes in the strings of a JSON text (RFC 8259 section 7), decoded byte by byte.

use wide::u8x16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Escape {
    None,
    /// After the backslash; `high`: a high surrogate came before it.
    Backslash {
        high: Option<u16>,
    },
    /// After `\u` and this many of its four digits.
    Unicode {
        high: Option<u16>,
        /// The number of digits so far.
        digits: u8,
        value: u16,
    },
    High(u16),
}

pub(super) enum Read {
    Nothing,
    Byte(u8),
    Character(char),
    /// No such escape, or an unpaired surrogate.
    Broken,
}

impl Escape {
    /// The position after `byte`, and what it yields.
    pub(super) fn next(self, byte: u8) -> (Self, Read) {
        match (self, byte) {
            (Self::None, b'\\') => (Self::Backslash { high: None }, Read::Nothing),
            (Self::None, _) => (Self::None, Read::Byte(byte)),
            (Self::High(high), b'\\') => (Self::Backslash { high: Some(high) }, Read::Nothing),
            (Self::High(_), _) => (Self::None, Read::Broken),
            (Self::Backslash { high }, b'u') => {
                let (digits, value) = (0, 0);
                let escape = Self::Unicode {
                    high,
                    digits,
                    value,
                };
                (escape, Read::Nothing)
            }
            (Self::Backslash { high: Some(_) }, _) => (Self::None, Read::Broken),
            (Self::Backslash { high: None }, _) => {
                (Self::None, short(byte).map_or(Read::Broken, Read::Byte))
            }
            (
                Self::Unicode {
                    high,
                    digits,
                    value,
                },
                _,
            ) => match char::from(byte).to_digit(16) {
                None => (Self::None, Read::Broken),
                Some(digit) => {
                    let value = value << 4 | u16::try_from(digit).unwrap_or_default();
                    match (digits, high) {
                        (0..3, _) => {
                            let digits = digits + 1;
                            let escape = Self::Unicode {
                                high,
                                digits,
                                value,
                            };
                            (escape, Read::Nothing)
                        }
                        (_, None) if matches!(value, 0xD800..=0xDBFF) => {
                            (Self::High(value), Read::Nothing)
                        }
                        _ => (Self::None, character(high, value)),
                    }
                }
            },
        }
    }
}

/// The place in a part of a string of the first byte that needs a closer look: its closing quote, an
/// escape of a number, one that there is not, or one that is cut. The other escapes are passed.
pub(super) fn passed(piece: &[u8]) -> usize {
    let mut from = 0;
    // Escapes are near to each other in a text: to search for each by itself would take longer.
    while let Some(block) = piece[from..].first_chunk() {
        let mut marks = quotes_and_backslashes(block);
        let mut length = BLOCK;
        while marks != 0 {
            let at = marks.trailing_zeros() as usize;
            if !is_short(block[at], piece.get(from + at + 1)) {
                return from + at;
            }
            marks &= !(0b11 << at);
            length = BLOCK.max(at + 2);
        }
        from += length;
    }
    while let Some(mark) = memchr::memchr2(b'"', b'\\', &piece[from..]) {
        let at = from + mark;
        if !is_short(piece[at], piece.get(at + 1)) {
            return at;
        }
        from += mark + 2;
    }
    piece.len()
}

/// Whether these two bytes are an escape of two characters.
fn is_short(first: u8, second: Option<&u8>) -> bool {
    first == b'\\' && second.is_some_and(|byte| SHORT[usize::from(*byte)])
}

/// Which characters follow the backslash of an escape of two. A table, because the processor cannot foresee
/// which comes next.
const SHORT: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte: u8 = 0;
    while byte < u8::MAX {
        table[byte as usize] = short(byte).is_some();
        byte += 1;
    }
    table
};

const BLOCK: usize = u64::BITS as usize;

/// The places of the quotes and backslashes in a block, as bits.
fn quotes_and_backslashes(block: &[u8; BLOCK]) -> u64 {
    let (parts, _) = block.as_chunks::<16>();
    parts.iter().rev().fold(0, |marks, part| {
        let part = u8x16::new(*part);
        let found = part.cmp_eq(u8x16::splat(b'"')) | part.cmp_eq(u8x16::splat(b'\\'));
        marks << 16 | u64::from(found.move_mask().cast_unsigned())
    })
}

/// The character that an escape of two stands for.
const fn short(byte: u8) -> Option<u8> {
    Some(match byte {
        b'"' | b'\\' | b'/' => byte,
        b'b' => 8,
        b'f' => 12,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        _ => return None,
    })
}

fn character(high: Option<u16>, value: u16) -> Read {
    let mut decoded = char::decode_utf16(high.into_iter().chain([value]));
    match (decoded.next(), decoded.next()) {
        (Some(Ok(character)), None) => Read::Character(character),
        _ => Read::Broken,
    }
}

#[cfg(test)]
mod tests;
