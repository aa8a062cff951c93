//! PostgreSQL restarted with its data and without, replies cut off, gateways whose clocks differ.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tollgate_limit::{Limit, Micros, OnFailover};
use tollgate_store::postgres::PostgresOptions;

use crate::faults::{
    clocks_apart, cutting_proxy, drain, draw, grant_no_more_by_clocks_apart, recovers,
    replies_are_lost,
};
use crate::limits::bucket;
use crate::postgres_faults::{connect, connect_with};
use crate::servers::Postgres;

const HOUR: Micros = Micros::from_secs(3600);

#[tokio::test]
async fn a_restart_with_data_keeps_buckets_and_a_crash_keeps_those_of_a_logged_table() {
    if !Postgres::available() {
        return;
    }
    let mut server = Postgres::start_with(&[]);
    let store = connect_with(&server.url(), |options| options.local_refusals = false).await;
    let keep = bucket("keep", 0, 5, HOUR, 5);
    let mut draining = Limit::clone(&bucket("drain", 1, 5, HOUR, 5));
    draining.on_failover = OnFailover::Drain;
    let other = bucket("other", 2, 1000, HOUR, 1000);
    assert_eq!(drain(&store, &keep, b"k").await, 5);
    server.stop();
    server.run();
    recovers(&store, &other).await;
    assert!(
        !draw(&store, &keep, b"k").await.unwrap(),
        "what was drawn stays drawn"
    );
    assert!(
        !draw(&store, &draining, b"k").await.unwrap(),
        "drain: no bucket is refilled by another process"
    );

    server.psql("postgres", "ALTER TABLE tollgate_buckets SET LOGGED");
    assert_eq!(drain(&store, &keep, b"another").await, 5);
    server.crash();
    server.run();
    recovers(&store, &other).await;
    for key in [&b"k"[..], b"another"] {
        assert!(
            !draw(&store, &keep, key).await.unwrap(),
            "what was drawn stays drawn"
        );
    }

    server.psql("postgres", "ALTER TABLE tollgate_buckets SET UNLOGGED");
    server.crash();
    server.run();
    recovers(&store, &other).await;
    assert_eq!(
        drain(&store, &keep, b"k").await,
        5,
        "keep: what the server knows, and it knows nothing"
    );
    assert!(
        !draw(&store, &draining, b"new").await.unwrap(),
        "drain: no bucket is refilled by a crash"
    );
}

#[tokio::test]
async fn a_lost_reply_of_postgres_counts_as_charged_and_is_never_sent_twice() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off"]);
    let cut = Arc::new(AtomicBool::new(false));
    let port = cutting_proxy(server.port, cut.clone());
    let url = server
        .url()
        .replace(&format!(":{}/", server.port), &format!(":{port}/"));
    let store = connect(&url).await;
    replies_are_lost(&store, &cut).await;
}

#[tokio::test]
async fn gateways_whose_clocks_differ_never_grant_more_on_postgres() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off"]);
    let mut stores = Vec::new();
    for clock in clocks_apart() {
        // The worst there could be: each decides by its own clock.
        let change =
            |o: &mut PostgresOptions| (o.pinned, o.local_refusals) = (Some(clock.clone()), false);
        stores.push((connect_with(&server.url(), change).await, clock));
    }
    grant_no_more_by_clocks_apart(stores).await;
}
