use std::sync::Arc;

use super::packed::PackedTable;
use super::*;
use crate::limit::packed::Packed;
use crate::limit::{
    Algorithm, Change, Kind, Limit, Micros, Mode, OnFailover, Placement, Role, Terms, Timestamp, WhenDown,
};

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

pub(crate) fn terms(kind: Kind, amount: u64, period: Micros, burst: u64) -> Terms {
    Terms {
        kind,
        amount,
        period,
        burst: (kind != Kind::InFlight).then_some(burst),
        align: crate::limit::Align::FirstHit,
        debt: 0,
        max_wait: Micros::ZERO,
        warm_up: Micros::ZERO,
        shared: false,
    }
}

/// `amount` per `period` with `burst`, in a table of `memory` bytes.
pub(crate) fn limit(index: usize, name: &str, terms: &Terms, memory: usize) -> Limit {
    Limit {
        name: name.into(),
        index,
        tier: None,
        role: Role::Live,
        algorithm: Algorithm::new(terms).expect("representable"),
        mode: Mode::Enforce,
        enforce_for: 10_000,
        placement: Placement::Local,
        when_down: WhenDown::LocalShare,
        on_failover: OnFailover::Keep,
        lease: false,
        memory,
        refundable: false,
    }
}

fn bucket(index: usize, name: &str, amount: u64, seconds: u64, burst: u64) -> Arc<Limit> {
    let terms = terms(Kind::TokenBucket, amount, Micros::from_secs(seconds), burst);
    Arc::new(limit(index, name, &terms, 1 << 20))
}

fn claim<'a>(limit: &'a Limit, key: &'a [u8]) -> Claim<'a> {
    Claim { limit, key, cost: 1, enforced: true }
}

fn store(limits: &[Arc<Limit>]) -> LocalStore {
    LocalStore::new(limits, Clock::manual(START), ColdStart::Full)
}

#[test]
fn a_refused_request_is_allowed_exactly_when_told() {
    let limits = [bucket(0, "a", 100, 60, 20)];
    let store = store(&limits);
    for left in (0..20).rev() {
        let draw = store.draw_at(&[claim(&limits[0], b"k")], START);
        assert!(draw.granted);
        assert_eq!(draw.standings[0].remaining, left);
    }
    let refused = store.draw_at(&[claim(&limits[0], b"k")], START);
    assert!(!refused.granted);
    let Verdict::Deny { retry_after: Some(wait) } = refused.standings[0].verdict else { panic!("{refused:?}") };
    assert_eq!(wait, Micros(600_000));
    assert!(!store.draw_at(&[claim(&limits[0], b"k")], START.after(Micros(wait.0 - 1))).granted);
    assert!(store.draw_at(&[claim(&limits[0], b"k")], START.after(wait)).granted);
    assert!(store.draw_at(&[claim(&limits[0], b"other")], START).granted, "another key is another bucket");
}

#[test]
fn a_refusal_by_one_limit_leaves_the_others_as_they_were() {
    let limits = [bucket(0, "wide", 1000, 60, 1000), bucket(1, "narrow", 1, 60, 1), bucket(2, "shadow", 5, 60, 5)];
    let store = store(&limits);
    let shadow = Claim { enforced: false, ..claim(&limits[2], b"k") };
    let claims = [claim(&limits[0], b"k"), claim(&limits[1], b"k"), shadow];
    assert!(store.draw_at(&claims, START).granted);
    let refused = store.draw_at(&claims, START);
    assert!(!refused.granted);
    assert_eq!(refused.standings.iter().map(|standing| standing.remaining).collect::<Vec<_>>(), [999, 0, 4]);
    let reversed: Vec<_> = claims.iter().rev().copied().collect();
    assert!(!store.draw_at(&reversed, START).granted);
    assert_eq!(store.peek_at(&claims, START)[0].remaining, 999, "a peek takes nothing");
}

#[test]
fn a_reload_never_adds_a_token_and_says_what_it_did() {
    let before = [bucket(0, "kept", 10, 60, 10), bucket(1, "changed", 10, 60, 10), bucket(2, "gone", 10, 60, 10)];
    let old = store(&before);
    for _ in 0..4 {
        let claims: Vec<_> = before.iter().map(|limit| claim(limit, b"k")).collect();
        assert!(old.draw_at(&claims, START).granted);
    }
    let after = [bucket(0, "changed", 100, 60, 100), bucket(1, "kept", 10, 60, 10), bucket(2, "new", 10, 60, 10)];
    let (next, report) = old.next(&after);
    let carried: Vec<_> = report.limits.iter().map(|carried| (&*carried.name, carried.carry)).collect();
    let expected = [("changed", Carry::Rescaled), ("kept", Carry::Kept), ("new", Carry::New), ("gone", Carry::Gone)];
    assert_eq!(carried, expected);
    let left = |store: &LocalStore, limit: &Arc<Limit>| {
        store.peek_at(&[Claim { cost: 0, ..claim(limit, b"k") }], START)[0].remaining
    };
    assert_eq!(left(&next, &after[0]), 6);
    assert_eq!(left(&next, &after[1]), 6);

    // A request still in flight on the old generation charges where the buckets are now.
    assert!(old.draw_at(&[claim(&before[0], b"k"), claim(&before[1], b"k")], START).granted);
    assert_eq!(left(&next, &after[0]), 5);
    assert_eq!(left(&next, &after[1]), 5);
}

#[test]
fn a_flood_of_keys_into_a_small_table_grants_nobody_a_second_burst() {
    let terms = terms(Kind::TokenBucket, 1, Micros::from_secs(86_400), 1);
    let limits = [Arc::new(limit(0, "a", &terms, 1 << 16))];
    let store = store(&limits);
    let key = |number: u32| number.to_be_bytes();
    let granted = |range: std::ops::Range<u32>| {
        range.filter(|number| store.draw_at(&[claim(&limits[0], &key(*number))], START).granted).count()
    };
    let first = granted(0..20_000);
    assert!(first > 100, "new keys are admitted while there is room: {first}");
    assert_eq!(granted(0..20_000) + first, first, "every key that came back owes at least what it left with");
    assert!(store.tally(0).evictions == 0 || store.tally(0).inherited_refusals > 0);
}

/// Ten new keys in the time of a unit for each slot there is, and among them callers who ask as much as they may.
#[test]
fn a_flood_of_keys_refuses_few_of_those_who_behave_and_grants_none_too_much() {
    const CALLERS: usize = 1000;
    let (interval, burst) = (60_000_000, 10);
    let terms = terms(Kind::TokenBucket, 1, Micros(interval), burst);
    let limits = [Arc::new(limit(0, "a", &terms, 1 << 20))];
    let mut store = store(&limits);
    store.seed = Seed::from_raw(7);
    let mut random = fastrand::Rng::with_seed(7);
    let mut arrivals = vec![0; CALLERS];
    let (mut asked, mut wrong) = (0, 0);
    let draw = |key: u64, now| store.draw_at(&[claim(&limits[0], &key.to_le_bytes())], Timestamp::from_micros(now));
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
    assert!(wrong * 1000 < asked * 3, "{wrong} of {asked} refused that should not have been");
}

#[test]
fn places_in_flight_are_never_forgotten() {
    let limits = [Arc::new(limit(0, "jobs", &terms(Kind::InFlight, 1, Micros::ZERO, 1), 1))];
    let store = store(&limits);
    let key = |number: u32| number.to_be_bytes();
    for number in 0..5_000 {
        assert!(store.draw_at(&[claim(&limits[0], &key(number))], START).granted);
    }
    for number in 0..5_000 {
        assert!(!store.draw_at(&[claim(&limits[0], &key(number))], START).granted, "{number} is still in flight");
    }
    let release = Settlement { limit: &limits[0], key: &key(7), change: Change::Release { units: 1 } };
    store.settle_at(&[release], START);
    assert!(store.draw_at(&[claim(&limits[0], &key(7))], START).granted);
}

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
                    if store.draw_at(&[claim(&limits[0], b"k")], Timestamp::from_micros(now)).granted {
                        granted.push(now);
                    }
                }
                granted
            };
            let mut grants = std::thread::scope(|scope| {
                let workers: Vec<_> = (0..threads).map(|index| scope.spawn(move || worker(index))).collect();
                workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect::<Vec<_>>()
            });
            grants.sort_unstable();
            // Of the grants i..=j, (j - i + 1) p <= burst p + (t_j - t_i) n; one pass with the least left end so far.
            let (n, p) = (i128::from(quota.n), i128::from(quota.p));
            let mut least = i128::MAX;
            for (index, at) in grants.iter().enumerate() {
                let here = index as i128 * p - i128::from(*at) * n;
                least = least.min(here);
                assert!(here - least + p <= i128::from(burst) * p, "{amount} per {period}, {threads} threads: {index}");
            }
            let elapsed = i128::from(step) * i128::from(draws) * threads;
            let due = (i128::from(burst) + elapsed * n / p).min(i128::from(draws) * threads);
            if threads == 1 {
                assert!(grants.len() as i128 + 1 >= due, "{amount} per {period}: {} of {due}", grants.len());
            }
        }
    }
}

#[test]
fn under_contention_three_limits_are_charged_together_or_not_at_all() {
    // One word each, which are seldom locked before they are judged; and one (999,983) that is always.
    for (amount, a_key_before) in [(1, false), (1, true), (999_983, false)] {
        let limits =
            [bucket(0, "a", 1, 86_400, 6000), bucket(1, "b", 1, 86_400, 2000), bucket(2, "c", amount, 86_400, 4000)];
        let store = store(&limits);
        let claims: Vec<_> = limits.iter().map(|limit| claim(limit, b"k")).collect();
        let before = usize::from(a_key_before && store.draw_at(&claims, START).granted);
        let granted = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|index| {
                    let (mut claims, store) = (claims.clone(), &store);
                    claims.rotate_left(index % 3);
                    scope.spawn(move || (0..1500).filter(|_| store.draw_at(&claims, START).granted).count())
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().expect("no panic")).sum::<usize>()
        });
        assert_eq!(granted + before, 2000);
        for (limit, burst) in limits.iter().zip([6000, 2000, 4000]) {
            assert_eq!(store.peek_at(&[claim(limit, b"k")], START)[0].remaining, burst - 2000, "{}", limit.name);
        }
    }
}

#[test]
fn several_buckets_answer_as_locked_ones_do() {
    // Known ones, and in a table of one set keys that come and go.
    for (keys, memory) in [(6, 1 << 20), (24, 128)] {
        let limits = [(1, 7, 9), (3, 60, 5), (1, 86_400, 30)];
        let limits = limits.into_iter().enumerate().map(|(index, (amount, seconds, burst))| {
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
            let of = |limit, cost, enforced| Claim { cost, enforced, ..claim(limit, &key) };
            let mut claims: Vec<_> =
                limits.iter().map(|limit| of(limit, random.u64(0..4), random.u8(0..5) > 0)).collect();
            claims[random.usize(0..3)].key = &other;
            random.shuffle(&mut claims);
            claims.truncate(random.usize(2..4));
            let mut bound = long.bind(claims.iter().map(|claim| (claim.limit.index, claim.key)));
            assert_eq!(short.draw_at(&claims, now), draw_locked(&mut bound, &claims, now));
        }
        assert_eq!(keys > 6, (0..3).any(|index| short.tally(index).evictions > 0));
    }
}

/// Nearly every decision touches one line: that is how many keys are found in their own at the load of 27 bytes a key. (By
/// Poisson, of lines of four slots that are six tenths full 6.1 % of the keys find their own full, and 2 % the set.)
#[test]
fn nineteen_keys_in_twenty_live_in_the_line_they_belong_to() {
    let terms = terms(Kind::TokenBucket, 1, Micros::from_secs(86_400), 9);
    let keys = 60_000_u32;
    let limits = [Arc::new(limit(0, "a", &terms, keys as usize * 16 * 10 / 6))];
    let mut store = store(&limits);
    store.seed = Seed::from_raw(7);
    for number in 0..keys {
        store.draw_at(&[claim(&limits[0], &number.to_be_bytes())], START);
    }
    let found = store.occupancy(0);
    assert!(found.keys * 100 > u64::from(keys) * 97, "{found:?}");
    assert!(found.beside * 20 < found.keys && found.beside * 30 > found.keys, "{found:?}");
}

/// What `call` comes to on a thread of its own, within ten seconds; `None`: it waits for something. Then `release` lets it go.
fn without_waiting<T: Send>(call: impl FnOnce() -> T + Send, release: impl FnOnce()) -> Option<T> {
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        scope.spawn(move || sender.send(call()));
        let answer = receiver.recv_timeout(std::time::Duration::from_secs(10)).ok();
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
                let terms = terms(Kind::TokenBucket, 1, Micros::from_secs(86_400), if index == 0 { 1 } else { 9 });
                Arc::new(Limit {
                    refundable,
                    ..limit(index, &format!("limit {index}"), &terms, 128 + 8 * usize::from(refundable))
                })
            };
            let limits: Vec<_> = (0..count).map(make).collect();
            let store = store(&limits);
            let claims: Vec<_> = limits.iter().map(|limit| claim(limit, b"k")).collect();
            assert!(store.draw_at(&claims, START).granted);
            let expected = store.draw_at(&claims, START);
            assert!(!expected.granted);
            let plain = |index: usize| store.tables[index].plain().expect("one word each");
            let elapsed = plain(0).elapsed(START);
            let sites: Vec<_> = (0..count)
                .map(|index| {
                    let mut site = plain(index).site(store.seed.tag(b"k"), elapsed);
                    let (found, seen) = site.scan();
                    assert!(found && site.hold(seen), "nobody else is here");
                    (site, seen)
                })
                .collect();
            let known = without_waiting(
                || store.draw_at(&claims, START),
                || sites.iter().for_each(|(site, seen)| site.release(*seen, seen.arrival())),
            );
            assert_eq!(known.as_ref(), Some(&expected), "{count} limits, refundable: {refundable}");

            // The one set there is gets full of keys that have nothing left, so that every newcomer inherits that.
            for number in 0..9u8 {
                let key = [number];
                let first: Vec<_> = limits.iter().map(|limit| claim(limit, &key)).collect();
                store.draw_at(&first[..1], START);
            }
            let others: Vec<_> = limits.iter().map(|limit| claim(limit, b"other")).collect();
            let before = store.tally(0).inherited_refusals;
            let sets: Vec<_> = (0..count).map(|index| plain(index).lock(store.seed.tag(b"k"), START)).collect();
            let newcomer = without_waiting(|| store.draw_at(&others, START), || drop(sets)).expect("refused at once");
            assert!(!newcomer.granted, "{count} limits, refundable: {refundable}");
            assert_eq!(store.tally(0).inherited_refusals, before + 1);
        }
    }
}

/// One that can never pass, for a known key and a new one.
#[test]
fn a_cost_beyond_the_burst_is_refused_without_a_lock_and_forgets_nobody() {
    let limits = [bucket(0, "a", 1, 60, 5), bucket(1, "b", 1, 60, 9)];
    let store = store(&limits);
    let claims = |cost| limits.iter().map(|limit| Claim { cost, ..claim(limit, b"k") }).collect::<Vec<_>>();
    for known in [false, true] {
        let set = store.tables[0].plain().expect("one word each").lock(store.seed.tag(b"k"), START);
        let refused = without_waiting(|| store.draw_at(&claims(6), START), || drop(set)).expect("refused at once");
        assert!(!refused.granted);
        assert_eq!(refused.standings[0].verdict, Verdict::Deny { retry_after: None });
        assert_eq!(refused.standings[1].remaining, if known { 8 } else { 9 });
        assert!(known || store.draw_at(&claims(1), START).granted);
    }
}

#[test]
fn reloads_under_load_neither_lose_a_charge_nor_mint_a_token() {
    // Packed to packed, to another size, to wide (the odd rate) and back.
    let versions = [(60, 1 << 16), (120, 1 << 16), (120, 1 << 14), (999_983, 1 << 16), (60, 1 << 15)];
    let version = |number: usize| {
        let (amount, memory) = versions[number % versions.len()];
        [Arc::new(limit(0, "a", &terms(Kind::TokenBucket, amount, Micros::from_secs(3600), 500), memory))]
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
                        store.draw_at(&[claim(&limits[0], &keys[number % keys.len()])], START).granted
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
        workers.into_iter().map(|worker| worker.join().expect("no panic")).sum::<usize>()
    });
    assert_eq!(granted, 8 * 500, "each key its burst, once");
}

#[test]
fn after_a_crash_an_empty_start_gives_nobody_anything() {
    let limits = [bucket(0, "a", 100, 60, 20), bucket(1, "wide", 999_983, 60, 20)];
    let store = LocalStore::new(&limits, Clock::manual(START), ColdStart::Empty);
    for limit in &limits {
        let refused = store.draw_at(&[claim(limit, b"k")], START);
        let Verdict::Deny { retry_after: Some(wait) } = refused.standings[0].verdict else { panic!("{refused:?}") };
        assert!(store.draw_at(&[claim(limit, b"k")], START.after(wait)).granted);
        assert!(!store.draw_at(&[claim(limit, b"k")], START.after(wait)).granted);
        let later = START.after(Micros::from_secs(60));
        assert_eq!(
            store.peek_at(&[claim(limit, b"new")], later)[0].remaining,
            20,
            "one burst's time later all is normal"
        );
    }
}

#[test]
fn a_refund_never_lets_a_forgotten_key_gain() {
    // A flood with refunds: of each key that was charged twice and refunded once, one unit stays taken.
    let terms = terms(Kind::TokenBucket, 1, Micros::from_secs(86_400), 2);
    let limits = [Arc::new(Limit { refundable: true, ..limit(0, "a", &terms, 1 << 12) })];
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
                let refund = Settlement { limit: &limits[0], key: &key, change: Change::Refund { units: 1 } };
                store.settle_at(&[refund], START);
                *taken.entry(number).or_default() -= 1;
            }
        }
    }
    assert!(taken.len() > 20, "{}", taken.len());
    assert!(taken.values().all(|taken| *taken <= 2));
}

#[test]
fn a_request_that_was_held_up_finds_no_bucket_forgotten_that_was_not_full_when_it_came() {
    // One set of two lines: a key's highest bit says to which one it belongs.
    let tag = |line: u64, number: u64| line << 63 | number;
    let terms = terms(Kind::TokenBucket, 1, Micros(10_000), 1);
    let algorithm = Algorithm::new(&terms).expect("representable");
    for floors in [false, true] {
        let Algorithm::TokenBucket(bucket) = &algorithm else { panic!("{algorithm:?}") };
        let packed = Packed::new(bucket, START).expect("fits");
        let table = PackedTable::new(algorithm.clone(), packed, 8 * 16 + if floors { 8 } else { 0 }, floors);
        let at = |millis: u64| START.after(Micros(10_000_000 + millis * 1000));
        let is_granted = |tag, millis| {
            let standing = table.draw(tag, 1, at(millis)).expect("it has not moved");
            matches!(standing.verdict, Verdict::Allow { .. })
        };
        // The first line is taken, and of those who took it the first is full again at 10 ms.
        for number in 1..=4 {
            assert!(is_granted(tag(0, number), number - 1));
        }
        if floors {
            for number in 1..=4 {
                assert!(is_granted(tag(1, number), number));
            }
        }
        assert!(is_granted(tag(0, 5), 10), "a newcomer, when the first is full");
        assert!(!is_granted(tag(0, 1), 9), "who came before that has nothing, whoever was drawn for in between");
        assert!(is_granted(tag(0, 1), 21));
    }
}

/// One limit of each algorithm.
fn one_of_each() -> Vec<Arc<Limit>> {
    let kinds = [
        Kind::TokenBucket,
        Kind::Interval,
        Kind::FixedWindow,
        Kind::SlidingWindow,
        Kind::SlidingLog,
        Kind::TokenBucket,
    ];
    let make = |(index, kind)| {
        let amount = if index == 5 { 999_983 } else { 10 };
        Arc::new(limit(
            index,
            &format!("{kind:?} {index}"),
            &terms(kind, amount, Micros::from_secs(3600), amount),
            1 << 20,
        ))
    };
    kinds.into_iter().enumerate().map(make).collect()
}

#[test]
fn a_clean_restart_refills_nobody_whatever_the_algorithm() {
    let limits = one_of_each();
    let clock = Clock::manual(START);
    let before = LocalStore::new(&limits, clock.clone(), ColdStart::Full);
    let keys: Vec<_> = (0..200u32).map(u32::to_be_bytes).collect();
    let claims = |key| limits.iter().map(|limit| claim(limit, key)).collect::<Vec<_>>();
    for (number, key) in keys.iter().enumerate() {
        for _ in 0..number % 8 {
            assert!(before.draw_at(&claims(key), START).granted);
        }
    }
    let mut snapshot = Vec::new();
    before.save(&mut snapshot).expect("memory takes everything");
    clock.advance(Micros::from_secs(60));
    let later = clock.now();
    let (after, report) = LocalStore::restored(&limits, clock.clone(), std::io::Cursor::new(&snapshot)).expect("sound");
    assert!(report.limits.iter().all(|carried| carried.carry == Carry::Kept));
    for key in &keys {
        assert_eq!(after.peek_at(&claims(key), later), before.peek_at(&claims(key), later));
    }

    // Changed numbers: nobody has more units than before. (The last one's kind changes and starts afresh.)
    let mut changed: Vec<_> = limits
        .iter()
        .map(|old| {
            let terms = terms(old.algorithm.kind(), 20, Micros::from_secs(60), 20);
            Arc::new(limit(old.index, &old.name, &terms, 1 << 15))
        })
        .collect();
    changed[5] = Arc::new(limit(5, &limits[5].name, &terms(Kind::Interval, 20, Micros::from_secs(60), 20), 1 << 15));
    let (after, report) = LocalStore::restored(&changed, clock, std::io::Cursor::new(&snapshot)).expect("sound");
    assert!(report.limits[..5].iter().all(|carried| carried.carry == Carry::Rescaled), "{report:?}");
    assert_eq!(report.limits[5].carry, Carry::Afresh);
    for key in &keys {
        for (old, new) in before.peek_at(&claims(key), later)[..5]
            .iter()
            .zip(after.peek_at(&changed.iter().map(|limit| claim(limit, key)).collect::<Vec<_>>(), later))
        {
            assert!(new.remaining <= old.remaining || old.remaining == 10, "{old:?} {new:?}");
        }
    }
}

#[test]
fn a_damaged_snapshot_is_an_error_and_never_a_panic() {
    let limits = one_of_each();
    let store = LocalStore::new(&limits, Clock::manual(START), ColdStart::Full);
    for number in 0..20u32 {
        let key = number.to_be_bytes();
        store.draw_at(&limits.iter().map(|limit| claim(limit, &key)).collect::<Vec<_>>(), START);
    }
    let mut snapshot = Vec::new();
    store.save(&mut snapshot).expect("memory takes everything");
    let restore =
        |bytes: &[u8]| LocalStore::restored(&limits, Clock::manual(START), std::io::Cursor::new(bytes)).map(|_| ());
    restore(&snapshot).expect("sound");
    for at in 0..snapshot.len() {
        let mut damaged = snapshot.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(restore(&damaged).is_err(), "byte {at}");
    }
    for length in 0..snapshot.len() {
        assert!(restore(&snapshot[..length]).is_err(), "cut at {length}");
    }
}

/// One whose sum is right and whose numbers are not: it may hold too much or too little, and nothing fails by it.
#[test]
fn a_forged_snapshot_is_an_error_or_a_store_that_answers() {
    use std::hash::Hasher;
    let limits = one_of_each();
    let clock = Clock::manual(START);
    let store = LocalStore::new(&limits, clock.clone(), ColdStart::Empty);
    clock.advance(Micros::from_secs(20));
    for number in 0..3u32 {
        let key = number.to_be_bytes();
        store.draw_at(&limits.iter().map(|limit| claim(limit, &key)).collect::<Vec<_>>(), clock.now());
    }
    let mut snapshot = Vec::new();
    store.save(&mut snapshot).expect("memory takes everything");
    let body = snapshot.len() - 8;
    for at in 40..body {
        for (width, byte) in [(1, 0xff), (1, 0x80), (1, 2), (1, 3), (8, 0xff)] {
            let mut forged = snapshot.clone();
            forged[at..(at + width).min(body)].fill(byte);
            let mut sum = siphasher::sip::SipHasher13::new();
            sum.write(&forged[..body]);
            forged[body..].copy_from_slice(&sum.finish().to_le_bytes());
            let Ok((restored, _)) = LocalStore::restored(&limits, clock.clone(), std::io::Cursor::new(&forged)) else {
                continue;
            };
            let (next, _) = restored.next(&one_of_each());
            for store in [&restored, &next] {
                for number in 0..4u32 {
                    let key = number.to_be_bytes();
                    for limit in &limits {
                        store.draw_at(&[claim(limit, &key)], clock.now());
                        for change in [Change::Charge { more: 3 }, Change::Refund { units: 1 }] {
                            store.settle_at(&[Settlement { limit, key: &key, change }], clock.now());
                        }
                        store.peek_at(&[claim(limit, &key)], clock.now());
                    }
                }
            }
            next.save(std::io::sink()).expect("nothing fails");
        }
    }
}
