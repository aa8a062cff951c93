//! Escapes in the strings of a JSON text (RFC 8259 section 7), decoded byte by byte.

/// The position in an escape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Escape {
    /// Not in an escape.
    None,
    /// After the backslash; `high`: a high surrogate came before it.
    Backslash {
        /// The high surrogate.
        high: Option<u16>,
    },
    /// After `\u` and this many of its four digits.
    Unicode {
        /// The high surrogate before it.
        high: Option<u16>,
        /// The number of digits so far.
        digits: u8,
        /// Their value.
        value: u16,
    },
    /// After a high surrogate.
    High(u16),
}

/// The result of a byte of a string.
pub(super) enum Read {
    /// The escape goes on.
    Nothing,
    /// A byte of the string.
    Byte(u8),
    /// A character that was escaped.
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
            (Self::Backslash { high: None }, _) => (Self::None, short(byte)),
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
    while let Some(mark) = memchr::memchr2(b'"', b'\\', &piece[from..]) {
        let at = from + mark;
        match piece[at..] {
            [
                b'\\',
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't',
                ..,
            ] => from = at + 2,
            _ => return at,
        }
    }
    piece.len()
}

fn short(byte: u8) -> Read {
    Read::Byte(match byte {
        b'"' | b'\\' | b'/' => byte,
        b'b' => 8,
        b'f' => 12,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        _ => return Read::Broken,
    })
}

fn character(high: Option<u16>, value: u16) -> Read {
    let mut decoded = char::decode_utf16(high.into_iter().chain([value]));
    match (decoded.next(), decoded.next()) {
        (Some(Ok(character)), None) => Read::Character(character),
        _ => Read::Broken,
    }
}
