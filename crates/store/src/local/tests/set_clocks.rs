//! What a snapshot leaves of the buckets if the wall clock is set while a process runs, or between two.

use std::io::Cursor;
use std::sync::Arc;

use super::fixtures::{START, bucket, claim, limit};
use super::restarts::one_of_each;
use crate::clock::Clock;
use crate::local::{ColdStart, LocalStore, Remembered};
use tollgate_limit::{Align, Calendar, Kind, Limit, Micros, Terms, Timestamp};

/// The store of a process that starts with `clock`, after `store` was saved.
fn restarted(store: &LocalStore, limits: &[Arc<Limit>], clock: Clock) -> LocalStore {
    let mut snapshot = Vec::new();
    store
        .save(&mut snapshot, &Remembered::default())
        .expect("memory takes everything");
    let restored = LocalStore::restored(limits, clock, Cursor::new(snapshot));
    restored.expect("sound").0
}

/// A day's quota in windows of the clock, and of a calendar whose day begins with `START`.
fn quotas_of_a_day() -> [Arc<Limit>; 2] {
    const DAY: Micros = Micros::from_secs(86_400);
    let calendar = Calendar {
        boundaries: vec![START, START.after(DAY)],
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
    let clock = Clock::manual(at);
    let store = LocalStore::new(&limits, clock.clone(), ColdStart::Full);
    for limit in &limits {
        for _ in 0..10 {
            assert!(store.draw_at(&[claim(limit, b"k")], at).granted);
        }
    }
    for back in [Micros(1), Micros::from_secs(50)] {
        let now = at.before(back);
        let restored = restarted(&store, &limits, Clock::manual(now));
        for limit in &limits {
            let left = |at| restored.peek_at(&[claim(limit, b"k")], at)[0];
            assert_eq!(left(now).remaining, 0, "{} {back:?}", limit.name);
            // It ends at its boundary, as before.
            let end = store.peek_at(&[claim(limit, b"k")], at)[0].window_end;
            assert_eq!(left(now).window_end, end, "{} {back:?}", limit.name);
            assert_eq!(left(end).remaining, 10, "{} {back:?}", limit.name);
        }
    }
    // Back before the calendar's window: its units are those of the window before it.
    let now = START.before(Micros::from_secs(1));
    let restored = restarted(&store, &limits, Clock::manual(now));
    for limit in &limits {
        let left = restored.peek_at(&[claim(limit, b"k")], now)[0].remaining;
        assert_eq!(left, 0, "{}", limit.name);
    }
}

/// The process was started before the clock was set forward by an hour, the next one after that.
#[test]
fn restart_after_the_clock_was_set_forward_refills_no_bucket() {
    let mut limits = one_of_each();
    // Instead of one that gains a unit in a few milliseconds.
    limits.pop();
    limits.push(bucket(limits.len(), "slow", 60, 3600, 60));
    let clock = Clock::before_a_step(Micros::from_secs(3600));
    let store = LocalStore::new(&limits, clock.clone(), ColdStart::Full);
    let left = |store: &LocalStore, now: Timestamp| -> Vec<u64> {
        let claims: Vec<_> = limits.iter().map(|limit| claim(limit, b"k")).collect();
        let standings = store.peek_at(&claims, now).into_iter();
        standings.map(|standing| standing.remaining).collect()
    };
    let claims: Vec<_> = limits.iter().map(|limit| claim(limit, b"k")).collect();
    for _ in 0..10 {
        assert!(store.draw_at(&claims, clock.now()).granted);
    }
    let before = left(&store, clock.now());
    let clock = Clock::system();
    let restored = restarted(&store, &limits, clock.clone());
    assert_eq!(left(&restored, clock.now()), before);
}
