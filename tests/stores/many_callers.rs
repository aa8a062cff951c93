//! Many callers in one call to the server: each gets its own decision, by the fast script and statement.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::task::LocalSet;
use tollgate_limit::{Claim, Limit, Micros, Timestamp};
use tollgate_store::clock::Clock;
use tollgate_store::{RemoteStore, Store};

use crate::limits::bucket;
use crate::servers::{Server, StoreKind};

const CALLERS: u64 = 150;

/// Each caller asks four times at once of one limit or the other, at its own cost; bursts are 10 and 7.
async fn each_gets_its_own<S: Store>(store: S) -> S {
    let limits = [("ten", 0, 10), ("seven", 1, 7)]
        .map(|(name, index, burst)| bucket(name, index, 1, Micros::from_secs(1), burst));
    let store = Arc::new(store);
    let local = LocalSet::new();
    for caller in 0..CALLERS {
        let (store, limits) = (store.clone(), limits.clone());
        local.spawn_local(async move {
            let limit: &Arc<Limit> = &limits[usize::from(caller % 3 == 0)];
            let burst = if caller % 3 == 0 { 7 } else { 10 };
            let (key, cost) = (caller.to_le_bytes(), 1 + caller % 5);
            let claim = [Claim::new(limit, &key, cost)];
            let draws = tokio::join!(
                store.draw(&claim),
                store.draw(&claim),
                store.draw(&claim),
                store.draw(&claim)
            );
            let granted =
                [draws.0, draws.1, draws.2, draws.3].map(|draw| u64::from(draw.unwrap().granted));
            assert_eq!(
                granted.iter().sum::<u64>(),
                (burst / cost).min(4),
                "caller {caller}"
            );
        });
    }
    local.await;
    Arc::into_inner(store).expect("this is its only owner")
}

/// A store that decides at a clock that stands.
async fn standing(server: &Server) -> RemoteStore {
    let start = Timestamp::from_micros(1_760_000_000_000_000);
    let pin = |options: &mut tollgate_store::RemoteOptions| {
        options.pinned = Some(Clock::manual(start));
        options.local_refusals = false;
    };
    server.connect_with(pin).await
}

pub async fn keeps_many_callers_apart(server: Server) {
    let store = each_gets_its_own(standing(&server).await).await;
    assert_eq!(store.counters().diverged.load(Ordering::Relaxed), 0);
    let calls = store.counters().calls.load(Ordering::Relaxed);
    assert!(calls < CALLERS, "{calls} calls");
}

/// Requests at once, each on some of three buckets that all share and on one of its own caller, at costs of its own: every
/// bucket has given what the granted ones cost, and the rest to the unit.
async fn all_or_none<S: Store>(store: &Arc<S>, seed: u64) {
    const BURSTS: [u64; 3] = [60, 90, 130];
    let mut random = fastrand::Rng::with_seed(seed);
    let limits: Vec<_> = BURSTS
        .into_iter()
        .chain([9])
        .enumerate()
        .map(|(index, burst)| bucket(&format!("of{burst}"), index, 1, Micros::from_secs(1), burst))
        .collect();
    let local = LocalSet::new();
    let mut requests = Vec::new();
    for _ in 0..300 {
        let caller = random.u8(..20);
        let mut picked: Vec<(usize, u64)> = Vec::new();
        for index in 0..4 {
            if random.bool() {
                picked.push((index, random.u64(1..=3)));
            }
        }
        if picked.is_empty() {
            continue;
        }
        let (store, limits) = (store.clone(), limits.clone());
        requests.push(local.spawn_local(async move {
            let own = [caller];
            let claim = |&(index, cost): &(usize, u64)| {
                let key = if index == 3 { &own[..] } else { b"all" };
                Claim::new(&limits[index], key, cost)
            };
            let claims: Vec<Claim<'_>> = picked.iter().map(claim).collect();
            let granted = store.draw(&claims).await.unwrap().granted;
            (granted, caller, picked)
        }));
    }
    local.await;
    let (mut shared, mut own) = ([0; 3], [0; 20]);
    let mut refused = 0;
    for request in requests {
        let (granted, caller, picked) = request.await.unwrap();
        refused += u32::from(!granted);
        for (index, cost) in picked.into_iter().filter(|_| granted) {
            *shared
                .get_mut(index)
                .unwrap_or(&mut own[usize::from(caller)]) += cost;
        }
    }
    assert!(refused > 0, "SEED={seed}");
    let left = async |index: usize, key: &[u8]| {
        let mut left = 0;
        while store
            .draw(&[Claim::new(&limits[index], key, 1)])
            .await
            .unwrap()
            .granted
        {
            left += 1;
        }
        left
    };
    for (index, given) in shared.into_iter().enumerate() {
        assert_eq!(
            given + left(index, b"all").await,
            BURSTS[index],
            "SEED={seed} bucket {index}"
        );
    }
    for (caller, given) in (0..20).zip(own) {
        assert_eq!(
            given + left(3, &[caller]).await,
            9,
            "SEED={seed} caller {caller}"
        );
    }
}

pub async fn charges_all_or_none(server: Server) {
    for turn in 0..10 {
        let store = Arc::new(standing(&server).await);
        server.clear();
        all_or_none(&store, fastrand::u64(..)).await;
        assert_eq!(
            store.counters().diverged.load(Ordering::Relaxed),
            0,
            "turn {turn}"
        );
    }
    if server.kind() == StoreKind::Redis {
        // All by the script for token buckets; the others are of the heartbeat and of overrides.
        let memory = server.redis().ask("INFO memory");
        assert!(memory.contains("number_of_cached_scripts:3\r"), "{memory}");
    }
}

/// A bucket that went before it is full again would grant what was already spent.
#[tokio::test]
async fn redis_keeps_a_bucket_for_as_long_as_it_is_not_full() {
    let Some(server) = StoreKind::Redis.start() else {
        return;
    };
    let store = server
        .connect_with(|options| options.local_refusals = false)
        .await;
    let server = server.redis();
    let limit = bucket("slow", 0, 100, Micros::from_secs(1), 100_000);
    let mut spent = 0;
    for cost in [1, 1, 1, 5_000, 1, 1, 40_000, 1] {
        let claim = [Claim::new(&limit, b"caller", cost)];
        assert!(store.draw(&claim).await.unwrap().granted);
        spent += cost;
        let keys = server.ask("KEYS tollgate:{*}:??????????????????????");
        let key = keys.lines().find(|line| line.starts_with("tollgate:"));
        let left: u64 = server
            .ask(&format!("PTTL {}", key.expect("a bucket")))
            .trim()[1..]
            .parse()
            .expect("a number");
        // Five seconds have not passed in this test; what a key stands beyond its fullness is bounded.
        assert!(
            left >= (spent * 10).saturating_sub(5_000),
            "{left} ms for {spent} units"
        );
        assert!(left <= spent * 10 + 3_100, "{left} ms for {spent} units");
    }
}
