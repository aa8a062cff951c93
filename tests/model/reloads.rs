//! Reloads of the local store: whatever numbers a limit has had, and however often they change, every caller gets at
//! most what the largest burst and the highest rate allow.

use std::collections::HashMap;
use std::io::Cursor;
use std::sync::Arc;

use fastrand::Rng;
use tollgate_limit::{Algorithm, Change, Claim, Kind, Limit, Micros, Settlement, Terms, Timestamp};
use tollgate_store::clock::Clock;
use tollgate_store::local::{ColdStart, LocalStore, Remembered};

use crate::invariants::{bucket, limit};
use crate::random::{self, START};

const SECOND: u64 = 1_000_000;
const HOUR: Micros = Micros::from_secs(3600);

fn made(terms: &Terms, memory: usize, refundable: bool) -> [Arc<Limit>; 1] {
    let algorithm = Algorithm::new(terms).unwrap_or_else(|errors| panic!("{terms:?}: {errors:?}"));
    [Arc::new(Limit {
        memory,
        refundable,
        ..limit(0, algorithm)
    })]
}

/// A store with one limit, and the limit as it is now.
struct Gateway {
    limits: [Arc<Limit>; 1],
    store: LocalStore,
    clock: Clock,
}

impl Gateway {
    fn new(terms: &Terms) -> Self {
        let (limits, clock) = (
            made(terms, 1 << 20, false),
            Clock::manual(Timestamp::from_micros(START)),
        );
        Self {
            store: LocalStore::new(&limits, clock.clone(), ColdStart::Full),
            limits,
            clock,
        }
    }

    fn reload(&mut self, terms: &Terms) {
        self.limits = made(terms, 1 << 20, false);
        self.store = self.store.next(&self.limits).0;
    }

    fn restart(&mut self, terms: &Terms) {
        let mut snapshot = Vec::new();
        self.store
            .save(None, &mut snapshot, &Remembered::default())
            .expect("memory takes everything");
        self.limits = made(terms, 1 << 20, false);
        self.store = LocalStore::restored(&self.limits, self.clock.clone(), Cursor::new(snapshot))
            .expect("sound")
            .0;
    }

    fn draw(&self, key: &[u8], most: usize) -> usize {
        let claim = [Claim::new(&self.limits[0], key, 1)];
        (0..most)
            .take_while(|_| self.store.draw_at(&claim, self.clock.now()).granted)
            .count()
    }
}

/// Every algorithm that has a burst or a quota, with so much of it, and a token bucket of an odd rate.
fn kinds(most: u64) -> [Terms; 6] {
    let windowed = |kind| Terms {
        kind,
        burst: None,
        ..bucket(most, HOUR, 1)
    };
    [
        bucket(1000, HOUR, most),
        bucket(999_983, Micros::from_secs(3_600_000), most),
        Terms {
            kind: Kind::Interval,
            ..bucket(100, Micros::from_secs(360), most)
        },
        windowed(Kind::FixedWindow),
        windowed(Kind::SlidingWindow),
        windowed(Kind::SlidingLog),
    ]
}

#[test]
fn a_burst_of_1000_lowered_to_100_and_raised_again_gives_no_key_a_second_one() {
    for (large, small) in kinds(1000).into_iter().zip(kinds(100)) {
        for change in [Gateway::reload, Gateway::restart] {
            let mut gateway = Gateway::new(&large);
            let fresh = Gateway::new(&large).draw(b"other", 2000);
            let taken = gateway.draw(b"rested", 100);
            let spent = gateway.draw(b"spent", 950);
            change(&mut gateway, &small);
            let some = gateway.draw(b"spent", 2000);
            change(&mut gateway, &large);
            let again = gateway.draw(b"rested", 2000);
            assert!(
                taken + again <= fresh,
                "{large:?}: {taken} and then {again}"
            );
            // A log knows all that was granted, and clamps to nothing.
            assert!(
                large.kind == Kind::SlidingLog || again >= 100,
                "{large:?}: {again}"
            );
            let rest = gateway.draw(b"spent", 2000);
            assert!(
                spent + some + rest <= fresh,
                "{large:?}: {some} and then {rest}"
            );
            assert_eq!(
                gateway.draw(b"new", 2000),
                fresh,
                "{large:?}: who never came has lost nothing"
            );
            gateway.clock.advance(Micros::from_secs(3 * 3600));
            assert_eq!(
                gateway.draw(b"rested", 2000),
                fresh,
                "{large:?}: some time all is as it was"
            );
        }
    }
}

/// All is taken of the large burst, and under the small one the caller keeps asking for long; when it rests for as long
/// as the small burst takes, that is what it has. (Intervals and windows know what was used, which their steps have freed.)
#[test]
fn reload_units_taken_of_a_larger_burst_are_not_forgotten() {
    for (large, small) in kinds(1000).into_iter().zip(kinds(100)).take(2) {
        let mut gateway = Gateway::new(&large);
        gateway.draw(b"k", 2000);
        gateway.reload(&small);
        for _ in 0..400 {
            gateway.clock.advance(Micros::from_secs(36));
            gateway.draw(b"k", 2000);
        }
        gateway.clock.advance(Micros::from_secs(360));
        gateway.reload(&large);
        let all = gateway.draw(b"k", 2000);
        assert!((30..=111).contains(&all), "{large:?}: {all}");
    }
}

/// What the largest burst and the highest rate would still give each caller, in halves of a millionth of a unit.
struct Most {
    burst: u64,
    rate: u64,
    held: HashMap<u8, (u64, Timestamp)>,
}

const UNIT: u64 = 2_000_000;

impl Most {
    fn of(generations: &[Terms]) -> Self {
        // Refilled at once at each step's end, an interval bucket is a step ahead at most.
        let ahead = generations
            .iter()
            .filter(|terms| terms.kind == Kind::Interval)
            .map(|terms| terms.amount)
            .max();
        let burst = generations
            .iter()
            .filter_map(|terms| terms.burst)
            .max()
            .unwrap_or(0);
        let rate = generations
            .iter()
            .map(|terms| terms.amount * UNIT / terms.period.0)
            .max()
            .unwrap_or(0);
        Self {
            burst: (burst + ahead.unwrap_or(0)) * UNIT,
            rate,
            held: HashMap::new(),
        }
    }

    fn at(&mut self, key: u8, now: Timestamp) -> &mut u64 {
        let (held, since) = self.held.entry(key).or_insert((self.burst, now));
        *held = (*held + now.since(*since).0 * self.rate).min(self.burst);
        *since = now;
        held
    }

    fn refund(&mut self, key: u8, units: u64, now: Timestamp) {
        let burst = self.burst;
        let held = self.at(key, now);
        *held = (*held + units * UNIT).min(burst);
    }
}

fn generations(rng: &mut Rng) -> Vec<Terms> {
    let interval = rng.u8(..4) == 0;
    // Among the fast ones one that does not pack.
    let fast = !interval && rng.u8(..3) == 0;
    (0..rng.usize(2..4))
        .map(|_| match fast {
            true => {
                let (amount, burst) = (
                    random::pick(rng, &[5_000, 9_000, 9_973]),
                    random::pick(rng, &[50, 300, 4_000]),
                );
                bucket(amount, Micros::from_secs(1), burst)
            }
            false => {
                let period = if interval {
                    SECOND
                } else {
                    random::pick(rng, &[SECOND / 2, SECOND, UNIT])
                };
                let burst = random::pick(rng, &[1, 7, 30, 100]);
                let kind = if interval {
                    Kind::Interval
                } else {
                    Kind::TokenBucket
                };
                Terms {
                    kind,
                    ..bucket(rng.u64(1..=20), Micros(period), burst)
                }
            }
        })
        .collect()
}

/// Random reloads and restarts, among them of the memory and of whether there are refunds, with more keys than some tables
/// hold.
#[test]
fn no_order_of_reloads_grants_any_key_more_than_the_largest_numbers() {
    random::seeds(1_500, |rng| {
        let generations = generations(rng);
        let mut most = Most::of(&generations);
        let fast = generations[0].amount > 20;
        let refunds = rng.bool();
        let make = |rng: &mut Rng| {
            let memory = random::pick(rng, &[128, 136, 1 << 10, 1 << 16]);
            made(
                &generations[rng.usize(..generations.len())],
                memory,
                refunds && rng.bool(),
            )
        };
        let clock = Clock::manual(Timestamp::from_micros(START));
        let mut limits = make(rng);
        let mut store = LocalStore::new(&limits, clock.clone(), ColdStart::Full);
        let mut granted: HashMap<u8, u64> = HashMap::new();
        for step in 0..400 {
            clock.advance(Micros(
                match rng.u8(..8) {
                    0..4 => 0,
                    4..7 => rng.u64(..SECOND / 2),
                    _ => rng.u64(..8 * SECOND),
                } / if fast { 20 } else { 1 },
            ));
            let now = clock.now();
            let key = rng.u8(..20);
            match rng.u8(..14) {
                0 => {
                    let new = make(rng);
                    let next = if rng.u8(..3) == 0 {
                        let mut snapshot = Vec::new();
                        store
                            .save(None, &mut snapshot, &Remembered::default())
                            .expect("memory takes everything");
                        LocalStore::restored(&new, clock.clone(), Cursor::new(snapshot))
                            .expect("sound")
                            .0
                    } else {
                        store.next(&new).0
                    };
                    (limits, store) = (new, next);
                }
                1 if refunds => {
                    let units = granted.get(&key).copied().unwrap_or(0).min(rng.u64(1..40));
                    let bytes = [key];
                    let settlement = Settlement::new(&limits[0], &bytes, Change::Refund { units });
                    if limits[0].refundable && units > 0 {
                        store.settle_at(&[settlement], now);
                        *granted.entry(key).or_default() -= units;
                        most.refund(key, units, now);
                    }
                }
                2 => {
                    let bytes = [key];
                    let settlement = Settlement::new(
                        &limits[0],
                        &bytes,
                        Change::Charge {
                            more: rng.u64(..10),
                        },
                    );
                    store.settle_at(&[settlement], now);
                }
                _ => {
                    let cost = rng.u64(1..if fast { 100 } else { 5 });
                    let draws = if rng.u8(..4) == 0 { 200 } else { 1 };
                    for _ in 0..draws {
                        let bytes = [key];
                        let claim = [Claim::new(&limits[0], &bytes, cost)];
                        if !store.draw_at(&claim, now).granted {
                            break;
                        }
                        let held = most.at(key, now);
                        assert!(
                            cost * UNIT <= *held,
                            "step {step}, key {key}: {cost} of {held} / {UNIT}: {generations:?}"
                        );
                        *held -= cost * UNIT;
                        *granted.entry(key).or_default() += cost;
                    }
                }
            }
        }
    });
}

/// A request that was held up is drawn for at the moment it came, after a reload too: a bucket that was full by then only just is
/// not taken for one that always was. Where a later one was decided about before it, it counts as of that one's moment.
#[test]
fn who_was_held_up_over_a_reload_finds_his_bucket() {
    random::seeds(300, |rng| {
        // Often of the memory alone.
        let bursts = if rng.bool() { vec![1] } else { vec![1, 2, 5] };
        let largest = if bursts.len() == 1 { 1 } else { 5 };
        let terms = |rng: &mut Rng| bucket(10, Micros::from_secs(1), random::pick(rng, &bursts));
        let clock = Clock::manual(Timestamp::from_micros(START));
        let mut limits = made(
            &terms(rng),
            random::pick(rng, &[256, 1 << 12, 1 << 13]),
            false,
        );
        let mut store = LocalStore::new(&limits, clock.clone(), ColdStart::Full);
        let mut grants: HashMap<u8, Vec<u64>> = HashMap::new();
        for _ in 0..600 {
            clock.advance(Micros(rng.u64(..60_000)));
            if rng.u8(..6) == 0 {
                limits = made(
                    &terms(rng),
                    random::pick(rng, &[256, 1 << 12, 1 << 13]),
                    false,
                );
                store = store.next(&limits).0;
            }
            let at =
                Timestamp::from_micros(clock.now().as_micros() - rng.u64(..SECOND) * rng.u64(..2));
            let key = rng.u8(..3);
            let bytes = [key];
            let claim = [Claim::new(&limits[0], &bytes, 1)];
            if store.draw_at(&claim, at).granted {
                let grants = grants.entry(key).or_default();
                let latest = grants.last().copied().unwrap_or_default();
                grants.push(at.as_micros().max(latest));
            }
        }
        for times in grants.into_values() {
            // Of the grants i..=j, (j - i + 1) <= burst + (t_j - t_i) / 100 ms.
            let mut least = i128::MAX;
            for (index, at) in times.iter().enumerate() {
                let here = index as i128 * 100_000 - i128::from(*at);
                least = least.min(here);
                assert!(
                    here - least + 100_000 <= largest * 100_000,
                    "{index} of {times:?}"
                );
            }
        }
    });
}
