//! SQL databases killed and frozen, callers that leave, buckets that are swept: every request gets its response in time,
//! nothing over-grants.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tollgate_limit::{Claim, Limit, Micros, OnFailover};
use tollgate_store::Store;

use crate::faults::{PATIENCE, drain, draw, fails_in_time, recovers};
use crate::limits::bucket;
use crate::servers::{Server, StoreKind, eventually};
use crate::sql_conflicts::name_column;

const HOUR: Micros = Micros::from_secs(3600);

pub async fn survives_a_crash(mut server: Server) {
    let kind = server.kind();
    let store = server.connect().await;
    let hasty = kind.connect_in_haste(&server.url()).await;
    let keep = bucket("keep", 0, 5, HOUR, 5);
    let mut draining = Limit::clone(&bucket("drain", 1, 5, HOUR, 5));
    draining.on_failover = OnFailover::Drain;
    let other = bucket("other", 2, 1000, HOUR, 1000);
    assert_eq!(drain(&store, &keep, b"k").await, 5);
    server.crash();
    fails_in_time(&hasty, &other).await;
    server.run();
    recovers(&hasty, &other).await;
    recovers(&store, &other).await;
    store.forget_bounds();
    // A crash empties the unlogged table of PostgreSQL; the log of MariaDB has what was charged.
    let known = if kind == StoreKind::Postgres { 5 } else { 0 };
    assert_eq!(drain(&store, &keep, b"k").await, known, "keep");
    assert!(
        !draw(&store, &draining, b"k").await.unwrap(),
        "drain: no bucket is refilled by a crash"
    );
}

pub async fn survives_a_pause(server: Server) {
    let store = server.kind().connect_in_haste(&server.url()).await;
    let limit = bucket("frozen", 0, 1000, HOUR, 1000);
    recovers(&store, &limit).await;
    server.signal("-STOP");
    fails_in_time(&store, &limit).await;
    server.signal("-CONT");
    recovers(&store, &limit).await;
}

pub async fn leaves_no_lock(server: Server) {
    let (one, two) = (server.connect().await, server.connect().await);
    let limits = [
        bucket("a", 0, 1000, HOUR, 1000),
        bucket("b", 1, 1000, HOUR, 1000),
    ];
    let claims = [0, 1].map(|place| Claim::new(&limits[place], b"k", 1));
    for micros in 0..40 {
        let _ = tokio::time::timeout(Duration::from_micros(micros * 50), one.draw(&claims)).await;
        assert!(two.draw(&claims).await.unwrap().granted);
    }
    assert_eq!(two.counters().timeouts.load(Ordering::Relaxed), 0);
}

pub async fn sweeps_full_buckets(server: Server) {
    let store = server.connect().await;
    let quick = bucket("quick", 0, 1000, Micros::from_secs(1), 10);
    let slow = bucket("slow", 1, 10, HOUR, 10);
    for turn in 0..200_u32 {
        draw(&store, &quick, &turn.to_le_bytes()).await.unwrap();
    }
    assert_eq!(drain(&store, &slow, b"k").await, 10);
    let name = name_column(&server);
    let rows = format!("SELECT count(*) FROM tollgate_buckets WHERE OCTET_LENGTH({name}) = 16");
    eventually("swept table", PATIENCE, async || {
        server.sql(&rows).trim() == "1"
    })
    .await;
    store.forget_bounds();
    assert!(
        !draw(&store, &slow, b"k").await.unwrap(),
        "what is not full is not swept"
    );
}

pub async fn makes_its_tables_once(server: Server) {
    let stores: Vec<_> = (0..6)
        .map(|place| server.kind().open(&server.url_at(place), |_| ()))
        .collect();
    for store in &stores {
        assert!(store.ready(PATIENCE).await, "{:?}", store.health());
        let error = store.health().last_error;
        // Without advisory locks two may meet: one reports that, and connects again.
        let may_meet = server.kind() == StoreKind::Proxy;
        assert!(error.is_empty() || may_meet, "{error}");
    }
    assert_eq!(
        drain(&stores[0], &bucket("k", 0, 3, HOUR, 3), b"k").await,
        3
    );
    assert!(
        !draw(&stores[5], &bucket("k", 0, 3, HOUR, 3), b"k")
            .await
            .unwrap()
    );
}
