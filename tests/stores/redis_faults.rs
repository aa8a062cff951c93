//! Redis killed, frozen, restarted, cut off, promoted: every request is answered in time, nothing over-grants.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use tollgate_limit::draw::longest_wait;
use tollgate_limit::{Change, Claim, Kind, Limit, Micros, OnFailover, Settlement};
use tollgate_store::Store;

use crate::faults::{PATIENCE, drain, draw, recovers};
use crate::limits::{bucket, limit, terms};
use crate::servers::StoreKind;
use crate::servers::{Process, Redis, ask, available, eventually, free_port, wait_until};

const HOUR: Micros = Micros::from_secs(3600);

#[tokio::test]
async fn a_refusal_made_here_keeps_its_word() {
    if !available("redis-server") {
        return;
    }
    let server = Redis::start();
    let (here, there) = (
        StoreKind::Redis.connect(&server.url()).await,
        StoreKind::Redis
            .connect_with(&server.url(), |o| o.local_refusals = false)
            .await,
    );
    let slow = bucket("slow", 0, 10, Micros::from_secs(1), 2);
    assert_eq!(drain(&there, &slow, b"k").await, 2);
    let claims = [Claim::new(&slow, b"k", 1)];
    for _ in 0..5 {
        let (deadline, mut local) = (Instant::now() + PATIENCE, 0);
        let refused = loop {
            assert!(Instant::now() < deadline, "never refused without a call");
            let refused = here.draw(&claims).await.unwrap();
            let before = std::mem::replace(
                &mut local,
                here.counters().refused_locally.load(Ordering::Relaxed),
            );
            if !refused.granted && local > before {
                break refused;
            }
        };
        let wait = longest_wait(refused.standings.iter().map(|one| one.verdict)).expect("a time");
        assert!(wait <= Micros(100_000), "{wait:?}");
        tokio::time::sleep(wait.into()).await;
        assert!(
            draw(&here, &slow, b"k").await.unwrap(),
            "admitted after the wait it was told"
        );
    }
}

#[tokio::test]
async fn redis_restart_with_data_keeps_buckets_and_an_empty_one_follows_on_failover() {
    if !available("redis-server") {
        return;
    }
    let keep = bucket("keep", 0, 5, HOUR, 5);
    let mut draining = Limit::clone(&bucket("drain", 1, 5, HOUR, 5));
    draining.on_failover = OnFailover::Drain;

    let mut server = Redis::start_with(&["--appendonly", "yes"]);
    let store = StoreKind::Redis.connect(&server.url()).await;
    assert_eq!(drain(&store, &keep, b"k").await, 5);
    server.kill();
    server.run();
    recovers(&store, &bucket("other", 2, 5, HOUR, 5)).await;
    assert!(
        !draw(&store, &keep, b"k").await.unwrap(),
        "what was drawn stays drawn"
    );

    let mut server = Redis::start();
    let store = StoreKind::Redis
        .connect_with(&server.url(), |options| options.local_refusals = false)
        .await;
    assert_eq!(drain(&store, &keep, b"k").await, 5);
    server.kill();
    server.run();
    recovers(&store, &bucket("other", 2, 5, HOUR, 5)).await;
    assert_eq!(
        drain(&store, &keep, b"k").await,
        5,
        "keep: what the server knows, and it knows nothing"
    );
    assert!(
        !draw(&store, &draining, b"k").await.unwrap(),
        "drain: no bucket is refilled by a fail-over"
    );
}

/// Were it forgotten, a gateway that connects later would see unknown buckets drained which this one sees full.
#[tokio::test]
async fn when_a_server_was_first_seen_is_remembered_as_long_as_a_gateway_lives() {
    if !available("redis-server") {
        return;
    }
    let server = Redis::start();
    let store = StoreKind::Redis.connect(&server.url()).await;
    let listed = server.ask("KEYS tollgate:epoch:*");
    let marker = listed
        .split_whitespace()
        .last()
        .expect("a marker")
        .to_owned();
    let before = server.ask(&format!("GET {marker}"));
    assert_eq!(server.ask(&format!("EXPIRE {marker} 60")).trim(), ":1");
    let left = || {
        server
            .ask(&format!("TTL {marker}"))
            .trim()
            .trim_start_matches(':')
            .parse::<i64>()
            .unwrap()
    };
    wait_until("renewed marker", || left() > 86_400);
    assert_eq!(
        server.ask(&format!("GET {marker}")),
        before,
        "the same moment"
    );

    // After it was deleted, all gateways agree again a heartbeat later.
    let mut draining = Limit::clone(&bucket("drain", 1, 5, HOUR, 5));
    draining.on_failover = OnFailover::Drain;
    assert_eq!(server.ask(&format!("DEL {marker}")).trim(), ":1");
    wait_until("another marker", || {
        server.ask(&format!("EXISTS {marker}")).trim() == ":1"
    });
    assert_ne!(server.ask(&format!("GET {marker}")), before);
    let later = StoreKind::Redis.connect(&server.url()).await;
    eventually("one opinion of both gateways", PATIENCE, async || {
        !draw(&store, &draining, b"new").await.unwrap()
            && !draw(&later, &draining, b"new").await.unwrap()
    })
    .await;
}

#[tokio::test]
async fn a_flushed_script_cache_and_a_cut_connection_cost_no_request_more_than_one_call() {
    if !available("redis-server") {
        return;
    }
    let server = Redis::start();
    let store = StoreKind::Redis.connect(&server.url()).await;
    let limit = bucket("cut", 0, 1000, HOUR, 1000);
    for turn in 0..20_u32 {
        server.ask("SCRIPT FLUSH");
        assert!(
            draw(&store, &limit, &turn.to_le_bytes()).await.unwrap(),
            "the script is sent again"
        );
    }
    for _ in 0..5 {
        server.ask("CLIENT KILL TYPE normal SKIPME yes");
        recovers(&store, &limit).await;
    }
}

#[tokio::test]
async fn places_in_flight_are_released_kept_by_heartbeats_and_freed_when_their_gateway_dies() {
    if !available("redis-server") {
        return;
    }
    let server = Redis::start();
    let jobs = limit("jobs", 0, &terms(Kind::InFlight, 3, Micros::ZERO));
    let (dying, living) = (
        StoreKind::Redis.connect(&server.url()).await,
        StoreKind::Redis.connect(&server.url()).await,
    );
    assert_eq!(drain(&dying, &jobs, b"k").await, 3);
    dying.settle(&[Settlement::new(&jobs, b"k", Change::Release { units: 1 })]);
    eventually("freed place", PATIENCE, async || {
        draw(&living, &jobs, b"k").await.unwrap()
    })
    .await;
    // Past the time a place stands without heartbeats: they kept it.
    let held = Instant::now();
    eventually("six seconds", PATIENCE, async || {
        assert!(
            !draw(&living, &jobs, b"k").await.unwrap(),
            "all places are held"
        );
        held.elapsed() > Duration::from_secs(6)
    })
    .await;
    drop(dying);
    eventually("place of the dead", PATIENCE, async || {
        draw(&living, &jobs, b"k").await.unwrap()
    })
    .await;
    assert_eq!(
        living.replicas(),
        2,
        "the dead gateway is counted for a while"
    );
}

#[tokio::test]
async fn a_promoted_replica_is_found_through_sentinel() {
    if !available("redis-server") || !available("redis-sentinel") {
        return;
    }
    let mut primary = Redis::start();
    let port = primary.port.to_string();
    let replica = Redis::start_with(&["--replicaof", "127.0.0.1", &port]);
    let sentinel_port = free_port();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("sentinel.conf");
    let text = format!(
        "port {sentinel_port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {port} 1\n\
         sentinel down-after-milliseconds main 300\nsentinel failover-timeout main 3000\n"
    );
    std::fs::write(&file, text).unwrap();
    let _sentinel = Process::spawn(Command::new("redis-sentinel").arg(&file));
    wait_until("sentinel that knows the replica", || {
        ask(sentinel_port, "SENTINEL replicas main")
            .is_some_and(|answer| answer.contains(&replica.port.to_string()))
    });
    wait_until("replica in step", || {
        replica
            .ask("INFO replication")
            .contains("master_link_status:up")
    });
    let store = StoreKind::Redis
        .connect(&format!("redis+sentinel://127.0.0.1:{sentinel_port}/main"))
        .await;
    let keep = bucket("keep", 0, 5, HOUR, 5);
    let mut draining = Limit::clone(&bucket("drain", 1, 5, HOUR, 5));
    draining.on_failover = OnFailover::Drain;
    assert_eq!(drain(&store, &keep, b"k").await, 5);
    wait_until("replicated bucket", || replica.ask("DBSIZE").trim() != ":0");
    primary.kill();
    let other = bucket("other", 2, 1000, HOUR, 1000);
    recovers(&store, &other).await;
    assert!(
        !draw(&store, &keep, b"k").await.unwrap(),
        "what was replicated stays drawn"
    );
    assert!(
        !draw(&store, &draining, b"new").await.unwrap(),
        "drain: no bucket is refilled by a fail-over"
    );
}

#[tokio::test]
async fn a_cluster_whose_slots_move_keeps_answering_and_keeps_count() {
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
    let cli = |arguments: &[&str]| {
        let output = Command::new("redis-cli").args(arguments).output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
    };
    let mut create = vec!["--cluster", "create"];
    create.extend(ports.iter().map(String::as_str));
    create.push("--cluster-yes");
    cli(&create);
    wait_until("cluster in agreement", || {
        nodes
            .iter()
            .all(|node| node.ask("CLUSTER INFO").contains("cluster_state:ok"))
    });
    let store = StoreKind::Redis
        .connect(&format!("redis+cluster://{}", ports.join(",")))
        .await;
    let second = bucket("second", 0, 5, HOUR, 5);
    let day = bucket("day", 1, 8, HOUR, 8);
    let keys: Vec<[u8; 4]> = (0..30_u32).map(u32::to_le_bytes).collect();
    let both = async |key: &[u8]| {
        let claims = [&second, &day].map(|limit| Claim::new(limit, key, 1));
        store.draw(&claims).await.map(|draw| draw.granted)
    };
    for key in &keys {
        for _ in 0..3 {
            eventually("grant", PATIENCE, async || {
                both(key).await.is_ok_and(|granted| granted)
            })
            .await;
        }
    }
    assert!(
        nodes.iter().all(|node| node.ask("DBSIZE").trim() != ":0"),
        "each holds its part"
    );
    // Many at once: what is sent together lies on one server.
    let crowd: Vec<[u8; 4]> = (1000..1064_u32).map(u32::to_le_bytes).collect();
    let mut asked: Vec<_> = crowd.iter().map(|key| Box::pin(both(key))).collect();
    std::future::poll_fn(|context| {
        asked.retain_mut(|one| match one.as_mut().poll(context) {
            Poll::Ready(granted) => {
                assert!(granted.expect("answered"));
                false
            }
            Poll::Pending => true,
        });
        if asked.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    let id = nodes[1]
        .ask("CLUSTER MYID")
        .lines()
        .nth(1)
        .unwrap()
        .trim()
        .to_owned();
    let moved = AtomicU64::new(0);
    cli(&[
        "--cluster",
        "reshard",
        &ports[0],
        "--cluster-from",
        "all",
        "--cluster-to",
        &id,
        "--cluster-slots",
        "9000",
        "--cluster-yes",
    ]);
    moved.fetch_add(1, Ordering::Relaxed);
    for key in &keys {
        let mut granted = 0;
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < deadline, "the cluster answers again");
            match both(key).await {
                Ok(true) => granted += 1,
                Ok(false) => break,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
        assert!(
            granted <= 2,
            "three of five were drawn before the slot moved, then {granted}"
        );
    }
}
