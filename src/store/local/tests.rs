use std::sync::Arc;

use super::*;
use crate::limit::{
    Algorithm, Change, Kind, Limit, Micros, Mode, OnFailover, Placement, Role, Terms, Timestamp, WhenDown,
};

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

pub(crate) fn terms(kind: Kind, amount: u64, period: Micros, burst: u64) -> Terms {
    Terms {
        kind,
        amount,
        period,
        burst: Some(burst),
        align: crate::limit::Align::FirstHit,
        debt: 0,
        max_wait: Micros::ZERO,
        warm_up: Micros::ZERO,
        shared: false,
    }
}

/// `amount` per `period` with `burst`, in a table of `memory` bytes.
pub(crate) fn limit(index: usize, name: &str, terms: &Terms, memory: usize) -> Limit {
    Limit {
        name: name.into(),
        index,
        tier: None,
        role: Role::Live,
        algorithm: Algorithm::new(terms).expect("representable"),
        mode: Mode::Enforce,
        enforce_for: 10_000,
        placement: Placement::Local,
        when_down: WhenDown::LocalShare,
        on_failover: OnFailover::Keep,
        lease: false,
        memory,
        refundable: false,
    }
}

fn bucket(index: usize, name: &str, amount: u64, seconds: u64, burst: u64) -> Arc<Limit> {
    let terms = terms(Kind::TokenBucket, amount, Micros::from_secs(seconds), burst);
    Arc::new(limit(index, name, &terms, 1 << 20))
}

fn claim<'a>(limit: &'a Limit, key: &'a [u8]) -> Claim<'a> {
    Claim { limit, key, cost: 1, enforced: true }
}

fn store(limits: &[Arc<Limit>]) -> LocalStore {
    LocalStore::new(limits, Clock::manual(START), ColdStart::Full)
}

#[test]
fn a_refused_request_is_allowed_exactly_when_told() {
    let limits = [bucket(0, "a", 100, 60, 20)];
    let store = store(&limits);
    for left in (0..20).rev() {
        let draw = store.draw_at(&[claim(&limits[0], b"k")], START);
        assert!(draw.granted);
        assert_eq!(draw.standings[0].remaining, left);
    }
    let refused = store.draw_at(&[claim(&limits[0], b"k")], START);
    assert!(!refused.granted);
    let Verdict::Deny { retry_after: Some(wait) } = refused.standings[0].verdict else { panic!("{refused:?}") };
    assert_eq!(wait, Micros(600_000));
    assert!(!store.draw_at(&[claim(&limits[0], b"k")], START.after(Micros(wait.0 - 1))).granted);
    assert!(store.draw_at(&[claim(&limits[0], b"k")], START.after(wait)).granted);
    assert!(store.draw_at(&[claim(&limits[0], b"other")], START).granted, "another key is another bucket");
}

#[test]
fn a_refusal_by_one_limit_leaves_the_others_as_they_were() {
    let limits = [bucket(0, "wide", 1000, 60, 1000), bucket(1, "narrow", 1, 60, 1), bucket(2, "shadow", 5, 60, 5)];
    let store = store(&limits);
    let shadow = Claim { enforced: false, ..claim(&limits[2], b"k") };
    let claims = [claim(&limits[0], b"k"), claim(&limits[1], b"k"), shadow];
    assert!(store.draw_at(&claims, START).granted);
    let refused = store.draw_at(&claims, START);
    assert!(!refused.granted);
    assert_eq!(refused.standings.iter().map(|standing| standing.remaining).collect::<Vec<_>>(), [999, 0, 4]);
    let reversed: Vec<_> = claims.iter().rev().copied().collect();
    assert!(!store.draw_at(&reversed, START).granted);
    assert_eq!(store.peek_at(&claims, START)[0].remaining, 998, "a peek says what a draw would leave");
}

#[test]
fn a_reload_never_adds_a_token_and_says_what_it_did() {
    let before = [bucket(0, "kept", 10, 60, 10), bucket(1, "changed", 10, 60, 10), bucket(2, "gone", 10, 60, 10)];
    let old = store(&before);
    for _ in 0..4 {
        let claims: Vec<_> = before.iter().map(|limit| claim(limit, b"k")).collect();
        assert!(old.draw_at(&claims, START).granted);
    }
    let after = [bucket(0, "changed", 100, 60, 100), bucket(1, "kept", 10, 60, 10), bucket(2, "new", 10, 60, 10)];
    let (next, report) = old.next(&after);
    let carried: Vec<_> = report.limits.iter().map(|carried| (&*carried.name, carried.carry)).collect();
    let expected = [("changed", Carry::Rescaled), ("kept", Carry::Kept), ("new", Carry::New), ("gone", Carry::Gone)];
    assert_eq!(carried, expected);
    let left = |store: &LocalStore, limit: &Arc<Limit>| {
        store.peek_at(&[Claim { cost: 0, ..claim(limit, b"k") }], START)[0].remaining
    };
    assert_eq!(left(&next, &after[0]), 6);
    assert_eq!(left(&next, &after[1]), 6);

    // A request still in flight on the old generation charges where the buckets are now.
    assert!(old.draw_at(&[claim(&before[0], b"k"), claim(&before[1], b"k")], START).granted);
    assert_eq!(left(&next, &after[0]), 5);
    assert_eq!(left(&next, &after[1]), 5);
}

#[test]
fn a_flood_of_keys_into_a_small_table_grants_nobody_a_second_burst() {
    let terms = terms(Kind::TokenBucket, 1, Micros::from_secs(86_400), 1);
    let limits = [Arc::new(limit(0, "a", &terms, 1))];
    let store = store(&limits);
    let key = |number: u32| number.to_be_bytes();
    let granted = |range: std::ops::Range<u32>| {
        range.filter(|number| store.draw_at(&[claim(&limits[0], &key(*number))], START).granted).count()
    };
    let first = granted(0..20_000);
    assert!(first > 100, "new keys are admitted while there is room: {first}");
    assert_eq!(granted(0..20_000) + first, first, "every key that came back owes at least what it left with");
    assert!(store.tally(0).evictions == 0 || store.tally(0).inherited_refusals > 0);
}

#[test]
fn places_in_flight_are_never_forgotten() {
    let limits = [Arc::new(limit(0, "jobs", &terms(Kind::InFlight, 1, Micros::ZERO, 1), 1))];
    let store = store(&limits);
    let key = |number: u32| number.to_be_bytes();
    for number in 0..5_000 {
        assert!(store.draw_at(&[claim(&limits[0], &key(number))], START).granted);
    }
    for number in 0..5_000 {
        assert!(!store.draw_at(&[claim(&limits[0], &key(number))], START).granted, "{number} is still in flight");
    }
    let release = Settlement { limit: &limits[0], key: &key(7), change: Change::Release { units: 1 } };
    store.settle_at(&[release], START);
    assert!(store.draw_at(&[claim(&limits[0], &key(7))], START).granted);
}
