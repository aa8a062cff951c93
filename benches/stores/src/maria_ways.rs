//! MariaDB: the classic procedure with SELECT … FOR UPDATE, on pools of several sizes, and ours, each with 64, 512 and 2,048
//! callers. A caller asks again as soon as it has a response; callers of a pool wait for a connection in turn.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use tokio::sync::Semaphore;
use tollgate_store::mysql;
use tollgate_store::tls::Tls;

use crate::bench::{PLENTY, SPAN, Tally, USERS, closed_loop, key, leased, limit, options, runtime};
use crate::servers::Maria;
use crate::sql_ways::flush_takes;

#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// The procedure, prepared, on so many connections, for so many callers.
    Classic(usize, usize),
    /// So many callers.
    Ours(usize),
    Leased(usize),
}

const WAYS: [Way; 16] = [
    Way::Classic(4, 64),
    Way::Classic(16, 64),
    Way::Classic(64, 64),
    Way::Ours(64),
    Way::Leased(64),
    Way::Classic(4, 512),
    Way::Classic(16, 512),
    Way::Classic(64, 512),
    Way::Classic(128, 512),
    Way::Ours(512),
    Way::Leased(512),
    Way::Classic(4, 2048),
    Way::Classic(16, 2048),
    Way::Classic(64, 2048),
    Way::Ours(2048),
    Way::Leased(2048),
];

/// Commits that wait for the disk, and those that do not (innodb_flush_log_at_trx_commit).
const FLUSHES: [u8; 2] = [1, 2];

impl Way {
    fn name(self) -> String {
        match self {
            Self::Classic(size, callers) => {
                format!("SELECT … FOR UPDATE in a procedure, {size} connections, {callers} callers")
            }
            Self::Ours(callers) => format!("Tollgate, {callers} callers"),
            Self::Leased(callers) => format!("Tollgate leased, {callers} callers"),
        }
    }

    const fn callers(self) -> usize {
        match self {
            Self::Classic(_, callers) | Self::Ours(callers) | Self::Leased(callers) => callers,
        }
    }
}

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

/// Decisions a second, their ratio to the fastest pool with as many callers under the same setting, calls a decision, errors: by
/// the ways whose names contain one of `only` (words with `;` between them), on the workload and setting that contain `workload`, such as
/// `hot_key/1`.
pub fn compare(only: &str, workload: &str) {
    if !Maria::available() {
        return;
    }
    let server = Maria::start_with(&["max-connections=200"]);
    println!("\n## MariaDB; everything allowed; middle of {ROUNDS} rounds\n");
    println!("To flush 8 KiB takes {} us.\n", flush_takes().as_micros());
    println!(
        "| workload | flush | way | decisions/s | x | calls/req | errors |\n|---|---|---|---|---|---|---|"
    );
    for per_user in [false, true] {
        let named = if per_user { "per_user" } else { "hot_key" };
        for flush in FLUSHES {
            if !format!("{named}/{flush}").contains(workload) {
                continue;
            }
            let ways: Vec<Way> = WAYS
                .into_iter()
                .filter(|way| only.split(';').any(|part| way.name().contains(part)))
                .collect();
            let mut rounds: Vec<Vec<Figures>> = ways.iter().map(|_| Vec::new()).collect();
            for _ in 0..ROUNDS {
                for (figures, way) in rounds.iter_mut().zip(&ways) {
                    figures.push(round(&server, *way, flush, per_user));
                }
            }
            let medians: Vec<Figures> = rounds.into_iter().map(median).collect();
            let fastest = |callers| {
                let classic = ways
                    .iter()
                    .zip(&medians)
                    .filter(|(way, _)| matches!(way, Way::Classic(..)) && way.callers() == callers);
                classic
                    .map(|(_, figures)| figures.per_second)
                    .fold(0.0, f64::max)
            };
            for (way, figures) in ways.iter().zip(&medians) {
                let Figures {
                    per_second,
                    calls,
                    errors,
                } = figures;
                println!(
                    "| {named} | {flush} | {} | {per_second:.0} | {:.1} | {calls:.4} | {errors} |",
                    way.name(),
                    per_second / fastest(way.callers())
                );
            }
        }
    }
}

fn median(mut rounds: Vec<Figures>) -> Figures {
    rounds.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    rounds.swap_remove(ROUNDS / 2)
}

fn round(server: &Maria, way: Way, flush: u8, per_user: bool) -> Figures {
    server.sql(&format!(
        "SET GLOBAL innodb_flush_log_at_trx_commit = {flush}"
    ));
    // Rows of their own for every round.
    let _ = server.try_sql("TRUNCATE classic");
    let _ = server.try_sql("TRUNCATE tollgate_buckets");
    let tally = Arc::new(Tally::default());
    let users = if per_user { USERS } else { 1 };
    let work = async {
        match way {
            Way::Classic(size, callers) => {
                classic(&server.url(), size, callers, users, &tally).await
            }
            Way::Ours(callers) => ours(&server.url(), callers, false, users, &tally).await,
            Way::Leased(callers) => ours(&server.url(), callers, true, users, &tally).await,
        }
    };
    let nanos = runtime().block_on(work);
    tally.assert_all_allowed(&way.name());
    Figures {
        per_second: 1e9 / nanos,
        calls: Tally::read(&tally.calls) as f64 / Tally::read(&tally.decisions).max(1) as f64,
        errors: Tally::read(&tally.errors),
    }
}

async fn classic(url: &str, size: usize, callers: usize, users: usize, tally: &Arc<Tally>) -> f64 {
    let mut connections = Vec::new();
    for _ in 0..size {
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
        connections.push((connection, call));
    }
    // Callers that wait get a connection in the order in which they came.
    let turns = Arc::new(Semaphore::new(size));
    let pool = Arc::new(Mutex::new(connections));
    let locked = "no thread panics while it holds the lock";
    closed_loop(callers, SPAN, tally, |task, end| {
        let (turns, pool, tally) = (turns.clone(), pool.clone(), tally.clone());
        async move {
            let (mut turn, rate) = (0, PLENTY as f64);
            loop {
                let _turn = turns.acquire().await.expect("it is never closed");
                if Instant::now() >= end {
                    break;
                }
                let taken = pool.lock().expect(locked).pop();
                let (mut connection, call) = taken.expect("one for each turn");
                turn += 1;
                let key = key(users, task, turn);
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
                pool.lock().expect(locked).push((connection, call));
            }
        }
    })
    .await
}

async fn ours(url: &str, callers: usize, lease: bool, users: usize, tally: &Arc<Tally>) -> f64 {
    let store = mysql::start(url, &Tls::default(), options());
    let store = Arc::new(store.expect("a thread"));
    assert!(store.ready(Duration::from_secs(5)).await, "connected");
    let limit = if lease {
        leased(PLENTY, PLENTY)
    } else {
        limit(PLENTY, PLENTY)
    };
    crate::sql_ways::drive(&store, &limit, callers, users, SPAN, tally).await
}
