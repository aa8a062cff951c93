//! Formats addresses without `fmt`, which takes several times as long for every request.

use std::net::Ipv4Addr;

/// Appends the JSON escape of a character for which [`is_deceptive`] is true.
///
/// [`is_deceptive`]: tollgate_limit::printable::is_deceptive
pub fn push_escaped(into: &mut Vec<u8>, character: char) {
    into.extend_from_slice(b"\\u");
    for shift in [12, 8, 4, 0] {
        into.push(b"0123456789abcdef"[(u32::from(character) >> shift & 15) as usize]);
    }
}

/// An IPv4 address with its dots.
#[derive(Clone, Copy, Debug)]
pub struct Dotted {
    text: [u8; 16],
    length: usize,
}

impl Dotted {
    pub fn new(address: Ipv4Addr) -> Self {
        let (mut text, mut length) = ([b'.'; 16], 0);
        for octet in address.octets() {
            let mut digits = itoa::Buffer::new();
            let digits = digits.format(octet).as_bytes();
            text[length..length + digits.len()].copy_from_slice(digits);
            length += digits.len() + 1;
        }
        // Without the dot after the last octet.
        Self {
            text,
            length: length - 1,
        }
    }

    /// The text: digits and dots.
    pub fn as_bytes(&self) -> &[u8] {
        &self.text[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn addresses_are_what_fmt_makes_of_them(octets: [u8; 4]) {
            let address = Ipv4Addr::from(octets);
            let dotted = Dotted::new(address);
            proptest::prop_assert_eq!(String::from_utf8_lossy(dotted.as_bytes()), address.to_string());
        }
    }
}
