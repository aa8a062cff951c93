//! PostgreSQL restarted with its data and without.

use tollgate_limit::{Limit, Micros, OnFailover};

use crate::faults::{drain, draw, recovers};
use crate::limits::bucket;
use crate::servers::Postgres;
use crate::servers::StoreKind;

const HOUR: Micros = Micros::from_secs(3600);

#[tokio::test]
async fn a_restart_with_data_keeps_buckets_and_a_crash_keeps_those_of_a_logged_table() {
    if !Postgres::available() {
        return;
    }
    let mut server = Postgres::start_with(&[]);
    let store = StoreKind::Postgres
        .connect_with(&server.url(), |options| options.local_refusals = false)
        .await;
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
