//! What a body begins with: JSON, or JSON behind characters that only some servers skip.
//!
//! Servers that detect UTF-16 and UTF-32 find JSON between NULs; others skip a byte order mark, white
//! space of Unicode, comments, or the prefix `)]}'`. Each character is judged as it arrives, so that
//! it does not matter how the body was cut into pieces.

use super::flaw::BodyFlaw;
use crate::identity::source::is_odd_blank;

#[derive(Debug, Default)]
pub(super) struct Opening {
    place: Place,
    /// The bytes of a character that is not whole.
    partial: [u8; 4],
    filled: usize,
    /// Whether something came that only some servers skip.
    is_odd: bool,
    /// Whether it was a part of another encoding, or a byte order mark.
    is_encoded: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opened {
    /// JSON, from this byte of the piece on.
    Json(usize),
    Other,
    /// JSON to some servers only.
    Refused(BodyFlaw),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Between,
    Slash,
    /// In a comment that ends with the line.
    Line,
    /// In a comment that ends with `*/`.
    Block,
    /// In it, after a `*`.
    Star,
}

impl Opening {
    /// Reads a piece; `None`: more is needed.
    pub(super) fn feed(&mut self, piece: &[u8]) -> Option<Opened> {
        let mut bytes = piece.iter().enumerate();
        bytes.find_map(|(at, &byte)| {
            let character = self.character(byte)?;
            self.next(character, at)
        })
    }

    /// The character that `byte` completes. A byte that is no UTF-8 is read as Latin-1 where it is a
    /// blank there, and as [`HALF_MARK`] where it is a part of a mark of UTF-16.
    fn character(&mut self, byte: u8) -> Option<char> {
        self.partial[self.filled] = byte;
        match std::str::from_utf8(&self.partial[..=self.filled]) {
            Ok(text) => {
                self.filled = 0;
                text.chars().next()
            }
            Err(error) if error.error_len().is_none() => {
                self.filled += 1;
                None
            }
            Err(_) => {
                self.is_odd = true;
                Some(match (std::mem::take(&mut self.filled), byte) {
                    (0, 0xFE | 0xFF) => HALF_MARK,
                    (0, 0x85 | 0xA0) => '\u{a0}',
                    // What came before it is no character.
                    (_, byte) if byte.is_ascii() => char::from(byte),
                    _ => char::REPLACEMENT_CHARACTER,
                })
            }
        }
    }

    fn next(&mut self, character: char, at: usize) -> Option<Opened> {
        self.place = match (self.place, character) {
            (place, '\0') => {
                self.is_encoded = true;
                self.skipped(place)
            }
            (Place::Between, '{' | '[') => return Some(self.opened(at)),
            (Place::Between, ' ' | '\t' | '\n' | '\r') => Place::Between,
            (Place::Between, '/') => self.skipped(Place::Slash),
            (Place::Between, '#') => self.skipped(Place::Line),
            // Gson skips a prefix that keeps scripts from reading JSON.
            (Place::Between, ')' | ']' | '}' | '\'') => self.skipped(Place::Between),
            (Place::Between, HALF_MARK) if self.is_encoded => {
                return Some(Opened::Refused(BodyFlaw::Charset));
            }
            (Place::Between, HALF_MARK | '\u{feff}') => {
                self.is_encoded = true;
                self.skipped(Place::Between)
            }
            (Place::Between, odd) if odd.is_control() || is_odd_blank(odd) => {
                self.skipped(Place::Between)
            }
            (Place::Slash, '/') => Place::Line,
            (Place::Slash, '*') => Place::Block,
            (Place::Between | Place::Slash, _) => return Some(Opened::Other),
            (Place::Line, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}') => Place::Between,
            (Place::Line, _) => Place::Line,
            (Place::Star, '/') => Place::Between,
            (Place::Block | Place::Star, '*') => Place::Star,
            (Place::Block | Place::Star, _) => Place::Block,
        };
        None
    }

    const fn skipped(&mut self, place: Place) -> Place {
        self.is_odd = true;
        place
    }

    /// `{` or `[` came at this byte of the piece.
    const fn opened(&self, at: usize) -> Opened {
        match (self.is_odd, self.is_encoded) {
            (false, _) => Opened::Json(at),
            (true, true) => Opened::Refused(BodyFlaw::Charset),
            (true, false) => Opened::Refused(BodyFlaw::Malformed),
        }
    }
}

/// Stands for a byte of the mark of UTF-16 (`FE FF`); a text has no such character.
const HALF_MARK: char = '\u{fffe}';
