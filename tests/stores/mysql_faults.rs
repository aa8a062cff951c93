//! MariaDB killed, frozen, its sessions killed, with hostile defaults: every request is answered in time, nothing
//! over-grants.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable;
use tollgate_limit::{Claim, Kind, Limit, Micros, OnFailover};
use tollgate_store::clock::Clock;
use tollgate_store::mysql::MysqlOptions;
use tollgate_store::tls::Tls;
use tollgate_store::{RemoteStore, Store};

use crate::faults::{PATIENCE, drain, draw, fails_in_time, recovers, storm};
use crate::limits::{bucket, limit, terms};
use crate::servers::{Maria, eventually};

const HOUR: Micros = Micros::from_secs(3600);
/// Commits that wait for no disk: these tests end the server's process, not its machine.
pub const QUICK: &str = "innodb-flush-log-at-trx-commit=2";

pub async fn connect(url: &str) -> RemoteStore {
    connect_with(url, |_| ()).await
}

/// A store whose deadline the test is about; the others must not fail because this machine is busy.
async fn connect_in_haste(url: &str) -> RemoteStore {
    connect_with(url, |options| options.answer_within = Micros(100_000)).await
}

pub async fn connect_with(url: &str, change: impl FnOnce(&mut MysqlOptions)) -> RemoteStore {
    let store = open(url, change);
    assert!(store.ready(PATIENCE).await, "{:?}", store.health());
    store
}

pub fn open(url: &str, change: impl FnOnce(&mut MysqlOptions)) -> RemoteStore {
    let mut options = MysqlOptions {
        url: url.to_owned(),
        answer_within: Micros::from_secs(10),
        key_secret: b"a test's secret".to_vec(),
        clock: Clock::system(),
        pinned: None,
        local_refusals: true,
        create: true,
        tls: Tls::default(),
        long_quotas: false,
    };
    change(&mut options);
    options.start().unwrap()
}

/// A session of another program.
async fn stranger(server: &Maria) -> mysql_async::Conn {
    mysql_async::Conn::from_url(server.url()).await.unwrap()
}

async fn waits_for_a_lock(server: &Maria) {
    let waits = "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'";
    eventually("wait for a lock", PATIENCE, async || {
        server.sql(waits).trim() != "0"
    })
    .await;
}

#[tokio::test]
async fn mysql_two_gateways_share_one_limit_exactly_under_storm_whatever_the_default_isolation() {
    if !Maria::available() {
        return;
    }
    let server = Maria::start_with(&[QUICK, "transaction-isolation=SERIALIZABLE", "autocommit=0"]);
    let stores = [connect(&server.url()).await, connect(&server.url()).await];
    let ten = bucket("ten", 0, 10, Micros::from_secs(1), 10);
    let start = Instant::now();
    let (granted, failed) = storm(&stores, &ten, b"k", 64, Duration::from_secs(3)).await;
    let most = 10 + 10 * u64::try_from(start.elapsed().as_millis()).unwrap() / 1000 + 1;
    assert!(
        (20..=most).contains(&granted),
        "granted {granted}, at most {most}, failed {failed:?}"
    );
    assert_eq!(failed, [], "no conflict reaches a caller");
}

#[tokio::test]
async fn mysql_several_limits_in_any_order_are_all_charged_or_none_and_never_deadlock() {
    if !Maria::available() {
        return;
    }
    let server = Maria::start_with(&[QUICK]);
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

/// The rows can be locked and read, and not written.
#[tokio::test]
async fn mysql_write_that_is_refused_grants_nothing_and_charges_nothing() {
    if !Maria::available() {
        return;
    }
    let server = Maria::start_with(&[QUICK]);
    let store = connect(&server.url()).await;
    let limits = [
        bucket("five", 0, 5, HOUR, 5),
        limit("log", 1, &terms(Kind::SlidingLog, 5, HOUR)),
    ];
    for limit in &limits {
        assert!(draw(&store, limit, b"k").await.unwrap());
    }
    for errno in [1290, 1213, 1142] {
        server.sql(&format!(
            "DELIMITER //
             CREATE TRIGGER refuse BEFORE UPDATE ON tollgate_buckets FOR EACH ROW
             IF NEW.bucket <> 'tollgate' AND NOT (NEW.at <=> OLD.at AND NEW.more <=> OLD.more) THEN
                 SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {errno};
             END IF//"
        ));
        for limit in &limits {
            let claim = [Claim::new(limit, b"k", 1)];
            let error = store.draw(&claim).await.expect_err("it writes nothing");
            assert!(
                !error.may_have_charged(),
                "{errno} {}: {error:?}",
                limit.name
            );
        }
        server.sql("DROP TRIGGER refuse");
        recovers(&store, &bucket("other", 2, 1000, HOUR, 1000)).await;
    }
    for limit in &limits {
        assert_eq!(drain(&store, limit, b"k").await, 4, "{}", limit.name);
    }
}

/// The server takes back what a call did, as deadlocks and Galera's certification do: it is tried again, charged once,
/// and no caller is told.
#[tokio::test]
async fn mysql_conflicts_are_tried_again_within_the_deadline_and_charge_once() {
    if !Maria::available() {
        return;
    }
    let server = Maria::start_with(&[QUICK]);
    let store = connect(&server.url()).await;
    let limits = [
        bucket("a", 0, 5, HOUR, 5),
        limit("b", 1, &terms(Kind::FixedWindow, 50, HOUR)),
        limit("c", 2, &terms(Kind::SlidingLog, 50, HOUR)),
    ];
    for limit in &limits {
        assert!(draw(&store, limit, b"k").await.unwrap());
    }
    // (A table that no rollback changes.)
    server.sql(
        "CREATE TABLE turn (n INT) ENGINE = MyISAM; INSERT INTO turn VALUES (0);
         DELIMITER //
         CREATE TRIGGER fail BEFORE UPDATE ON tollgate_buckets FOR EACH ROW BEGIN
             IF NEW.bucket <> 'tollgate' THEN
                 UPDATE turn SET n = n + 1;
                 CASE (SELECT n FROM turn)
                     WHEN 1 THEN SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213;
                     WHEN 2 THEN SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1205;
                     WHEN 3 THEN SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1020;
                     ELSE BEGIN END;
                 END CASE;
             END IF;
         END//",
    );
    for way in [&[0][..], &[0, 1], &[0, 2]] {
        server.sql("UPDATE turn SET n = 0");
        let claims: Vec<_> = way
            .iter()
            .map(|&place| Claim::new(&limits[place], b"k", 1))
            .collect();
        assert!(store.draw(&claims).await.unwrap().granted, "{way:?}");
        let turns: u32 = server.sql("SELECT n FROM turn").trim().parse().unwrap();
        assert!(turns > 3, "{way:?}: each of the three conflicts: {turns}");
    }
    assert_eq!(
        drain(&store, &limits[0], b"k").await,
        1,
        "5 less the first and the three"
    );
}

/// Another session locks two rows in the other order.
#[tokio::test]
async fn mysql_deadlock_with_a_stranger_costs_time_and_nothing_else() {
    if !Maria::available() {
        return;
    }
    let server = Maria::start_with(&[QUICK]);
    let store = connect(&server.url()).await;
    let limits = [bucket("a", 0, 5, HOUR, 5), bucket("b", 1, 5, HOUR, 5)];
    let claims = [0, 1].map(|place| Claim::new(&limits[place], b"k", 1));
    assert!(store.draw(&claims).await.unwrap().granted);
    let mut stranger = stranger(&server).await;
    let lock = |order: &str| {
        format!(
            "SELECT 1 FROM tollgate_buckets WHERE bucket <> 'tollgate' ORDER BY bucket {order} LIMIT 1 FOR UPDATE"
        )
    };
    // (The victim is the one that has changed less.)
    stranger
        .query_drop("CREATE TABLE other (n INT) ENGINE = InnoDB; BEGIN; INSERT INTO other SELECT seq FROM seq_1_to_1000")
        .await
        .unwrap();
    stranger.query_drop(lock("DESC")).await.unwrap();
    let meet = async {
        waits_for_a_lock(&server).await;
        stranger.query_drop(lock("ASC")).await.unwrap();
        stranger.query_drop("COMMIT").await.unwrap();
    };
    let (drawn, ()) = tokio::join!(store.draw(&claims), meet);
    assert!(drawn.unwrap().granted);
    let deadlocks = server.sql("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'");
    assert!(deadlocks.trim().ends_with('1'), "{deadlocks}");
    assert_eq!(drain(&store, &limits[0], b"k").await, 3, "charged once");
}

/// A request is given up while it waits for a row, with others queued behind it on its connection.
#[tokio::test]
async fn mysql_what_is_asked_after_a_request_was_given_up_is_not_taken_back_with_it() {
    if !Maria::available() {
        return;
    }
    let server = Maria::start_with(&[QUICK]);
    let store = connect_with(&server.url(), |options| {
        options.answer_within = Micros::from_secs(3);
    })
    .await;
    let held = limit("held", 0, &terms(Kind::SlidingWindow, 1000, HOUR));
    let ten = bucket("ten", 1, 10, HOUR, 10);
    assert!(draw(&store, &held, b"k").await.unwrap());
    let mut stranger = stranger(&server).await;
    stranger
        .query_drop("BEGIN; SELECT 1 FROM tollgate_buckets FOR UPDATE")
        .await
        .unwrap();
    let given_up = async {
        draw(&store, &held, b"k")
            .await
            .expect_err("the row is another's");
        stranger.query_drop("COMMIT").await.unwrap();
    };
    let queued = async {
        waits_for_a_lock(&server).await;
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
    recovers(&store, &bucket("other", 2, 1000, HOUR, 1000)).await;
    let left = drain(&store, &ten, b"k").await;
    assert!(left <= 10 - granted, "what was granted was charged: {left}");
}

#[tokio::test]
async fn mysql_killed_server_is_answered_for_in_time_and_found_again() {
    if !Maria::available() {
        return;
    }
    let mut server = Maria::start_with(&[QUICK]);
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
    assert!(
        !draw(&store, &keep, b"k").await.unwrap(),
        "keep: the log has what was charged"
    );
    assert!(
        !draw(&store, &draining, b"k").await.unwrap(),
        "drain: no bucket is refilled by a crash"
    );
}

#[tokio::test]
async fn mysql_frozen_server_is_answered_for_in_time_and_found_again() {
    if !Maria::available() {
        return;
    }
    let server = Maria::start_with(&[QUICK]);
    let store = connect_in_haste(&server.url()).await;
    let limit = bucket("frozen", 0, 1000, HOUR, 1000);
    recovers(&store, &limit).await;
    server.process().signal("-STOP");
    fails_in_time(&store, &limit).await;
    server.process().signal("-CONT");
    recovers(&store, &limit).await;
}

/// An operator, or the server's own limit on idle sessions, ends sessions while and between requests.
#[tokio::test]
async fn mysql_session_that_is_killed_charges_at_most_once_and_is_replaced() {
    if !Maria::available() {
        return;
    }
    let server = Maria::start_with(&[QUICK]);
    let store = connect(&server.url()).await;
    let (many, other) = (
        bucket("many", 0, 1, HOUR, 1000),
        bucket("other", 1, 1_000_000, HOUR, 1_000_000),
    );
    let (mut granted, mut unknown) = (0, 0);
    for turn in 0..10 {
        let kill = async {
            let sessions = server.sql(
                "SELECT GROUP_CONCAT(CONCAT('KILL ', ID) SEPARATOR ';') FROM information_schema.PROCESSLIST
                 WHERE ID <> CONNECTION_ID() AND DB = 'tollgate' AND USER = 'root'",
            );
            let _ = server.try_sql(&sessions);
        };
        let draws = async {
            let mut outcomes = Vec::new();
            for _ in 0..3 {
                outcomes.push(store.draw(&[Claim::new(&many, b"k", 1)]).await);
            }
            outcomes
        };
        let (outcomes, ()) = if turn % 2 == 0 {
            kill.await;
            (draws.await, ())
        } else {
            tokio::join!(draws, kill)
        };
        for outcome in outcomes {
            match outcome {
                Ok(draw) => granted += u64::from(draw.granted),
                Err(error) => unknown += u64::from(error.may_have_charged()),
            }
        }
        recovers(&store, &other).await;
    }
    let left = drain(&store, &many, b"k").await;
    let most = 1000 - granted;
    assert!(
        (most - unknown..=most).contains(&left),
        "{granted} granted, {unknown} unknown, {left} left"
    );
}

#[tokio::test]
async fn mysql_caller_who_leaves_in_the_middle_leaves_no_lock() {
    if !Maria::available() {
        return;
    }
    let server = Maria::start_with(&[QUICK]);
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
async fn mysql_full_buckets_are_swept_and_others_stay() {
    if !Maria::available() {
        return;
    }
    let server = Maria::start_with(&[QUICK]);
    let store = connect(&server.url()).await;
    let quick = bucket("quick", 0, 1000, Micros::from_secs(1), 10);
    let slow = bucket("slow", 1, 10, HOUR, 10);
    for turn in 0..200_u32 {
        draw(&store, &quick, &turn.to_le_bytes()).await.unwrap();
    }
    assert_eq!(drain(&store, &slow, b"k").await, 10);
    eventually("swept table", PATIENCE, async || {
        let rows = "SELECT COUNT(*) FROM tollgate_buckets WHERE bucket <> 'tollgate'";
        server.sql(rows).trim() == "1"
    })
    .await;
    store.forget_bounds();
    assert!(
        !draw(&store, &slow, b"k").await.unwrap(),
        "what is not full is not swept"
    );
}
