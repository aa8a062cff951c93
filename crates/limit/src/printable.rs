//! Text for people that may hold bytes of strangers: file names, requests, lines of a log.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether printing a character could change how a line is read: terminal controls (C1), marks that
/// change the direction of text, and Unicode's line ends. C0 controls are not among them: every
/// format has its own rule for those.
pub const fn is_deceptive(character: char) -> bool {
    matches!(
        character,
        '\u{7f}'..='\u{9f}' | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// A value as part of a line: controls and deceptive characters are escaped as in JSON.
pub fn printable(value: &str) -> Cow<'_, str> {
    escaped(value, false)
}

/// As [`printable`], for a whole text: line ends and tabs stay.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, true)
}

/// `text` with every byte percent-encoded, except those that `keep` accepts.
pub fn percent_encoded(text: &str, keep: impl Fn(u8) -> bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii() && keep(byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

fn escaped(text: &str, lines: bool) -> Cow<'_, str> {
    let obeyed = |c: char| match c {
        '\n' | '\t' => !lines,
        _ => c < ' ' || is_deceptive(c),
    };
    if !text.contains(obeyed) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            _ if !obeyed(character) => safe.push(character),
            '\n' => safe.push_str("\\n"),
            '\t' => safe.push_str("\\t"),
            // Writing into a String cannot fail.
            _ => _ = write!(safe, "\\u{:04x}", u32::from(character)),
        }
    }
    Cow::Owned(safe)
}

/// The 16 hexadecimal digits of a word.
pub fn hex(word: u64) -> [u8; 16] {
    let digit = |place: usize| (word >> (60 - 4 * place) & 15) as usize;
    std::array::from_fn(|place| b"0123456789abcdef"[digit(place)])
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn hexadecimal_digits_are_what_fmt_makes_of_them(word: u64) {
            let digits = hex(word);
            proptest::prop_assert_eq!(String::from_utf8_lossy(&digits), format!("{word:016x}"));
        }
    }

    #[test]
    fn printable_escapes_control_characters_only() {
        let hostile = "a\u{1b}[2J\u{9b}\u{7f}\u{202e}\u{2066}\u{200f}\u{61c}\u{2028}\r\0b ü\\\"";
        let safe = r#"a\u001b[2J\u009b\u007f\u202e\u2066\u200f\u061c\u2028\u000d\u0000b ü\""#;
        assert_eq!(printable(hostile), safe);
        assert_eq!(printable_lines(hostile), safe);
        assert_eq!(printable("a\n\tb"), "a\\n\\tb");
        assert_eq!(printable_lines("a\n\tb"), "a\n\tb");
        assert!(matches!(printable("plain ü"), Cow::Borrowed(_)));
    }
}
