//! PostgreSQL: the literature's function and ours, on the server's own tables, on views and through conflicts.

use std::io::{Seek, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, NoTls, Statement};
use tollgate_limit::{Claim, Limit, Micros};
use tollgate_store::postgres::{self, schema_sql, spanning_schema_sql};
use tollgate_store::tls::Tls;
use tollgate_store::{RemoteOptions, RemoteStore, Store};

use crate::bench::{
    BUDGET, OVER_GRANT, PLENTY, SPAN, Tally, budget, closed_loop, key, leased, limit, now, options,
    runtime, together,
};
use crate::servers::{Postgres, Spanning, views};

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// The function, called by a connection for each task and tried again up to 20 times.
    Classic,
    Ours,
    Leased,
}

/// A way, the statements that make its tables, and its name.
type Way = (Kind, fn() -> String, &'static str);

const CLASSIC: Way = (Kind::Classic, || FUNCTION.into(), "classic, SERIALIZABLE");
/// On logged tables of the server's own our commits wait for no disk; on views they do, as the server's default is.
const WAYS: [Way; 7] = [
    CLASSIC,
    (Kind::Ours, || schema_sql().into(), "Tollgate"),
    (Kind::Ours, logged, "Tollgate, logged"),
    (Kind::Leased, || schema_sql().into(), "Tollgate, leased"),
    (Kind::Leased, logged, "Tollgate, leased, logged"),
    (Kind::Ours, unlogged_views, "Tollgate, views"),
    (Kind::Ours, views, "Tollgate, views, logged"),
];
/// Through the proxy the tables are no views: the name of the database is that of one that spans machines.
const SPANNING: Way = (Kind::Ours, || spanning_schema_sql().into(), "Tollgate");

fn unlogged_views() -> String {
    views().replace("CREATE TABLE", "CREATE UNLOGGED TABLE")
}

fn logged() -> String {
    format!("{}; ALTER TABLE tollgate_buckets SET LOGGED", schema_sql())
}

const TASKS: usize = 64;
/// Each figure is the middle one of so many rounds, which take turns: a noisy machine is noisy to all.
const ROUNDS: usize = 3;
/// As long as a gateway's requests wait for a database that spans machines.
const ANSWER_WITHIN: Micros = Micros(100_000);

/// The algorithm of "Rate limiting with PostgreSQL / YugabyteDB" by F. Pachot: tokens are whole, and -1 is a refusal.
const FUNCTION: &str = "
CREATE TABLE rate_limiting_token_bucket (id text PRIMARY KEY, tk bigint NOT NULL, ts timestamptz NOT NULL);
CREATE FUNCTION rate_limiting_token_bucket_request(rate_id text, refill_per_sec int, window_seconds int) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    most bigint := refill_per_sec::bigint * window_seconds;
    rest bigint;
BEGIN
    UPDATE rate_limiting_token_bucket SET
        tk = greatest(-1, least(most, tk - 1 + refill_per_sec * extract(epoch FROM clock_timestamp() - ts))),
        ts = clock_timestamp()
    WHERE id = rate_id RETURNING tk INTO rest;
    IF NOT FOUND THEN
        INSERT INTO rate_limiting_token_bucket VALUES (rate_id, most - 1, clock_timestamp()) RETURNING tk INTO rest;
    END IF;
    RETURN rest;
END $$";
const CALL: &str = "SELECT rate_limiting_token_bucket_request($1, $2, $3)";

/// A name, the number of users, and whether ten a second are allowed; otherwise everything is.
type Workload = (&'static str, usize, bool);

const WORKLOADS: [Workload; 3] = [
    ("hot_key", 1, false),
    ("per_user", 10_000, false),
    ("ten_a_second", 1, true),
];

/// What a round counted.
struct Figures {
    /// Without decisions that ended in an error.
    per_second: f64,
    calls: f64,
    /// Microseconds of a decision: of the server's processes, and of this one.
    cpu: [f64; 2],
    seconds: f64,
    /// What the bucket of the hot key was charged.
    charged: u64,
    /// By how many microseconds a timer of this process was late at most.
    stalled: u64,
    tally: Arc<Tally>,
}

/// Decisions a second, calls a decision, errors. `only`: the names of the ways to run, or parts of them, with commas;
/// `workload`: the one to run, or `conflicts`. The time of a flush is printed: a way that waits for the disk with its
/// row locked depends on it.
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
        "| workload | way | decisions/s | x | calls/req | server CPU us | own CPU us | errors tried again | failed |\n\
         |---|---|---|---|---|---|---|---|---|"
    );
    let ways: Vec<_> = WAYS
        .into_iter()
        .filter(|way| is_wanted(only, way))
        .collect();
    for asked @ (named, _, is_limited) in WORKLOADS {
        if is_limited || !named.contains(workload) {
            continue;
        }
        let mut rounds: Vec<Vec<Figures>> = ways.iter().map(|_| Vec::new()).collect();
        for _ in 0..ROUNDS {
            for (figures, way) in rounds.iter_mut().zip(&ways) {
                figures.push(round(&server, None, *way, asked, SPAN));
            }
        }
        let mut first = None;
        for (mut figures, (_, _, name)) in rounds.into_iter().zip(&ways) {
            figures.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
            let Figures {
                per_second,
                calls,
                cpu: [theirs, own],
                tally,
                ..
            } = figures.remove(ROUNDS / 2);
            let [errors, failed] = [&tally.errors, &tally.failed].map(Tally::read);
            let first = *first.get_or_insert(per_second);
            println!(
                "| {named} | {name} | {per_second:.0} | {:.1} | {calls:.4} | {theirs:.2} | {own:.2} | {errors} | {failed} |",
                per_second / first,
            );
        }
    }
    if "conflicts".contains(workload) {
        conflicts(only);
    }
}

fn is_wanted(only: &str, (_, _, name): &Way) -> bool {
    only.split(',').any(|part| name.contains(part))
}

/// Through a proxy that has a share of the statements and COMMITs meet conflicts. No commit waits for the disk, which may
/// take longer than a request waits.
fn conflicts(only: &str) {
    let server = Postgres::start_with(&["max_connections=200", "fsync=off"]);
    println!(
        "\n## PostgreSQL through conflicts, {TASKS} tasks, fsync off, {OVER_GRANT:?}; answer_within 100 ms\n\n\
         | percent | workload | way | decisions/s | calls/req | failed | granted | of | longest ms | a timer late ms |\n\
         |---|---|---|---|---|---|---|---|---|---|"
    );
    let proxy = Spanning::to(server.port);
    for percent in [0, 1, 10, 50] {
        let both = WORKLOADS.map(|asked| [(asked, CLASSIC), (asked, SPANNING)]);
        for (asked @ (named, users, is_limited), way) in both.into_iter().flatten() {
            if !is_wanted(only, &way) {
                continue;
            }
            let figures = round(&server, Some((&proxy, percent)), way, asked, OVER_GRANT);
            let Figures {
                per_second,
                calls,
                seconds,
                charged,
                stalled,
                tally,
                ..
            } = figures;
            let [granted, failed, longest] =
                [&tally.granted, &tally.failed, &tally.longest].map(Tally::read);
            let counted = match (users, is_limited) {
                (1, false) => format!("{charged} charged"),
                (_, false) => String::new(),
                (_, true) => format!("at most {:.0}", (10.0 + 10.0 * seconds).floor()),
            };
            println!(
                "| {percent} | {named} | {} | {per_second:.0} | {calls:.4} | {failed} | {granted} | {counted} | {:.1} | {:.1} |",
                way.2,
                longest as f64 / 1e3,
                stalled as f64 / 1e3,
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

/// CPU time so far in microseconds: of the server's processes, and of this one.
fn cpu(server: &Postgres) -> [f64; 2] {
    let of = |pid: u32| -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        // These four fields are of the process and of those that it has waited for, in ticks of 10 ms.
        let ticks = fields.split_whitespace().skip(11).take(4);
        ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum()
    };
    let servers: f64 = server.pids().into_iter().map(of).sum();
    [servers, of(std::process::id())].map(|ticks| ticks * 10_000.0)
}

/// Measures until it is aborted by how many microseconds a timer is late at most.
async fn stalls(longest: Arc<AtomicU64>) {
    let tick = Duration::from_millis(1);
    loop {
        let began = Instant::now();
        tokio::time::sleep(tick).await;
        let late = began.elapsed().saturating_sub(tick).as_micros() as u64;
        longest.fetch_max(late, Ordering::Relaxed);
    }
}

/// One round of a way, on tables of its own.
fn round(
    server: &Postgres,
    through: Option<(&Spanning, u64)>,
    (kind, tables, name): Way,
    asked @ (_, _, is_limited): Workload,
    span: Duration,
) -> Figures {
    let fresh = format!(
        "DROP SCHEMA public CASCADE; CREATE SCHEMA public; {}",
        tables()
    );
    server.psql("postgres", &fresh);
    let tally = Arc::new(Tally::default());
    let figures = runtime().block_on(async {
        let way = Asker::connect(server, through, kind, is_limited).await;
        if let Some((proxy, percent)) = through {
            proxy.disturb(percent);
        }
        let stalled = Arc::new(AtomicU64::new(0));
        let timer = tokio::spawn(stalls(stalled.clone()));
        let (before, began) = (cpu(server), Instant::now());
        way.ask(asked, span, &tally).await;
        timer.abort();
        let (after, seconds) = (cpu(server), began.elapsed().as_secs_f64());
        let mut charged = 0;
        if let Some((proxy, _)) = through {
            proxy.disturb(0);
            charged = way.charged().await;
        }
        let decisions = Tally::read(&tally.decisions).max(1) as f64;
        Figures {
            per_second: (decisions - Tally::read(&tally.failed) as f64) / seconds,
            calls: Tally::read(&tally.calls) as f64 / decisions,
            cpu: [0, 1].map(|whose| (after[whose] - before[whose]) / decisions),
            seconds,
            charged,
            stalled: Tally::read(&stalled),
            tally: tally.clone(),
        }
    });
    if through.is_none() {
        tally.assert_all_allowed(name);
    }
    figures
}

/// A way whose connections are established.
enum Asker {
    /// A connection and the prepared call for each task. The proxy disturbs no prepared call and no COMMIT that is part
    /// of one: through it the call is a transaction.
    Classic(Vec<Arc<(Client, Option<Statement>)>>),
    Ours(Arc<RemoteStore>, Arc<Limit>),
}

impl Asker {
    async fn connect(
        server: &Postgres,
        through: Option<(&Spanning, u64)>,
        kind: Kind,
        is_limited: bool,
    ) -> Self {
        let url = through.map_or_else(|| server.url(), |(proxy, _)| proxy.url());
        if kind == Kind::Classic {
            let mut clients = Vec::new();
            for _ in 0..TASKS {
                let (client, connection) = tokio_postgres::connect(&url, NoTls)
                    .await
                    .expect("a connection");
                tokio::spawn(connection);
                let isolation = "SET default_transaction_isolation = serializable";
                client.batch_execute(isolation).await.expect("a setting");
                let call = match through {
                    None => Some(client.prepare(CALL).await.expect("a statement")),
                    Some(_) => None,
                };
                clients.push(Arc::new((client, call)));
            }
            return Self::Classic(clients);
        }
        let mut options = options();
        if through.is_some() {
            options.answer_within = ANSWER_WITHIN;
        }
        let store = start(&url, options);
        assert!(store.ready(Duration::from_secs(10)).await, "connected");
        let limit = match (kind, is_limited, through) {
            (Kind::Leased, ..) => leased(PLENTY, PLENTY),
            (_, true, _) => limit(10, 10),
            (_, _, None) => limit(PLENTY, PLENTY),
            _ => budget(),
        };
        Self::Ours(store, limit)
    }

    async fn ask(&self, (_, users, is_limited): Workload, span: Duration, tally: &Arc<Tally>) {
        let clients = match self {
            Self::Ours(store, limit) => {
                drive(store, limit, TASKS, users, span, tally).await;
                return;
            }
            Self::Classic(clients) => clients,
        };
        let (refill, window) = if is_limited {
            (10, 1)
        } else {
            (1, BUDGET as i32)
        };
        closed_loop(TASKS, span, tally, |task, end| {
            let (client, tally) = (clients[task].clone(), tally.clone());
            async move {
                let (mut turn, mut began) = (0, Instant::now());
                while began < end {
                    turn += 1;
                    let key = key(users, task, turn);
                    for attempt in 1..=20 {
                        Tally::count(&tally.calls, 1);
                        if let Some(rest) = call(&client, &key, refill, window).await {
                            Tally::count(&tally.granted, u64::from(rest >= 0));
                            break;
                        }
                        Tally::count(&tally.errors, 1);
                        Tally::count(&tally.failed, u64::from(attempt == 20));
                    }
                    began = tally.decided(began);
                }
            }
        })
        .await;
    }

    /// What the bucket of the hot key was charged, if all of it is a budget.
    async fn charged(&self) -> u64 {
        let left = match self {
            Self::Classic(clients) => {
                let left = "SELECT min(tk) FROM rate_limiting_token_bucket";
                let row = clients[0].0.query_one(left, &[]).await.expect("a row");
                row.get::<_, i64>(0).max(0) as u64
            }
            Self::Ours(store, limit) => {
                let key = key(1, 0, 0);
                let claim = [Claim::new(limit, key.as_bytes(), 1)];
                let mut left = None;
                for _ in 0..100 {
                    // What was drawn for requests without a response comes back meanwhile.
                    tokio::time::sleep(2 * Duration::from(ANSWER_WITHIN)).await;
                    left = store.peek(&claim).await.ok();
                    if left.is_some() {
                        break;
                    }
                }
                left.expect("a standing")[0].remaining()
            }
        };
        BUDGET - left
    }
}

/// The rest that the function returns; `None`: an error.
async fn call(
    (client, prepared): &(Client, Option<Statement>),
    key: &str,
    refill: i32,
    window: i32,
) -> Option<i64> {
    if let Some(prepared) = prepared {
        let row = client.query_one(prepared, &[&key, &refill, &window]).await;
        return row.ok().map(|row| row.get(0));
    }
    let parameters: [(&(dyn ToSql + Sync), Type); 3] = [
        (&key, Type::TEXT),
        (&refill, Type::INT4),
        (&window, Type::INT4),
    ];
    let (_, row, committed) = tokio::join!(
        client.batch_execute("BEGIN"),
        client.query_typed_one(CALL, &parameters),
        client.batch_execute("COMMIT"),
    );
    let (row, ()) = row.ok().zip(committed.ok())?;
    Some(row.get(0))
}

pub fn start(url: &str, options: RemoteOptions) -> Arc<RemoteStore> {
    let options = RemoteOptions {
        synchronous_commit: false,
        ..options
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
        let ([granted, _, calls, decisions], span) =
            together(&["one-gateway", &server.url(), "Tollgate"], processes);
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
    runtime().block_on(async {
        let store = start(url, options());
        assert!(store.ready(Duration::from_secs(10)).await, "connected");
        let (limit, tally, began) = (limit(10, 10), Arc::new(Tally::default()), now());
        drive(&store, &limit, TASKS, 1, OVER_GRANT, &tally).await;
        let [granted, calls, decisions] =
            [&tally.granted, &tally.calls, &tally.decisions].map(Tally::read);
        println!("{granted} 0 {calls} {decisions} {began} {}", now());
    });
}

/// Asks a store from so many tasks; nanoseconds per decision.
pub async fn drive(
    store: &Arc<RemoteStore>,
    limit: &Arc<Limit>,
    tasks: usize,
    users: usize,
    span: Duration,
    tally: &Arc<Tally>,
) -> f64 {
    let nanos = closed_loop(tasks, span, tally, |task, end| {
        let (store, limit, tally) = (store.clone(), limit.clone(), tally.clone());
        async move {
            let (mut turn, mut began) = (0, Instant::now());
            while began < end {
                turn += 1;
                let key = key(users, task, turn);
                let claim = Claim::new(&limit, key.as_bytes(), 1);
                let drawn = store.draw(&[claim]).await;
                began = tally.decided(began);
                if drawn.as_ref().is_ok_and(|draw| draw.granted) {
                    Tally::count(&tally.granted, 1);
                    continue;
                }
                if drawn.is_err() {
                    Tally::count(&tally.errors, 1);
                    Tally::count(&tally.failed, 1);
                }
                // A known refusal and an open circuit are answered at once: asking again at once would measure that.
                tokio::time::sleep(Duration::from_millis(10)).await;
                began = Instant::now();
            }
        }
    })
    .await;
    Tally::count(&tally.calls, store.counters().calls.load(Ordering::Relaxed));
    nanos
}
