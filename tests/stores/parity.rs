//! One meaning on every store: random traces, decided by the server and by the pure core, must not differ in a word.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollgate_limit::bucket::State;
use tollgate_limit::calendar::Calendar;
use tollgate_limit::draw::draw_all;
use tollgate_limit::fixtures::peek_all;
use tollgate_limit::{
    Align, Change, Claim, Kind, Limit, Micros, Settlement, StoredBucket, Terms, Timestamp,
};
use tollgate_store::clock::Clock;
use tollgate_store::{RemoteOptions, Store};

use crate::limits::{limit, terms};
use crate::servers::{Server, StoreKind, wait_until};

const START: u64 = 1_760_000_000_000_000;

/// Limits of every kind, with every setting that changes what they do; each in two versions, which gateways of a rolling
/// change have side by side.
fn limits(version: u64) -> Vec<Arc<Limit>> {
    let second = Micros::from_secs(1);
    let more = |n: u64| if version == 0 { n } else { n + n / 2 + 1 };
    let calendar = Calendar {
        boundaries: (0..40)
            .map(|day| Timestamp::from_micros(START + day * 7_000_000 + day % 3))
            .collect(),
        words: "window in a test".into(),
    };
    let list = [
        Terms {
            burst: Some(more(10)),
            ..terms(Kind::TokenBucket, 5, second)
        },
        Terms {
            burst: Some(4),
            ..terms(Kind::TokenBucket, 7, Micros(more(3_000_011)))
        },
        Terms {
            burst: Some(more(5)),
            debt: more(6),
            ..terms(Kind::TokenBucket, 3, second)
        },
        Terms {
            burst: Some(3),
            max_wait: Micros(more(900_000)),
            ..terms(Kind::TokenBucket, more(3), second)
        },
        Terms {
            burst: Some(more(2_000_000_000)),
            ..terms(Kind::TokenBucket, 1_000_000_000, second)
        },
        Terms {
            burst: Some(more(9)),
            ..terms(Kind::Interval, 3, Micros(1_500_000))
        },
        Terms {
            burst: Some(4),
            debt: 3,
            ..terms(Kind::Interval, 2, second)
        },
        Terms {
            burst: Some(4),
            max_wait: Micros(2_100_000),
            ..terms(Kind::Interval, more(2), second)
        },
        terms(Kind::FixedWindow, more(6), Micros(2_000_000)),
        Terms {
            align: Align::Clock,
            ..terms(Kind::FixedWindow, more(6), Micros(2_000_000))
        },
        Terms {
            align: Align::Calendar(Arc::new(calendar)),
            ..terms(Kind::FixedWindow, more(12), Micros(7_000_000))
        },
        terms(Kind::SlidingWindow, more(8), Micros(3_000_000)),
        terms(Kind::SlidingLog, more(5), Micros(2_500_000)),
        Terms {
            max_wait: Micros(1_200_000),
            ..terms(Kind::SlidingLog, more(4), Micros(2_000_000))
        },
        terms(Kind::InFlight, more(7), Micros::ZERO),
    ];
    list.iter()
        .enumerate()
        .map(|(index, terms)| limit(&format!("limit{index}"), index, terms))
        .collect()
}

/// Runs `steps` random steps on `store` and on the pure core; `clock` is the one the store decides by.
async fn same_words(store: &impl Store, clock: &Clock, seed: u64, steps: usize) {
    println!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let versions = [limits(0), limits(1)];
    let mut model: HashMap<(usize, u8), StoredBucket> = HashMap::new();
    let salt = random.u64(..);
    let key = |caller: u8| [&salt.to_le_bytes()[..], &[caller]].concat();
    for step in 0..steps {
        let limits = &versions[usize::from(random.u8(..4) == 0)];
        clock.advance(Micros(match random.u8(..8) {
            0..3 => 0,
            3 => 1,
            4..7 => random.u64(..400_000),
            _ => random.u64(..5_000_000),
        }));
        let now = clock.now();
        let mut picked: Vec<usize> = (0..limits.len()).collect();
        random.shuffle(&mut picked);
        picked.truncate(random.usize(1..4));
        let caller = random.u8(..3);
        let key = key(caller);
        let claims: Vec<Claim<'_>> = picked
            .iter()
            .map(|&index| Claim {
                enforced: random.u8(..8) > 0,
                ..Claim::new(
                    &limits[index],
                    &key,
                    if index == 4 {
                        random.u64(..1_500_000_000)
                    } else {
                        random.u64(..5)
                    },
                )
            })
            .collect();
        let found = |model: &HashMap<(usize, u8), StoredBucket>, &index: &usize| {
            let limit = &limits[index].algorithm;
            model.get(&(index, caller)).map_or_else(
                || StoredBucket::full(limit.clone()),
                |kept| kept.under(limit, now),
            )
        };
        let views: Vec<StoredBucket> = picked.iter().map(|index| found(&model, index)).collect();
        let before: Vec<Option<State>> = views.iter().map(|view| view.state().cloned()).collect();
        let mut states = before.clone();
        let what = random.u8(..10);
        let drawn = what < 6;
        match what {
            0..6 => {
                let expected = draw_all(&claims, &mut states, now);
                let got = store.draw(&claims).await.unwrap();
                assert_eq!(
                    got, expected,
                    "SEED={seed} step {step}: {claims:?} {states:?}"
                );
            }
            6..8 => {
                let expected = peek_all(&claims, &states, now);
                let got = store.peek(&claims).await.unwrap();
                assert_eq!(
                    got, expected,
                    "SEED={seed} step {step}: {claims:?} {states:?}"
                );
            }
            _ => {
                let change = match random.u8(..3) {
                    0 => Change::Charge {
                        more: random.u64(..6),
                    },
                    1 => Change::Refund {
                        units: random.u64(..6),
                    },
                    _ => Change::Release {
                        units: random.u64(..4),
                    },
                };
                let settlement = Settlement::new(claims[0].limit, &key, change);
                let limit = &claims[0].limit.algorithm;
                let kept = model
                    .entry((picked[0], caller))
                    .or_insert_with(|| StoredBucket::full(limit.clone()));
                kept.settle(limit, change, now);
                states[0] = kept.under(limit, now).state().cloned();
                store.settle(&[settlement]);
                let expected = peek_all(&claims, &states, now);
                let got = store.peek(&claims).await.unwrap();
                assert_eq!(
                    got, expected,
                    "SEED={seed} step {step}: {settlement:?} {states:?}"
                );
            }
        }
        if !drawn {
            continue;
        }
        for (((claim, view), before), state) in claims.iter().zip(&views).zip(before).zip(states) {
            if claim.cost > 0 && state != before {
                let kept = StoredBucket::from_parts(view.algorithm().clone(), state, 0);
                model.insert((claim.limit.index, caller), kept);
            }
        }
    }
}

fn seeds() -> Vec<u64> {
    match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().expect("SEED is a number")],
        // The last of the fixed ones: a refund that fills a window while it remembers a larger burst.
        Err(_) => (1..=6)
            .chain([9_886_076_285_386_716_492, fastrand::u64(..)])
            .collect(),
    }
}

/// Runs all traces.
pub async fn decides_as_the_pure_core(server: Server) {
    let kind = server.kind();
    if kind == StoreKind::Postgres {
        server.sql("ALTER DATABASE postgres SET track_functions = 'all'");
    }
    let steps = match kind {
        StoreKind::Redis => 1_500,
        StoreKind::Postgres | StoreKind::Mysql => 600,
        _ => 300,
    };
    for seed in seeds() {
        let clock = Clock::manual(Timestamp::from_micros(START + 3_000_000));
        let pin = |options: &mut RemoteOptions| {
            options.pinned = Some(clock.clone());
            options.local_refusals = false;
            options.synchronous_commit = seed % 2 == 0;
        };
        let store = kind.connect_with(&server.url(), pin).await;
        same_words(&store, &clock, seed, steps).await;
        let diverged = store.counters().diverged.load(Ordering::Relaxed);
        assert_eq!(diverged, 0, "the server grants what the core grants");
    }
    if kind == StoreKind::Postgres {
        // A session tells what it counted when it ends, and those have ended.
        let asked = "SELECT coalesce(sum(calls), 0) > 0 FROM pg_stat_user_functions WHERE funcname = 'tollgate_draw'";
        wait_until("call of the function", || server.sql(asked).trim() == "t");
    }
}
