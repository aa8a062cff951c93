//! PostgreSQL emptied, recreated, restored, crashed, promoted.

use std::process::Command;

use tollgate_store::RemoteStore;
use tollgate_store::clock::Clock;

use super::{clock, drained_buckets_take_on_numbers, limits, no_bucket_is_refilled};
use crate::faults::draw;
use crate::servers::StoreKind;
use crate::servers::{Pooler, Postgres, wait_until};

async fn pinned(url: &str, clock: &Clock) -> RemoteStore {
    StoreKind::Postgres
        .connect_with(url, |o| {
            (o.pinned, o.local_refusals) = (Some(clock.clone()), false)
        })
        .await
}

/// A row for each limit, which a standby or a dump has too.
async fn some_rows(store: &RemoteStore, clock: &Clock) {
    clock.advance(super::HOUR);
    for limit in limits() {
        let _ = draw(store, &limit, b"used").await;
    }
}

#[tokio::test]
async fn postgres_emptied_or_recreated_under_drain_refills_no_bucket() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off"]);
    for emptied in [
        "TRUNCATE tollgate_buckets",
        "DELETE FROM tollgate_buckets",
        "TRUNCATE tollgate_buckets, tollgate_gateways",
        "DROP TABLE tollgate_buckets",
        "DROP TABLE tollgate_buckets, tollgate_gateways",
    ] {
        let clock = clock();
        let store = pinned(&server.url(), &clock).await;
        no_bucket_is_refilled(&store, &clock, emptied, async || {
            server.psql("postgres", emptied);
        })
        .await;
        server.psql("postgres", "DROP TABLE tollgate_buckets, tollgate_gateways");
    }
}

/// The server has run for long; the database is new, and begins drained.
#[tokio::test]
async fn postgres_new_database_on_an_old_server_begins_drained() {
    if !Postgres::available() {
        return;
    }
    let (server, clock) = (Postgres::start_with(&["fsync=off"]), clock());
    clock.advance(super::HOUR);
    for again in 0..2 {
        server.psql("postgres", "CREATE DATABASE fresh");
        let store = pinned(&server.url().replace("/postgres?", "/fresh?"), &clock).await;
        for limit in limits() {
            assert!(
                !draw(&store, &limit, b"k").await.unwrap(),
                "{again}: {}",
                limit.name
            );
        }
        clock.advance(super::SECOND);
        assert_eq!(super::drain(&store, &limits()[0], b"k").await, 20);
        drop(store);
        server.psql("postgres", "DROP DATABASE fresh WITH (FORCE)");
    }
}

#[tokio::test]
async fn postgres_restored_from_a_dump_refills_no_bucket() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off"]);
    for (dumped, emptied) in [
        (&["--clean", "--if-exists"][..], "SELECT 1"),
        (
            &["--data-only"],
            "TRUNCATE tollgate_buckets, tollgate_gateways",
        ),
    ] {
        let clock = clock();
        let store = pinned(&server.url(), &clock).await;
        some_rows(&store, &clock).await;
        let dump = server.dump(dumped);
        no_bucket_is_refilled(&store, &clock, "a dump", async || {
            // (A heartbeat may come between the two.)
            let mut tries = 0;
            wait_until("restored dump", || {
                tries += 1;
                server.psql("postgres", emptied);
                server.try_psql_file(&dump) || tries > 1_000
            });
        })
        .await;
        drop(store);
        server.psql("postgres", "DROP TABLE tollgate_buckets, tollgate_gateways");
    }
}

/// One process of the server is killed: it recovers by itself, with the same postmaster.
#[tokio::test]
async fn postgres_recovered_from_a_crash_refills_no_bucket() {
    if !Postgres::available() {
        return;
    }
    for table in ["UNLOGGED", "LOGGED"] {
        let (server, clock) = (Postgres::start_with(&["fsync=off"]), clock());
        let store = pinned(&server.url(), &clock).await;
        server.psql(
            "postgres",
            &format!("ALTER TABLE tollgate_buckets SET {table}"),
        );
        some_rows(&store, &clock).await;
        no_bucket_is_refilled(&store, &clock, table, async || {
            let asked = "SELECT pid FROM pg_stat_activity WHERE application_name = 'tollgate'";
            let pid = server.psql("postgres", asked).trim().to_owned();
            assert!(
                Command::new("kill")
                    .args(["-KILL", &pid])
                    .status()
                    .unwrap()
                    .success()
            );
            // (At first it answers as if nothing had happened.)
            let recovered = || {
                server
                    .try_psql("postgres", asked)
                    .is_ok_and(|pids| pids.trim() != pid)
            };
            wait_until("recovered server", recovered);
        })
        .await;
    }
}

/// The standby has run for long, and has the buckets as they were before they were used up, or none.
#[tokio::test]
async fn postgres_standby_behind_is_promoted_and_refills_no_bucket() {
    if !Postgres::available() {
        return;
    }
    for table in ["UNLOGGED", "LOGGED"] {
        let (mut primary, clock) = (Postgres::start_with(&["fsync=off"]), clock());
        let first = pinned(&primary.url(), &clock).await;
        primary.psql(
            "postgres",
            &format!("ALTER TABLE tollgate_buckets SET {table}"),
        );
        some_rows(&first, &clock).await;
        drop(first);
        let mut standby = primary.standby();
        standby.stop();
        let hosts = format!("127.0.0.1:{},127.0.0.1:{}", primary.port, standby.port);
        let url = format!(
            "postgres://postgres@{hosts}/postgres?sslmode=disable&target_session_attrs=read-write"
        );
        let store = pinned(&url, &clock).await;
        no_bucket_is_refilled(&store, &clock, table, async || {
            primary.crash();
            standby.run();
            standby.psql("postgres", "SELECT pg_promote()");
        })
        .await;
    }
}

/// The gateway does not see that the server behind the pooler is another.
#[tokio::test]
async fn postgres_emptied_behind_a_pooler_refills_no_bucket() {
    if !Postgres::available() || !Pooler::available() {
        return;
    }
    let (server, clock) = (Postgres::start_with(&["fsync=off"]), clock());
    let pooler = Pooler::start(&server);
    let store = pinned(&pooler.url(), &clock).await;
    let emptied = "TRUNCATE tollgate_buckets";
    no_bucket_is_refilled(&store, &clock, emptied, async || {
        server.psql("postgres", emptied);
    })
    .await;
}

#[tokio::test]
async fn postgres_drained_bucket_that_takes_on_numbers_stays_drained() {
    if !Postgres::available() {
        return;
    }
    let (server, clock) = (Postgres::start_with(&["fsync=off"]), clock());
    let store = pinned(&server.url(), &clock).await;
    drained_buckets_take_on_numbers(&store, &clock, async || {
        // Without its twin the mark is not valid; the rows stay.
        server.psql("postgres", "DELETE FROM tollgate_gateways");
    })
    .await;
}
