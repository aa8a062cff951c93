//! Threads and locks: no key is granted too much, a refusal waits for no lock, the short ways decide as the locked one does.

use std::sync::Arc;

use super::fixtures::{START, bucket, claim, limit, store, terms};
use crate::local::draw::draw_locked;
use tollgate_limit::{Claim, Kind, Limit, Micros, Timestamp, Verdict};

#[test]
fn no_window_of_any_length_sees_more_than_the_limit_on_any_number_of_threads() {
    // From one a day to ten million a second, packed and (999,983 a second) not.
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
                        granted.push(now);
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
            // Of the grants i..=j, (j - i + 1) p <= burst p + (t_j - t_i) n; one pass with the least left end so far.
            let (n, p) = (i128::from(quota.n), i128::from(quota.p));
            let mut least = i128::MAX;
            for (index, at) in grants.iter().enumerate() {
                let here = index as i128 * p - i128::from(*at) * n;
                least = least.min(here);
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
    // One word each, which are seldom locked before they are judged; and one (999,983) that is always.
    for (amount, a_key_before) in [(1, false), (1, true), (999_983, false)] {
        let limits = [
            bucket(0, "a", 1, 86_400, 6000),
            bucket(1, "b", 1, 86_400, 2000),
            bucket(2, "c", amount, 86_400, 4000),
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
                store.peek_at(&[claim(limit, b"k")], START)[0].remaining,
                burst - 2000,
                "{}",
                limit.name
            );
        }
    }
}

#[test]
fn local_several_buckets_decide_as_if_locked() {
    // Known ones, and in a table of one set keys that come and go.
    for (keys, memory) in [(6, 1 << 20), (24, 128)] {
        let limits = [(1, 7, 9), (3, 60, 5), (1, 86_400, 30)];
        let limits = limits
            .into_iter()
            .enumerate()
            .map(|(index, (amount, seconds, burst))| {
                let terms = terms(Kind::TokenBucket, amount, Micros::from_secs(seconds), burst);
                Arc::new(limit(index, &format!("limit {index}"), &terms, memory))
            });
        let (mut random, limits) = (fastrand::Rng::with_seed(11), limits.collect::<Vec<_>>());
        let (short, mut long) = (store(&limits), store(&limits));
        long.seed = short.seed.clone();
        let mut now = START;
        for _ in 0..20_000 {
            now = now.after(Micros(random.u64(0..3_000_000)));
            // Limits that are split the same way share their key's bytes, others do not.
            let (key, other) = ([random.u8(0..keys)], [random.u8(0..keys)]);
            let of = |limit, cost, enforced| Claim {
                cost,
                enforced,
                ..claim(limit, &key)
            };
            let mut claims: Vec<_> = limits
                .iter()
                .map(|limit| of(limit, random.u64(0..4), random.u8(0..5) > 0))
                .collect();
            claims[random.usize(0..3)].key = &other;
            random.shuffle(&mut claims);
            claims.truncate(random.usize(2..4));
            let mut bound = long.bind(&claims);
            assert_eq!(
                short.draw_at(&claims, now),
                draw_locked(&mut bound, &claims, now)
            );
        }
        assert_eq!(
            keys > 6,
            (0..3).any(|index| short.tally(index).evictions > 0)
        );
    }
}

/// What `call` comes to on a thread of its own, within ten seconds; `None`: it waits for something. Then `release` lets it go.
fn without_waiting<T: Send>(call: impl FnOnce() -> T + Send, release: impl FnOnce()) -> Option<T> {
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        scope.spawn(move || sender.send(call()));
        let answer = receiver
            .recv_timeout(std::time::Duration::from_secs(10))
            .ok();
        release();
        answer
    })
}

/// A refusal comes although the slots of all buckets are locked, and a newcomer's although the sets are.
#[test]
fn a_refusal_waits_for_no_lock() {
    for refundable in [false, true] {
        // Five limits are more than the short ways take.
        for count in [1, 2, 3, 4, 5] {
            let make = |index: usize| {
                let terms = terms(
                    Kind::TokenBucket,
                    1,
                    Micros::from_secs(86_400),
                    if index == 0 { 1 } else { 9 },
                );
                Arc::new(Limit {
                    refundable,
                    ..limit(
                        index,
                        &format!("limit {index}"),
                        &terms,
                        128 + 8 * usize::from(refundable),
                    )
                })
            };
            let limits: Vec<_> = (0..count).map(make).collect();
            let store = store(&limits);
            let claims: Vec<_> = limits.iter().map(|limit| claim(limit, b"k")).collect();
            assert!(store.draw_at(&claims, START).granted);
            let expected = store.draw_at(&claims, START);
            assert!(!expected.granted);
            let plain = |index: usize| store.tables[index].packed().expect("one word each");
            let elapsed = plain(0).elapsed(START);
            let sites: Vec<_> = (0..count)
                .map(|index| {
                    let mut site = plain(index).site(store.seed.tag(b"k"), elapsed);
                    let (found, seen) = site.scan();
                    assert!(found && site.hold(seen), "no other thread is here");
                    (site, seen)
                })
                .collect();
            let known = without_waiting(
                || store.draw_at(&claims, START),
                || {
                    sites
                        .iter()
                        .for_each(|(site, seen)| site.release(*seen, seen.arrival()))
                },
            );
            assert_eq!(
                known.as_ref(),
                Some(&expected),
                "{count} limits, refundable: {refundable}"
            );

            // The one set there is gets full of keys that have nothing left, so that every newcomer inherits that.
            for number in 0..9u8 {
                let key = [number];
                let first: Vec<_> = limits.iter().map(|limit| claim(limit, &key)).collect();
                store.draw_at(&first[..1], START);
            }
            let others: Vec<_> = limits.iter().map(|limit| claim(limit, b"other")).collect();
            let before = store.tally(0).inherited_refusals;
            let sets: Vec<_> = (0..count)
                .map(|index| plain(index).lock(store.seed.tag(b"k"), START))
                .collect();
            let newcomer = without_waiting(|| store.draw_at(&others, START), || drop(sets))
                .expect("refused at once");
            assert!(
                !newcomer.granted,
                "{count} limits, refundable: {refundable}"
            );
            assert_eq!(store.tally(0).inherited_refusals, before + 1);
        }
    }
}

/// One that can never pass, for a known key and a new one.
#[test]
fn a_cost_beyond_the_burst_is_refused_without_a_lock_and_forgets_no_key() {
    let limits = [bucket(0, "a", 1, 60, 5), bucket(1, "b", 1, 60, 9)];
    let store = store(&limits);
    let claims = |cost| {
        limits
            .iter()
            .map(|limit| Claim {
                cost,
                ..claim(limit, b"k")
            })
            .collect::<Vec<_>>()
    };
    for known in [false, true] {
        let set = store.tables[0]
            .packed()
            .expect("one word each")
            .lock(store.seed.tag(b"k"), START);
        let refused = without_waiting(|| store.draw_at(&claims(6), START), || drop(set))
            .expect("refused at once");
        assert!(!refused.granted);
        assert_eq!(
            refused.standings[0].verdict,
            Verdict::Deny { retry_after: None }
        );
        assert_eq!(refused.standings[1].remaining, if known { 8 } else { 9 });
        assert!(known || store.draw_at(&claims(1), START).granted);
    }
}

#[test]
fn reloads_under_load_neither_lose_a_charge_nor_mint_a_token() {
    // Packed to packed, to another size, to wide (the odd rate) and back.
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
