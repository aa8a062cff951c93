//! PostgreSQL: UPDATE then INSERT in a SERIALIZABLE function, one upsert a request, and ours.

use std::io::{Seek, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio_postgres::{Client, NoTls};
use tollgate_limit::{Claim, Limit};
use tollgate_store::postgres::{self, schema_sql};
use tollgate_store::tls::Tls;
use tollgate_store::{RemoteOptions, RemoteStore, Store};

use crate::bench::{
    OVER_GRANT, PLENTY, SPAN, Tally, closed_loop, key, leased, limit, now, options, together,
};
use crate::servers::Postgres;

#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// The function in SERIALIZABLE transactions, tried again up to 20 times.
    Serializable,
    /// The same, and no commit waits for the disk.
    Asynchronous,
    /// One statement a request.
    Upsert,
    Ours,
    Leased,
}

/// Each way on a table as a plain CREATE TABLE makes it and on one as ours: unlogged, half of each page free.
const WAYS: [(Way, bool, &str); 9] = [
    (Way::Serializable, true, "UPDATE then INSERT, SERIALIZABLE"),
    (
        Way::Asynchronous,
        true,
        "UPDATE then INSERT, SERIALIZABLE, synchronous_commit off",
    ),
    (Way::Serializable, false, "the same, unlogged"),
    (Way::Upsert, true, "one upsert a request"),
    (Way::Upsert, false, "the same, unlogged"),
    (Way::Ours, false, "Tollgate"),
    (Way::Ours, true, "Tollgate, logged (synchronous_commit off)"),
    (Way::Leased, false, "Tollgate, leased"),
    (
        Way::Leased,
        true,
        "Tollgate, leased, logged (synchronous_commit off)",
    ),
];

const TASKS: usize = 64;
/// Each figure is the middle one of so many rounds, which take turns: a noisy machine is noisy to all.
const ROUNDS: usize = 3;

const CLASSIC: &str = "
CREATE OR REPLACE FUNCTION classic_take(k text, rate double precision, burst double precision) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE left_over double precision;
BEGIN
    UPDATE classic SET tokens = least(burst, tokens + extract(epoch FROM clock_timestamp() - ts) * rate) - 1,
                       ts = clock_timestamp()
    WHERE key = k AND least(burst, tokens + extract(epoch FROM clock_timestamp() - ts) * rate) >= 1
    RETURNING tokens INTO left_over;
    IF FOUND THEN RETURN true; END IF;
    PERFORM 1 FROM classic WHERE key = k;
    IF FOUND THEN RETURN false; END IF;
    INSERT INTO classic VALUES (k, burst - 1, clock_timestamp());
    RETURN true;
END $$";

const UPSERT: &str = "
INSERT INTO classic AS c VALUES ($1, $3::double precision - 1, clock_timestamp())
ON CONFLICT (key) DO UPDATE SET
    tokens = least($3, c.tokens + extract(epoch FROM clock_timestamp() - c.ts) * $2::double precision) - 1,
    ts = clock_timestamp()
WHERE least($3, c.tokens + extract(epoch FROM clock_timestamp() - c.ts) * $2) >= 1
RETURNING true";

/// What a round counted.
struct Figures {
    per_second: f64,
    calls: f64,
    errors: u64,
    gave_up: u64,
}

/// Decisions a second, calls a decision, errors. `only`: the names of the ways to run, or parts of them, with commas;
/// `workload`: the one to run. What a flush takes is told: a way that waits for the disk with its row locked depends on it.
pub fn compare(only: &str, workload: &str) {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["max_connections=200"]);
    println!(
        "\n## PostgreSQL, {TASKS} tasks, fsync on, defaults; everything allowed; middle of {ROUNDS} rounds\n"
    );
    println!("To flush 8 KiB takes {} us.\n", flush_takes().as_micros());
    println!(
        "| workload | way | decisions/s | x | calls/req | 40001 errors | given up |\n|---|---|---|---|---|---|---|"
    );
    let ways: Vec<_> = WAYS
        .iter()
        .filter(|(_, _, name)| only.split(',').any(|part| name.contains(part)))
        .collect();
    for per_user in [false, true] {
        let named = if per_user { "per_user" } else { "hot_key" };
        if !named.contains(workload) {
            continue;
        }
        let mut rounds: Vec<Vec<Figures>> = ways.iter().map(|_| Vec::new()).collect();
        for _ in 0..ROUNDS {
            for (figures, way) in rounds.iter_mut().zip(&ways) {
                figures.push(round(&server.url(), **way, per_user));
            }
        }
        let mut first = None;
        for (mut figures, (_, _, name)) in rounds.into_iter().zip(&ways) {
            figures.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
            let Figures {
                per_second,
                calls,
                errors,
                gave_up,
            } = figures.remove(ROUNDS / 2);
            let first = *first.get_or_insert(per_second);
            println!(
                "| {named} | {name} | {per_second:.0} | {:.1} | {calls:.4} | {errors} | {gave_up} |",
                per_second / first,
            );
        }
    }
}

/// What one flush of a page takes where the servers have their files: the middle one of many.
pub fn flush_takes() -> Duration {
    let mut file = tempfile::tempfile().expect("a file");
    let mut spans = std::array::from_fn::<_, 201, _>(|_| {
        file.rewind().expect("a start");
        let began = Instant::now();
        file.write_all(&[1; 8192]).expect("a page is written");
        file.sync_data().expect("a page is flushed");
        began.elapsed()
    });
    spans.sort_unstable();
    spans[spans.len() / 2]
}

fn round(url: &str, (way, logged, name): (Way, bool, &str), per_user: bool) -> Figures {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let tally = Arc::new(Tally::default());
    let nanos = runtime
        .expect("a runtime")
        .block_on(run(url, way, logged, per_user, &tally));
    tally.assert_all_allowed(name);
    Figures {
        per_second: 1e9 / nanos,
        calls: Tally::read(&tally.calls) as f64 / Tally::read(&tally.decisions).max(1) as f64,
        errors: Tally::read(&tally.errors),
        gave_up: Tally::read(&tally.gave_up),
    }
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .expect("a connection");
    tokio::spawn(connection);
    client
}

async fn run(url: &str, way: Way, logged: bool, per_user: bool, tally: &Arc<Tally>) -> f64 {
    let admin = connect(url).await;
    if matches!(way, Way::Ours | Way::Leased) {
        // A table of its own for every round, as the others have.
        admin
            .batch_execute("DROP TABLE IF EXISTS tollgate_buckets")
            .await
            .expect("a table goes");
        admin.batch_execute(schema_sql()).await.expect("our table");
        if logged {
            admin
                .batch_execute("ALTER TABLE tollgate_buckets SET LOGGED")
                .await
                .expect("a logged table");
        }
        return ours(url, way == Way::Leased, per_user, tally).await;
    }
    let columns = "(key text PRIMARY KEY, tokens double precision, ts timestamptz)";
    let (unlogged, filled) = if logged {
        ("", "")
    } else {
        ("UNLOGGED", "WITH (fillfactor = 50)")
    };
    let table = format!(
        "DROP TABLE IF EXISTS classic; CREATE {unlogged} TABLE classic {columns} {filled}; {CLASSIC}"
    );
    admin
        .batch_execute(&table)
        .await
        .expect("the classic table");
    let mut clients = Vec::new();
    for _ in 0..TASKS {
        let client = connect(url).await;
        if matches!(way, Way::Serializable | Way::Asynchronous) {
            client
                .batch_execute("SET default_transaction_isolation = serializable")
                .await
                .expect("a setting");
        }
        if way == Way::Asynchronous {
            client
                .batch_execute("SET synchronous_commit = off")
                .await
                .expect("a setting");
        }
        let statement = if way == Way::Upsert {
            UPSERT
        } else {
            "SELECT classic_take($1, $2, $3)"
        };
        let statement = client.prepare(statement).await.expect("a statement");
        clients.push((Arc::new(client), statement));
    }
    closed_loop(TASKS, SPAN, tally, |task, end| {
        let ((client, statement), tally) = (clients[task].clone(), tally.clone());
        async move {
            let (mut turn, rate) = (0, PLENTY as f64);
            while Instant::now() < end {
                turn += 1;
                let key = key(per_user, task, turn);
                for attempt in 1..=20 {
                    Tally::count(&tally.calls, 1);
                    if let Ok(row) = client.query_opt(&statement, &[&key, &rate, &rate]).await {
                        // The upsert returns no row where it refuses.
                        let granted = row.is_some_and(|row| row.get(0));
                        Tally::count(&tally.granted, u64::from(granted));
                        break;
                    }
                    Tally::count(&tally.errors, 1);
                    Tally::count(&tally.gave_up, u64::from(attempt == 20));
                }
                Tally::count(&tally.decisions, 1);
            }
        }
    })
    .await
}

fn start(url: &str) -> Arc<RemoteStore> {
    let options = RemoteOptions {
        synchronous_commit: false,
        ..options()
    };
    Arc::new(postgres::start(url, &Tls::default(), options).expect("a thread"))
}

/// As [`crate::redis_ways::over_grant`], ours alone.
pub fn over_grant() {
    if !Postgres::available() {
        return;
    }
    println!("\n## Over-grant, PostgreSQL: burst 10, 10/s, 64 tasks a process, 3 s, one key\n");
    println!("| processes | granted | at most | calls/req |\n|---|---|---|---|");
    for processes in [1, 2, 3, 4] {
        let server = Postgres::start_with(&["max_connections=200"]);
        let ([granted, _, calls, decisions], span) = together(&server.url(), "Tollgate", processes);
        let most = (10.0 + 10.0 * span).floor();
        println!(
            "| {processes} | {granted:.0} | {most:.0} | {:.6} |",
            calls / decisions
        );
        assert!(granted <= most, "ours over-granted");
    }
}

/// One process of the over-grant test: prints granted, gave up, calls, decisions, from when and to when it asked.
pub fn one_gateway(url: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let store = start(url);
        assert!(store.ready(Duration::from_secs(10)).await, "connected");
        let (limit, tally, began) = (limit(10, 10), Arc::new(Tally::default()), now());
        closed_loop(TASKS, OVER_GRANT, &tally, |_, end| {
            let (store, limit, tally) = (store.clone(), limit.clone(), tally.clone());
            async move {
                let claim = [Claim::new(&limit, b"hot", 1)];
                while Instant::now() < end {
                    let granted = store.draw(&claim).await.is_ok_and(|draw| draw.granted);
                    Tally::count(&tally.granted, u64::from(granted));
                    Tally::count(&tally.decisions, 1);
                    tokio::task::yield_now().await;
                }
            }
        })
        .await;
        let (granted, decisions) = (Tally::read(&tally.granted), Tally::read(&tally.decisions));
        let calls = store.counters().calls.load(Ordering::Relaxed);
        println!("{granted} 0 {calls} {decisions} {began} {}", now());
    });
}

async fn ours(url: &str, lease: bool, per_user: bool, tally: &Arc<Tally>) -> f64 {
    let store = start(url);
    assert!(store.ready(Duration::from_secs(5)).await, "connected");
    let limit = if lease {
        leased(PLENTY, PLENTY)
    } else {
        limit(PLENTY, PLENTY)
    };
    drive(&store, &limit, TASKS, per_user, tally).await
}

/// Asks a store from so many tasks; nanoseconds per decision.
pub async fn drive(
    store: &Arc<RemoteStore>,
    limit: &Arc<Limit>,
    tasks: usize,
    per_user: bool,
    tally: &Arc<Tally>,
) -> f64 {
    let nanos = closed_loop(tasks, SPAN, tally, |task, end| {
        let (store, limit, tally) = (store.clone(), limit.clone(), tally.clone());
        async move {
            let mut turn = 0;
            while Instant::now() < end {
                turn += 1;
                let key = key(per_user, task, turn);
                let claim = Claim::new(&limit, key.as_bytes(), 1);
                match store.draw(&[claim]).await {
                    Ok(draw) => Tally::count(&tally.granted, u64::from(draw.granted)),
                    Err(_) => {
                        Tally::count(&tally.errors, 1);
                        Tally::count(&tally.failed, 1);
                    }
                }
                Tally::count(&tally.decisions, 1);
            }
        }
    })
    .await;
    Tally::count(&tally.calls, store.counters().calls.load(Ordering::Relaxed));
    nanos
}
