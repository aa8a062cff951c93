//! Hexadecimal digits, and percent-encoded text, which is written in them.

use std::borrow::Cow;
use std::fmt::Write;

pub const fn value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// The byte that two digits write.
pub fn byte(high: u8, low: u8) -> Option<u8> {
    Some(value(high)? << 4 | value(low)?)
}

/// The bytes that a text of digits writes.
pub fn bytes(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| byte(*high, *low));
    rest.is_empty().then(|| bytes.collect())?
}

/// The digits of `bytes`, in lower case.
pub fn digits(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// `text` percent-decoded once; invalid escapes stay. `plus`: `+` is a space.
pub fn percent_decoded(text: &[u8], plus: bool) -> Cow<'_, [u8]> {
    if !text
        .iter()
        .any(|byte| *byte == b'%' || plus && *byte == b'+')
    {
        return Cow::Borrowed(text);
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let escape = match after {
            [high, low, ..] if first == b'%' => byte(*high, *low),
            _ => None,
        };
        rest = if escape.is_some() { &after[2..] } else { after };
        decoded.push(match (escape, first) {
            (Some(byte), _) => byte,
            (None, b'+') if plus => b' ',
            (None, byte) => byte,
        });
    }
    Cow::Owned(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_digits_and_bytes_are_each_others_inverse() {
        assert_eq!(digits(&[0, 0x0a, 0xff]), "000aff");
        assert_eq!(bytes("000AfF"), Some(vec![0, 0x0a, 0xff]));
        assert_eq!(bytes(""), Some(Vec::new()));
        for wrong in ["0", "0g", "+5", "é"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn hex_invalid_escape_of_a_percent_encoded_text_stays() {
        for (text, plus, decoded) in [
            ("a%20b+c", false, "a b+c"),
            ("a%20b+c", true, "a b c"),
            ("%+5%4%%41", true, "% 5%4%A"),
            ("%2541", false, "%41"),
        ] {
            assert_eq!(
                *percent_decoded(text.as_bytes(), plus),
                *decoded.as_bytes(),
                "{text}"
            );
        }
    }
}
