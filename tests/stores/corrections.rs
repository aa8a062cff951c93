//! Settlements and refunds that are due while the store does not respond: each is made once, and late.

use std::sync::atomic::Ordering;

use tollgate_limit::{Change, Claim, Kind, Limit, Micros, Settlement};
use tollgate_store::{RemoteStore, Store};

use crate::faults::{PATIENCE, draw};
use crate::limits::{limit, terms};
use crate::servers::{Server, eventually};
use crate::sql_conflicts::Stranger;

const HOUR: Micros = Micros::from_secs(3600);
const UNITS: u64 = 1_000_000;
/// The callers whose requests cost more than estimated, and less.
const UP: &[u8] = b"up";
const DOWN: &[u8] = b"down";
/// What each caller is charged before, and the settlements.
const ESTIMATE: u64 = 300;
const MORE: u64 = 2900;

/// What a caller is charged for.
async fn charged(store: &RemoteStore, limit: &Limit, key: &[u8]) -> Option<u64> {
    let peeked = store.peek(&[Claim::new(limit, key, 1)]).await.ok()?;
    Some(UNITS - peeked[0].remaining())
}

async fn becomes(store: &RemoteStore, limit: &Limit, key: &[u8], units: u64) {
    let mut last = None;
    let reached = tokio::time::timeout(PATIENCE, async {
        loop {
            last = charged(store, limit, key).await.or(last);
            if last == Some(units) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    });
    let reached = reached.await.is_ok();
    assert!(
        reached,
        "{:?} is charged {last:?}, not {units}",
        str::from_utf8(key)
    );
}

fn settle(store: &RemoteStore, limit: &Limit, key: &[u8], change: Change) {
    store.settle(&[Settlement::new(limit, key, change)]);
}

/// A store and a limit with both callers charged for the estimate.
async fn estimated(server: &Server) -> (RemoteStore, std::sync::Arc<Limit>) {
    let store = server.kind().connect_in_haste(&server.url()).await;
    let limit = limit("spend", 0, &terms(Kind::FixedWindow, UNITS, HOUR));
    for key in [UP, DOWN] {
        settle(&store, &limit, key, Change::Charge { more: ESTIMATE });
        becomes(&store, &limit, key, ESTIMATE).await;
    }
    (store, limit)
}

/// Settlements in both directions, which are now on their way.
async fn settle_both(store: &RemoteStore, limit: &Limit) -> u64 {
    let calls = store.counters().calls.load(Ordering::Relaxed);
    for _ in 0..3 {
        settle(store, limit, UP, Change::Charge { more: MORE });
        settle(store, limit, DOWN, Change::Refund { units: 100 });
    }
    eventually("call with the settlements", PATIENCE, async || {
        store.counters().calls.load(Ordering::Relaxed) > calls
    })
    .await;
    calls
}

/// All of them are made once, and a later one is made too.
async fn are_made_once(store: &RemoteStore, limit: &Limit) {
    becomes(store, limit, UP, ESTIMATE + 3 * MORE).await;
    becomes(store, limit, DOWN, 0).await;
    settle(store, limit, b"last", Change::Charge { more: 1 });
    becomes(store, limit, b"last", 1).await;
    becomes(store, limit, UP, ESTIMATE + 3 * MORE).await;
    becomes(store, limit, DOWN, 0).await;
    let dropped = &store.counters().corrections_dropped;
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
}

async fn gives_up(store: &RemoteStore, limit: &Limit) {
    eventually("request without a response", PATIENCE, async || {
        draw(store, limit, b"other").await.is_err()
    })
    .await;
}

pub async fn survive_a_pause(server: Server) {
    let (store, limit) = estimated(&server).await;
    server.signal("-STOP");
    settle_both(&store, &limit).await;
    gives_up(&store, &limit).await;
    server.signal("-CONT");
    are_made_once(&store, &limit).await;
}

pub async fn survive_a_lock(server: Server) {
    let (store, limit) = estimated(&server).await;
    let (lock, unlock) = match server.name() {
        "mysql" => ("LOCK TABLES tollgate_buckets WRITE", "UNLOCK TABLES"),
        _ => (
            "BEGIN; LOCK TABLE tollgate_buckets IN EXCLUSIVE MODE",
            "COMMIT",
        ),
    };
    let mut stranger = Stranger::on(&server).await;
    stranger.run(lock).await;
    settle_both(&store, &limit).await;
    gives_up(&store, &limit).await;
    stranger.run(unlock).await;
    are_made_once(&store, &limit).await;
}

/// The commit takes longer than the gateway waits: PostgreSQL runs the trigger in COMMIT, and MariaDB in
/// the text before it.
const POSTGRES_SLOW_COMMIT: &str = "
    CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER slow AFTER UPDATE ON tollgate_buckets DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (octet_length(NEW.key) = 16) EXECUTE FUNCTION slow()";
const MYSQL_SLOW_COMMIT: &str = "
    DELIMITER //
    CREATE TRIGGER slow BEFORE UPDATE ON tollgate_buckets FOR EACH ROW
    IF LENGTH(NEW.bucket) = 16 AND NOT (NEW.more <=> OLD.more) THEN
        DO SLEEP(0.5);
    END IF//";

/// Settlements whose commit is under way, on a server where it takes its time.
async fn committing(server: &Server, store: &RemoteStore, limit: &Limit) -> u64 {
    let (slow, sleeping) = match server.name() {
        "mysql" => (
            MYSQL_SLOW_COMMIT,
            "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User sleep'",
        ),
        _ => (
            POSTGRES_SLOW_COMMIT,
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'",
        ),
    };
    server.sql(slow);
    let calls = settle_both(store, limit).await;
    eventually("commit that takes its time", PATIENCE, async || {
        server.sql(sleeping).trim() != "0"
    })
    .await;
    calls
}

fn hurry(server: &Server) {
    let statement = match server.name() {
        "mysql" => "DROP TRIGGER slow",
        _ => "DROP TRIGGER slow ON tollgate_buckets",
    };
    server.sql(statement);
}

pub async fn committed_late(server: Server) {
    let (store, limit) = estimated(&server).await;
    let calls = committing(&server, &store, &limit).await;
    eventually("second call with the settlements", PATIENCE, async || {
        store.counters().calls.load(Ordering::Relaxed) > calls + 1
    })
    .await;
    hurry(&server);
    are_made_once(&store, &limit).await;
}

pub async fn killed_in_commit(server: Server) {
    let (store, limit) = estimated(&server).await;
    committing(&server, &store, &limit).await;
    if server.kind().is_mysql() {
        let sessions = server.sql(
            "SELECT GROUP_CONCAT(CONCAT('KILL ', ID) SEPARATOR ';') FROM information_schema.PROCESSLIST
             WHERE ID <> CONNECTION_ID() AND DB = DATABASE() AND USER = 'root'",
        );
        server.sql(&sessions);
    } else {
        server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tollgate'");
    }
    hurry(&server);
    are_made_once(&store, &limit).await;
}
