//! MariaDB emptied, recreated, restored, crashed, promoted.

use tollgate_store::RemoteStore;
use tollgate_store::clock::Clock;

use super::{clock, drained_buckets_take_on_numbers, limits, no_bucket_is_refilled};
use crate::faults::draw;
use crate::servers::{Maria, wait_until};
use crate::servers::{QUICK, StoreKind};

async fn pinned(url: &str, clock: &Clock) -> RemoteStore {
    StoreKind::Mysql
        .connect_with(url, |o| {
            (o.pinned, o.local_refusals) = (Some(clock.clone()), false);
        })
        .await
}

/// A row for each limit, which a replica or a dump has too.
async fn some_rows(store: &RemoteStore, clock: &Clock) {
    clock.advance(super::HOUR);
    for limit in limits() {
        let _ = draw(store, &limit, b"used").await;
    }
}

const TABLES: &str = "tollgate_buckets, tollgate_gateways, tollgate_twin";

#[tokio::test]
async fn mysql_emptied_or_recreated_under_drain_refills_no_bucket() {
    if !Maria::available() {
        return;
    }
    let server = Maria::start_with(&[QUICK]);
    for emptied in [
        "TRUNCATE tollgate_buckets",
        "DELETE FROM tollgate_buckets",
        "TRUNCATE tollgate_buckets; TRUNCATE tollgate_twin; TRUNCATE tollgate_gateways",
        "DROP TABLE tollgate_buckets",
        "DROP TABLE tollgate_buckets, tollgate_gateways, tollgate_twin",
    ] {
        let clock = clock();
        let store = pinned(&server.url(), &clock).await;
        no_bucket_is_refilled(&store, &clock, emptied, async || {
            server.sql(emptied);
        })
        .await;
        server.sql(&format!("DROP TABLE {TABLES}"));
    }
}

/// The server has run for long; the database is new, and begins drained.
#[tokio::test]
async fn mysql_new_database_on_an_old_server_begins_drained() {
    if !Maria::available() {
        return;
    }
    let (server, clock) = (Maria::start_with(&[QUICK]), clock());
    clock.advance(super::HOUR);
    for again in 0..2 {
        server.sql("CREATE DATABASE fresh");
        let store = pinned(&server.url().replace("/tollgate", "/fresh"), &clock).await;
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
        server.sql("DROP DATABASE fresh");
    }
}

#[tokio::test]
async fn mysql_restored_from_a_dump_refills_no_bucket() {
    if !Maria::available() {
        return;
    }
    let server = Maria::start_with(&[QUICK]);
    for dumped in [&[][..], &["--ignore-table=tollgate.tollgate_twin"]] {
        let clock = clock();
        let store = pinned(&server.url(), &clock).await;
        some_rows(&store, &clock).await;
        let dump = server.dump(dumped);
        // A table is known by the second in which it was created.
        let older =
            "SELECT MAX(CREATE_TIME) < NOW() - INTERVAL 2 SECOND FROM information_schema.TABLES
                     WHERE TABLE_SCHEMA = 'tollgate'";
        wait_until("a second later", || server.sql(older).trim() == "1");
        no_bucket_is_refilled(&store, &clock, "a dump", async || {
            // (The gateway may make a mark in between, which the dump has too.)
            wait_until("restored dump", || server.try_sql(&dump).is_ok());
        })
        .await;
        drop(store);
        server.sql(&format!("DROP TABLE {TABLES}"));
    }
}

#[tokio::test]
async fn mysql_recovered_from_a_crash_refills_no_bucket() {
    if !Maria::available() {
        return;
    }
    // The log waits for nothing: a crash may lose the last second.
    let (mut server, clock) = (
        Maria::start_with(&["innodb-flush-log-at-trx-commit=0"]),
        clock(),
    );
    let store = pinned(&server.url(), &clock).await;
    some_rows(&store, &clock).await;
    no_bucket_is_refilled(&store, &clock, "a crash", async || {
        server.crash();
        server.run();
    })
    .await;
}

/// The replica has run for long, and has the buckets as they were before they were used up.
#[tokio::test]
async fn mysql_replica_behind_is_promoted_and_refills_no_bucket() {
    if !Maria::available() {
        return;
    }
    for format in ["ROW", "MIXED"] {
        let settings = ["log-bin=binlog", "server-id=1"].map(String::from);
        let settings = settings
            .into_iter()
            .chain([format!("binlog-format={format}")]);
        let settings: Vec<String> = settings.chain([QUICK.to_owned()]).collect();
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let (mut primary, clock) = (Maria::start_with(&settings), clock());
        let replica = primary.replica();
        let hosts = format!("127.0.0.1:{},127.0.0.1:{}", primary.port, replica.port);
        let store = pinned(&format!("mysql://root@{hosts}/tollgate"), &clock).await;
        some_rows(&store, &clock).await;
        let rows = "SELECT COUNT(*) FROM tollgate_buckets WHERE kind IS NOT NULL";
        let wanted = primary.sql(rows);
        wait_until("the replica has the rows and the mark", || {
            replica.try_sql(rows).is_ok_and(|found| found == wanted)
                && replica.sql("SELECT COUNT(*) > 0 FROM tollgate_twin").trim() == "1"
        });
        replica.sql("STOP SLAVE");
        no_bucket_is_refilled(&store, &clock, format, async || {
            primary.crash();
            replica.sql("RESET SLAVE ALL; SET GLOBAL read_only = 0");
        })
        .await;
    }
}

#[tokio::test]
async fn mysql_drained_bucket_that_takes_on_numbers_stays_drained() {
    if !Maria::available() {
        return;
    }
    let (server, clock) = (Maria::start_with(&[QUICK]), clock());
    let store = pinned(&server.url(), &clock).await;
    drained_buckets_take_on_numbers(&store, &clock, async || {
        // Without its twin the mark is not valid; the rows stay.
        server.sql("TRUNCATE tollgate_twin");
    })
    .await;
}
