//! SQL databases killed and frozen, callers that leave, buckets that are swept: every request gets its response in time,
//! nothing over-grants.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tollgate_limit::{Claim, Limit, Micros, OnFailover};
use tollgate_store::Store;

use crate::faults::{PATIENCE, drain, draw, fails_in_time, recovers};
use crate::kinds::StoreKind;
use crate::limits::bucket;
use crate::servers::eventually;
use crate::sql_conflicts::name_column;

const HOUR: Micros = Micros::from_secs(3600);

pub async fn survives_a_crash(kind: StoreKind) {
    let Some(mut server) = kind.start() else {
        return;
    };
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

#[tokio::test]
async fn postgres_killed_server_is_answered_for_in_time_and_found_again() {
    survives_a_crash(StoreKind::Postgres).await;
}

#[tokio::test]
async fn mysql_killed_server_is_answered_for_in_time_and_found_again() {
    survives_a_crash(StoreKind::Mysql).await;
}

pub async fn survives_a_pause(kind: StoreKind) {
    let Some(server) = kind.start() else {
        return;
    };
    let store = kind.connect_in_haste(&server.url()).await;
    let limit = bucket("frozen", 0, 1000, HOUR, 1000);
    recovers(&store, &limit).await;
    server.signal("-STOP");
    fails_in_time(&store, &limit).await;
    server.signal("-CONT");
    recovers(&store, &limit).await;
}

#[tokio::test]
async fn postgres_frozen_server_is_answered_for_in_time_and_found_again() {
    survives_a_pause(StoreKind::Postgres).await;
}

#[tokio::test]
async fn mysql_frozen_server_is_answered_for_in_time_and_found_again() {
    survives_a_pause(StoreKind::Mysql).await;
}

pub async fn leaves_no_lock(kind: StoreKind) {
    let Some(server) = kind.start() else {
        return;
    };
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

#[tokio::test]
async fn postgres_caller_who_leaves_in_the_middle_leaves_no_lock() {
    leaves_no_lock(StoreKind::Postgres).await;
}

#[tokio::test]
async fn mysql_caller_who_leaves_in_the_middle_leaves_no_lock() {
    leaves_no_lock(StoreKind::Mysql).await;
}

pub async fn sweeps_full_buckets(kind: StoreKind) {
    let Some(server) = kind.start() else {
        return;
    };
    let store = server.connect().await;
    let quick = bucket("quick", 0, 1000, Micros::from_secs(1), 10);
    let slow = bucket("slow", 1, 10, HOUR, 10);
    for turn in 0..200_u32 {
        draw(&store, &quick, &turn.to_le_bytes()).await.unwrap();
    }
    assert_eq!(drain(&store, &slow, b"k").await, 10);
    let name = name_column(kind);
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

#[tokio::test]
async fn postgres_full_buckets_are_swept_and_others_stay() {
    sweeps_full_buckets(StoreKind::Postgres).await;
}

#[tokio::test]
async fn mysql_full_buckets_are_swept_and_others_stay() {
    sweeps_full_buckets(StoreKind::Mysql).await;
}

pub async fn makes_its_tables_once(kind: StoreKind) {
    let Some(server) = kind.start() else {
        return;
    };
    let stores: Vec<_> = (0..6).map(|_| kind.open(&server.url(), |_| ())).collect();
    for store in &stores {
        assert!(store.ready(PATIENCE).await, "{:?}", store.health());
        assert_eq!(store.health().last_error, "");
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

#[tokio::test]
async fn postgres_gateways_started_together_on_an_empty_database_make_its_tables_without_an_error()
{
    makes_its_tables_once(StoreKind::Postgres).await;
}

#[tokio::test]
async fn mysql_gateways_started_together_on_an_empty_database_make_its_tables_without_an_error() {
    makes_its_tables_once(StoreKind::Mysql).await;
}
