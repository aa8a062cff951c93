//! Escapes untrusted bytes for JSON strings and quoted log columns, so that every line stays one
//! line of valid text.

use crate::text::push_escaped;
use tollgate_limit::printable::is_deceptive;

/// Appends `bytes` as the inside of a JSON string. Invalid UTF-8 becomes U+FFFD.
pub(super) fn json(into: &mut Vec<u8>, bytes: &[u8]) {
    if is_plain(bytes) {
        into.extend_from_slice(bytes);
    } else {
        escaped(into, bytes);
    }
}

/// Whether no byte needs an escape, as is nearly always the case; the last word overlaps the one
/// before it.
fn is_plain(bytes: &[u8]) -> bool {
    let Some(last) = bytes.last_chunk::<8>() else {
        return bytes.iter().all(|byte| PLAIN[usize::from(*byte)]);
    };
    let mut words = bytes
        .chunks_exact(8)
        .map(|chunk| u64::from_le_bytes(chunk.try_into().expect("a chunk of eight")));
    words.all(all_plain) && all_plain(u64::from_le_bytes(*last))
}

#[cold]
fn escaped(into: &mut Vec<u8>, bytes: &[u8]) {
    let mut rest = bytes;
    loop {
        let plain = plain_prefix(rest);
        into.extend_from_slice(&rest[..plain]);
        match rest.get(plain) {
            None => return,
            Some(0x80..) => return beyond_ascii(into, &rest[plain..]),
            Some(byte) => escape(into, *byte),
        }
        rest = &rest[plain + 1..];
    }
}

/// The length of the prefix that needs no escape.
fn plain_prefix(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .position(|byte| !PLAIN[usize::from(*byte)])
        .unwrap_or(bytes.len())
}

/// Whether none of eight bytes needs an escape; a false result may be wrong, a true one never is.
const fn all_plain(word: u64) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = ONES << 7;
    let quote = word ^ (ONES * b'"' as u64);
    let backslash = word ^ (ONES * b'\\' as u64);
    let delete = word ^ (ONES * 0x7f);
    let below_space = word.wrapping_sub(ONES * 0x20) & !word;
    (word | below_space | has_zero(quote) | has_zero(backslash) | has_zero(delete)) & HIGH == 0
}

/// Mycroft's test for a zero byte; sets the high bit of such a byte.
const fn has_zero(word: u64) -> u64 {
    word.wrapping_sub(0x0101_0101_0101_0101) & !word
}

/// Appends `bytes` as the inside of a quoted column of the combined format, as NGINX does: `\xXX`
/// for quotes, backslashes and everything but printable ASCII.
pub(super) fn combined(into: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        match byte {
            b'"' | b'\\' | 0..=0x1f | 0x7f.. => {
                into.extend_from_slice(b"\\x");
                into.push(HEX_UPPER[usize::from(byte >> 4)]);
                into.push(HEX_UPPER[usize::from(byte & 15)]);
            }
            _ => into.push(*byte),
        }
    }
}

fn beyond_ascii(into: &mut Vec<u8>, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                _ if is_deceptive(character) => push_escaped(into, character),
                '\u{80}'.. => into.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
                _ => match u8::try_from(character) {
                    Ok(byte) if PLAIN[usize::from(byte)] => into.push(byte),
                    Ok(byte) => escape(into, byte),
                    Err(_) => {}
                },
            }
        }
        if !chunk.invalid().is_empty() {
            into.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
}

fn escape(into: &mut Vec<u8>, byte: u8) {
    match byte {
        b'"' => into.extend_from_slice(b"\\\""),
        b'\\' => into.extend_from_slice(b"\\\\"),
        b'\n' => into.extend_from_slice(b"\\n"),
        b'\r' => into.extend_from_slice(b"\\r"),
        b'\t' => into.extend_from_slice(b"\\t"),
        _ => {
            into.extend_from_slice(b"\\u00");
            into.push(HEX[usize::from(byte >> 4)]);
            into.push(HEX[usize::from(byte & 15)]);
        }
    }
}

/// The bytes that need no escape in a JSON string.
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0x20;
    while byte < 0x7f {
        plain[byte] = true;
        byte += 1;
    }
    plain[b'"' as usize] = false;
    plain[b'\\' as usize] = false;
    plain
};

const HEX: &[u8; 16] = b"0123456789abcdef";
const HEX_UPPER: &[u8; 16] = b"0123456789ABCDEF";
