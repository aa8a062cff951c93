//! MariaDB: the classic procedure with SELECT … FOR UPDATE, one connection a task, and ours.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use tollgate_limit::Micros;
use tollgate_store::clock::Clock;
use tollgate_store::mysql::MysqlOptions;
use tollgate_store::tls::Tls;

use crate::bench::{PLENTY, SPAN, Tally, closed_loop, key, leased, limit};
use crate::servers::Maria;
use crate::sql_ways::flush_takes;

#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// The procedure, prepared, on 64 connections.
    Classic,
    Ours,
    Leased,
}

/// Each way with commits that wait for the disk (innodb_flush_log_at_trx_commit = 1), and with those that do not (2).
const WAYS: [(Way, u8, &str); 6] = [
    (Way::Classic, 1, "SELECT … FOR UPDATE in a procedure"),
    (
        Way::Classic,
        2,
        "SELECT … FOR UPDATE in a procedure, flush 2",
    ),
    (Way::Ours, 1, "Tollgate"),
    (Way::Ours, 2, "Tollgate, flush 2"),
    (Way::Leased, 1, "Tollgate, leased"),
    (Way::Leased, 2, "Tollgate, leased, flush 2"),
];

const TASKS: usize = 64;
/// Each figure is the middle one of so many rounds, which take turns.
const ROUNDS: usize = 3;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS classic (
    name VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY, tokens DOUBLE NOT NULL, ts DATETIME(6) NOT NULL
) ENGINE = InnoDB";
const CLASSIC: &str = "CREATE PROCEDURE IF NOT EXISTS classic_take(k VARCHAR(64) CHARACTER SET ascii, rate DOUBLE, burst DOUBLE)
BEGIN
    DECLARE left_over DOUBLE;
    DECLARE since, moment DATETIME(6);
    START TRANSACTION;
    SELECT tokens, ts INTO left_over, since FROM classic WHERE name = k FOR UPDATE;
    SET moment = SYSDATE(6);
    IF left_over IS NULL THEN
        INSERT INTO classic VALUES (k, burst - 1, moment)
        ON DUPLICATE KEY UPDATE tokens = tokens - 1;
        COMMIT;
        SELECT 1;
    ELSE
        SET left_over = LEAST(burst, left_over + GREATEST(0, TIMESTAMPDIFF(MICROSECOND, since, moment)) / 1e6 * rate);
        IF left_over >= 1 THEN
            UPDATE classic SET tokens = left_over - 1, ts = moment WHERE name = k;
            COMMIT;
            SELECT 1;
        ELSE
            ROLLBACK;
            SELECT 0;
        END IF;
    END IF;
END";

/// What a round counted.
struct Figures {
    per_second: f64,
    calls: f64,
    errors: u64,
}

/// Decisions a second, calls a decision, errors, by the ways whose names contain `only`, on the `workload`.
pub fn compare(only: &str, workload: &str) {
    if !Maria::available() {
        return;
    }
    let server = Maria::start_with(&["max-connections=200"]);
    println!("\n## MariaDB, {TASKS} tasks; everything allowed; middle of {ROUNDS} rounds\n");
    println!("To flush 8 KiB takes {} us.\n", flush_takes().as_micros());
    println!(
        "| workload | way | decisions/s | x | calls/req | errors |\n|---|---|---|---|---|---|"
    );
    for per_user in [false, true] {
        let named = if per_user { "per_user" } else { "hot_key" };
        if !named.contains(workload) {
            continue;
        }
        let ways = || {
            WAYS.iter()
                .filter(|(.., name)| only.split(',').any(|part| name.contains(part)))
        };
        let mut rounds: Vec<Vec<Figures>> = ways().map(|_| Vec::new()).collect();
        for _ in 0..ROUNDS {
            for (figures, way) in rounds.iter_mut().zip(ways()) {
                figures.push(round(&server, *way, per_user));
            }
        }
        let mut first = None;
        for (mut figures, (.., name)) in rounds.into_iter().zip(ways()) {
            figures.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
            let Figures {
                per_second,
                calls,
                errors,
            } = figures.remove(ROUNDS / 2);
            let first = *first.get_or_insert(per_second);
            println!(
                "| {named} | {name} | {per_second:.0} | {:.1} | {calls:.4} | {errors} |",
                per_second / first
            );
        }
    }
}

fn round(server: &Maria, (way, flush, name): (Way, u8, &str), per_user: bool) -> Figures {
    server.sql(&format!(
        "SET GLOBAL innodb_flush_log_at_trx_commit = {flush}"
    ));
    // Rows of their own for every round.
    let _ = server.try_sql("TRUNCATE classic");
    let _ = server.try_sql("TRUNCATE tollgate_buckets");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let tally = Arc::new(Tally::default());
    let work = async {
        match way {
            Way::Classic => classic(&server.url(), per_user, &tally).await,
            Way::Ours | Way::Leased => {
                ours(&server.url(), way == Way::Leased, per_user, &tally).await
            }
        }
    };
    let nanos = runtime.expect("a runtime").block_on(work);
    tally.assert_all_allowed(name);
    Figures {
        per_second: 1e9 / nanos,
        calls: Tally::read(&tally.calls) as f64 / Tally::read(&tally.decisions).max(1) as f64,
        errors: Tally::read(&tally.errors),
    }
}

async fn classic(url: &str, per_user: bool, tally: &Arc<Tally>) -> f64 {
    let mut connections = Vec::new();
    for _ in 0..TASKS {
        let mut connection = Conn::from_url(url).await.expect("a connection");
        for statement in [
            TABLE,
            CLASSIC,
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        ] {
            connection.query_drop(statement).await.expect("a statement");
        }
        let call = connection
            .prep("CALL classic_take(?, ?, ?)")
            .await
            .expect("a prepared call");
        connections.push(std::sync::Mutex::new(Some((connection, call))));
    }
    closed_loop(TASKS, SPAN, tally, |task, end| {
        let taken = connections[task]
            .lock()
            .expect("no thread panics while it holds the lock")
            .take();
        let (mut connection, call) = taken.expect("one for each task");
        let tally = tally.clone();
        async move {
            let (mut turn, rate) = (0, PLENTY as f64);
            while Instant::now() < end {
                turn += 1;
                let key = key(per_user, task, turn);
                for attempt in 1..=20 {
                    Tally::count(&tally.calls, 1);
                    let granted = connection
                        .exec_first::<u64, _, _>(&call, (&key, rate, rate))
                        .await;
                    if let Ok(granted) = granted {
                        Tally::count(&tally.granted, granted.unwrap_or(0));
                        break;
                    }
                    // (A deadlock.)
                    Tally::count(&tally.errors, 1);
                    Tally::count(&tally.gave_up, u64::from(attempt == 20));
                }
                Tally::count(&tally.decisions, 1);
            }
        }
    })
    .await
}

async fn ours(url: &str, lease: bool, per_user: bool, tally: &Arc<Tally>) -> f64 {
    let options = MysqlOptions {
        url: url.to_owned(),
        answer_within: Micros::from_secs(2),
        key_secret: b"a benchmark's secret".to_vec(),
        clock: Clock::system(),
        pinned: None,
        local_refusals: true,
        create: true,
        tls: Tls::default(),
        long_quotas: false,
    };
    let store = Arc::new(options.start().expect("a thread"));
    assert!(store.ready(Duration::from_secs(5)).await, "connected");
    let limit = if lease {
        leased(PLENTY, PLENTY)
    } else {
        limit(PLENTY, PLENTY)
    };
    crate::sql_ways::drive(&store, &limit, per_user, tally).await
}
