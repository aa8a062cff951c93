//! The identity part of a bucket's key: who the caller is under one scope, in bytes.
//!
//! Every part delimits itself, so that no two lists of parts share bytes; and a part says how it was come by, so that
//! a made-up key never lands in the bucket of a known caller or of an address. Nothing is cut short: a value over
//! [`VALUE_MAX`] bytes is represented by its SHA-256. The form is stable: stores keep it across versions (golden
//! tests below).

use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::address::AddressKey;
use crate::limit::KeyBytes;

/// Appends an address, or the lack of one: callers on Unix sockets that name no address share one bucket.
pub(super) fn push_address(key: &mut KeyBytes, address: Option<AddressKey>) {
    key.push(ADDRESS);
    let bytes = address.as_ref().map_or(&[][..], AddressKey::as_bytes);
    push_length(key, bytes.len());
    key.extend_from_slice(bytes);
}

/// Appends a known caller by its name.
pub(super) fn push_caller(key: &mut KeyBytes, name: &str) {
    key.push(CALLER);
    push_value(key, name.as_bytes());
}

/// Begins a list of `count` values of an identity, to be followed by [`push_value`] for each. `fallback`: the name of
/// the identity they are of, when it stands in for the one asked for.
pub(super) fn push_values(key: &mut KeyBytes, fallback: Option<&str>, count: usize) {
    if let Some(name) = fallback {
        key.push(FALLBACK);
        push_value(key, name.as_bytes());
    }
    key.push(VALUES);
    push_length(key, count);
}

/// Appends one value.
pub(super) fn push_value(key: &mut KeyBytes, value: &[u8]) {
    if value.len() <= VALUE_MAX {
        push_length(key, value.len());
        key.extend_from_slice(value);
    } else {
        key.push(HASHED);
        key.extend_from_slice(&Sha256::digest(value));
    }
}

fn push_length(key: &mut KeyBytes, length: usize) {
    // At most VALUE_MAX, or the number of an identity's sources, which the policy bounds.
    key.push(u8::try_from(length).unwrap_or(u8::MAX));
}

/// A key for people: `address 192.0.2.7`, `caller acme`, `"k-123"`; parts joined by ` + `. `everyone` when empty.
pub fn words(key: &[u8]) -> String {
    if key.is_empty() {
        return "everyone".into();
    }
    let mut text = String::new();
    let mut rest = key;
    while !rest.is_empty() {
        if !text.is_empty() {
            text.push_str(" + ");
        }
        match part_words(rest, &mut text) {
            Some(after) => rest = after,
            None => {
                text.push('?');
                break;
            }
        }
    }
    text
}

fn part_words<'k>(key: &'k [u8], text: &mut String) -> Option<&'k [u8]> {
    let (&tag, rest) = key.split_first()?;
    match tag {
        ADDRESS => {
            let (&length, rest) = rest.split_first()?;
            let (bytes, rest) = rest.split_at_checked(usize::from(length))?;
            match (<[u8; 4]>::try_from(bytes), <[u8; 16]>::try_from(bytes)) {
                (Ok(v4), _) => write!(text, "address {}", std::net::Ipv4Addr::from(v4)),
                (_, Ok(v6)) => write!(text, "address {}", std::net::Ipv6Addr::from(v6)),
                _ => write!(text, "no address"),
            }
            .ok()?;
            Some(rest)
        }
        CALLER => {
            text.push_str("caller ");
            value_words(rest, false, text)
        }
        FALLBACK => {
            let rest = value_words(rest, false, text)?;
            text.push(' ');
            part_words(rest, text)
        }
        VALUES => {
            let (&count, mut rest) = rest.split_first()?;
            for index in 0..count {
                if index > 0 {
                    text.push_str(", ");
                }
                rest = value_words(rest, true, text)?;
            }
            Some(rest)
        }
        _ => None,
    }
}

fn value_words<'k>(key: &'k [u8], quoted: bool, text: &mut String) -> Option<&'k [u8]> {
    let (&length, rest) = key.split_first()?;
    if length == HASHED {
        let (digest, rest) = rest.split_at_checked(32)?;
        text.push_str("sha256:");
        for byte in digest {
            write!(text, "{byte:02x}").ok()?;
        }
        return Some(rest);
    }
    let (value, rest) = rest.split_at_checked(usize::from(length))?;
    let value = String::from_utf8_lossy(value);
    if quoted {
        write!(text, "{value:?}").ok()?
    } else {
        text.push_str(&value)
    }
    Some(rest)
}

/// A place of `key` under `name` in 0..10,000, the same on every gateway and in every run: who is among the first so
/// many percent a limit is enforced for. FNV-1a (Fowler, Noll, Vo), its bits then mixed as in MurmurHash3's finaliser.
pub(super) fn share(name: &str, key: &[u8]) -> u16 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in name.bytes().chain([0xff]).chain(key.iter().copied()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    u16::try_from((hash ^ hash >> 33) % 10_000).unwrap_or(0)
}

const ADDRESS: u8 = 0;
const VALUES: u8 = 1;
const CALLER: u8 = 2;
const FALLBACK: u8 = 3;
/// In place of a length: 32 bytes of SHA-256 follow.
const HASHED: u8 = 255;
/// The longest value that stands in a key as it is; keys stay small, whatever callers send.
pub const VALUE_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_stay_as_they_are() {
        let mut key = KeyBytes::new();
        push_address(&mut key, Some(AddressKey::V4([192, 0, 2, 7])));
        push_caller(&mut key, "acme");
        push_values(&mut key, Some("anon"), 2);
        push_value(&mut key, b"k\"1");
        push_value(&mut key, b"");
        assert_eq!(&key[..], b"\x00\x04\xc0\x00\x02\x07\x02\x04acme\x03\x04anon\x01\x02\x03k\"1\x00");
        assert_eq!(words(&key), r#"address 192.0.2.7 + caller acme + anon "k\"1", """#);
        assert_eq!(words(&[]), "everyone");
        assert_eq!(words(&[9, 9]), "?");
    }

    #[test]
    fn a_long_value_is_hashed_whole() {
        let key = |value: &[u8]| {
            let mut key = KeyBytes::new();
            push_values(&mut key, None, 1);
            push_value(&mut key, value);
            key
        };
        let (long, other) = ([b'a'; 5000], [&[b'a'; 4999][..], b"b"].concat());
        assert_eq!(key(&long).len(), 35);
        assert_ne!(key(&long), key(&other));
        assert!(words(&key(&long)).starts_with("sha256:"));
    }

    #[test]
    fn a_share_is_about_its_percentage_and_stable() {
        let within = (0..10_000_u32).filter(|n| share("search", &n.to_be_bytes()) < 2_500).count();
        assert!((2_300..2_700).contains(&within), "{within}");
        assert_eq!(share("search", b"acme"), share("search", b"acme"));
        assert_eq!(share("search", b"acme"), 8787);
    }

    proptest! {
        #[test]
        fn no_two_lists_of_values_share_bytes(a in prop::collection::vec(".{0,3}", 0..4), b in prop::collection::vec(".{0,3}", 0..4)) {
            let key = |values: &[String]| {
                let mut key = KeyBytes::new();
                push_values(&mut key, None, values.len());
                values.iter().for_each(|value| push_value(&mut key, value.as_bytes()));
                key
            };
            prop_assert_eq!(a == b, key(&a) == key(&b));
        }

        #[test]
        fn any_bytes_can_be_worded(key in prop::collection::vec(0..6_u8, 0..20)) {
            let _ = words(&key);
        }
    }
}
