//! PostgreSQL killed, frozen, restarted, with hostile defaults: every request is answered in time, nothing over-grants.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tollgate::clock::Clock;
use tollgate::limit::{Claim, Kind, Limit, Micros, OnFailover};
use tollgate::store::postgres::PostgresOptions;
use tollgate::store::tls::Tls;
use tollgate::store::{RemoteStore, Store};

use crate::faults::{PATIENCE, drain, draw, fails_in_time, recovers, storm};
use crate::limits::{bucket, limit, terms};
use crate::servers::{Postgres, eventually};

const HOUR: Micros = Micros::from_secs(3600);

pub async fn connect(url: &str) -> RemoteStore {
    connect_with(url, |_| ()).await
}

/// A store whose deadline the test is about; the others must not fail because this machine is busy.
async fn connect_in_haste(url: &str) -> RemoteStore {
    connect_with(url, |options| options.answer_within = Micros(100_000)).await
}

pub async fn connect_with(url: &str, change: impl FnOnce(&mut PostgresOptions)) -> RemoteStore {
    let mut options = PostgresOptions {
        url: url.to_owned(),
        answer_within: Micros::from_secs(10),
        key_secret: b"a test's secret".to_vec(),
        clock: Clock::system(),
        pinned: None,
        local_refusals: true,
        create: true,
        synchronous_commit: true,
        tls: Tls::default(),
        long_quotas: false,
    };
    change(&mut options);
    let store = options.start().unwrap();
    assert!(store.ready(PATIENCE).await, "{:?}", store.health());
    store
}

#[tokio::test]
async fn two_gateways_share_one_limit_exactly_under_storm_whatever_the_default_isolation() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["default_transaction_isolation=serializable"]);
    let url = server.url();
    let stores = [connect(&url).await, connect(&url).await];
    let ten = bucket("ten", 0, 10, Micros::from_secs(1), 10);
    let start = Instant::now();
    let (granted, failed) = storm(&stores, &ten, b"k", 64, Duration::from_secs(3)).await;
    let most = 10 + 10 * u64::try_from(start.elapsed().as_millis()).unwrap() / 1000 + 1;
    assert!((20..=most).contains(&granted), "granted {granted}, at most {most}, failed {failed:?}");
    assert_eq!(failed, [], "no serialization error reaches a caller");
}

#[tokio::test]
async fn several_limits_in_any_order_are_all_charged_or_none_and_never_deadlock() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off"]);
    let stores = [connect(&server.url()).await, connect(&server.url()).await];
    let limits = [
        bucket("a", 0, 40, HOUR, 40),
        bucket("b", 1, 60, HOUR, 60),
        limit("c", 2, &terms(Kind::FixedWindow, 50, HOUR)),
    ];
    let work = async |store: &RemoteStore, order: [usize; 3]| {
        let mut granted = 0;
        for _ in 0..60 {
            let claims = order.map(|place| Claim { limit: &limits[place], key: b"k", cost: 1, enforced: true });
            granted += u32::from(store.draw(&claims).await.unwrap().granted);
        }
        granted
    };
    let (one, two) = tokio::join!(work(&stores[0], [0, 1, 2]), work(&stores[1], [2, 1, 0]));
    assert_eq!(one + two, 40, "the least of them rules");
    for (limit, left) in limits.iter().zip([0, 20, 10]) {
        assert_eq!(drain(&stores[0], limit, b"k").await, left, "{}: charged for the admitted alone", limit.name);
    }
}

#[tokio::test]
async fn a_killed_server_is_answered_for_in_time_and_found_again() {
    if !Postgres::available() {
        return;
    }
    let mut server = Postgres::start_with(&["fsync=off"]);
    let (store, hasty) = (connect(&server.url()).await, connect_in_haste(&server.url()).await);
    let keep = bucket("keep", 0, 5, HOUR, 5);
    let mut draining = Limit::clone(&bucket("drain", 1, 5, HOUR, 5));
    draining.on_failover = OnFailover::Drain;
    assert_eq!(drain(&store, &keep, b"k").await, 5);
    server.crash();
    fails_in_time(&hasty, &bucket("other", 2, 1000, HOUR, 1000)).await;
    server.run();
    recovers(&hasty, &bucket("other", 2, 1000, HOUR, 1000)).await;
    recovers(&store, &bucket("other", 2, 1000, HOUR, 1000)).await;
    store.forget_bounds();
    assert_eq!(drain(&store, &keep, b"k").await, 5, "keep: a crash empties an unlogged table");
    assert!(!draw(&store, &draining, b"k").await.unwrap(), "drain: nobody is refilled by a crash");
}

#[tokio::test]
async fn a_frozen_server_is_answered_for_in_time_and_found_again() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off"]);
    let store = connect_in_haste(&server.url()).await;
    let limit = bucket("frozen", 0, 1000, HOUR, 1000);
    recovers(&store, &limit).await;
    server.signal("-STOP");
    fails_in_time(&store, &limit).await;
    server.signal("-CONT");
    recovers(&store, &limit).await;
}

#[tokio::test]
async fn a_caller_who_leaves_in_the_middle_leaves_no_lock() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off"]);
    let (one, two) = (connect(&server.url()).await, connect(&server.url()).await);
    let limits = [bucket("a", 0, 1000, HOUR, 1000), bucket("b", 1, 1000, HOUR, 1000)];
    let claims = [0, 1].map(|place| Claim { limit: &limits[place], key: b"k", cost: 1, enforced: true });
    for micros in 0..40 {
        let _ = tokio::time::timeout(Duration::from_micros(micros * 50), one.draw(&claims)).await;
        assert!(two.draw(&claims).await.unwrap().granted);
    }
    assert_eq!(two.counters().timeouts.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn full_buckets_are_swept_and_others_stay() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off"]);
    let store = connect(&server.url()).await;
    let quick = bucket("quick", 0, 1000, Micros::from_secs(1), 10);
    let slow = bucket("slow", 1, 10, HOUR, 10);
    for turn in 0..200_u32 {
        draw(&store, &quick, &turn.to_le_bytes()).await.unwrap();
    }
    assert_eq!(drain(&store, &slow, b"k").await, 10);
    let (client, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    eventually("swept table", PATIENCE, async || {
        let rows: i64 = client.query_one("SELECT count(*) FROM tollgate_buckets", &[]).await.unwrap().get(0);
        rows == 1
    })
    .await;
    store.forget_bounds();
    assert!(!draw(&store, &slow, b"k").await.unwrap(), "what is not full is not swept");
}
