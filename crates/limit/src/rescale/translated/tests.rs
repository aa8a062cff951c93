use super::*;
use crate::bucket::{Level, Steps};
use crate::sliding_log::Entry;
use crate::{Kind, Micros, fixtures};

const START: Timestamp = Timestamp::from_micros(1_760_000_000_000_000);
const SECOND: u64 = 1_000_000;

/// Ten a second.
fn ten(kind: Kind) -> Algorithm {
    Algorithm::new(&fixtures::terms(kind, 10, Micros(SECOND))).expect("representable")
}

fn units(state: Option<State>) -> i64 {
    match state {
        Some(State::Steps(steps)) => steps.units,
        other => panic!("not steps: {other:?}"),
    }
}

#[test]
fn more_units_than_the_new_burst_are_clamped_to_it() {
    let large = Algorithm::new(&fixtures::terms(Kind::Interval, 100, Micros(SECOND)));
    let state = State::Steps(Steps {
        units: 80,
        since: START,
    });
    let moved = large
        .expect("representable")
        .translate(&state, &ten(Kind::TokenBucket), START);
    assert_eq!(moved, None, "it is full");
}

#[test]
fn sliding_window_counts_the_window_before_and_those_that_are_filled_ahead() {
    let window = ten(Kind::SlidingWindow);
    let pair = |start: Timestamp, previous, current| {
        State::Pair(Pair {
            start,
            previous,
            current,
        })
    };
    // A quarter of the second window: three quarters of 10, rounded up.
    let now = START.after(Micros(SECOND / 4));
    let left = window.translate(&pair(START, 10, 1), &ten(Kind::FixedWindow), now);
    assert_eq!(units(left), 1);
    // Two windows until the one that is counted, and the one before it is full.
    let ahead = START.after(Micros(2 * SECOND));
    let owing = ten(Kind::FixedWindow)
        .settling(100, false)
        .expect("representable");
    let left = window.translate(&pair(ahead, 10, 5), &owing, START);
    assert_eq!(units(left), 10 - 5 - 10 - 20);
}

#[test]
fn sliding_log_counts_a_grant_for_less_than_its_period() {
    let log = Log::from_entries([
        Entry {
            at: START,
            units: 4,
        },
        Entry {
            at: START.after(Micros(1)),
            units: 3,
        },
    ]);
    let now = START.after(Micros(SECOND));
    let left = ten(Kind::SlidingLog).translate(&State::Log(log), &ten(Kind::FixedWindow), now);
    assert_eq!(units(left), 7);
}

#[test]
fn a_part_of_a_unit_that_is_owed_is_a_unit_owed() {
    let state = State::Level(Level {
        level: -1,
        at: START,
    });
    let left = ten(Kind::TokenBucket).translate(&state, &ten(Kind::FixedWindow), START);
    assert_eq!(units(left), -1);
}
