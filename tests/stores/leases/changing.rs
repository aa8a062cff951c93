//! Leases while the numbers of a limit change: no more is granted than the largest of them allow.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollgate_limit::lease::{Request, Return, Terms};
use tollgate_limit::{Algorithm, Change, Limit, Micros, Settlement, Timestamp, TokenBucket};
use tollgate_store::Store;
use tollgate_store::clock::Clock;

use super::scripts::Scripts;
use super::{SECOND, START, leased};
use crate::faults::draw;
use crate::limits::bucket;
use crate::servers::{Redis, Server, available};

/// Gateways of a rolling change lease, draw, correct and give back, each in his own numbers: in every span of T no more is
/// granted, by the store and from leases together, than the largest burst and the highest rate allow.
#[tokio::test]
async fn leases_under_changing_numbers_grant_no_more_than_the_largest() {
    if !available("redis-server") {
        return;
    }
    let server = Redis::start();
    let mut scripts = Scripts::of(&server).await;
    let mut leases = 0;
    for seed in 0..40 {
        server.ask("FLUSHALL");
        let mut random = fastrand::Rng::with_seed(seed);
        let limits: Vec<Arc<Limit>> = [200, 40, 1_000]
            .into_iter()
            .map(|burst| bucket("l", 0, [100, 100, 130][random.usize(..3)], SECOND, burst))
            .collect();
        let buckets: Vec<&TokenBucket> = limits
            .iter()
            .map(|limit| match &limit.algorithm {
                Algorithm::TokenBucket(bucket) => bucket,
                other => unreachable!("a token bucket: {other:?}"),
            })
            .collect();
        let rate = buckets
            .iter()
            .map(|bucket| bucket.quota().amount)
            .max()
            .unwrap();
        // In millionths of a unit.
        let (brim, mut held) = (1_000_000_000_u64, 1_000_000_000_u64);
        let (mut now, mut granted) = (START, 0);
        // Each lease, and until when it may be used.
        let mut out: Vec<(Return, u64)> = Vec::new();
        for step in 0..250_u64 {
            let span = match random.u8(..12) {
                0 => random.u64(..1_500_000),
                1..3 => random.u64(..200_000),
                _ => 0,
            };
            now += span;
            held = (held + span * rate).min(brim);
            out.retain(|lease| lease.1 > now);
            let place = random.usize(..3);
            let (bucket, terms) = (buckets[place], Terms::of(&limits[place].algorithm).unwrap());
            let mut pay = |units: u64, what: &str| {
                assert!(
                    units * 1_000_000 <= held,
                    "SEED={seed} step {step}: {units} {what}, of {held}"
                );
                held -= units * 1_000_000;
                granted += units;
            };
            match random.u8(..10) {
                0..2 => pay(
                    scripts.fast(bucket, now, 1, random.u16(1..150)).await.1,
                    "drawn",
                ),
                // All there is: if a gateway had found the bucket full, it would show.
                2 if random.u8(..4) == 0 => {
                    pay(scripts.fast(bucket, now, 1, 1_500).await.1, "drawn")
                }
                3 => {
                    let cost = random.u64(1..4);
                    let group = Some((cost, 20));
                    let (_, count, _) = scripts
                        .general((bucket, Some(&terms)), now, None, None, group, None)
                        .await;
                    pay(count * cost, "drawn");
                }
                4..6 => {
                    let asked = Request {
                        units: random.u64(..50),
                        needed: random.u64(..3),
                    };
                    let (_, _, units) = scripts
                        .general((bucket, Some(&terms)), now, None, None, None, Some(asked))
                        .await;
                    if units > 0 {
                        leases += 1;
                        let until = terms.until(Timestamp::from_micros(now));
                        let left = units;
                        out.push((Return { until, units, left }, now + terms.life.0));
                    }
                }
                6 => {
                    if let Some((lease, _)) = out.last_mut() {
                        let units = random.u64(0..=lease.left);
                        lease.left -= units;
                        pay(units, "granted from a lease");
                    }
                }
                7 => {
                    if let Some((back, _)) = out.pop() {
                        scripts
                            .general((bucket, Some(&terms)), now, Some(back), None, None, None)
                            .await;
                    }
                }
                8 if granted > 0 => {
                    let units = random.u64(1..=granted.min(30));
                    granted -= units;
                    held = (held + units * 1_000_000).min(brim);
                    scripts
                        .general(
                            (bucket, Some(&terms)),
                            now,
                            None,
                            Some((2, units)),
                            None,
                            None,
                        )
                        .await;
                }
                _ => {}
            }
        }
    }
    assert!(leases > 200, "{leases}");
}

/// The same through the gateway's own rows: three gateways, each of which goes over to other numbers now and then, with
/// leases out under the old ones.
pub async fn grant_no_more_than_the_largest(server: Server) {
    let (mut leases, mut from_leases) = (0, 0);
    for seed in 0..3 {
        let clock = Clock::manual(Timestamp::from_micros(START));
        let mut stores = Vec::new();
        for _ in 0..3 {
            let same = |options: &mut tollgate_store::RemoteOptions| {
                (options.clock, options.pinned) = (clock.clone(), Some(clock.clone()));
            };
            stores.push(server.connect_with(same).await);
        }
        server.clear();
        let mut random = fastrand::Rng::with_seed(seed);
        let limits = [(100, 300), (60, 200), (130, 1_000)]
            .map(|(amount, burst)| leased("l", 0, amount, burst));
        let (rate, brim) = (130, 1_000_000_000_u64);
        // In millionths of a unit.
        let (mut held, mut granted) = (brim, 0);
        let mut numbers = [0, 1, 2];
        for step in 0..60 {
            let span = match random.u8(..6) {
                0 => random.u64(..3_000_000),
                1..4 => random.u64(..100_000),
                _ => 0,
            };
            clock.advance(Micros(span));
            held = (held + span * rate).min(brim);
            let gateway = random.usize(..3);
            if random.u8(..4) == 0 {
                numbers[gateway] = random.usize(..3);
            }
            let (store, limit) = (&stores[gateway], &limits[numbers[gateway]]);
            for _ in 0..random.u8(10..50) {
                if !draw(store, limit, b"k").await.unwrap() {
                    break;
                }
                assert!(
                    held >= 1_000_000,
                    "SEED={seed} step {step}: one more than there is"
                );
                (held, granted) = (held - 1_000_000, granted + 1);
            }
            if granted > 0 && random.u8(..5) == 0 {
                let units = random.u64(1..=granted.min(20));
                (held, granted) = ((held + units * 1_000_000).min(brim), granted - units);
                store.settle(&[Settlement::new(limit, b"k", Change::Refund { units })]);
            }
        }
        for store in &stores {
            let counters = store.lease_counters().unwrap();
            leases += counters.leases.load(Ordering::Relaxed);
            from_leases += counters.grants.load(Ordering::Relaxed);
        }
    }
    assert!(
        leases > 20 && from_leases > 50,
        "{leases} leases, {from_leases} granted from them"
    );
}
