//! Formats numbers and addresses without `fmt`: every request has some, and `fmt` takes several
//! times as long.

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
        let (mut text, mut length) = ([0; 16], 0);
        for octet in address.octets() {
            let (digits, count) = OCTETS[usize::from(octet)];
            text[length..length + 4].copy_from_slice(&digits);
            length += count + 1;
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

/// The digits of every octet with a dot after them, and their number.
const OCTETS: [([u8; 4], usize); 256] = {
    let mut octets = [([b'.'; 4], 0); 256];
    let mut octet = 0;
    while octet < 256 {
        let (digits, count) = &mut octets[octet];
        let mut unit = if octet >= 100 {
            100
        } else if octet >= 10 {
            10
        } else {
            1
        };
        while unit > 0 {
            digits[*count] = DIGITS[octet / unit % 10];
            *count += 1;
            unit /= 10;
        }
        octet += 1;
    }
    octets
};

const DIGITS: &[u8; 10] = b"0123456789";

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
