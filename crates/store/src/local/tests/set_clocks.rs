//! What a snapshot leaves of the buckets if the wall clock is set while a process runs, or between two.

use std::io::Cursor;
use std::sync::Arc;

use super::fixtures::{START, claim, limit};
use super::restarts::one_of_each;
use crate::clock::Clock;
use crate::local::{ColdStart, Learnt, LocalStore, Penalized, Remembered, Share};
use tollgate_limit::{Align, Calendar, Kind, Limit, Micros, Terms, Timestamp};

const HOUR: Micros = Micros::from_secs(3600);

/// The store of a process that starts with `clock`, after `store` was saved.
fn restarted(store: &LocalStore, limits: &[Arc<Limit>], clock: Clock) -> LocalStore {
    let mut snapshot = Vec::new();
    store
        .save(None, &mut snapshot, &Remembered::default())
        .expect("memory takes everything");
    let restored = LocalStore::restored(limits, clock, Cursor::new(snapshot));
    restored.expect("sound").0
}

/// The units that are left in the bucket of each limit.
fn left(store: &LocalStore, limits: &[Arc<Limit>], now: Timestamp) -> Vec<u64> {
    let claims: Vec<_> = limits.iter().map(|limit| claim(limit, b"k")).collect();
    let standings = store.peek_at(&claims, now).into_iter();
    standings.map(|standing| standing.remaining()).collect()
}

/// A store whose buckets have granted ten units.
fn drawn_from(limits: &[Arc<Limit>], clock: &Clock) -> LocalStore {
    let store = LocalStore::new(limits, clock.clone(), ColdStart::Full);
    let claims: Vec<_> = limits.iter().map(|limit| claim(limit, b"k")).collect();
    for _ in 0..10 {
        assert!(store.draw_at(&claims, clock.now()).granted);
    }
    store
}

/// A day's quota in windows of the clock, and of a calendar whose day begins with `START`.
fn quotas_of_a_day() -> [Arc<Limit>; 2] {
    const DAY: Micros = Micros::from_secs(86_400);
    let calendar = Calendar {
        boundaries: vec![START.before(DAY), START, START.after(DAY)],
        words: "day".to_owned(),
    };
    let terms = |align| Terms {
        align,
        ..Terms::new(Kind::FixedWindow, 10, DAY)
    };
    let clock = limit(0, "clock", &terms(Align::Clock), 1 << 20);
    let calendar = Align::Calendar(Arc::new(calendar));
    [clock, limit(1, "calendar", &terms(calendar), 1 << 20)].map(Arc::new)
}

/// The clock at the start is behind that of the stop, in the same window: no boundary has passed.
#[test]
fn window_that_is_used_up_stays_so_when_the_clock_is_set_back_between_stop_and_start() {
    let limits = quotas_of_a_day();
    let at = START.after(Micros::from_secs(60));
    let store = drawn_from(&limits, &Clock::manual(at));
    for back in [Micros(1), Micros::from_secs(50)] {
        let now = at.before(back);
        let restored = restarted(&store, &limits, Clock::manual(now));
        for limit in &limits {
            let left = |at| restored.peek_at(&[claim(limit, b"k")], at)[0];
            assert_eq!(left(now).remaining(), 0, "{} {back:?}", limit.name);
            // It ends at its boundary, as before.
            let end = store.peek_at(&[claim(limit, b"k")], at)[0].window_end;
            assert_eq!(left(now).window_end, end, "{} {back:?}", limit.name);
            assert_eq!(left(end).remaining(), 10, "{} {back:?}", limit.name);
        }
    }
    // Back before the calendar's window: its units are those of the window before, which ends with it.
    let now = START.before(Micros::from_secs(1));
    let restored = restarted(&store, &limits, Clock::manual(now));
    for limit in &limits {
        let left = |at| restored.peek_at(&[claim(limit, b"k")], at)[0];
        assert_eq!(left(now).remaining(), 0, "{}", limit.name);
        let end = left(now).window_end;
        assert_eq!(left(end).remaining(), 10, "{}", limit.name);
        assert_eq!(end == START, limit.name.as_ref() == "calendar", "{end:?}");
    }
}

/// The process was started before the clock was set forward by an hour, the next one after that. Or the
/// clock at the start is an hour behind that of the stop.
#[test]
fn restart_after_the_clock_was_set_neither_refills_a_bucket_nor_delays_it() {
    let limits = one_of_each();
    let clock = Clock::manual(START);
    let store = drawn_from(&limits, &clock);
    let back = restarted(&store, &limits, Clock::manual(START.before(HOUR)));
    clock.set_wall_forward(HOUR);
    let forward = restarted(&store, &limits, Clock::manual(clock.wall()));
    for seconds in [0, 1, 600, 1_800, 3_600, 7_200] {
        let later = Micros::from_secs(seconds);
        let expected = left(&store, &limits, START.after(later));
        for (restored, start) in [(&back, START.before(HOUR)), (&forward, clock.wall())] {
            let found = left(restored, &limits, start.after(later));
            assert_eq!(found, expected, "{seconds} s after {start:?}");
        }
    }
}

#[test]
fn restart_after_the_clock_was_set_forward_moves_what_is_known_of_limits_and_keys() {
    let limits = one_of_each();
    let known = |at: Timestamp| {
        let [first, second, third] = [1, 2, 3].map(|second| at.after(Micros::from_secs(second)));
        let share = Share {
            factor: (512, first),
            bound: (256, second),
            opens: third,
        };
        let penalized = Penalized {
            bucket: 7,
            until: first,
            refusals: 0,
            admits: Some(second),
        };
        Remembered {
            learnt: vec![(0, Learnt::Share(share))],
            penalized: vec![penalized],
            ..Remembered::default()
        }
    };
    let clock = Clock::manual(START);
    let store = LocalStore::new(&limits, clock.clone(), ColdStart::Full);
    clock.set_wall_forward(HOUR);
    let mut snapshot = Vec::new();
    store
        .save(None, &mut snapshot, &known(START))
        .expect("memory takes everything");
    let next = Clock::manual(clock.wall());
    let (_, report) = LocalStore::restored(&limits, next, Cursor::new(snapshot)).expect("sound");
    assert_eq!(report.also, known(clock.wall()));
}
