//! Numbers, literals and the encoding of a JSON text, read piece by piece.

use super::Value;

/// A number that is being read (RFC 8259 section 6).
#[derive(Clone, Copy, Debug)]
pub(super) struct Number {
    /// The digits before the point.
    units: u64,
    part: Part,
    negative: bool,
    /// Whether a digit after the point is not zero.
    fraction: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Sign,
    Zero,
    Digits,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
    Broken,
}

impl Number {
    pub(super) fn new(byte: u8) -> Self {
        let (part, units) = match byte {
            b'1'..=b'9' => (Part::Digits, u64::from(byte - b'0')),
            b'-' => (Part::Sign, 0),
            _ => (Part::Zero, 0),
        };
        Self {
            units,
            part,
            negative: byte == b'-',
            fraction: false,
        }
    }

    /// The number with another byte; `None`: the number has ended before it.
    pub(super) fn next(mut self, byte: u8) -> Option<Self> {
        self.part = match (self.part, byte) {
            (Part::Sign, b'0') => Part::Zero,
            (Part::Sign | Part::Digits, b'0'..=b'9') => {
                let digit = u64::from(byte - b'0');
                self.units = self.units.saturating_mul(10).saturating_add(digit);
                Part::Digits
            }
            (Part::Zero | Part::Digits, b'.') => Part::Point,
            (Part::Point | Part::Fraction, b'0'..=b'9') => {
                self.fraction |= byte != b'0';
                Part::Fraction
            }
            (Part::Zero | Part::Digits | Part::Fraction, b'e' | b'E') => Part::Exponent,
            (Part::Exponent, b'+' | b'-') => Part::ExponentSign,
            (Part::Exponent | Part::ExponentSign | Part::ExponentDigits, b'0'..=b'9') => {
                Part::ExponentDigits
            }
            (_, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E') => Part::Broken,
            _ => return None,
        };
        Some(self)
    }

    /// Whether a number may end here.
    pub(super) const fn is_whole(self) -> bool {
        matches!(
            self.part,
            Part::Zero | Part::Digits | Part::Fraction | Part::ExponentDigits
        )
    }

    /// Its value. Numbers below zero, and with an exponent, are not written for costs.
    pub(super) fn value(self) -> Value {
        let pointed = matches!(self.part, Part::Point | Part::Fraction);
        let plain = pointed || matches!(self.part, Part::Zero | Part::Digits);
        if self.negative || !plain {
            return Value::Odd;
        }
        Value::Number {
            units: self.units.saturating_add(u64::from(self.fraction)),
            whole: !pointed,
        }
    }
}

/// `true`, `false` or `null` that is being read: the word, and how many of its bytes came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Literal {
    word: &'static str,
    came: usize,
}

impl Literal {
    pub(super) const fn new(byte: u8) -> Option<Self> {
        let word = match byte {
            b't' => "true",
            b'f' => "false",
            b'n' => "null",
            _ => return None,
        };
        Some(Self { word, came: 1 })
    }

    /// The literal with another byte; `None`: it is complete with it.
    pub(super) fn next(mut self, byte: u8) -> Result<Option<Self>, ()> {
        if self.word.as_bytes().get(self.came) != Some(&byte) {
            return Err(());
        }
        self.came += 1;
        Ok((self.came < self.word.len()).then_some(self))
    }

    /// Its value; `null` counts as absent.
    pub(super) fn value(self) -> Option<Value> {
        match self.word {
            "true" => Some(Value::Flag(true)),
            "false" => Some(Value::Flag(false)),
            _ => None,
        }
    }
}

/// Checks that pieces are UTF-8, also where a character is cut.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Utf8 {
    /// The beginning of a character whose end is in the next piece.
    cut: [u8; 4],
    length: usize,
}

impl Utf8 {
    /// Whether the pieces are valid so far.
    pub(super) fn feed(&mut self, piece: &[u8]) -> bool {
        // Several times as fast as to decode it.
        if self.length == 0 && piece.is_ascii() {
            return true;
        }
        let mut rest = piece;
        while self.length > 0 {
            let Some((&byte, after)) = rest.split_first() else {
                return true;
            };
            rest = after;
            self.cut[self.length] = byte;
            self.length += 1;
            match std::str::from_utf8(&self.cut[..self.length]) {
                Ok(_) => self.length = 0,
                // Four bytes are always a character or an error.
                Err(error) if error.error_len().is_some() => return false,
                Err(_) => {}
            }
        }
        let Err(error) = std::str::from_utf8(rest) else {
            return true;
        };
        let cut = &rest[error.valid_up_to()..];
        if error.error_len().is_some() {
            return false;
        }
        self.cut[..cut.len()].copy_from_slice(cut);
        self.length = cut.len();
        true
    }

    /// Whether no character is cut.
    pub(super) const fn is_whole(self) -> bool {
        self.length == 0
    }
}

/// Whether there is a control character, which no string may contain.
pub(super) fn has_control(run: &[u8]) -> bool {
    // Without an early end the compiler compares many bytes at once.
    run.iter().fold(false, |found, byte| found | (*byte < 0x20))
}

/// Whether it consists of ASCII characters that are no control characters (DEL counts as printable,
/// because a string of JSON may contain it).
pub(super) fn is_printable_ascii(run: &[u8]) -> bool {
    // As signed numbers, bytes beyond ASCII are below the blank, too: one comparison is enough.
    !run.iter()
        .fold(false, |found, byte| found | (byte.cast_signed() < 0x20))
}
