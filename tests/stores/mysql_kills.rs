//! Statements and sessions of MariaDB that are killed: a charge that may be committed is reported as unknown, not as refused, and
//! is not made again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinSet;
use tollgate_limit::{Claim, Limit, Micros};
use tollgate_store::mysql::schema_sql;
use tollgate_store::{RemoteStore, Store};

use crate::faults::{PATIENCE, recovers};
use crate::limits::bucket;
use crate::servers::{Maria, eventually};
use crate::servers::{QUICK, StoreKind};

const HOUR: Micros = Micros::from_secs(3600);
const BURST: u64 = 1_000_000;
const TASKS: usize = 8;

/// What became of draws.
#[derive(Debug, Default)]
struct Outcomes {
    granted: u64,
    unknown: u64,
    failed: u64,
}

async fn draws(store: Arc<RemoteStore>, limit: Arc<Limit>, done: Arc<AtomicBool>) -> Outcomes {
    let claim = [Claim::new(&limit, b"k", 1)];
    let mut outcomes = Outcomes::default();
    while !done.load(Ordering::Relaxed) {
        match store.draw(&claim).await {
            Ok(draw) => outcomes.granted += u64::from(draw.granted),
            Err(error) if error.may_have_charged() => outcomes.unknown += 1,
            Err(_) => outcomes.failed += 1,
        }
        tokio::task::yield_now().await;
    }
    outcomes
}

/// Under load a call is killed that has committed and has not responded: what it charged stays charged, once.
#[tokio::test]
async fn mysql_call_that_is_killed_after_its_commit_is_unknown_and_charges_once() {
    if !Maria::available() {
        return;
    }
    let server = Maria::start_with(&[QUICK]);
    let store = Arc::new(StoreKind::Mysql.connect(&server.url()).await);
    let many = bucket("many", 0, 1, HOUR, BURST);
    // A setting that nothing else reads makes every call wait after its commit.
    let waits =
        "COMMIT; IF @@global.long_query_time = 7 THEN SELECT SLEEP(60) INTO taken_; END IF;";
    let procedures = schema_sql()
        .replace(
            "CREATE PROCEDURE IF NOT EXISTS",
            "CREATE OR REPLACE PROCEDURE",
        )
        .replace("DECLARE least_,", "DECLARE taken_, least_,")
        .replace("COMMIT;", waits);
    server.sql(&procedures);
    let done = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        tasks.spawn(draws(store.clone(), many.clone(), done.clone()));
    }
    for kill in ["QUERY", "CONNECTION", "QUERY", "CONNECTION"] {
        recovers(&*store, &bucket("other", 1, 1000, HOUR, 1000)).await;
        server.sql("SET GLOBAL long_query_time = 7");
        let waiting = "FROM information_schema.PROCESSLIST WHERE INFO LIKE 'SELECT SLEEP(60)%'";
        eventually("a call after its commit", PATIENCE, async || {
            server.sql(&format!("SELECT COUNT(*) {waiting}")).trim() != "0"
        })
        .await;
        server.sql("SET GLOBAL long_query_time = 10");
        for id in server.sql(&format!("SELECT ID {waiting}")).lines() {
            server.sql(&format!("KILL {kill} {id}"));
        }
    }
    done.store(true, Ordering::Relaxed);
    let mut all = Outcomes::default();
    for one in tasks.join_all().await {
        all.granted += one.granted;
        all.unknown += one.unknown;
        all.failed += one.failed;
    }
    recovers(&*store, &many).await;
    store.forget_bounds();
    let last = store.draw(&[Claim::new(&many, b"k", 1)]).await.unwrap();
    let charged = BURST - last.standings[0].remaining() - 1;
    assert!(
        (all.granted..=all.granted + all.unknown).contains(&charged),
        "{charged} charged, {all:?}"
    );
    assert!(
        all.unknown >= 4 && charged > all.granted,
        "{charged} charged, {all:?}"
    );
}
