//! PostgreSQL killed, frozen, restarted, with hostile defaults: every request is answered in time, nothing over-grants.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tollgate_limit::{Claim, Kind, Limit, Micros, OnFailover};
use tollgate_store::clock::Clock;
use tollgate_store::postgres::PostgresOptions;
use tollgate_store::tls::Tls;
use tollgate_store::{RemoteStore, Store};

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
    assert!(
        (20..=most).contains(&granted),
        "granted {granted}, at most {most}, failed {failed:?}"
    );
    assert_eq!(failed, [], "no serialization error reaches a caller");
}

#[tokio::test]
async fn postgres_that_has_become_read_only_has_charged_nothing() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off"]);
    let store = connect(&server.url()).await;
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
    let store = connect(&server.url()).await;
    let log = limit("log", 0, &terms(Kind::SlidingLog, 5, HOUR));
    // One that a single statement decides, without a transaction.
    let plain = bucket("plain", 2, 5, HOUR, 5);
    assert!(draw(&store, &log, b"k").await.unwrap() && draw(&store, &plain, b"k").await.unwrap());
    server.psql(
        "postgres",
        "CREATE FUNCTION leave() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$;
         CREATE TRIGGER leave BEFORE UPDATE ON tollgate_buckets
         FOR EACH ROW WHEN (NEW.key <> 'tollgate') EXECUTE FUNCTION leave()",
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
            let claims = order.map(|place| Claim::new(&limits[place], b"k", 1));
            granted += u32::from(store.draw(&claims).await.unwrap().granted);
        }
        granted
    };
    let (one, two) = tokio::join!(work(&stores[0], [0, 1, 2]), work(&stores[1], [2, 1, 0]));
    assert_eq!(one + two, 40, "the least of them rules");
    for (limit, left) in limits.iter().zip([0, 20, 10]) {
        assert_eq!(
            drain(&stores[0], limit, b"k").await,
            left,
            "{}: charged for the admitted alone",
            limit.name
        );
    }
}

/// The server takes back what a call did, as SERIALIZABLE databases, deadlocks and YugabyteDB do: it is tried again,
/// charged once, and no client is told.
#[tokio::test]
async fn conflicts_are_tried_again_within_the_deadline_and_charge_once() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off"]);
    let store = connect(&server.url()).await;
    let limits = [
        bucket("a", 0, 5, HOUR, 5),
        limit("b", 1, &terms(Kind::FixedWindow, 50, HOUR)),
        limit("c", 2, &terms(Kind::SlidingLog, 50, HOUR)),
    ];
    // The row must be there: an update is what the trigger sees, whichever way decides.
    for limit in &limits {
        assert!(draw(&store, limit, b"k").await.unwrap());
    }
    server.psql(
        "postgres",
        "CREATE SEQUENCE turn;
         CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             CASE nextval('turn')
                 WHEN 1 THEN RAISE EXCEPTION 'made up' USING ERRCODE = '40001';
                 WHEN 2 THEN RAISE EXCEPTION 'made up' USING ERRCODE = '40P01';
                 WHEN 3 THEN RAISE EXCEPTION 'made up' USING ERRCODE = '23505';
                 ELSE RETURN NEW;
             END CASE;
         END $$;
         CREATE TRIGGER fail BEFORE UPDATE ON tollgate_buckets FOR EACH ROW EXECUTE FUNCTION fail()",
    );
    for way in [&[0][..], &[0, 1], &[0, 2]] {
        server.psql("postgres", "SELECT setval('turn', 1, false)");
        let claims: Vec<_> = way
            .iter()
            .map(|&place| Claim::new(&limits[place], b"k", 1))
            .collect();
        assert!(store.draw(&claims).await.unwrap().granted, "{way:?}");
        let turns: u32 = server
            .psql("postgres", "SELECT last_value FROM turn")
            .trim()
            .parse()
            .unwrap();
        assert!(
            turns > 3,
            "{way:?}: each of the three conflicts happened: {turns}"
        );
    }
    assert_eq!(
        drain(&store, &limits[0], b"k").await,
        1,
        "5 less the first and the three"
    );
}

/// Another session locks two rows in the other order.
#[tokio::test]
async fn a_deadlock_with_a_stranger_costs_time_and_nothing_else() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off", "deadlock_timeout=500ms"]);
    let store = connect(&server.url()).await;
    let limits = [bucket("a", 0, 5, HOUR, 5), bucket("b", 1, 5, HOUR, 5)];
    let claims = [0, 1].map(|place| Claim::new(&limits[place], b"k", 1));
    assert!(store.draw(&claims).await.unwrap().granted);
    let (stranger, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    let lock = async |order: &str| {
        let one = format!(
            "SELECT 1 FROM tollgate_buckets WHERE key <> 'tollgate' ORDER BY key {order} LIMIT 1 FOR UPDATE"
        );
        stranger.batch_execute(&one).await.unwrap();
    };
    stranger
        .batch_execute("SET deadlock_timeout = '1min'; BEGIN")
        .await
        .unwrap();
    lock("DESC").await;
    let meet = async {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tollgate' AND wait_event_type = 'Lock'";
        eventually("wait for a lock", PATIENCE, async || {
            server.psql("postgres", waits).trim() != "0"
        })
        .await;
        lock("ASC").await;
        stranger.batch_execute("COMMIT").await.unwrap();
    };
    let (drawn, ()) = tokio::join!(store.draw(&claims), meet);
    assert!(drawn.unwrap().granted);
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'";
    eventually("count of deadlocks", PATIENCE, async || {
        server.psql("postgres", deadlocks).trim() == "1"
    })
    .await;
    assert_eq!(drain(&store, &limits[0], b"k").await, 3, "charged once");
}

/// A request is given up while it waits for a row, with others queued behind it on its connection.
#[tokio::test]
async fn what_is_asked_after_a_request_was_given_up_is_not_taken_back_with_it() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["fsync=off"]);
    let store = connect_with(&server.url(), |options| {
        options.answer_within = Micros::from_secs(1)
    })
    .await;
    let held = limit("held", 0, &terms(Kind::SlidingWindow, 1000, HOUR));
    let ten = bucket("ten", 1, 10, HOUR, 10);
    assert!(draw(&store, &held, b"k").await.unwrap());
    let (stranger, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    stranger
        .batch_execute("BEGIN; SELECT 1 FROM tollgate_buckets FOR UPDATE")
        .await
        .unwrap();
    let given_up = async {
        draw(&store, &held, b"k")
            .await
            .expect_err("the row is another's");
        stranger.batch_execute("COMMIT").await.unwrap();
    };
    let queued = async {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tollgate' AND wait_event_type = 'Lock'";
        eventually("wait for a lock", PATIENCE, async || {
            server.psql("postgres", waits).trim() != "0"
        })
        .await;
        let draws = tokio::join!(
            draw(&store, &ten, b"k"),
            draw(&store, &ten, b"k"),
            draw(&store, &ten, b"k")
        );
        [draws.0, draws.1, draws.2]
            .into_iter()
            .map(|drawn| u64::from(matches!(drawn, Ok(true))))
            .sum::<u64>()
    };
    let ((), granted) = tokio::join!(given_up, queued);
    assert!(granted > 0, "they had time left");
    assert_eq!(
        drain(&store, &ten, b"k").await,
        10 - granted,
        "what was granted was charged"
    );
}

#[tokio::test]
async fn a_killed_server_is_answered_for_in_time_and_found_again() {
    if !Postgres::available() {
        return;
    }
    let mut server = Postgres::start_with(&["fsync=off"]);
    let (store, hasty) = (
        connect(&server.url()).await,
        connect_in_haste(&server.url()).await,
    );
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
    assert_eq!(
        drain(&store, &keep, b"k").await,
        5,
        "keep: a crash empties an unlogged table"
    );
    assert!(
        !draw(&store, &draining, b"k").await.unwrap(),
        "drain: no bucket is refilled by a crash"
    );
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
    let (client, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    eventually("swept table", PATIENCE, async || {
        let rows: i64 = client
            .query_one(
                "SELECT count(*) FROM tollgate_buckets WHERE key <> 'tollgate'",
                &[],
            )
            .await
            .unwrap()
            .get(0);
        rows == 1
    })
    .await;
    store.forget_bounds();
    assert!(
        !draw(&store, &slow, b"k").await.unwrap(),
        "what is not full is not swept"
    );
}
