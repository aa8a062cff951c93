//! PostgreSQL that refuses to write, and whose sessions are ended: what was not committed charges nothing.

use std::time::Duration;

use tollgate_limit::{Claim, Kind, Micros};
use tollgate_store::Store;

use crate::faults::{drain, draw, recovers};
use crate::limits::{bucket, limit, terms};
use crate::servers::Postgres;
use crate::servers::StoreKind;

const HOUR: Micros = Micros::from_secs(3600);

#[tokio::test]
async fn postgres_that_has_become_read_only_has_charged_nothing() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off"]);
    let store = StoreKind::Postgres.connect(&server.url()).await;
    let five = bucket("five", 0, 5, HOUR, 5);
    assert!(draw(&store, &five, b"k").await.unwrap());
    server.psql(
        "postgres",
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN RAISE EXCEPTION 'read-only' USING ERRCODE = '25006'; END $$;
         CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON tollgate_buckets
         FOR EACH ROW EXECUTE FUNCTION refuse()",
    );
    let claim = [Claim::new(&five, b"k", 1)];
    let error = store.draw(&claim).await.expect_err("it writes nothing");
    assert!(!error.may_have_charged(), "{error:?}");
    server.psql("postgres", "DROP TRIGGER refuse ON tollgate_buckets");
    recovers(&store, &five).await;
    assert_eq!(drain(&store, &five, b"k").await, 4);
}

/// The server ends the session in the middle of a transaction, and another one between two requests.
#[tokio::test]
async fn a_session_that_ended_before_its_commit_was_sent_has_charged_nothing() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off"]);
    let store = StoreKind::Postgres.connect(&server.url()).await;
    let log = limit("log", 0, &terms(Kind::SlidingLog, 5, HOUR));
    // One that a single statement decides, without a transaction.
    let plain = bucket("plain", 2, 5, HOUR, 5);
    assert!(draw(&store, &log, b"k").await.unwrap() && draw(&store, &plain, b"k").await.unwrap());
    server.psql(
        "postgres",
        "CREATE FUNCTION leave() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$;
         CREATE TRIGGER leave BEFORE UPDATE ON tollgate_buckets
         FOR EACH ROW WHEN (OLD.kind IS NOT NULL) EXECUTE FUNCTION leave()",
    );
    let claim = [Claim::new(&log, b"k", 1)];
    let error = store.draw(&claim).await.expect_err("its session is ended");
    assert!(!error.may_have_charged(), "{error:?}");
    assert!(error.to_string().contains("57P01"), "{error}");
    recovers(&store, &bucket("new", 1, 1000, HOUR, 1000)).await;
    let claim = [Claim::new(&plain, b"k", 1)];
    let error = store.draw(&claim).await.expect_err("its session is ended");
    assert!(error.to_string().contains("57P01"), "{error}");
    assert!(!error.may_have_charged(), "{error:?}");
    server.psql("postgres", "DROP TRIGGER leave ON tollgate_buckets");
    recovers(&store, &bucket("other", 1, 1000, HOUR, 1000)).await;
    server.psql(
        "postgres",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tollgate'",
    );
    tokio::time::sleep(Duration::from_millis(20)).await;
    if let Err(error) = store.draw(&[Claim::new(&log, b"another", 1)]).await {
        assert!(!error.may_have_charged(), "{error:?}");
    }
    recovers(&store, &bucket("other", 1, 1000, HOUR, 1000)).await;
    assert_eq!(drain(&store, &log, b"k").await, 4);
    assert_eq!(drain(&store, &plain, b"k").await, 4);
}
