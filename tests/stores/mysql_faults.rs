//! MariaDB that refuses to write, and whose sessions are killed: no charge is made twice or lost.

use tollgate_limit::{Claim, Kind, Micros};
use tollgate_store::Store;

use crate::faults::{drain, draw, recovers};
use crate::limits::{bucket, limit, terms};
use crate::servers::Maria;
use crate::servers::{QUICK, StoreKind};

const HOUR: Micros = Micros::from_secs(3600);

/// The rows can be locked and read, and not written.
#[tokio::test]
async fn mysql_write_that_is_refused_grants_nothing_and_charges_nothing() {
    if !Maria::available() {
        return;
    }
    let server = Maria::start_with(&[QUICK]);
    let store = StoreKind::Mysql.connect(&server.url()).await;
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

/// An operator, or the server's own limit on idle sessions, ends sessions while and between requests.
#[tokio::test]
async fn mysql_session_that_is_killed_charges_at_most_once_and_is_replaced() {
    if !Maria::available() {
        return;
    }
    let server = Maria::start_with(&[QUICK]);
    let store = StoreKind::Mysql.connect(&server.url()).await;
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
