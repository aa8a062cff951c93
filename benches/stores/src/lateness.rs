//! How late answers come that the store gives at their deadlines, through conflicts, beside plain timers for the same moments.
//!
//! On a machine with other work every timer is late now and then. So each decision starts a timer for its deadline on a thread
//! with nothing else to do, which tells the task by a channel, as the store's thread does: what answers are later than those
//! timers is due to the store, and the rest is due to the machine.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tollgate_limit::{Claim, Micros};
use tollgate_store::postgres::spanning_schema_sql;
use tollgate_store::{RemoteOptions, Store};

use crate::bench::{Tally, budget, closed_loop, key, options, runtime};
use crate::servers::{Postgres, Spanning};
use crate::sql_ways::start;

const TASKS: usize = 64;
const USERS: usize = 10_000;
const SPAN: Duration = Duration::from_secs(20);

/// The share of statements and COMMITs that meet conflicts, in percent, and `answer_within`.
const ROWS: [(u64, Micros); 3] = [
    (10, Micros(100_000)),
    (10, Micros(20_000)),
    (50, Micros(100_000)),
];

/// By how much an answer and the timer for its deadline were late, in microseconds.
struct Pair {
    answer: i64,
    timer: i64,
}

/// A moment, and the channel of the task that waits for it.
type Wake = (Instant, oneshot::Sender<()>);

/// Starts a thread that tells tasks when their moments have come.
fn timers() -> mpsc::UnboundedSender<Wake> {
    let (sender, mut receiver) = mpsc::unbounded_channel::<Wake>();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            while let Some((moment, mut wake)) = receiver.recv().await {
                tokio::spawn(async move {
                    tokio::select! {
                        () = tokio::time::sleep_until(moment.into()) => {
                            let _ = wake.send(());
                        }
                        () = wake.closed() => {}
                    }
                });
            }
        });
    });
    sender
}

pub fn measure() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&["max_connections=200", "fsync=off"]);
    let proxy = Spanning::to(server.port);
    println!(
        "\n## Answers at their deadlines, {TASKS} tasks, {USERS} callers, {SPAN:?} a row; milliseconds late: 50, 90, 99 %, most\n\n\
         | conflicts | answer_within | decisions | at their deadlines | answers | timers | answers less timers |\n\
         |---|---|---|---|---|---|---|"
    );
    for (percent, within) in ROWS {
        let fresh = format!(
            "DROP SCHEMA public CASCADE; CREATE SCHEMA public; {}",
            spanning_schema_sql()
        );
        server.psql("postgres", &fresh);
        let tally = Arc::new(Tally::default());
        let pairs = runtime().block_on(run(&proxy, percent, within, &tally));
        let of = |late: fn(&Pair) -> i64| quantiles(pairs.iter().map(late).collect());
        println!(
            "| {percent} % | {} ms | {} | {} | {} | {} | {} |",
            within.0 / 1000,
            Tally::read(&tally.decisions),
            pairs.len(),
            of(|pair| pair.answer),
            of(|pair| pair.timer),
            of(|pair| pair.answer - pair.timer),
        );
    }
}

fn quantiles(mut late: Vec<i64>) -> String {
    late.sort_unstable();
    let at = |percent: usize| {
        let place = late.len().saturating_sub(1) * percent / 100;
        let micros = late.get(place).copied().unwrap_or(0);
        format!("{:.1}", micros as f64 / 1e3)
    };
    [50, 90, 99, 100].map(at).join(" / ")
}

/// The decisions whose answers came at their deadlines or later.
async fn run(proxy: &Spanning, percent: u64, within: Micros, tally: &Arc<Tally>) -> Vec<Pair> {
    let own = RemoteOptions {
        answer_within: within,
        ..options()
    };
    proxy.disturb(0);
    let (store, limit) = (start(&proxy.url(), own), budget());
    assert!(store.ready(Duration::from_secs(10)).await, "connected");
    proxy.disturb(percent);
    let (timers, pairs) = (timers(), Arc::new(Mutex::new(Vec::new())));
    closed_loop(TASKS, SPAN, tally, |task, end| {
        let (store, limit, tally) = (store.clone(), limit.clone(), tally.clone());
        let (timers, pairs) = (timers.clone(), pairs.clone());
        async move {
            let (mut turn, mut began) = (0, Instant::now());
            while began < end {
                turn += 1;
                let key = key(USERS, task, turn);
                let claim = [Claim::new(&limit, key.as_bytes(), 1)];
                let deadline = began + Duration::from(within);
                let (wake, woken) = oneshot::channel();
                timers.send((deadline, wake)).expect("the thread of timers");
                let mut woken = pin!(async {
                    woken.await.expect("the thread of timers");
                    Instant::now()
                });
                let mut drawn = pin!(async { (store.draw(&claim).await.is_ok(), Instant::now()) });
                let (is_ok, answered, woken) = tokio::select! {
                    biased;
                    (is_ok, answered) = &mut drawn => match answered < deadline {
                        true => (is_ok, answered, None),
                        false => (is_ok, answered, Some(woken.await)),
                    },
                    woken = &mut woken => {
                        let (is_ok, answered) = drawn.await;
                        (is_ok, answered, Some(woken))
                    }
                };
                Tally::count(&tally.decisions, 1);
                if let Some(woken) = woken {
                    let late = |moment: Instant| (moment - deadline).as_micros() as i64;
                    let pair = Pair {
                        answer: late(answered),
                        timer: late(woken),
                    };
                    pairs.lock().expect("no panic").push(pair);
                }
                if !is_ok {
                    // An open circuit is answered at once: asking again at once would measure that.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                began = Instant::now();
            }
        }
    })
    .await;
    std::mem::take(&mut *pairs.lock().expect("no panic"))
}
