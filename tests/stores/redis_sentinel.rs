//! Sentinels that are gone: the master they named last is gone on with, as long as it is one.

use std::process::Command;

use tollgate_limit::Micros;

use crate::faults::{PATIENCE, draw, recovers};
use crate::limits::bucket;
use crate::redis_faults::connect_with;
use crate::servers::{Process, Redis, ask, available, eventually, free_port, wait_until};

const HOUR: Micros = Micros::from_secs(3600);

/// A sentinel that watches a master, and the directory of its file.
fn sentinel(master: &Redis) -> (Process, u16, tempfile::TempDir) {
    let (port, directory) = (free_port(), tempfile::tempdir().unwrap());
    let file = directory.path().join("sentinel.conf");
    let text = format!(
        "port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {} 1\n",
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
    let store = connect_with(
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
    // Whoever has made it a replica meanwhile.
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
