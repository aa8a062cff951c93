//! Overrides: the bucket of a key is drawn under other numbers.

use std::io::Cursor;
use std::sync::Arc;

use fastrand::Rng;

use super::fixtures::{START, bucket, claim};
use crate::clock::Clock;
use crate::local::{ColdStart, LocalStore, Remembered};
use tollgate_limit::{Limit, Micros, Rate, Timestamp};

const SECOND: u64 = 1_000_000;

/// The largest burst, and the highest rate a second, that any override or the limit has.
const BURST: u64 = 50;
const RATE: u64 = 5;

/// A bucket of the largest numbers, in millionths of a unit, that pays for every grant.
struct Most {
    left: u64,
    at: Timestamp,
}

impl Most {
    fn pay(&mut self, now: Timestamp, what: &str) {
        let gained = now.since(self.at).0 * RATE;
        self.left = (self.left + gained).min(BURST * SECOND);
        self.at = now;
        let left = self.left.checked_sub(SECOND);
        self.left = left.unwrap_or_else(|| panic!("granted too much: {what}"));
    }
}

fn draw(store: &LocalStore, limit: &Limit, key: &[u8], now: Timestamp) -> bool {
    store.draw_at(&[claim(limit, key)], now).granted
}

#[test]
fn override_set_ended_and_restarted_at_random_stays_within_the_largest_numbers() {
    for seed in 0..100 {
        let mut rng = Rng::with_seed(seed);
        let base = |resettable| {
            [Arc::new(Limit {
                resettable,
                ..Limit::clone(&bucket(0, "it", 60, 60, 10))
            })]
        };
        let mut limits = base(true);
        let clock = Clock::manual(START);
        let mut store = LocalStore::new(&limits, clock.clone(), ColdStart::Full);
        let mut most = Most {
            left: BURST * SECOND,
            at: START,
        };
        let mut numbers: Option<Limit> = None;
        let mut history = Vec::new();
        for _ in 0..200 {
            clock.advance(Micros(
                [0, 100_000, SECOND, 3 * SECOND, 20 * SECOND][rng.usize(..5)],
            ));
            let now = clock.now();
            match rng.u8(..20) {
                0 | 1 => {
                    let rate = Rate::new(rng.u64(1..=RATE), Micros(SECOND));
                    let burst = [1, 10, BURST][rng.usize(..3)];
                    history.push(format!("{now:?}: {rate:?} and {burst}"));
                    let other = limits[0].with_numbers(Some(rate), Some(burst));
                    numbers = Some(other.expect("good numbers"));
                }
                2 => numbers = None,
                3 | 4 => {
                    limits = base(rng.bool());
                    store = store.next(&limits).0;
                    numbers = None;
                }
                5 => {
                    let mut file = Vec::new();
                    store
                        .save(None, &mut file, &Remembered::default())
                        .expect("memory takes everything");
                    let restored = LocalStore::restored(&limits, clock.clone(), Cursor::new(file));
                    store = restored.expect("a good snapshot").0;
                    history.push(format!("{now:?}: restart"));
                }
                _ => {}
            }
            let limit = numbers.as_ref().unwrap_or(&limits[0]);
            for _ in 0..rng.usize(..30) {
                if draw(&store, limit, b"k", now) {
                    most.pay(now, &format!("seed {seed}, {history:#?}"));
                }
            }
        }
        // It has come to rest: the limit is as it was, and other keys never noticed.
        clock.advance(Micros(3_600 * SECOND));
        for key in [&b"k"[..], b"other"] {
            let now = clock.now();
            let granted = (0..30)
                .filter(|_| draw(&store, &limits[0], key, now))
                .count();
            assert_eq!(granted, 10, "seed {seed}");
        }
    }
}

#[test]
fn override_of_an_exhausted_bucket_decides_how_fast_it_refills() {
    let limits = [bucket(0, "it", 2, 3_600, 2)];
    let clock = Clock::manual(START);
    let store = LocalStore::new(&limits, clock.clone(), ColdStart::Full);
    let granted = |limit: &Limit| {
        let now = clock.now();
        (0..30).filter(|_| draw(&store, limit, b"k", now)).count()
    };
    assert_eq!(granted(&limits[0]), 2);
    let rate = Rate::new(1, Micros(SECOND));
    let raised = limits[0]
        .with_numbers(Some(rate), Some(20))
        .expect("good numbers");
    assert_eq!(granted(&raised), 0, "nothing is refilled");
    clock.advance(Micros(10 * SECOND));
    assert_eq!(granted(&raised), 10);
    clock.advance(Micros(10 * SECOND));
    assert_eq!(granted(&limits[0]), 2, "clamped to the limit's own burst");
}
