//! What a kept bucket remembers, drains and forgets.

use super::*;

/// A token bucket of one a second.
fn bucket(burst: u64) -> Algorithm {
    made(Kind::TokenBucket, 1, burst)
}

fn level(units: i64) -> State {
    State::Level(Level {
        level: units * i64::try_from(SECOND).expect("small"),
        at: Timestamp::from_micros(START),
    })
}

#[test]
fn units_that_a_smaller_burst_cuts_off_are_not_filled_again_before_the_bucket_is_forgotten() {
    let (large, small) = (bucket(100), bucket(10));
    let mut row = Row::new();
    assert!(row.draw(&large, 20) && row.draw(&small, 1));
    row.pass(20 * SECOND);
    assert!(row.drain(&large) < 100);
    let mut row = Row::new();
    assert!(row.draw(&large, 20) && row.draw(&small, 1));
    row.pass(21 * SECOND);
    assert_eq!(row.drain(&large), 100, "all 21 have come back");
}

#[test]
fn correction_of_a_bucket_that_is_full_again_is_made_in_the_numbers_of_its_grant() {
    let now = Timestamp::from_micros(START + 100 * SECOND);
    let mut kept = Kept::from_parts(bucket(10), Some(level(0)), 0);
    kept.settle(&bucket(100), Change::Charge { more: 5 }, now);
    let mut row = Row::new();
    (row.kept, row.now) = (Some(kept), now);
    assert_eq!(row.drain(&bucket(100)), 95);
}

#[test]
fn drained_bucket_grants_nothing_and_a_debt_stays() {
    for kind in KINDS {
        let mut row = Row::new();
        let mut kept = Kept::full(made(kind, 10, 10));
        kept.drain(row.now);
        row.kept = Some(kept);
        assert_eq!(row.drain(&made(kind, 10, 10)), 0, "{kind:?}");
    }
    let mut kept = Kept::from_parts(bucket(10), Some(level(-7)), 0);
    kept.drain(Timestamp::from_micros(START));
    assert_eq!(kept.state(), Some(&level(-7)));
}

#[test]
fn second_reload_keeps_the_burst_that_the_first_one_remembered() {
    let now = Timestamp::from_micros(START + 15 * SECOND);
    let kept = Kept::from_parts(bucket(50), Some(level(80)), 100);
    let (state, beyond) = kept
        .handed_on(&bucket(20), now, Micros(SECOND))
        .expect("it remembers");
    let State::Level(moved) = state else {
        panic!("a level: {state:?}")
    };
    assert_eq!((moved.level, beyond), (95 * 1_000_000, 100));
}

#[test]
fn bucket_of_a_process_goes_on_at_a_new_rate_with_its_whole_units() {
    let now = Timestamp::from_micros(START + SECOND / 2);
    let kept = Kept::from_parts(bucket(50), Some(level(33)), 0);
    let moved = kept.handed_on(&made(Kind::TokenBucket, 2, 50), now, Micros(SECOND));
    let (p, at) = (500_000, now);
    let whole = State::Level(Level { level: 33 * p, at });
    assert_eq!(moved, Some((whole, 0)));
}

#[test]
fn bucket_that_loses_its_warm_up_has_been_full_since_it_held_its_burst() {
    let terms = Terms {
        warm_up: Micros(60 * SECOND),
        shared: false,
        ..terms(Kind::TokenBucket, 1, SECOND, Some(10))
    };
    let warm = Algorithm::new(&terms).expect("representable");
    let state = State::Warming(Warming {
        level: Level {
            level: 0,
            at: Timestamp::from_micros(START),
        },
        cold: 0,
    });
    let kept = Kept::from_parts(warm, Some(state), 0);
    let full_at = Timestamp::from_micros(START + 10 * SECOND);
    let on = |now: Timestamp| kept.handed_on(&bucket(10), now, Micros(SECOND));
    // A thread may still use a time at which it was not full.
    let full = State::Level(Level {
        level: 10 * 1_000_000,
        at: full_at,
    });
    assert_eq!(on(full_at.after(Micros(SECOND / 2))), Some((full, 0)));
    assert_eq!(on(full_at.after(Micros(SECOND))), None);
}

#[test]
fn a_moment_is_far_ahead_of_the_clock_by_more_than_a_second() {
    let now = Timestamp::from_micros(START);
    assert!(!ahead::is_far(now.after(Micros(SECOND)), now));
    assert!(ahead::is_far(now.after(Micros(SECOND + 1)), now));
}
