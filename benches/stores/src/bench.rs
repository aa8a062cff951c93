//! Tasks in closed loops, and limits for them.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tollgate_limit::{
    Algorithm, Align, Kind, Limit, Micros, Mode, OnFailover, Placement, Role, Terms, WhenDown,
};
use tollgate_store::RemoteOptions;
use tollgate_store::clock::Clock;

/// Callers of the per_user workload, in Redis and in MariaDB.
pub const USERS: usize = 1000;
/// Units a second, and the burst, where everything is allowed: more than any way can use up.
pub const PLENTY: u64 = 100_000_000;
/// More units than a run uses up, and few enough for a shared store to count exactly.
pub const BUDGET: u64 = 5_000_000;
/// How long each figure is measured.
pub const SPAN: Duration = Duration::from_millis(1500);

/// What a way of limiting did in one run.
#[derive(Default)]
pub struct Tally {
    pub decisions: AtomicU64,
    pub granted: AtomicU64,
    pub calls: AtomicU64,
    pub gave_up: AtomicU64,
    /// Decisions that ended in an error.
    pub failed: AtomicU64,
    pub errors: AtomicU64,
    /// The longest decision, in microseconds.
    pub longest: AtomicU64,
}

impl Tally {
    pub fn count(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Ordering::Relaxed);
    }

    pub fn read(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    /// Counts a decision that began then; when it ended.
    pub fn decided(&self, began: Instant) -> Instant {
        let ended = Instant::now();
        Self::count(&self.decisions, 1);
        let took = (ended - began).as_micros() as u64;
        if took > Self::read(&self.longest) {
            self.longest.fetch_max(took, Ordering::Relaxed);
        }
        ended
    }

    /// Asserts that every decision was a grant, but for those given up and those the client was told an error for.
    ///
    /// # Panics
    /// When `way` refused something, or decided nothing.
    pub fn assert_all_allowed(&self, way: &str) {
        let [granted, decisions] = [&self.granted, &self.decisions].map(Self::read);
        let failed = Self::read(&self.gave_up) + Self::read(&self.failed);
        assert!(
            granted > 0 && granted + failed == decisions,
            "{way}: {granted} of {decisions} granted, {failed} failed"
        );
    }
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Runs `tasks` tasks, each made by `work(task, end)` and looping until `end`; nanoseconds of wall time per decision.
pub async fn closed_loop<F>(
    tasks: usize,
    span: Duration,
    tally: &Tally,
    work: impl Fn(usize, Instant) -> F,
) -> f64
where
    F: Future<Output = ()> + Send + 'static,
{
    let start = Instant::now();
    let handles: Vec<_> = (0..tasks)
        .map(|task| tokio::spawn(work(task, start + span)))
        .collect();
    for handle in handles {
        handle.await.expect("a task ends well");
    }
    start.elapsed().as_nanos() as f64 / Tally::read(&tally.decisions).max(1) as f64
}

/// What all our stores are told.
pub fn options() -> RemoteOptions {
    RemoteOptions::new(
        Micros::from_secs(2),
        b"a benchmark's secret",
        Clock::system(),
    )
}

/// `amount` a second with this burst, in a shared store.
pub fn limit(amount: u64, burst: u64) -> Arc<Limit> {
    limit_over(Micros::from_secs(1), amount, burst)
}

/// [`BUDGET`] units, of which none is refilled while a benchmark runs: what was charged can be counted.
pub fn budget() -> Arc<Limit> {
    limit_over(Micros::from_secs(1000), 1, BUDGET)
}

fn limit_over(period: Micros, amount: u64, burst: u64) -> Arc<Limit> {
    let terms = Terms {
        kind: Kind::TokenBucket,
        amount,
        period,
        burst: Some(burst),
        align: Align::FirstHit,
        debt: 0,
        max_wait: Micros::ZERO,
        shared: true,
    };
    Arc::new(Limit {
        name: "bench".into(),
        index: 0,
        tier: None,
        role: Role::Live,
        algorithm: Algorithm::new(&terms).expect("a limit that can be represented"),
        mode: Mode::Enforce,
        enforce_for: 10_000,
        placement: Placement::Shared,
        when_down: WhenDown::Refuse,
        on_failover: OnFailover::Keep,
        lease: false,
        memory: 1 << 20,
        refundable: false,
        resettable: false,
        penalty: None,
        currency: None,
        events: Vec::new(),
    })
}

/// Three limits, of which the first is [`limit`]: each has a larger burst than the one before it.
pub fn three(amount: u64, burst: u64) -> Vec<Arc<Limit>> {
    let of = |index: usize, name: &str| {
        let one = limit(amount, burst.saturating_mul(index as u64 + 1));
        Arc::new(Limit {
            name: name.into(),
            index,
            ..Limit::clone(&one)
        })
    };
    vec![of(0, "bench"), of(1, "larger"), of(2, "largest")]
}

/// As [`limit`], leased.
pub fn leased(amount: u64, burst: u64) -> Arc<Limit> {
    Arc::new(Limit {
        lease: true,
        ..Limit::clone(&limit(amount, burst))
    })
}

/// The key of this turn: that of one of so many users.
pub fn key(users: usize, task: usize, turn: usize) -> String {
    // The next caller is drawn at random: SplitMix64 of the requests so far.
    let mut mixed = ((task as u64) << 40 | turn as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    format!("user:{}", (mixed ^ (mixed >> 31)) % users as u64)
}

/// How long each process of the over-grant test asks.
pub const OVER_GRANT: Duration = Duration::from_secs(3);

/// The system's clock, in seconds.
pub fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

/// So many processes of this program with these arguments at once: granted, gave up, calls and decisions of all, and the
/// seconds from the first question to the last.
pub fn together(arguments: &[&str], processes: usize) -> ([f64; 4], f64) {
    let program = std::env::current_exe().expect("this program");
    let start = |_| {
        let mut command = std::process::Command::new(&program);
        command.args(arguments).stdout(std::process::Stdio::piped());
        command.spawn().expect("it starts")
    };
    let children: Vec<_> = (0..processes).map(start).collect();
    let (mut sums, mut first, mut last) = ([0.0; 4], f64::INFINITY, 0.0_f64);
    for child in children {
        let output = child.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let numbers: Vec<f64> = text
            .split_whitespace()
            .map(|word| word.parse().expect("a number"))
            .collect();
        for (sum, number) in sums.iter_mut().zip(&numbers) {
            *sum += number;
        }
        (first, last) = (first.min(numbers[4]), last.max(numbers[5]));
    }
    (sums, last - first)
}
