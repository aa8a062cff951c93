//! What a restart leaves of the buckets: after a crash, from a snapshot, from one that is damaged or forged.

use std::sync::Arc;

use super::fixtures::{START, bucket, claim, limit, terms};
use crate::clock::Clock;
use crate::local::{Carry, ColdStart, LocalStore, Penalized, Remembered};
use tollgate_limit::{Change, Kind, Limit, Micros, Settlement, Timestamp, Verdict};

#[test]
fn after_a_crash_an_empty_start_gives_no_units() {
    let limits = [
        bucket(0, "a", 100, 60, 20),
        bucket(1, "wide", 999_983, 60, 20),
    ];
    let store = LocalStore::new(&limits, Clock::manual(START), ColdStart::Empty);
    for limit in &limits {
        let refused = store.draw_at(&[claim(limit, b"k")], START);
        let Verdict::Deny {
            retry_after: Some(wait),
        } = refused.standings[0].verdict
        else {
            panic!("{refused:?}")
        };
        assert!(
            store
                .draw_at(&[claim(limit, b"k")], START.after(wait))
                .granted
        );
        assert!(
            !store
                .draw_at(&[claim(limit, b"k")], START.after(wait))
                .granted
        );
        let later = START.after(Micros::from_secs(60));
        assert_eq!(
            store.peek_at(&[claim(limit, b"new")], later)[0].remaining(),
            20,
            "one burst's time later all is normal"
        );
    }
}

/// A moment that a place has no bits for.
#[test]
fn draws_in_the_year_2150_are_decided_like_those_of_today() {
    let limits = one_of_each();
    let clock = Clock::manual(Timestamp::from_micros(5_680_000_000_000_000));
    let store = LocalStore::new(&limits, clock.clone(), ColdStart::Full);
    for limit in &limits[..5] {
        let draw = || store.draw_at(&[claim(limit, b"k")], clock.now()).granted;
        assert_eq!((0..20).filter(|_| draw()).count(), 10, "{}", limit.name);
    }
}

/// One limit of each algorithm.
pub(super) fn one_of_each() -> Vec<Arc<Limit>> {
    let kinds = [
        Kind::TokenBucket,
        Kind::Interval,
        Kind::FixedWindow,
        Kind::SlidingWindow,
        Kind::SlidingLog,
        Kind::TokenBucket,
    ];
    let make = |(index, kind)| {
        let amount = if index == 5 { 999_983 } else { 10 };
        Arc::new(limit(
            index,
            &format!("{kind:?} {index}"),
            &terms(kind, amount, Micros::from_secs(3600), amount),
            1 << 20,
        ))
    };
    kinds.into_iter().enumerate().map(make).collect()
}

#[test]
fn a_clean_restart_refills_no_bucket_whatever_the_algorithm() {
    let limits = one_of_each();
    let clock = Clock::manual(START);
    let before = LocalStore::new(&limits, clock.clone(), ColdStart::Full);
    let keys: Vec<_> = (0..200u32).map(u32::to_be_bytes).collect();
    let claims = |key| {
        limits
            .iter()
            .map(|limit| claim(limit, key))
            .collect::<Vec<_>>()
    };
    for (number, key) in keys.iter().enumerate() {
        for _ in 0..number % 8 {
            assert!(before.draw_at(&claims(key), START).granted);
        }
    }
    let mut snapshot = Vec::new();
    before
        .save(None, &mut snapshot, &Remembered::default())
        .expect("memory takes everything");
    clock.advance(Micros::from_secs(60));
    let later = clock.now();
    let (after, report) =
        LocalStore::restored(&limits, clock.clone(), std::io::Cursor::new(&snapshot))
            .expect("sound");
    assert!(
        report
            .limits
            .iter()
            .all(|carried| carried.carry == Carry::Kept)
    );
    for key in &keys {
        assert_eq!(
            after.peek_at(&claims(key), later),
            before.peek_at(&claims(key), later)
        );
    }

    // Changed numbers, and of the last one the algorithm.
    let mut changed: Vec<_> = limits
        .iter()
        .map(|old| {
            let terms = terms(old.algorithm.kind(), 20, Micros::from_secs(3600), 20);
            Arc::new(limit(old.index, &old.name, &terms, 1 << 20))
        })
        .collect();
    changed[5] = Arc::new(limit(
        5,
        &limits[5].name,
        &terms(Kind::Interval, 20, Micros::from_secs(3600), 20),
        1 << 20,
    ));
    let (after, report) =
        LocalStore::restored(&changed, clock, std::io::Cursor::new(&snapshot)).expect("sound");
    let carries: Vec<_> = report.limits.iter().map(|one| one.carry).collect();
    let mut expected = [Carry::Renumbered; 6];
    expected[5] = Carry::Afresh;
    assert_eq!(carries, expected);
    for (number, key) in keys.iter().enumerate() {
        let claims: Vec<_> = changed.iter().map(|limit| claim(limit, key)).collect();
        let used = number as u64 % 8;
        for (place, standing) in after.peek_at(&claims, later).iter().enumerate() {
            let due = match (place, used) {
                (0, 1..) => 10 - used,
                (5, _) => 20,
                _ => 20 - used,
            };
            assert_eq!(standing.remaining(), due, "{place}, {number}");
        }
    }
}

#[test]
fn a_damaged_snapshot_is_an_error_and_never_a_panic() {
    let limits = one_of_each();
    let store = LocalStore::new(&limits, Clock::manual(START), ColdStart::Full);
    for number in 0..20u32 {
        let key = number.to_be_bytes();
        store.draw_at(
            &limits
                .iter()
                .map(|limit| claim(limit, &key))
                .collect::<Vec<_>>(),
            START,
        );
    }
    let mut snapshot = Vec::new();
    store
        .save(None, &mut snapshot, &Remembered::default())
        .expect("memory takes everything");
    let restore = |bytes: &[u8]| {
        LocalStore::restored(&limits, Clock::manual(START), std::io::Cursor::new(bytes)).map(|_| ())
    };
    restore(&snapshot).expect("sound");
    for at in 0..snapshot.len() {
        let mut damaged = snapshot.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(restore(&damaged).is_err(), "byte {at}");
    }
    for length in 0..snapshot.len() {
        assert!(restore(&snapshot[..length]).is_err(), "cut at {length}");
    }
}

fn sign(snapshot: &mut [u8]) {
    use std::hash::Hasher;
    let body = snapshot.len() - 8;
    let mut sum = siphasher::sip::SipHasher13::new();
    sum.write(&snapshot[..body]);
    snapshot[body..].copy_from_slice(&sum.finish().to_le_bytes());
}

/// Its buckets would not be found: each caller would have a full one.
#[test]
fn snapshot_of_another_kind_version_or_hash_is_refused() {
    let limits = one_of_each();
    let store = LocalStore::new(&limits, Clock::manual(START), ColdStart::Full);
    let mut snapshot = Vec::new();
    store
        .save(None, &mut snapshot, &Remembered::default())
        .expect("memory takes everything");
    // In the magic, the version, and the probe of the hash.
    for at in [0, 16, 19, 28, 35] {
        let mut other = snapshot.clone();
        other[at] ^= 0x40;
        sign(&mut other);
        let cursor = std::io::Cursor::new(other);
        let restored = LocalStore::restored(&limits, Clock::manual(START), cursor);
        assert!(
            matches!(restored, Err(crate::local::SnapshotError::Version)),
            "byte {at}"
        );
    }
}

#[test]
fn snapshot_keeps_penalties_and_the_names_of_their_keys() {
    let limits = one_of_each();
    let clock = Clock::manual(START);
    let store = LocalStore::new(&limits, clock.clone(), ColdStart::Full);
    let counted = Penalized {
        bucket: u128::MAX - 5,
        until: START.after(Micros::from_secs(60)),
        refusals: 7,
        admits: None,
    };
    let blocked = Penalized {
        bucket: 1 << 64,
        refusals: 0,
        admits: Some(START.after(Micros::from_secs(90))),
        ..counted
    };
    let also = Remembered {
        learnt: Vec::new(),
        penalized: vec![counted, blocked],
        ..Remembered::default()
    };
    let mut snapshot = Vec::new();
    store
        .save(None, &mut snapshot, &also)
        .expect("memory takes everything");
    let cursor = std::io::Cursor::new(&snapshot);
    let (restored, report) = LocalStore::restored(&limits, clock, cursor).expect("sound");
    assert_eq!(report.also, also);
    assert!(restored.names() == store.names());
    assert!(restored.next(&limits).0.names() == store.names());
}

/// One whose sum is right and whose numbers are not: it may hold too much or too little, and nothing fails by it.
#[test]
fn snapshot_forged_is_an_error_or_a_working_store() {
    let limits = one_of_each();
    let clock = Clock::manual(START);
    let store = LocalStore::new(&limits, clock.clone(), ColdStart::Empty);
    clock.advance(Micros::from_secs(20));
    for number in 0..3u32 {
        let key = number.to_be_bytes();
        store.draw_at(
            &limits
                .iter()
                .map(|limit| claim(limit, &key))
                .collect::<Vec<_>>(),
            clock.now(),
        );
    }
    let mut snapshot = Vec::new();
    store
        .save(None, &mut snapshot, &Remembered::default())
        .expect("memory takes everything");
    let body = snapshot.len() - 8;
    for at in 40..body {
        for (width, byte) in [(1, 0xff), (1, 0x80), (1, 2), (1, 3), (8, 0xff)] {
            let mut forged = snapshot.clone();
            forged[at..(at + width).min(body)].fill(byte);
            sign(&mut forged);
            let Ok((restored, _)) =
                LocalStore::restored(&limits, clock.clone(), std::io::Cursor::new(&forged))
            else {
                continue;
            };
            let (next, _) = restored.next(&one_of_each());
            for store in [&restored, &next] {
                for number in 0..4u32 {
                    let key = number.to_be_bytes();
                    for limit in &limits {
                        store.draw_at(&[claim(limit, &key)], clock.now());
                        for change in [Change::Charge { more: 3 }, Change::Refund { units: 1 }] {
                            store.settle_at(&[Settlement::new(limit, &key, change)], clock.now());
                        }
                        store.peek_at(&[claim(limit, &key)], clock.now());
                    }
                }
            }
            next.save(None, std::io::sink(), &Remembered::default())
                .expect("nothing fails");
        }
    }
}
