//! When a bucket is forgotten, and what it has until then under other numbers.

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
    row.pass(90 * SECOND);
    assert_eq!(row.drain(&large), 99, "it held 9");
    let mut row = Row::new();
    assert!(row.draw(&large, 20) && row.draw(&small, 1));
    row.pass(91 * SECOND);
    assert_eq!(row.kept, None);
}

#[test]
fn correction_of_a_bucket_that_is_full_again_is_made_in_the_numbers_of_its_grant() {
    let now = Timestamp::from_micros(START + 100 * SECOND);
    let mut kept = StoredBucket::from_parts(bucket(10), Some(level(0)), 0);
    kept.settle(&bucket(100), Change::Charge { more: 5 }, now);
    let mut row = Row::new();
    (row.kept, row.now) = (Some(kept), now);
    assert_eq!(row.drain(&bucket(100)), 95);
}

#[test]
fn drained_bucket_grants_nothing_and_a_debt_stays() {
    for kind in RATES {
        let mut row = Row::new();
        let mut kept = StoredBucket::full(made(kind, 10, 10));
        kept.drain(row.now);
        row.kept = Some(kept);
        assert_eq!(row.drain(&made(kind, 10, 10)), 0, "{kind:?}");
    }
    let mut kept = StoredBucket::from_parts(bucket(10), Some(level(-7)), 0);
    kept.drain(Timestamp::from_micros(START));
    assert_eq!(kept.state(), Some(&level(-7)));
}

#[test]
fn a_moment_is_far_ahead_of_the_clock_by_more_than_a_second() {
    let now = Timestamp::from_micros(START);
    assert!(!ahead::is_far(now.after(Micros(SECOND)), now));
    assert!(ahead::is_far(now.after(Micros(SECOND + 1)), now));
}

/// A caller that was refused, and whose limit is raised while it waits, waits no longer than it was
/// told.
#[test]
fn raise_delays_no_caller_that_waits_already() {
    let minute = 60 * SECOND;
    for kind in RATES {
        let is_level = kind == Kind::TokenBucket;
        let limit = |amount: u64, period| {
            let bursts = matches!(kind, Kind::TokenBucket | Kind::Interval);
            let burst = bursts.then_some(amount.min(2));
            Algorithm::new(&terms(kind, amount, period, burst)).expect("representable")
        };
        let own = limit(6, minute);
        for (amount, period) in [(12, minute), (7, minute), (6, 7 * SECOND), (6, SECOND)] {
            let raised = limit(amount, if is_level { period } else { minute });
            let mut row = Row::new();
            row.drain(&own);
            let kept = row.kept.take().expect("a bucket");
            let refused = own
                .judge(kept.state(), 1, row.now)
                .expect_err("it is empty");
            let due = row.now.after(refused.retry_after.expect("a time"));
            let now = row.now.after(Micros(due.since(row.now).0 * 9 / 10));
            let at = match raised.judge(kept.under(&raised, now).state(), 1, now) {
                Ok(_) => now,
                Err(refused) => now.after(refused.retry_after.expect("a time")),
            };
            assert!(at <= due, "{kind:?} {raised:?}: {at:?} and not {due:?}");
        }
    }
}

/// A caller that has used up its number gets the difference as soon as the number is raised.
#[test]
fn raised_number_of_a_window_helps_at_once_and_a_lowered_one_counts_what_was_used() {
    for kind in [
        Kind::Interval,
        Kind::FixedWindow,
        Kind::SlidingWindow,
        Kind::SlidingLog,
    ] {
        let (small, large) = (made(kind, 3, 3), made(kind, 10, 10));
        let mut row = Row::new();
        assert_eq!(row.drain(&small), 3, "{kind:?}");
        assert_eq!(row.drain(&large), 7, "{kind:?}");
        assert_eq!(row.drain(&small), 0, "{kind:?}");
        let mut row = Row::new();
        assert!(row.draw(&large, 1), "{kind:?}");
        assert_eq!(row.drain(&small), 2, "{kind:?}");
        assert_eq!(row.drain(&large), 7, "{kind:?}");
        let refused = small
            .judge(row.kept.as_ref().and_then(StoredBucket::state), 1, row.now)
            .expect_err("ten are used");
        let wait = refused.retry_after.expect("a time");
        row.pass(wait.0 - 1);
        assert!(!row.draw(&small, 1), "{kind:?}");
        row.pass(1);
        assert!(
            row.draw(&small, 1),
            "{kind:?}: one step frees what the larger number gave"
        );
    }
}

/// Until its next grant: a lowered rate is in force from then on, a raised one at once.
#[test]
fn what_passes_counts_at_the_higher_of_the_two_rates() {
    let (slow, fast) = (
        made(Kind::TokenBucket, 1, 10),
        made(Kind::TokenBucket, 5, 10),
    );
    for (first, then) in [(&slow, &fast), (&fast, &slow)] {
        let mut row = Row::new();
        assert_eq!(row.drain(first), 10);
        row.pass(SECOND);
        assert_eq!(row.drain(then), 5);
        row.pass(SECOND);
        assert_eq!(row.drain(&slow), if then == &slow { 1 } else { 5 });
    }
}

#[test]
fn part_of_a_unit_is_kept_in_proportion_and_rounded_down() {
    let own = |amount, period| {
        Algorithm::new(&terms(Kind::TokenBucket, amount, period, Some(2))).expect("representable")
    };
    let (fast, slow) = (own(1, 10 * SECOND), own(1, 30 * SECOND + 1));
    let mut row = Row::new();
    row.drain(&fast);
    row.pass(4 * SECOND);
    let kept = row.kept.expect("a bucket").under(&slow, row.now);
    let level = Level {
        level: 4 * 30_000_001 / 10,
        at: row.now,
    };
    assert_eq!(kept.state(), Some(&State::Level(level)));
}

/// A debt that smaller numbers could not make is not forgiven by them.
#[test]
fn debt_deeper_than_that_of_other_numbers_stays() {
    let (deep, flat) = (bucket(1000), made(Kind::TokenBucket, 7, 3));
    let mut row = Row::new();
    assert_eq!(row.drain(&deep), 1000);
    row.settle(&flat, Change::Charge { more: 700 });
    let refused = flat.judge(
        row.kept
            .as_ref()
            .expect("a debt")
            .under(&flat, row.now)
            .state(),
        1,
        row.now,
    );
    assert_eq!(
        refused.expect_err("it owes").retry_after,
        Some(Micros((701 * SECOND).div_ceil(7)))
    );
}

#[test]
fn drained_bucket_keeps_no_fraction_of_a_unit() {
    let at = Timestamp::from_micros(START);
    for millionths in [3_999_999, 999_999, 0, -500_000] {
        let state = State::Level(Level {
            level: millionths,
            at,
        });
        let mut kept = StoredBucket::from_parts(bucket(10), Some(state), 0);
        kept.drain(at);
        let level = millionths.min(0);
        assert_eq!(kept.state(), Some(&State::Level(Level { level, at })));
    }
}
