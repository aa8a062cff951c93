//! Three Galera nodes with a gateway on each: conflicts that are noticed at COMMIT, a node killed, paused, and joined again.

use std::time::{Duration, Instant};

use tollgate_limit::{Change, Claim, Kind, Limit, Micros, Settlement};
use tollgate_store::{RemoteStore, Store};

use crate::faults::{PATIENCE, draw, recovers, storm};
use crate::gateways::{Gateway, ask_on, at_most, example};
use crate::kinds::StoreKind;
use crate::limits::{bucket, limit, terms};
use crate::servers::{Galera, eventually};

const HOUR: Micros = Micros::from_secs(3600);

async fn one_on_each(cluster: &Galera) -> Vec<RemoteStore> {
    let mut stores = Vec::new();
    for node in &cluster.nodes {
        stores.push(StoreKind::Mysql.connect(&node.url()).await);
    }
    stores
}

/// Draws on all nodes at once for a while; what was granted, and may have been.
async fn storm_on(stores: &[RemoteStore], limit: &Limit, key: &[u8], span: Duration) -> [u64; 2] {
    let (granted, failed) = storm(stores, limit, key, 8, span).await;
    let unknown = failed.iter().filter(|error| error.may_have_charged());
    [granted, unknown.count() as u64]
}

/// The units that are left, and that every node has what the others have.
async fn left(stores: &[RemoteStore], limit: &Limit, key: &[u8]) -> u64 {
    let mut last = Vec::new();
    eventually("same number on each node", PATIENCE, async || {
        last.clear();
        for store in stores {
            let peeked = store.peek(&[Claim::new(limit, key, 1)]).await;
            last.push(peeked.ok().map(|standings| standings[0].remaining()));
        }
        last[0].is_some() && last.iter().all(|one| *one == last[0])
    })
    .await;
    last[0].unwrap_or_default()
}

#[tokio::test]
async fn galera_nodes_share_one_limit_exactly_through_conflicts_faults_and_transfers() {
    if !Galera::available() {
        return;
    }
    let mut cluster = Galera::start();
    let stores = one_on_each(&cluster).await;

    // A rate: 64 tasks of three gateways meet at one row.
    let ten = bucket("ten", 0, 10, Micros::from_secs(1), 10);
    let start = Instant::now();
    // (On a busy machine a node may be late for all of its requests.)
    let (granted, _) = storm(&stores, &ten, b"k", 20, Duration::from_secs(3)).await;
    let most = at_most(10, 10, start);
    assert!(
        (20..=most).contains(&granted),
        "granted {granted}, at most {most}"
    );
    let conflicts: u64 = (cluster.nodes.iter())
        .map(|node| {
            let shown = node.sql("SHOW STATUS WHERE Variable_name IN ('wsrep_local_cert_failures', 'wsrep_local_bf_aborts')");
            let numbers = shown.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
            numbers.sum::<u64>()
        })
        .sum();
    assert!(conflicts > 0, "the nodes have met conflicts");

    // A number: each grant is charged once.
    let many = bucket("many", 1, 1, HOUR, 100_000);
    let sliding = limit("sliding", 2, &terms(Kind::SlidingWindow, 100_000, HOUR));
    for limit in [&many, &sliding] {
        let all = limit.algorithm.burst();
        let [granted, unknown] = storm_on(&stores, limit, b"k", Duration::from_secs(1)).await;
        let left = left(&stores, limit, b"k").await;
        assert!(
            (all - granted - unknown..=all - granted).contains(&left),
            "{}: {left} left, {granted} granted, {unknown} unknown",
            limit.name
        );
    }

    // Settlements on every node are made once.
    let spend = limit("spend", 3, &terms(Kind::FixedWindow, 1_000_000, HOUR));
    for _ in 0..30 {
        for store in &stores {
            store.settle(&[Settlement::new(&spend, b"k", Change::Charge { more: 10 })]);
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    eventually("settlements", PATIENCE, async || {
        left(&stores, &spend, b"k").await == 1_000_000 - 900
    })
    .await;

    // A node is killed, then one is paused: the others go on, and it comes back with what they have.
    let window = limit("window", 4, &terms(Kind::FixedWindow, 100_000, HOUR));
    let mut granted = 0;
    let mut unknown = 0;
    for paused in [false, true] {
        if paused {
            cluster.nodes[2].process().signal("-STOP");
        } else {
            cluster.nodes[2].crash();
        }
        let [more, doubtful] = storm_on(&stores[..2], &window, b"k", Duration::from_secs(5)).await;
        assert!(more > 0, "two of three nodes go on");
        (granted, unknown) = (granted + more, unknown + doubtful);
        if paused {
            cluster.nodes[2].process().signal("-CONT");
        } else {
            cluster.nodes[2].run();
        }
        recovers(&stores[2], &bucket("other", 5, 100_000, HOUR, 100_000)).await;
        let [more, doubtful] = storm_on(&stores, &window, b"k", Duration::from_secs(1)).await;
        (granted, unknown) = (granted + more, unknown + doubtful);
    }
    let left = left(&stores, &window, b"k").await;
    assert!(
        (100_000 - granted - unknown..=100_000 - granted).contains(&left),
        "{left} left, {granted} granted, {unknown} unknown"
    );
    assert!(draw(&stores[2], &window, b"k").await.is_ok());

    // Whole gateways on different nodes.
    let limit = "rate = \"10/second\"\nburst = 10";
    for count in [2, 4] {
        let settings = |place: usize| {
            let url = cluster.nodes[place % 3].url();
            let name = format!("url = \"{url}\"");
            let own = example("mysql", &url, limit);
            assert!(own.contains(&name));
            // (A bucket of its own for each round.)
            own.replace("per_caller", &format!("per_caller_{count}"))
        };
        let gateways: Vec<Gateway> = (0..count)
            .map(|place| Gateway::start_on(&settings(place)))
            .collect();
        share(&gateways);
    }
}

fn share(gateways: &[Gateway]) {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    let (stop, granted, start) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now());
    std::thread::scope(|scope| {
        for gateway in gateways {
            ask_on(scope, gateway.port, 8, &stop, &granted);
        }
        while start.elapsed() < Duration::from_secs(3) {
            std::thread::sleep(Duration::from_millis(20));
            let (granted, most) = (granted.load(Ordering::Relaxed), at_most(10, 10, start));
            assert!(granted <= most, "granted {granted}, at most {most}");
        }
        stop.store(true, Ordering::Relaxed);
    });
    let granted = granted.load(Ordering::Relaxed);
    assert!(
        granted >= 20,
        "{} gateways granted {granted}",
        gateways.len()
    );
}
