//! Escapes untrusted bytes for JSON strings and quoted columns: a line stays one valid line.

use crate::text::push_escaped;
use tollgate_limit::printable::is_deceptive;

/// Appends `bytes` as the inside of a JSON string. Invalid UTF-8 becomes U+FFFD.
pub(super) fn json(into: &mut Vec<u8>, bytes: &[u8]) {
    let mut rest = bytes;
    loop {
        let is_special = |byte: &u8| !PLAIN[usize::from(*byte)];
        let plain = rest.iter().position(is_special).unwrap_or(rest.len());
        into.extend_from_slice(&rest[..plain]);
        match rest.get(plain) {
            None => return,
            Some(0x80..) => return beyond_ascii(into, &rest[plain..]),
            Some(byte) => escape(into, *byte),
        }
        rest = &rest[plain + 1..];
    }
}

/// As the inside of a quoted column of the combined format, as NGINX does: `\xXX` for quotes,
/// backslashes and everything but printable ASCII.
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
        _ => push_escaped(into, byte.into()),
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

const HEX_UPPER: &[u8; 16] = b"0123456789ABCDEF";
