//! What a kept bucket remembers, drains and forgets, and what of it a reload hands on.

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
    for kind in RATES {
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
fn bucket_of_a_process_goes_on_at_a_new_rate_with_the_units_it_has() {
    let now = Timestamp::from_micros(START + SECOND / 2);
    let kept = Kept::from_parts(bucket(50), Some(level(33)), 0);
    let moved = kept.handed_on(&made(Kind::TokenBucket, 2, 50), now, Micros(SECOND));
    let (p, at) = (500_000, now);
    // And a half of the next one.
    let level = 33 * p + p / 2;
    let same = State::Level(Level { level, at });
    assert_eq!(moved, Some((same, 0)));
}

#[test]
fn a_moment_is_far_ahead_of_the_clock_by_more_than_a_second() {
    let now = Timestamp::from_micros(START);
    assert!(!ahead::is_far(now.after(Micros(SECOND)), now));
    assert!(ahead::is_far(now.after(Micros(SECOND + 1)), now));
}

/// A caller that was refused, and whose limit is raised while it waits, waits no longer than it was
/// told; so, too, after the raise is lifted again.
#[test]
fn raise_delays_no_caller_that_waits_already() {
    let minute = 60 * SECOND;
    for kind in [Kind::TokenBucket, Kind::Interval, Kind::FixedWindow] {
        let limit = |amount: u64, period| {
            let burst = (kind != Kind::FixedWindow).then_some(amount.min(2));
            Algorithm::new(&terms(kind, amount, period, burst)).expect("representable")
        };
        let own = limit(6, minute);
        for (raised, lifted) in [(12, minute), (7, minute), (6, 7 * SECOND), (6, SECOND)]
            .into_iter()
            .flat_map(|(amount, period)| {
                [false, true].map(|lifted| (limit(amount, period), lifted))
            })
        {
            let mut row = Row::new();
            if lifted
                && kind != Kind::TokenBucket
                && raised.quota().map(|quota| quota.period) != own.quota().map(|quota| quota.period)
            {
                // Steps of another length leave no part of a step behind.
                continue;
            }
            row.drain(&own);
            let state = row.kept.as_ref().and_then(|kept| kept.state().cloned());
            let refused = own
                .judge(state.as_ref(), 1, row.now)
                .expect_err("it is empty");
            let due = row.now.after(refused.retry_after.expect("a time"));
            row.pass(due.since(row.now).0 * 9 / 10);
            let mut kept = row.kept.take().expect("a bucket").under(&raised, row.now);
            if lifted {
                kept = kept.under(&own, row.now);
            }
            let left = if lifted { &own } else { &raised };
            let told = left.judge(kept.state(), 1, row.now);
            let wait = told.expect_err("nothing is refilled").retry_after;
            let at = row.now.after(wait.expect("a time"));
            // (A part that is rounded down twice lacks a microsecond.)
            assert!(
                at <= due.after(Micros(u64::from(lifted))),
                "{kind:?} {raised:?} {lifted}: {at:?} and not {due:?}"
            );
        }
    }
}

#[test]
fn part_of_a_unit_is_kept_in_proportion_and_rounded_down() {
    let own = |amount, period| {
        Algorithm::new(&terms(Kind::TokenBucket, amount, period, Some(2))).expect("representable")
    };
    let (slow, fast) = (own(1, 10 * SECOND), own(1, 3 * SECOND + 1));
    let mut row = Row::new();
    row.drain(&slow);
    row.pass(4 * SECOND);
    let kept = row.kept.expect("a bucket").under(&fast, row.now);
    let level = Level {
        level: 4 * 3_000_001 / 10,
        at: row.now,
    };
    assert_eq!(kept.state(), Some(&State::Level(level)));
}

/// A thread may decide by a clock that was read a moment ago.
#[test]
fn a_log_that_has_just_become_empty_is_handed_on_with_its_entries() {
    let log = made(Kind::SlidingLog, 1, 1);
    let mut row = Row::new();
    assert!(row.draw(&log, 1));
    let kept = row.kept.expect("drawn from");
    let expiry = kept.expiry().expect("of rate");
    let late = Micros(1_000);
    let (state, beyond) = kept
        .handed_on(&log, expiry.after(Micros(999)), late)
        .expect("it may be read late");
    assert_eq!(beyond, 0);
    let before = Timestamp::from_micros(expiry.as_micros() - 1);
    assert!(
        log.judge(Some(&state), 1, before).is_err(),
        "what was granted still counts"
    );
    assert!(log.judge(Some(&state), 1, expiry).is_ok());
    assert_eq!(kept.handed_on(&log, expiry.after(late), late), None);
}
