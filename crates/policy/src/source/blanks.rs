//! White space beyond that of ASCII. Many servers drop it around a value or split at it (`.trim()`,
//! `\s`, `.strip()`, `.split()`), and others do not.

use std::borrow::Cow;

/// Whether some servers take `character` for white space: Unicode's, and characters that have been,
/// or that JavaScript or .NET trim.
pub(crate) fn is_odd(character: char) -> bool {
    let also = matches!(character, '\u{180e}' | '\u{200b}' | '\u{feff}');
    also || !character.is_ascii() && character.is_whitespace()
}

/// Whether a byte is white space in Latin-1, as which some servers read headers.
const fn is_odd_byte(byte: u8) -> bool {
    matches!(byte, 0x85 | 0xa0)
}

/// Whether some servers drop the first or the last character of `value`, which has no ASCII blanks
/// around it.
pub(crate) fn are_around(value: &[u8]) -> bool {
    let ends = [value.first().copied(), value.last().copied()];
    if ends.iter().flatten().all(u8::is_ascii) {
        return false;
    }
    let text = String::from_utf8_lossy(value);
    let is_utf8 = matches!(text, Cow::Borrowed(_));
    let outer = [text.chars().next(), text.chars().next_back()];
    outer.into_iter().flatten().any(is_odd)
        || !is_utf8 && ends.into_iter().flatten().any(is_odd_byte)
}

/// Whether some servers split `value` where others do not.
pub(super) fn are_in(value: &[u8]) -> bool {
    if value.is_ascii() {
        return false;
    }
    match std::str::from_utf8(value) {
        Ok(text) => text.contains(is_odd),
        Err(_) => {
            value.iter().copied().any(is_odd_byte)
                || String::from_utf8_lossy(value).contains(is_odd)
        }
    }
}

/// A name without any white space around it.
pub(super) fn trimmed(name: &[u8]) -> Cow<'_, [u8]> {
    if name.is_ascii() {
        return Cow::Borrowed(name.trim_ascii());
    }
    let is_dropped = |character: char| {
        // What is no UTF-8 may be a blank in Latin-1.
        let unknown = character == char::REPLACEMENT_CHARACTER;
        unknown || character.is_ascii_whitespace() || is_odd(character)
    };
    let text = String::from_utf8_lossy(name);
    Cow::Owned(text.trim_matches(is_dropped).as_bytes().to_vec())
}
