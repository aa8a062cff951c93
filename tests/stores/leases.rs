//! Gateways that share a bucket in parts, and a cluster whose slots part the limits of a request.

#![allow(
    clippy::cast_possible_truncation,
    reason = "the numbers of a test are small"
)]

mod beside;
mod changing;

pub use beside::loses_no_unit;
pub use changing::grant_no_more_than_the_largest;
mod scripts;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tollgate_limit::{Claim, Limit, Micros};
use tollgate_store::{RemoteStore, Store};

use crate::faults::{PATIENCE, drain, draw, storm};
use crate::limits::bucket;
use crate::servers::{Redis, Server, StoreKind, available, eventually, wait_until};

const START: u64 = 1_760_000_000_000_000;

const SECOND: Micros = Micros::from_secs(1);

fn leased(name: &str, index: usize, amount: u64, burst: u64) -> Arc<Limit> {
    Arc::new(Limit {
        lease: true,
        ..Limit::clone(&bucket(name, index, amount, SECOND, burst))
    })
}

/// Two stores that lease, and one that was not told of leases yet: its configuration is the older one.
pub async fn lease_beside_one_that_does_not(server: Server) {
    // (Three sessions take turns on one row, which on a busy machine costs more than the rate; the burst at least.)
    let least = if server.kind() == StoreKind::Redis {
        2500
    } else {
        300
    };
    let stores = [server.connect().await, server.connect().await];
    let other = [server.connect().await];
    let (total, plain) = (
        leased("total", 0, 1000, 300),
        bucket("total", 0, 1000, SECOND, 300),
    );
    let start = Instant::now();
    let span = Duration::from_secs(3);
    let ((granted, failed), (beside, failed_too)) = tokio::join!(
        storm(&stores, &total, b"k", 16, span),
        storm(&other, &plain, b"k", 4, span)
    );
    let most = 300 + u64::try_from(start.elapsed().as_micros()).unwrap() / 1000 + 1;
    assert!(
        granted + beside <= most,
        "granted {granted} and {beside}, at most {most}"
    );
    assert!(granted + beside >= least, "granted {granted} and {beside}");
    assert_eq!((failed, failed_too), (vec![], vec![]));
    let leases: u64 = stores
        .iter()
        .map(|store| {
            store
                .lease_counters()
                .unwrap()
                .leases
                .load(Ordering::Relaxed)
        })
        .sum();
    assert!(leases > 0, "none was leased");
}

/// A hot total is granted in the process.
pub async fn are_used_in_the_process(server: Server) {
    // (A busy machine may be late with the rest of a lease, which is lost then: not every time. A call is longer in an SQL
    // database: there it may be late each time.)
    let tries = if server.kind() == StoreKind::Redis {
        5
    } else {
        1
    };
    let mut forfeited = Vec::new();
    while forfeited.len() < tries && !forfeited.contains(&0) {
        let store = server.kind().connect(&server.url()).await;
        server.clear();
        grants_in_the_process(&store).await;
        let leases = store.lease_counters().unwrap();
        forfeited.push(leases.forfeited.load(Ordering::Relaxed));
    }
    assert!(tries == 1 || forfeited.contains(&0), "{forfeited:?}");
}

async fn grants_in_the_process(store: &RemoteStore) {
    let total = leased("total", 0, 1_000_000, 1_000_000);
    // On a machine so busy that a call takes as long as a lease lives no gateway can use one: then it is tried again.
    eventually(
        "time in which most is granted in the process",
        PATIENCE,
        async || {
            let before = store.counters().calls.load(Ordering::Relaxed);
            let (granted, failed) = storm(
                std::slice::from_ref(store),
                &total,
                b"k",
                8,
                Duration::from_secs(2),
            )
            .await;
            assert_eq!(failed, []);
            let calls = store.counters().calls.load(Ordering::Relaxed) - before;
            println!("{granted} granted in {calls} calls");
            calls * 50 < granted
        },
    )
    .await;
    // Nothing is asked any more: what is left goes back.
    let leases = store.lease_counters().unwrap();
    eventually("return of the last lease", PATIENCE, async || {
        leases.out.load(Ordering::Relaxed) == 0
    })
    .await;
}

pub async fn are_given_back_at_a_close(server: Server) {
    let (leaving, staying) = (server.connect().await, server.connect().await);
    // No refill to speak of: what is not given back is missing.
    let slow = Arc::new(Limit {
        lease: true,
        ..Limit::clone(&bucket("slow", 0, 1, Micros::from_secs(3600), 1000))
    });
    let leases = leaving.lease_counters().unwrap();
    let mut granted = 0;
    while granted < 50 || leases.leases.load(Ordering::Relaxed) == 0 {
        assert!(
            draw(&leaving, &slow, b"k").await.unwrap(),
            "leased before it is empty"
        );
        granted += 1;
    }
    // (On a busy machine a lease may end before the rest of it is given back: that is lost, and never too much.)
    let mut lost = leases.forfeited.load(Ordering::Relaxed);
    drop(leaving);
    let rest = drain(&staying, &slow, b"k").await;
    lost += staying
        .lease_counters()
        .unwrap()
        .forfeited
        .load(Ordering::Relaxed);
    assert!(
        (1000 - granted - lost..=1000 - granted).contains(&rest),
        "{granted}, then {rest} of 1000, {lost} lost"
    );
}

#[tokio::test]
async fn in_a_cluster_a_leased_total_lies_in_another_slot_and_all_or_none_is_charged() {
    if !available("redis-server") || !available("redis-cli") {
        return;
    }
    let nodes: Vec<Redis> = (0..3)
        .map(|_| Redis::start_with(&["--cluster-enabled", "yes", "--cluster-node-timeout", "5000"]))
        .collect();
    let ports: Vec<String> = nodes
        .iter()
        .map(|node| format!("127.0.0.1:{}", node.port))
        .collect();
    let mut create = vec!["--cluster", "create"];
    create.extend(ports.iter().map(String::as_str));
    create.push("--cluster-yes");
    let output = Command::new("redis-cli").args(&create).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    wait_until("cluster in agreement", || {
        nodes
            .iter()
            .all(|node| node.ask("CLUSTER INFO").contains("cluster_state:ok"))
    });
    let store = StoreKind::Redis.open(&format!("redis+cluster://{}", ports.join(",")), |_| ());
    assert!(store.ready(PATIENCE).await, "{:?}", store.health());
    let hour = Micros::from_secs(3600);
    let total = Arc::new(Limit {
        lease: true,
        ..Limit::clone(&bucket("total", 0, 1, hour, 200))
    });
    let each = bucket("each", 1, 1, hour, 7);
    let both = async |caller: u32| {
        let key = caller.to_le_bytes();
        let claims = [Claim::new(&total, b"", 1), Claim::new(&each, &key, 1)];
        store.draw(&claims).await
    };
    // Twenty callers of seven each: 140 of the total's 200, and every refusal of a caller leaves the total alone.
    let mut granted = 0;
    for _ in 0..10 {
        for caller in 0..20 {
            let draw = both(caller).await.unwrap();
            assert_eq!(draw.standings.len(), 2);
            granted += u32::from(draw.granted);
        }
    }
    assert_eq!(granted, 140);
    let leases = store.lease_counters().unwrap();
    assert!(leases.leases.load(Ordering::Relaxed) > 0, "leased");
    // All at once, for the rest: a caller that finds the total empty is refused by it, and its own bucket is not charged.
    let mut late: Vec<_> = (100..200_u32)
        .map(|caller| Box::pin(both(caller)))
        .collect();
    let (mut granted, mut refused) = (0, Vec::new());
    let mut caller = 99;
    for one in &mut late {
        caller += 1;
        if one.await.unwrap().granted {
            granted += 1
        } else {
            refused.push(caller)
        }
    }
    // Units that lay in a lease meanwhile come back at its end.
    eventually("the last of the total", PATIENCE, async || {
        if let Some(caller) = refused.last().copied()
            && both(caller).await.unwrap().granted
        {
            granted += 1;
            refused.pop();
        }
        granted == 60
    })
    .await;
    for _ in 0..50 {
        assert!(
            !both(*refused.last().unwrap()).await.unwrap().granted,
            "the total is spent"
        );
    }
    let key = refused.last().unwrap().to_le_bytes();
    assert_eq!(
        drain(&store, &each, &key).await,
        7,
        "a caller refused by the total is not charged"
    );
}
