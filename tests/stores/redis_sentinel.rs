//! Redis behind Sentinel: fail-overs under load, and Sentinels that are gone.

use std::process::Command;
use std::time::Instant;

use tollgate_limit::Micros;

use crate::faults::{PATIENCE, draw, recovers};
use crate::limits::bucket;
use crate::outages::within_one_burst;
use crate::servers::StoreKind;
use crate::servers::{Process, Redis, ask, available, eventually, free_port, wait_until};

const HOUR: Micros = Micros::from_secs(3600);

/// A sentinel that watches a master and promotes its replica after half a second, and the directory of its file.
fn sentinel(master: &Redis) -> (Process, u16, tempfile::TempDir) {
    let (port, directory) = (free_port(), tempfile::tempdir().unwrap());
    let file = directory.path().join("sentinel.conf");
    let text = format!(
        "port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {} 1\n\
         sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n",
        master.port
    );
    std::fs::write(&file, text).unwrap();
    let process = Process::spawn(Command::new("redis-sentinel").arg(&file));
    wait_until("answer of the sentinel", || {
        ask(port, "PING").is_some_and(|answer| answer.contains("PONG"))
    });
    (process, port, directory)
}

#[tokio::test]
async fn sentinel_all_gone_the_last_master_is_connected_to_again_unless_it_is_a_replica() {
    if !available("redis-server") || !available("redis-sentinel") {
        return;
    }
    let (master, other) = (Redis::start(), Redis::start());
    let (mut sentinel, port, _directory) = sentinel(&master);
    let store = StoreKind::Redis
        .connect_with(
            &format!("redis+sentinel://127.0.0.1:{port}/main"),
            |options| {
                options.local_refusals = false;
            },
        )
        .await;
    let limit = bucket("many", 0, 1 << 30, HOUR, 1 << 30);
    assert!(draw(&store, &limit, b"k").await.unwrap());
    sentinel.kill();
    for _ in 0..3 {
        master.ask("CLIENT KILL TYPE normal SKIPME yes");
        recovers(&store, &limit).await;
    }
    // It may have become a replica meanwhile.
    assert!(
        master
            .ask(&format!("REPLICAOF 127.0.0.1 {}", other.port))
            .contains("OK")
    );
    wait_until("replica in step", || {
        master
            .ask("INFO replication")
            .contains("master_link_status:up")
    });
    master.ask("CLIENT KILL TYPE normal SKIPME yes");
    eventually("words about the replica", PATIENCE, async || {
        assert!(
            draw(&store, &limit, b"new").await.is_err(),
            "nothing is decided by a replica"
        );
        store.health().last_error.contains("replica")
    })
    .await;
    assert!(!store.health().up);
    assert!(master.ask("REPLICAOF NO ONE").contains("OK"));
    recovers(&store, &limit).await;
}

/// Two gateways under load, and the outage that a fail-over is for them: `burst + rate x T`, one burst more and a gateway's
/// share beside the promoted store, as docs/src/understand/store-failure.md says. (The replica has what the master answered:
/// a master that is killed between its answer and the replica loses a call at most, which is within what is rounded up.)
fn fail_over(stop: impl Fn(&Redis), afterwards: impl Fn(&Redis)) {
    if !available("redis-server") || !available("redis-sentinel") {
        return;
    }
    let master = Redis::start();
    let replica = Redis::start_with(&["--replicaof", "127.0.0.1", &master.port.to_string()]);
    wait_until("replica in step", || {
        replica
            .ask("INFO replication")
            .contains("master_link_status:up")
    });
    let (_sentinel, port, _directory) = sentinel(&master);
    wait_until("sentinel that knows the replica", || {
        ask(port, "SENTINEL REPLICAS main")
            .is_some_and(|answer| answer.contains(&replica.port.to_string()))
    });
    let outage = || {
        stop(&master);
        // While its role changes, the server closes connections.
        wait_until("promoted replica", || {
            ask(replica.port, "ROLE").is_some_and(|role| role.contains("master"))
        });
        Instant::now()
    };
    let url = format!("redis+sentinel://127.0.0.1:{port}/main");
    within_one_burst("redis", &[&url, &url], outage, || afterwards(&master));
}

#[test]
fn sentinel_promotes_a_replica_of_a_killed_master_within_one_burst() {
    fail_over(|master| master.process().signal("-KILL"), |_| {});
}

#[test]
fn sentinel_promotes_a_replica_of_a_frozen_master_that_comes_back_within_one_burst() {
    fail_over(
        |master| master.process().signal("-STOP"),
        |master| master.process().signal("-CONT"),
    );
}
