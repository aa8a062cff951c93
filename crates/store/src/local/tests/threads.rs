//! Threads and locks: no key is granted too much, and several limits are charged together.

use std::sync::Arc;

use super::fixtures::{START, bucket, claim, limit, store, terms};
use tollgate_limit::{Claim, Kind, Micros, Timestamp, Verdict};

#[test]
fn no_window_of_any_length_sees_more_than_the_limit_on_any_number_of_threads() {
    // From one a day to ten million a second.
    let rates = [
        (1, 86_400_000_000, 1),
        (7, 86_400_000_000, 1000),
        (100, 60_000_000, 20),
        (3, 1_000_000, 3),
        (5000, 1_000_000, 10),
    ];
    let fast = [
        (10_000_000, 1_000_000, 10),
        (10_000_000, 1_000_000, 1_000_000),
        (7_000_000, 1_000_000, 7),
        (999_983, 1_000_000, 5),
    ];
    for (amount, period, burst) in rates.into_iter().chain(fast) {
        let terms = terms(Kind::TokenBucket, amount, Micros(period), burst);
        let limits = [Arc::new(limit(0, "a", &terms, 1 << 12))];
        let quota = limits[0].algorithm.quota().expect("a rate").clone();
        for threads in 1..=4 {
            let store = store(&limits);
            // Each draw moves the clock on by a fraction of what a unit takes, so that most are refused.
            let step = (quota.p / quota.n / 3).max(1);
            let clock = std::sync::atomic::AtomicU64::new(START.as_micros());
            let draws = 4000;
            let worker = |_| {
                let mut granted = Vec::new();
                for _ in 0..draws {
                    let now = clock.fetch_add(step, std::sync::atomic::Ordering::Relaxed);
                    if store
                        .draw_at(&[claim(&limits[0], b"k")], Timestamp::from_micros(now))
                        .granted
                    {
                        let next = clock.load(std::sync::atomic::Ordering::Relaxed);
                        granted.push((next - step, now));
                    }
                }
                granted
            };
            let mut grants = std::thread::scope(|scope| {
                let workers: Vec<_> = (0..threads)
                    .map(|index| scope.spawn(move || worker(index)))
                    .collect();
                workers
                    .into_iter()
                    .flat_map(|worker| worker.join().expect("no panic"))
                    .collect::<Vec<_>>()
            });
            grants.sort_unstable();
            // Each was granted between the moment of its request and the last one that any thread had when it was
            // decided. Of the grants i..=j, (j - i + 1) p <= burst p + (t_j - t_i) n, where t_i is the earliest
            // moment of them and of those after, and t_j the last one.
            let (n, p) = (i128::from(quota.n), i128::from(quota.p));
            let mut earliest = u64::MAX;
            for (_, at) in grants.iter_mut().rev() {
                earliest = earliest.min(*at);
                *at = earliest;
            }
            let mut least = i128::MAX;
            for (index, (decided, at)) in grants.iter().enumerate() {
                let index = index as i128;
                least = least.min(index * p - i128::from(*at) * n);
                let here = index * p - i128::from(*decided) * n;
                assert!(
                    here - least + p <= i128::from(burst) * p,
                    "{amount} per {period}, {threads} threads: {index}"
                );
            }
            let elapsed = i128::from(step) * i128::from(draws) * threads;
            let due = (i128::from(burst) + elapsed * n / p).min(i128::from(draws) * threads);
            if threads == 1 {
                assert!(
                    grants.len() as i128 + 1 >= due,
                    "{amount} per {period}: {} of {due}",
                    grants.len()
                );
            }
        }
    }
}

#[test]
fn under_contention_three_limits_are_charged_together_or_not_at_all() {
    for a_key_before in [false, true] {
        let limits = [
            bucket(0, "a", 1, 86_400, 6000),
            bucket(1, "b", 1, 86_400, 2000),
            bucket(2, "c", 1, 86_400, 4000),
        ];
        let store = store(&limits);
        let claims: Vec<_> = limits.iter().map(|limit| claim(limit, b"k")).collect();
        let before = usize::from(a_key_before && store.draw_at(&claims, START).granted);
        let granted = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|index| {
                    let (mut claims, store) = (claims.clone(), &store);
                    claims.rotate_left(index % 3);
                    scope.spawn(move || {
                        (0..1500)
                            .filter(|_| store.draw_at(&claims, START).granted)
                            .count()
                    })
                })
                .collect();
            workers
                .into_iter()
                .map(|worker| worker.join().expect("no panic"))
                .sum::<usize>()
        });
        assert_eq!(granted + before, 2000);
        for (limit, burst) in limits.iter().zip([6000, 2000, 4000]) {
            assert_eq!(
                store.peek_at(&[claim(limit, b"k")], START)[0].remaining(),
                burst - 2000,
                "{}",
                limit.name
            );
        }
    }
}

/// Claims on several keys of one limit, which share a shard or not, in any order: the descriptors of one call.
#[test]
fn several_keys_of_one_limit_are_charged_together_on_any_number_of_threads() {
    for memory in [1, 1 << 20] {
        let terms = terms(Kind::TokenBucket, 1, Micros::from_secs(86_400), 1_000);
        let limits = [Arc::new(limit(0, "a", &terms, memory))];
        let store = store(&limits);
        let keys: Vec<_> = (0..5_u8).map(|key| [key]).collect();
        let claims: Vec<_> = keys.iter().map(|key| claim(&limits[0], key)).collect();
        let granted = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|index| {
                    let (mut claims, store) = (claims.clone(), &store);
                    claims.rotate_left(index);
                    let draw = move || store.draw_at(&claims, START).granted;
                    scope.spawn(move || (0..500).filter(|_| draw()).count())
                })
                .collect();
            let workers = workers.into_iter();
            let granted = workers.map(|worker| worker.join().expect("no panic"));
            granted.sum::<usize>()
        });
        assert_eq!(granted, 1_000);
        for standing in store.peek_at(&claims, START) {
            assert_eq!(standing.remaining(), 0);
        }
    }
}

/// The first newcomer takes the place of a bucket that the second claim of the same request draws from.
#[test]
fn claim_whose_bucket_is_forgotten_for_another_claim_of_its_request_is_charged() {
    let terms = terms(Kind::TokenBucket, 1, Micros::from_secs(86_400), 10);
    let limits = [Arc::new(limit(0, "a", &terms, 1))];
    let store = store(&limits);
    // The one shard is full, and the first of its keys owes least.
    for key in 0..16_u8 {
        for _ in 0..=key.min(1) {
            assert!(store.draw_at(&[claim(&limits[0], &[key])], START).granted);
        }
    }
    let both = [claim(&limits[0], b"new"), claim(&limits[0], &[0])];
    assert!(store.draw_at(&both, START).granted);
    assert_eq!(store.tally(0).evictions, 2);
    let left: Vec<_> = store.peek_at(&both, START);
    assert_eq!([left[0].remaining(), left[1].remaining()], [9, 8]);
}

/// One that can never pass, for a known key and a new one.
#[test]
fn a_cost_beyond_the_burst_is_refused_and_forgets_no_key() {
    let limits = [bucket(0, "a", 1, 60, 5), bucket(1, "b", 1, 60, 9)];
    let store = store(&limits);
    let claims = |cost| [0, 1].map(|place: usize| Claim::new(&limits[place], b"k", cost));
    for known in [false, true] {
        let refused = store.draw_at(&claims(6), START);
        assert!(!refused.granted);
        assert_eq!(
            refused.standings[0].verdict,
            Verdict::Deny { retry_after: None }
        );
        assert_eq!(refused.standings[1].remaining(), if known { 8 } else { 9 });
        assert!(known || store.draw_at(&claims(1), START).granted);
    }
}

#[test]
fn reloads_under_load_neither_lose_a_charge_nor_mint_a_token() {
    // Other rates, and other sizes.
    let versions = [
        (60, 1 << 16),
        (120, 1 << 16),
        (120, 1 << 14),
        (999_983, 1 << 16),
        (60, 1 << 15),
    ];
    let version = |number: usize| {
        let (amount, memory) = versions[number % versions.len()];
        [Arc::new(limit(
            0,
            "a",
            &terms(Kind::TokenBucket, amount, Micros::from_secs(3600), 500),
            memory,
        ))]
    };
    let keys: Vec<_> = (0..8u32).map(u32::to_be_bytes).collect();
    let current = parking_lot::RwLock::new(Arc::new((version(0), store(&version(0)))));
    let granted = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let draw = |number: usize| {
                        // Some requests hold on to a generation while the next takes over.
                        let generation = Arc::clone(&current.read());
                        if number.is_multiple_of(7) {
                            std::thread::yield_now();
                        }
                        let (limits, store) = &*generation;
                        store
                            .draw_at(&[claim(&limits[0], &keys[number % keys.len()])], START)
                            .granted
                    };
                    (0..2000).filter(|number| draw(*number)).count()
                })
            })
            .collect();
        for number in 1..200 {
            let limits = version(number);
            let (next, _) = current.read().1.next(&limits);
            *current.write() = Arc::new((limits, next));
        }
        workers
            .into_iter()
            .map(|worker| worker.join().expect("no panic"))
            .sum::<usize>()
    });
    assert_eq!(granted, 8 * 500, "each key its burst, once");
}
