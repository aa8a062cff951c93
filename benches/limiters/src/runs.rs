//! How a figure is taken.

use std::hint::black_box;
use std::process::Command;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use crate::keys::{KEY, Stream};
use crate::peers::Limiter;

/// The stream's keys in the form `L` wants.
pub fn keys<L: Limiter>(stream: &Stream) -> Vec<L::Key> {
    stream.keys().iter().map(L::key).collect()
}

/// The least of five passes, or of as many as begin within [`FIGURE`]: on a machine that others use, what disturbs a
/// pass only ever makes it longer.
pub fn least(mut pass: impl FnMut() -> f64) -> f64 {
    let start = Instant::now();
    let mut least = pass();
    for _ in 1..5 {
        if start.elapsed() >= FIGURE {
            break;
        }
        least = least.min(pass());
    }
    least
}

/// Nanoseconds this thread has had of a processor, so that waiting for one is not counted.
pub fn worked() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Runs this program again with `arguments`, in a process of its own so that memory is counted from nothing, and reads
/// the numbers it prints.
pub fn apart(arguments: &[&str]) -> Vec<f64> {
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program).args(arguments).output().expect("runs again");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// What a limiter must answer for its figure to count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Every request is allowed.
    Allowed,
    /// Of a key that all callers share one request is allowed, and no other.
    Refused,
}

impl Expect {
    /// # Panics
    /// When the limiter does not do the work.
    fn verify<L: Limiter>(self, allowed: usize, asked: usize) {
        let right = match self {
            Self::Allowed => allowed == asked,
            Self::Refused => allowed <= 1,
        };
        assert!(right, "{}: {allowed} of {asked} allowed", L::NAME);
    }
}

/// Nanoseconds per decision.
pub fn throughput<L: Limiter>(limiter: &L, keys: &[L::Key], expect: Expect) -> f64 {
    let work = keys.len().min(2_000_000 / L::PACE);
    let mut allowed = 0;
    let start = worked();
    for key in &keys[..work] {
        allowed += usize::from(black_box(limiter.check(key)));
    }
    let each = (worked() - start) / work as f64;
    expect.verify::<L>(allowed, work);
    each
}

/// Two threads at once.
#[derive(Clone, Copy)]
pub struct Pair {
    /// Nanoseconds of processor time per decision and thread.
    pub each: f64,
    /// The share of the time in which both surely ran: what their processor time comes to beyond one processor's.
    pub overlap: f64,
}

/// Two threads, each on a processor of its own, from a common start for [`WINDOW`]. Of ten such passes the quickest of
/// those in which they ran together all but all of the time; if there is none, the one in which they did most. (The
/// quickest of all would be the one in which they got least into each other's way.)
pub fn pair<L: Limiter>(limiter: &L, keys: &[L::Key], expect: Expect) -> Pair {
    let mut best = one_pair(limiter, keys, expect);
    for _ in 1..10 {
        let next = one_pair(limiter, keys, expect);
        let better = match (best.overlap >= TOGETHER, next.overlap >= TOGETHER) {
            (true, true) => next.each < best.each,
            (false, false) => next.overlap > best.overlap,
            (_, next) => next,
        };
        if better {
            best = next;
        }
    }
    best
}

fn one_pair<L: Limiter>(limiter: &L, keys: &[L::Key], expect: Expect) -> Pair {
    let allowed = sched_getaffinity(None).expect("known");
    let processors: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|number| allowed.is_set(*number)).take(2).collect();
    let barrier = Barrier::new(2);
    let half = keys.len() / 2;
    let work = |place: usize| {
        let mut own = CpuSet::new();
        own.set(processors[place % processors.len()]);
        sched_setaffinity(None, &own).expect("an allowed processor");
        let keys = &keys[place * half..][..half];
        let mut batches = keys.chunks(256).cycle();
        barrier.wait();
        let (begun, start, mut done, mut granted) = (Instant::now(), worked(), 0, 0);
        while begun.elapsed() < WINDOW {
            let batch = batches.next().expect("it cycles");
            for key in batch {
                granted += usize::from(black_box(limiter.check(key)));
            }
            done += batch.len();
        }
        let (ended, spent) = (Instant::now(), worked() - start);
        expect.verify::<L>(granted, done);
        (begun, ended, spent, done as f64)
    };
    let (one, two) = std::thread::scope(|scope| {
        let workers = [0, 1].map(|place| scope.spawn(move || work(place)));
        let [one, two] = workers.map(|worker| worker.join().expect("no panic"));
        (one, two)
    });
    let wall = (one.1.max(two.1) - one.0.min(two.0)).as_nanos() as f64;
    Pair { each: (one.2 / one.3 + two.2 / two.3) / 2.0, overlap: ((one.2 + two.2) / wall - 1.0).clamp(0.0, 1.0) }
}

/// What one request sees that does not overlap with the next; every request is allowed.
pub fn fenced<L: Limiter>(limiter: &L, keys: &[L::Key]) -> f64 {
    let work = keys.len().min(1_000_000 / L::PACE);
    let mut allowed = 0;
    let start = worked();
    for key in &keys[..work] {
        allowed += usize::from(black_box(limiter.check(key)));
        fence();
    }
    let each = (worked() - start) / work as f64;
    Expect::Allowed.verify::<L>(allowed, work);
    each
}

/// Serialises: no later load starts before this.
fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2, of which `lfence` is a part, is in every x86-64.
    unsafe {
        std::arch::x86_64::_mm_lfence();
    }
}

/// What isolated decisions of two limiters come to, taken in alternation.
pub struct Beside {
    /// Nanoseconds per decision of each, the median of the rounds.
    pub each: [f64; 2],
    /// The first by the second: the median of the rounds' ratios, the least and the greatest.
    pub ratio: [f64; 3],
}

/// Both limiters in one process, each over a table of the same size in pages of the same size, asked for the same keys in short
/// rounds: whatever disturbs a round disturbs both. No round repeats keys that are still in the cache from the one before.
pub fn beside<A, B>(a: &A, b: &B, a_keys: &[A::Key], b_keys: &[B::Key]) -> Beside
where
    A: Limiter,
    B: Limiter,
{
    let (mut ones, mut others, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let part = round % PARTS;
        let of = |length: usize| part * length / PARTS..(part + 1) * length / PARTS;
        let (a_keys, b_keys) = (&a_keys[of(a_keys.len())], &b_keys[of(b_keys.len())]);
        let (one, other) = if round % 2 == 0 {
            let one = fenced(a, a_keys);
            (one, fenced(b, b_keys))
        } else {
            let other = fenced(b, b_keys);
            (fenced(a, a_keys), other)
        };
        ones.push(one);
        others.push(other);
        ratios.push(one / other);
    }
    for figures in [&mut ones, &mut others, &mut ratios] {
        figures.sort_by(f64::total_cmp);
    }
    let middle = ROUNDS / 2;
    Beside { each: [ones[middle], others[middle]], ratio: [ratios[middle], ratios[0], ratios[ROUNDS - 1]] }
}

/// Asks for `count` keys once each, for no longer than [`FILL`]; how many it came to.
pub fn fill(count: usize, mut visit: impl FnMut(&[u8; KEY]) -> bool) -> usize {
    let start = Instant::now();
    let mut filled = 0;
    Stream::each(count, |key| {
        if filled % 1024 != 0 || start.elapsed() < FILL {
            black_box(visit(key));
            filled += 1;
            return true;
        }
        false
    });
    filled
}

/// Nanoseconds per call over the whole stream.
pub fn timed(stream: &Stream, mut call: impl FnMut(&[u8; KEY]) -> bool) -> f64 {
    let mut allowed = 0;
    let start = worked();
    for key in stream.keys() {
        allowed += usize::from(black_box(call(key)));
    }
    let each = (worked() - start) / stream.keys().len() as f64;
    assert_eq!(allowed, stream.keys().len(), "every request is allowed");
    each
}

/// As [`timed`], each call alone: none begins before the one before it has ended, as requests come to a gateway.
pub fn timed_alone(stream: &Stream, mut call: impl FnMut(&[u8; KEY]) -> bool) -> f64 {
    timed(stream, |key| {
        let granted = call(key);
        fence();
        granted
    })
}

/// Resident bytes of this process.
pub fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap_or(0) * 1024
}

/// How long one figure's passes may go on beginning.
const FIGURE: Duration = Duration::from_secs(4);

/// How long filling a limiter with keys may take; beyond it the row says how far it came.
const FILL: Duration = Duration::from_secs(40);

/// How often two limiters take turns, and in how many parts of the keys.
const ROUNDS: usize = 48;
const PARTS: usize = 16;

/// How long two threads run.
const WINDOW: Duration = Duration::from_millis(150);

/// From which overlap on a figure of two threads counts as one.
pub const TOGETHER: f64 = 0.95;
