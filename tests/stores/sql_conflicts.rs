//! SQL databases with several gateways, other sessions and hostile defaults: conflicts are tried again, each request is
//! charged once or not at all.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable;
use tollgate_limit::{Claim, Kind, Micros};
use tollgate_store::{RemoteStore, Store};

use crate::faults::{PATIENCE, drain, draw, recovers, storm};
use crate::limits::{bucket, limit, terms};
use crate::servers::eventually;
use crate::servers::{Server, StoreKind};

const HOUR: Micros = Micros::from_secs(3600);

/// A session of another program.
pub enum Stranger {
    Postgres(tokio_postgres::Client),
    Mysql(mysql_async::Conn),
}

impl Stranger {
    pub async fn on(server: &Server) -> Self {
        let url = server.url();
        if server.kind().is_mysql() {
            return Self::Mysql(mysql_async::Conn::from_url(url).await.unwrap());
        }
        let connected = tokio_postgres::connect(&url, tokio_postgres::NoTls).await;
        let (client, connection) = connected.unwrap();
        tokio::spawn(connection);
        Self::Postgres(client)
    }

    pub async fn run(&mut self, statements: &str) {
        match self {
            Self::Postgres(client) => client.batch_execute(statements).await.unwrap(),
            Self::Mysql(connection) => connection.query_drop(statements).await.unwrap(),
        }
    }
}

/// Waits until a request of the store waits for a lock.
async fn waits_for_a_lock(server: &Server) {
    let waits = match server.name() {
        "mysql" => {
            "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"
        }
        _ => {
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tollgate' AND wait_event_type = 'Lock'"
        }
    };
    eventually("wait for a lock", PATIENCE, async || {
        server.sql(waits).trim() != "0"
    })
    .await;
}

/// The column of a bucket's name.
pub fn name_column(server: &Server) -> &'static str {
    match server.name() {
        "mysql" => "bucket",
        _ => "key",
    }
}

/// Whatever the server's defaults are.
pub async fn shares_one_limit_exactly(server: Server) {
    match server.kind() {
        StoreKind::Mysql => {
            drop(server.sql(
                "SET GLOBAL TRANSACTION ISOLATION LEVEL SERIALIZABLE; SET GLOBAL autocommit = 0",
            ))
        }
        StoreKind::Postgres => drop(
            server
                .sql("ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'"),
        ),
        _ => {}
    }
    let stores = [server.connect().await, server.connect().await];
    let ten = bucket("ten", 0, 10, Micros::from_secs(1), 10);
    let start = Instant::now();
    let (granted, failed) = storm(&stores, &ten, b"k", 64, Duration::from_secs(3)).await;
    let most = 10 + 10 * u64::try_from(start.elapsed().as_millis()).unwrap() / 1000 + 1;
    assert!(
        (20..=most).contains(&granted),
        "granted {granted}, at most {most}, failed {failed:?}"
    );
    assert_eq!(failed, [], "no conflict reaches a caller");
    if server.kind() == StoreKind::Redis {
        let counters = stores.each_ref().map(|store| store.counters());
        let calls: u64 = (counters.iter())
            .map(|counters| counters.calls.load(Ordering::Relaxed))
            .sum();
        let local: u64 = (counters.iter())
            .map(|counters| counters.refused_locally.load(Ordering::Relaxed))
            .sum();
        assert!(
            local > 10 * calls,
            "{calls} calls and {local} refusals without one"
        );
    }
}

pub async fn charges_all_or_none(server: Server) {
    let stores = [server.connect().await, server.connect().await];
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

/// Three changes of a row fail with a conflict, as in SERIALIZABLE databases, deadlocks and Galera's
/// certification. (No rollback changes the count of them.)
const POSTGRES_CONFLICTS: &str = "
    CREATE SEQUENCE turn;
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        CASE nextval('turn')
            WHEN 1 THEN RAISE EXCEPTION 'made up' USING ERRCODE = '40001';
            WHEN 2 THEN RAISE EXCEPTION 'made up' USING ERRCODE = '40P01';
            WHEN 3 THEN RAISE EXCEPTION 'made up' USING ERRCODE = '23505';
            ELSE RETURN NEW;
        END CASE;
    END $$;
    CREATE TRIGGER fail BEFORE UPDATE ON tollgate_buckets FOR EACH ROW EXECUTE FUNCTION fail()";

const MYSQL_CONFLICTS: &str = "
    CREATE TABLE turn (n INT) ENGINE = MyISAM; INSERT INTO turn VALUES (0);
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
    END//";

/// The server takes back what a call did: it is tried again, charged once, and no caller notices.
pub async fn tries_again(server: Server) {
    let store = server.connect().await;
    let limits = [
        bucket("a", 0, 5, HOUR, 5),
        limit("b", 1, &terms(Kind::FixedWindow, 50, HOUR)),
        limit("c", 2, &terms(Kind::SlidingLog, 50, HOUR)),
    ];
    // The row must be there: an update is what the trigger sees, whichever way decides.
    for limit in &limits {
        assert!(draw(&store, limit, b"k").await.unwrap());
    }
    let (conflicts, first, turns) = match server.name() {
        "mysql" => (
            MYSQL_CONFLICTS,
            "UPDATE turn SET n = 0",
            "SELECT n FROM turn",
        ),
        _ => (
            POSTGRES_CONFLICTS,
            "SELECT setval('turn', 1, false)",
            "SELECT last_value FROM turn",
        ),
    };
    server.sql(conflicts);
    for way in [&[0][..], &[0, 1], &[0, 2]] {
        server.sql(first);
        let claims: Vec<_> = way
            .iter()
            .map(|&place| Claim::new(&limits[place], b"k", 1))
            .collect();
        assert!(store.draw(&claims).await.unwrap().granted, "{way:?}");
        let turns: u32 = server.sql(turns).trim().parse().unwrap();
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
pub async fn survives_a_deadlock(server: Server) {
    // The victim is ours: in PostgreSQL the session that waits for less long, in MariaDB the one that has changed
    // less.
    let (start, deadlocks) = match server.name() {
        "mysql" => (
            "CREATE TABLE other (n INT) ENGINE = InnoDB; BEGIN; INSERT INTO other SELECT seq FROM seq_1_to_1000",
            "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'INNODB_DEADLOCKS'",
        ),
        _ => (
            "SET deadlock_timeout = '1min'; BEGIN",
            "SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'",
        ),
    };
    let deadlocks = || server.sql(deadlocks).trim().parse::<u64>().unwrap();
    let store = server.connect().await;
    let limits = [bucket("a", 0, 5, HOUR, 5), bucket("b", 1, 5, HOUR, 5)];
    let claims = [0, 1].map(|place| Claim::new(&limits[place], b"k", 1));
    assert!(store.draw(&claims).await.unwrap().granted);
    let before = deadlocks();
    let mut stranger = Stranger::on(&server).await;
    let name = name_column(&server);
    let lock = |order: &str| {
        format!(
            "SELECT 1 FROM tollgate_buckets WHERE {name} <> 'tollgate' ORDER BY {name} {order} LIMIT 1 FOR UPDATE"
        )
    };
    stranger.run(start).await;
    stranger.run(&lock("DESC")).await;
    let meet = async {
        waits_for_a_lock(&server).await;
        stranger.run(&lock("ASC")).await;
        stranger.run("COMMIT").await;
    };
    let (drawn, ()) = tokio::join!(store.draw(&claims), meet);
    assert!(drawn.unwrap().granted);
    eventually("count of deadlocks", PATIENCE, async || {
        deadlocks() == before + 1
    })
    .await;
    assert_eq!(drain(&store, &limits[0], b"k").await, 3, "charged once");
}

/// A request is given up while it waits for a row, with others queued behind it on its connection.
pub async fn keeps_what_is_asked_later(server: Server) {
    // MariaDB's sessions wait a second for a lock.
    let within = Micros::from_secs(if server.kind().is_mysql() { 3 } else { 1 });
    let store = server
        .connect_with(|options| options.answer_within = within)
        .await;
    let held = limit("held", 0, &terms(Kind::SlidingWindow, 1000, HOUR));
    let ten = bucket("ten", 1, 10, HOUR, 10);
    assert!(draw(&store, &held, b"k").await.unwrap());
    let mut stranger = Stranger::on(&server).await;
    stranger
        .run("BEGIN; SELECT 1 FROM tollgate_buckets FOR UPDATE")
        .await;
    let given_up = async {
        draw(&store, &held, b"k")
            .await
            .expect_err("the row is another's");
        stranger.run("COMMIT").await;
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
    if server.kind() == StoreKind::Postgres {
        assert!(granted > 0, "they had time left");
        assert_eq!(left, 10 - granted, "what was granted was charged");
    }
    assert!(left <= 10 - granted, "what was granted was charged: {left}");
}
