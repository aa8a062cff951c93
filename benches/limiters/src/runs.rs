//! How a figure is taken.

use std::hint::black_box;
use std::process::Command;

use rustix::time::{ClockId, clock_gettime};

use crate::keys::{KEY, Stream};
use crate::peers::Limiter;

/// The stream's keys in the form `L` wants.
pub fn keys<L: Limiter>(stream: &Stream) -> Vec<L::Key> {
    stream.keys().iter().map(L::key).collect()
}

/// The least of five passes: on a machine that others use, what disturbs a pass only ever makes it longer.
pub fn least(mut pass: impl FnMut() -> f64) -> f64 {
    (0..5).map(|_| pass()).fold(f64::INFINITY, f64::min)
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

/// Nanoseconds per decision and thread.
pub fn throughput<L: Limiter>(limiter: &L, keys: &[L::Key], threads: usize) -> f64 {
    let work = 2_000_000 / L::PACE;
    let pass = |offset: usize| {
        let start = worked();
        for key in keys.iter().cycle().skip(offset * keys.len() / 2).take(work) {
            black_box(limiter.check(key));
        }
        (worked() - start) / work as f64
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|offset| scope.spawn(move || pass(offset))).collect();
        workers.into_iter().map(|worker| worker.join().expect("no panic")).sum::<f64>() / threads as f64
    })
}

/// What one request sees that does not overlap with the next.
pub fn fenced<L: Limiter>(limiter: &L, keys: &[L::Key]) -> f64 {
    let work = 1_000_000 / L::PACE;
    let start = worked();
    for key in keys.iter().cycle().take(work) {
        black_box(limiter.check(key));
        // Serialises: no later load starts before this.
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE2, of which `lfence` is a part, is in every x86-64.
        unsafe {
            std::arch::x86_64::_mm_lfence();
        }
    }
    (worked() - start) / work as f64
}

/// Nanoseconds per call over the whole stream.
pub fn timed(stream: &Stream, mut call: impl FnMut(&[u8; KEY]) -> bool) -> f64 {
    let start = worked();
    for key in stream.keys() {
        black_box(call(key));
    }
    (worked() - start) / stream.keys().len() as f64
}

/// Resident bytes of this process.
pub fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap_or(0) * 1024
}
