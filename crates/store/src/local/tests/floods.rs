//! More keys than there is room for: who is forgotten owes no less than before.

use std::sync::Arc;

use super::fixtures::{START, claim, limit, store, terms};
use crate::local::hash::Seed;
use tollgate_limit::{Change, Kind, Limit, Micros, Settlement, Timestamp};

#[test]
fn a_flood_of_keys_into_a_small_table_grants_no_key_a_second_burst() {
    let terms = terms(Kind::TokenBucket, 1, Micros::from_secs(86_400), 1);
    let limits = [Arc::new(limit(0, "a", &terms, 1 << 16))];
    let store = store(&limits);
    let key = |number: u32| number.to_be_bytes();
    let granted = |range: std::ops::Range<u32>| {
        range
            .filter(|number| {
                store
                    .draw_at(&[claim(&limits[0], &key(*number))], START)
                    .granted
            })
            .count()
    };
    let first = granted(0..20_000);
    assert!(
        first > 100,
        "new keys are admitted while there is room: {first}"
    );
    assert_eq!(
        granted(0..20_000) + first,
        first,
        "every key that came back owes at least what it left with"
    );
    assert!(store.tally(0).evictions == 0 || store.tally(0).inherited_refusals > 0);
}

/// Ten new keys in the time of a unit for each slot there is, and among them callers who ask as much as they may.
#[test]
fn local_flood_of_keys_refuses_few_other_callers_and_grants_none_too_much() {
    const CALLERS: usize = 1000;
    let (interval, burst) = (60_000_000, 10);
    let terms = terms(Kind::TokenBucket, 1, Micros(interval), burst);
    let limits = [Arc::new(limit(0, "a", &terms, 65_536 * 35))];
    let mut store = store(&limits);
    store.seed = Seed::from_raw(7);
    let mut random = fastrand::Rng::with_seed(7);
    let mut arrivals = vec![0; CALLERS];
    let (mut asked, mut wrong) = (0, 0);
    let draw = |key: u64, now| {
        store.draw_at(
            &[claim(&limits[0], &key.to_le_bytes())],
            Timestamp::from_micros(now),
        )
    };
    for number in 0..650_000 {
        let now = START.as_micros() + number * 16;
        draw(random.u64(..) | 1 << 63, now);
        if number % 4 == 0 {
            let caller = random.usize(0..CALLERS);
            let from = arrivals[caller].max(now);
            let due = from - now <= interval * (burst - 1);
            let granted = draw(caller as u64, now).granted;
            assert!(due || !granted, "a grant too many to {caller}");
            asked += 1;
            wrong += u64::from(due && !granted);
            if granted {
                arrivals[caller] = from + interval;
            }
        }
    }
    assert!(store.tally(0).evictions > 100_000);
    assert!(
        wrong * 1000 < asked * 3,
        "{wrong} of {asked} refused that should not have been"
    );
}

#[test]
fn places_in_flight_are_never_forgotten() {
    let limits = [Arc::new(limit(
        0,
        "jobs",
        &terms(Kind::InFlight, 1, Micros::ZERO, 1),
        1,
    ))];
    let store = store(&limits);
    let key = |number: u32| number.to_be_bytes();
    for number in 0..5_000 {
        assert!(
            store
                .draw_at(&[claim(&limits[0], &key(number))], START)
                .granted
        );
    }
    for number in 0..5_000 {
        assert!(
            !store
                .draw_at(&[claim(&limits[0], &key(number))], START)
                .granted,
            "{number} is still in flight"
        );
    }
    let seventh = key(7);
    let release = Settlement::new(&limits[0], &seventh, Change::Release { units: 1 });
    store.settle_at(&[release], START);
    assert!(store.draw_at(&[claim(&limits[0], &key(7))], START).granted);
}

#[test]
fn a_refund_never_lets_a_forgotten_key_gain() {
    // A flood with refunds: of each key that was charged twice and refunded once, one unit stays taken.
    let terms = terms(Kind::TokenBucket, 1, Micros::from_secs(86_400), 2);
    let limits = [Arc::new(Limit {
        refundable: true,
        ..limit(0, "a", &terms, 1 << 12)
    })];
    let store = store(&limits);
    let mut taken = std::collections::HashMap::<u32, u32>::new();
    for round in 0..3u32 {
        for number in 0..3000u32 {
            let key = number.to_be_bytes();
            for _ in 0..2 {
                if store.draw_at(&[claim(&limits[0], &key)], START).granted {
                    *taken.entry(number).or_default() += 1;
                }
            }
            if round == 0 && taken.get(&number) == Some(&2) {
                let refund = Settlement::new(&limits[0], &key, Change::Refund { units: 1 });
                store.settle_at(&[refund], START);
                *taken.entry(number).or_default() -= 1;
            }
        }
    }
    assert!(taken.len() > 20, "{}", taken.len());
    assert!(taken.values().all(|taken| *taken <= 2));
}

#[test]
fn reset_in_a_flood_gives_no_other_key_a_unit() {
    let terms = terms(Kind::TokenBucket, 1, Micros::from_secs(86_400), 2);
    let limits = [Arc::new(Limit {
        resettable: true,
        ..limit(0, "a", &terms, 1 << 12)
    })];
    let store = store(&limits);
    let depth = limits[0].algorithm.depth().expect("it has buckets");
    let mut taken = std::collections::HashMap::<u32, u32>::new();
    let mut flood = |round: u32| {
        for number in 0..3000_u32 {
            let key = number.to_be_bytes();
            for _ in 0..2 {
                if store.draw_at(&[claim(&limits[0], &key)], START).granted {
                    *taken.entry(number).or_default() += 1;
                }
            }
            // Keys with a bucket of their own; the flood forgets them afterwards.
            if round == 0 && number % 10 == 0 && taken.get(&number) == Some(&2) {
                let fill = Settlement::new(&limits[0], &key, Change::Refund { units: depth });
                store.settle_at(&[fill], START);
                taken.insert(number, 0);
            }
        }
    };
    (0..3).for_each(&mut flood);
    assert!(taken.values().filter(|taken| **taken == 0).count() < taken.len());
    assert!(taken.len() > 20, "{}", taken.len());
    assert!(taken.values().all(|taken| *taken <= 2), "{taken:?}");
}
