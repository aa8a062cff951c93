//! PostgreSQL: UPDATE then INSERT in a SERIALIZABLE function, one upsert a request, and ours.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio_postgres::{Client, NoTls};
use tollgate::clock::Clock;
use tollgate::limit::{Claim, Micros};
use tollgate::store::Store;
use tollgate::store::postgres::PostgresOptions;

use crate::bench::{SPAN, Tally, closed_loop, key, limit};
use crate::servers::Postgres;

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Serializable,
    Upsert,
    Ours,
}

const WAYS: [(Way, &str); 3] = [
    (Way::Serializable, "UPDATE then INSERT, SERIALIZABLE (20 retries)"),
    (Way::Upsert, "one upsert a request"),
    (Way::Ours, "Tollgate"),
];

const TASKS: usize = 64;
const RATE: u64 = 1_000_000;

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS classic (key text PRIMARY KEY, tokens double precision, ts timestamptz);
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

/// Decisions a second, calls a decision, errors.
pub fn compare() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["max_connections=200"]);
    println!("\n## PostgreSQL, {TASKS} tasks, fsync on, defaults; everything allowed\n");
    println!("| way | workload | decisions/s | calls/req | 40001 errors | given up |\n|---|---|---|---|---|---|");
    for per_user in [false, true] {
        for (way, name) in WAYS {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            let tally = Arc::new(Tally::default());
            let nanos = runtime.expect("a runtime").block_on(run(&server.url(), way, per_user, &tally));
            let decisions = Tally::read(&tally.decisions).max(1) as f64;
            println!(
                "| {name} | {} | {:.0} | {:.4} | {} | {} |",
                if per_user { "per_user" } else { "hot_key" },
                1e9 / nanos,
                Tally::read(&tally.calls) as f64 / decisions,
                Tally::read(&tally.errors),
                Tally::read(&tally.gave_up),
            );
        }
    }
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
    tokio::spawn(connection);
    client
}

async fn run(url: &str, way: Way, per_user: bool, tally: &Arc<Tally>) -> f64 {
    connect(url).await.batch_execute(SCHEMA).await.expect("the classic table");
    if way == Way::Ours {
        return ours(url, per_user, tally).await;
    }
    let mut clients = Vec::new();
    for _ in 0..TASKS {
        let client = connect(url).await;
        if way == Way::Serializable {
            client.batch_execute("SET default_transaction_isolation = serializable").await.expect("a setting");
        }
        let statement = if way == Way::Upsert { UPSERT } else { "SELECT classic_take($1, $2, $3)" };
        let statement = client.prepare(statement).await.expect("a statement");
        clients.push((Arc::new(client), statement));
    }
    closed_loop(TASKS, SPAN, tally, |task, end| {
        let ((client, statement), tally) = (clients[task].clone(), tally.clone());
        async move {
            let (mut turn, rate) = (0, RATE as f64);
            while Instant::now() < end {
                turn += 1;
                let key = key(per_user, task, turn);
                for attempt in 1..=20 {
                    Tally::count(&tally.calls, 1);
                    if client.query_opt(&statement, &[&key, &rate, &rate]).await.is_ok() {
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

async fn ours(url: &str, per_user: bool, tally: &Arc<Tally>) -> f64 {
    let options = PostgresOptions {
        url: url.to_owned(),
        answer_within: Micros::from_secs(2),
        key_secret: b"a benchmark's secret".to_vec(),
        clock: Clock::system(),
        pinned: None,
        local_refusals: true,
        create: true,
        synchronous_commit: true,
    };
    let store = Arc::new(options.start().expect("a thread"));
    assert!(store.ready(Duration::from_secs(5)).await, "connected");
    let limit = limit(RATE, RATE);
    let nanos = closed_loop(TASKS, SPAN, tally, |task, end| {
        let (store, limit, tally) = (store.clone(), limit.clone(), tally.clone());
        async move {
            let mut turn = 0;
            while Instant::now() < end {
                turn += 1;
                let key = key(per_user, task, turn);
                let claim = Claim { limit: &limit, key: key.as_bytes(), cost: 1, enforced: true };
                if store.draw(&[claim]).await.is_err() {
                    Tally::count(&tally.errors, 1);
                }
                Tally::count(&tally.decisions, 1);
            }
        }
    })
    .await;
    Tally::count(&tally.calls, store.counters().calls.load(Ordering::Relaxed));
    nanos
}
