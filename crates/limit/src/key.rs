//! The bytes that select one bucket.
//!
//! A bucket is selected by its limit's *name*, its role and the caller's identity, and by the algorithm
//! and the period of its windows ([`of_bucket`]). It is never selected by the numbers, so state survives
//! a change of them. The identity part is encoded once per
//! request and shared by every limit with the same scope.

use smallvec::SmallVec;

use super::{Align, Kind, Limit, Role, Timestamp};

/// The encoded identity of a caller under one scope. Each part is prefixed with its length, so two
/// different lists of parts never have the same bytes. Empty for a limit that all callers share.
pub type KeyBytes = SmallVec<[u8; 48]>;

/// Adds one part of an identity to `key`: its length (LEB128) and its bytes.
pub fn push_part(key: &mut KeyBytes, part: &[u8]) {
    push_length(key, part.len());
    key.extend_from_slice(part);
}

/// The identity made of `parts`.
pub fn identity<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> KeyBytes {
    let mut key = KeyBytes::new();
    for part in parts {
        push_part(&mut key, part);
    }
    key
}

/// The canonical bytes of one key of a limit: version, limit name, role, identity. A keyed hash of them
/// names the key in overrides. They are a stable format.
pub fn canonical(limit: &Limit, identity: &[u8]) -> KeyBytes {
    let mut key = of_limit(&limit.name, limit.role);
    key.extend_from_slice(identity);
    key
}

/// The bytes of one bucket in a shared store: those of the key, with what makes the states of a bucket
/// comparable: the algorithm and, of windows, logs and intervals, the period and the boundaries.
pub fn of_bucket(limit: &Limit, identity: &[u8]) -> KeyBytes {
    let mut key = of_limit(&limit.name, limit.role);
    let form = match limit.algorithm.kind() {
        Kind::TokenBucket => 0,
        Kind::InFlight => 1,
        Kind::Interval => 2,
        Kind::FixedWindow => 3,
        Kind::SlidingWindow => 4,
        Kind::SlidingLog => 5,
    };
    key.push(form);
    if form >= 2 {
        let period = limit.algorithm.quota().map_or(0, |quota| quota.period.0);
        key.extend_from_slice(&period.to_le_bytes());
        let words = match limit.algorithm.align() {
            Align::FirstHit => "",
            Align::Clock => "clock",
            Align::Calendar(calendar) => &calendar.words,
        };
        push_part(&mut key, words.as_bytes());
    }
    key.extend_from_slice(identity);
    key
}

/// The canonical bytes of a limit's buckets before the identity.
pub fn of_limit(name: &str, role: Role) -> KeyBytes {
    let mut key = KeyBytes::new();
    key.push(VERSION);
    push_part(&mut key, name.as_bytes());
    key.push(match role {
        Role::Live => 0,
        Role::Candidate => 1,
    });
    key
}

/// The key of what is counted beside a bucket for one of its windows, which ends at `window_end`. No caller has it:
/// the keys of callers have fewer parts.
pub fn beside(identity: &[u8], window_end: Timestamp, what: &[u8]) -> KeyBytes {
    let mut key = KeyBytes::from_slice(identity);
    push_part(&mut key, &window_end.as_micros().to_le_bytes());
    push_part(&mut key, what);
    key
}

/// What [`beside`] a bucket of reservations counts the units that are used.
pub const USED: &[u8] = b"used";

/// Whether a limit that is enforced for `hundredths` of a percent of keys is enforced for this key.
/// The result is the same on every gateway and for every limit. A larger share contains every key
/// of a smaller one, so a roll-out only adds callers.
pub fn is_within_share(identity: &[u8], hundredths: u16) -> bool {
    hundredths >= WHOLE || stable_hash(identity) % u64::from(WHOLE) < u64::from(hundredths)
}

/// A hash that is the same in every process and release: FNV-1a (Fowler, Noll, Vo), finished as in
/// MurmurHash3 because the low bits of FNV-1a are poor. It needs no secret key: a caller that knows
/// the hash can only choose to be among the first or the last of a roll-out.
pub fn stable_hash(bytes: &[u8]) -> u64 {
    let mut hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// The version of the canonical bytes.
pub const VERSION: u8 = 1;

/// All keys, in hundredths of a percent.
pub const WHOLE: u16 = 10_000;

#[expect(
    clippy::cast_possible_truncation,
    reason = "seven bits are taken at a time"
)]
fn push_length(key: &mut KeyBytes, mut length: usize) {
    while length >= 0x80 {
        key.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    key.push(length as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Micros, Terms, fixtures};

    /// Golden values: a change here refills every bucket of every shared store.
    #[test]
    fn the_canonical_bytes_are_these() {
        let limit = fixtures::per_minute("search", 100, 20);
        let key = identity([b"acme".as_slice(), b"192.0.2.7".as_slice()]);
        assert_eq!(key.as_slice(), b"\x04acme\x09192.0.2.7");
        assert_eq!(
            canonical(&limit, &key).as_slice(),
            b"\x01\x06search\x00\x04acme\x09192.0.2.7"
        );
        let candidate = Limit {
            role: Role::Candidate,
            ..limit
        };
        assert_eq!(
            canonical(&candidate, &key).as_slice(),
            b"\x01\x06search\x01\x04acme\x09192.0.2.7"
        );
        let long = identity([[b'x'; 300].as_slice()]);
        assert_eq!(&long[..3], b"\xac\x02x");
        assert_eq!(long.len(), 302);
    }

    /// The numbers never select a bucket; the algorithm does, and the period of windows.
    #[test]
    fn bucket_is_named_by_algorithm_and_by_the_period_of_windows() {
        let limit = fixtures::per_minute("search", 100, 20);
        assert_eq!(
            of_bucket(&limit, b"\x04acme").as_slice(),
            b"\x01\x06search\x00\x00\x04acme"
        );
        let second = Micros::from_secs(1);
        let made = |kind, amount, period, align| {
            let terms = Terms {
                align,
                ..fixtures::terms(kind, amount, period)
            };
            of_bucket(&fixtures::limit("it", &terms), b"")
        };
        let minute = Micros::from_secs(60);
        let mut all: Vec<KeyBytes> = Vec::new();
        for kind in fixtures::RATES {
            let name = made(kind, 7, second, Align::FirstHit);
            assert_eq!(name, made(kind, 8, second, Align::FirstHit), "{kind:?}");
            let other = made(kind, 7, minute, Align::FirstHit);
            assert_eq!(name == other, kind == Kind::TokenBucket, "{kind:?}");
            all.push(name);
        }
        all.push(made(Kind::FixedWindow, 7, second, Align::Clock));
        all.push(made(Kind::InFlight, 7, Micros::ZERO, Align::FirstHit));
        for (place, one) in all.iter().enumerate() {
            assert!(!all[..place].contains(one), "{place}");
        }
    }

    #[test]
    fn no_two_lists_of_parts_share_bytes() {
        let lists: [&[&[u8]]; 6] = [
            &[],
            &[b""],
            &[b"", b""],
            &[b"ab"],
            &[b"a", b"b"],
            &[b"\x01b"],
        ];
        for (i, a) in lists.iter().enumerate() {
            for b in &lists[i + 1..] {
                assert_ne!(
                    identity(a.iter().copied()),
                    identity(b.iter().copied()),
                    "{a:?} {b:?}"
                );
            }
        }
    }

    #[test]
    fn a_share_of_keys_is_that_share_and_grows_without_losing_a_key() {
        assert_eq!(stable_hash(b""), 0xefd0_1f60_ba99_2926);
        let mut within = [0u32; 3];
        for caller in 0..20_000u32 {
            let key = identity([caller.to_string().as_bytes()]);
            let shares = [100, 2_500, 10_000].map(|share| is_within_share(&key, share));
            assert!(
                !shares[0] || shares[1],
                "a key of the 1 % is one of the 25 %"
            );
            for (count, inside) in within.iter_mut().zip(shares) {
                *count += u32::from(inside);
            }
            assert!(!is_within_share(&key, 0));
        }
        assert!((140..=260).contains(&within[0]), "{within:?}");
        assert!((4_700..=5_300).contains(&within[1]), "{within:?}");
        assert_eq!(within[2], 20_000);
    }
}
