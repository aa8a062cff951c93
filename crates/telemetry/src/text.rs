//! Formats addresses, and escapes characters, without `fmt`, which takes several times as long for every request.

use std::net::Ipv4Addr;

/// Appends the JSON escape of a control or deceptive character (up to U+FFFF).
pub fn push_escaped(into: &mut Vec<u8>, character: char) {
    into.extend_from_slice(b"\\u");
    for shift in [12, 8, 4, 0] {
        into.push(b"0123456789abcdef"[(u32::from(character) >> shift & 15) as usize]);
    }
}

/// Appends an IPv4 address: digits and dots.
pub fn push_dotted(into: &mut Vec<u8>, address: Ipv4Addr) {
    for (place, octet) in address.octets().into_iter().enumerate() {
        if place > 0 {
            into.push(b'.');
        }
        into.extend_from_slice(itoa::Buffer::new().format(octet).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn addresses_are_what_fmt_makes_of_them(octets: [u8; 4]) {
            let (address, mut text) = (Ipv4Addr::from(octets), Vec::new());
            push_dotted(&mut text, address);
            proptest::prop_assert_eq!(String::from_utf8_lossy(&text), address.to_string());
        }
    }
}
