//! The identity part of a bucket's key: the caller under one scope, in bytes.
//!
//! A key is a list of pieces, each with a tag and [`push_part`]'s length and bytes. Every piece is
//! self-delimiting, so that two different lists never have the same bytes. The tag states the kind
//! of piece, so that an invented key never selects the bucket of a known caller or of an address.
//! No value is truncated: a value over [`VALUE_MAX`] bytes is represented by its SHA-256. The
//! format is stable: stores keep it across versions (golden test below).

use std::fmt::Write;

use sha2::{Digest, Sha256};

use crate::routes::pattern::HostPattern;
use tollgate_limit::KeyBytes;
use tollgate_limit::key::push_part;

/// Appends an address, or its absence: callers on Unix sockets without an address share one bucket.
pub(crate) fn push_address(key: &mut KeyBytes, address: Option<KeyBytes>) {
    key.push(ADDRESS);
    push_part(key, address.as_deref().unwrap_or_default());
}

pub(crate) fn push_host(key: &mut KeyBytes, host: &HostPattern) {
    push(key, HOST, host.to_string().as_bytes());
}

pub(crate) fn push_entry(key: &mut KeyBytes, name: &str, value: &str) {
    push(key, ENTRY, name.as_bytes());
    push(key, VALUE, value.as_bytes());
}

pub(crate) fn push(key: &mut KeyBytes, tag: u8, text: &[u8]) {
    if text.len() <= VALUE_MAX {
        key.push(tag);
        push_part(key, text);
    } else {
        key.push(tag | HASHED);
        push_part(key, &Sha256::digest(text));
    }
}

/// A readable form of a key: `address 192.0.2.7`, `caller acme`, `"k-123"`; pieces joined by ` + `.
/// `everyone` when empty. `hidden`: values that a client sent, which may be secrets, are `a key`. A name
/// that could be read as such a value is in quotes: `caller "a key"`.
pub fn words(key: &[u8], hidden: bool) -> String {
    if key.is_empty() {
        return "everyone".into();
    }
    let mut text = String::new();
    let mut rest = key;
    while !rest.is_empty() {
        match piece_words(rest, hidden, &mut text) {
            Some((after, joint)) => {
                rest = after;
                text.push_str(if rest.is_empty() { "" } else { joint });
            }
            None => {
                text.push('?');
                break;
            }
        }
    }
    text
}

/// Whether a key in [`words`] has a value that is not shown (`hidden`). Keys of one limit may then
/// have the same words.
///
/// A value is a piece of its own, or follows the name of its identity or entry: `a key`, `anon a key`.
/// [`words`] writes a name that ends like one in quotes. Two texts are still taken for a value: ` + a
/// key + ` within quotes, and such a name as an older version wrote it, without quotes.
pub fn hides(words: &str) -> bool {
    words.split(JOINT).any(ends_hidden)
}

/// Whether a piece is a value that is not shown, or ends with one.
fn ends_hidden(piece: &str) -> bool {
    let before = piece.strip_suffix(HIDDEN);
    before.is_some_and(|before| before.is_empty() || before.ends_with(' '))
}

/// Writes a name as it is, or in quotes where [`hides`] would read it as a value.
fn write_name(text: &mut String, name: &[u8]) -> std::fmt::Result {
    let name = String::from_utf8_lossy(name);
    match ends_hidden(&name) || name.contains(JOINT) {
        true => write!(text, "{name:?}"),
        false => write!(text, "{name}"),
    }
}

/// Writes the first piece; returns the rest and its separator.
fn piece_words<'k>(
    key: &'k [u8],
    hidden: bool,
    text: &mut String,
) -> Option<(&'k [u8], &'static str)> {
    let (&tag, rest) = key.split_first()?;
    let (bytes, rest) = split_part(rest)?;
    let mut named = |kind: &str| {
        text.push_str(kind);
        write_name(text, bytes)
    };
    match tag {
        ADDRESS => match (<[u8; 4]>::try_from(bytes), <[u8; 16]>::try_from(bytes)) {
            (Ok(v4), _) => write!(text, "address {}", std::net::Ipv4Addr::from(v4)),
            (_, Ok(v6)) => write!(text, "address {}", std::net::Ipv6Addr::from(v6)),
            _ => write!(text, "no address"),
        },
        HOST if bytes.is_empty() => write!(text, "any host"),
        CALLER => named("caller "),
        ROUTE => named("route "),
        METHOD => named("method "),
        HOST => named("host "),
        DOMAIN => named("domain "),
        FALLBACK | ENTRY => named(""),
        _ if hidden && tag & !HASHED == VALUE => write!(text, "{HIDDEN}"),
        VALUE => write!(text, "{:?}", String::from_utf8_lossy(bytes)),
        _ if tag & HASHED != 0 => {
            text.push_str("sha256:");
            bytes.iter().try_for_each(|byte| write!(text, "{byte:02x}"))
        }
        _ => return None,
    }
    .ok()?;
    let is_name = matches!(tag & !HASHED, FALLBACK | ENTRY);
    Some((rest, if is_name { " " } else { JOINT }))
}

fn split_part(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = key.iter().position(|byte| byte & 0x80 == 0)?;
    let mut digits = key[..=end].iter().rev();
    let length = digits.try_fold(0_usize, |sum, byte| {
        sum.checked_mul(128)?.checked_add(usize::from(byte & 0x7f))
    })?;
    key[end + 1..].split_at_checked(length)
}

/// What [`words`] writes for a value that is not shown.
const HIDDEN: &str = "a key";
/// What [`words`] writes between two pieces.
const JOINT: &str = " + ";

const ADDRESS: u8 = 0;
/// One value of an identity.
pub(crate) const VALUE: u8 = 1;
pub(crate) const CALLER: u8 = 2;
/// The name of an identity that replaces the requested one: the following values are its own.
pub(crate) const FALLBACK: u8 = 3;
pub(crate) const ROUTE: u8 = 4;
pub(crate) const METHOD: u8 = 5;
const HOST: u8 = 6;
pub(crate) const DOMAIN: u8 = 7;
const ENTRY: u8 = 8;
/// Added to a tag when the text is replaced by its SHA-256.
const HASHED: u8 = 0x80;
/// The longest value that is stored in a key unhashed; it bounds the size of keys.
pub const VALUE_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_stay_as_they_are() {
        let mut key = KeyBytes::new();
        push_address(&mut key, Some(KeyBytes::from_slice(&[192, 0, 2, 7])));
        push(&mut key, CALLER, b"acme");
        push(&mut key, FALLBACK, b"anon");
        push(&mut key, VALUE, b"k\"1");
        push(&mut key, VALUE, b"");
        assert_eq!(
            &key[..],
            b"\x00\x04\xc0\x00\x02\x07\x02\x04acme\x03\x04anon\x01\x03k\"1\x01\x00"
        );
        let mut other = KeyBytes::new();
        push(&mut other, ROUTE, b"/a");
        push(&mut other, METHOD, b"GET");
        push_host(&mut other, &HostPattern::Wildcard("a.b".into()));
        push_host(&mut other, &HostPattern::Any);
        assert_eq!(&other[..], b"\x04\x02/a\x05\x03GET\x06\x05*.a.b\x06\x00");
        assert_eq!(
            words(&other, false),
            "route /a + method GET + host *.a.b + any host"
        );
        assert_eq!(
            words(&key, false),
            r#"address 192.0.2.7 + caller acme + anon "k\"1" + """#
        );
        assert_eq!(
            words(&key, true),
            "address 192.0.2.7 + caller acme + anon a key + a key"
        );
        let mut descriptor = KeyBytes::new();
        push(&mut descriptor, DOMAIN, b"edge");
        push_entry(&mut descriptor, "path", "/a");
        push_entry(&mut descriptor, "user", "k1");
        assert_eq!(
            &descriptor[..],
            b"\x07\x04edge\x08\x04path\x01\x02/a\x08\x04user\x01\x02k1"
        );
        assert_eq!(
            words(&descriptor, true),
            "domain edge + path a key + user a key"
        );
        assert_eq!(words(&[], false), "everyone");
        assert_eq!(words(&[9, 9], false), "?");
        assert_eq!(words(&[0, 0], false), "no address");
    }

    #[test]
    fn key_in_words_hides_a_value_only_where_a_whole_piece_says_so() {
        let hidden = |tags: &[(u8, &str)]| {
            let mut key = KeyBytes::new();
            tags.iter()
                .for_each(|(tag, text)| push(&mut key, *tag, text.as_bytes()));
            hides(&words(&key, true))
        };
        for shown in [
            (CALLER, "data key service"),
            (CALLER, "data key"),
            (CALLER, "take a key"),
            (ROUTE, "/a key"),
            (DOMAIN, "of a key"),
            (CALLER, "a key"),
            (CALLER, "x + a key"),
            (CALLER, "x + y"),
            (ROUTE, "a key"),
        ] {
            assert!(!hidden(&[shown]), "{shown:?}");
            assert!(hidden(&[shown, (VALUE, "secret")]), "{shown:?}");
        }
        assert!(hidden(&[(FALLBACK, "anon"), (VALUE, "secret")]));
        assert!(hidden(&[
            (DOMAIN, "edge"),
            (ENTRY, "user id"),
            (VALUE, "k")
        ]));
        assert!(hidden(&[(DOMAIN, "edge"), (ENTRY, "caller"), (VALUE, "k")]));
        assert!(hidden(&[(ENTRY, "x + y"), (VALUE, "k")]));
        assert!(hidden(&[(FALLBACK, "caller"), (VALUE, "k")]));
        assert!(!hides(r#"anon "a key""#) && !hides("everyone"));
        let mut key = KeyBytes::new();
        push(&mut key, CALLER, b"a key");
        push(&mut key, ROUTE, b"data key");
        assert_eq!(words(&key, true), r#"caller "a key" + route data key"#);
    }

    #[test]
    fn a_long_value_is_hashed_whole() {
        let key = |value: &[u8]| {
            let mut key = KeyBytes::new();
            push(&mut key, VALUE, value);
            key
        };
        let (long, other) = ([b'a'; 5000], [&[b'a'; 4999][..], b"b"].concat());
        assert_eq!(key(&long).len(), 34);
        assert_ne!(key(&long), key(&other));
        assert!(words(&key(&long), false).starts_with("sha256:"));
        assert_eq!(words(&key(&[b'a'; VALUE_MAX]), false).len(), VALUE_MAX + 2);
        // The digest itself, sent as a key, gives a different key.
        assert_ne!(key(&long), key(&Sha256::digest(long)));
    }

    proptest! {
        #[test]
        fn no_two_lists_of_values_share_bytes(a in prop::collection::vec(".{0,3}", 0..4), b in prop::collection::vec(".{0,3}", 0..4)) {
            let key = |values: &[String]| {
                let mut key = KeyBytes::new();
                values.iter().for_each(|value| push(&mut key, VALUE, value.as_bytes()));
                key
            };
            prop_assert_eq!(a == b, key(&a) == key(&b));
        }

        #[test]
        fn any_bytes_can_be_worded(key in prop::collection::vec(any::<u8>(), 0..20)) {
            let _ = words(&key, false);
        }
    }
}
