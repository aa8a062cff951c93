//! Servers of a test's own: started on free ports in a directory of their own, stopped when the test ends.

mod galera;
mod kinds;
mod maria;
mod pooler;
mod postgres;
mod process;
mod redis;
mod slow;
mod spanning;

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

pub use galera::Galera;
pub use kinds::{QUICK, Server, StoreKind, views};
pub use maria::Maria;
pub use pooler::Pooler;
pub use postgres::Postgres;
pub use process::Process;
pub use redis::{Redis, ask, ask_as};
pub use slow::SlowNetwork;
pub use spanning::Spanning;

/// A port without a listener at this moment, nor on the one 10 000 above it, where a node of a
/// Redis Cluster wants its bus. The kernel gives none of these to a connection meanwhile: its own
/// begin at 32 768. Each port is given out once, because tests that run beside each other bind
/// theirs later.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let mut given = GIVEN.lock().expect("no test panics in here");
    let mut ports = std::iter::repeat_with(|| fastrand::u16(10_000..20_000)).take(1_000);
    let port = ports
        .find(|port| !given.contains(port) && free(*port) && free(port + 10_000))
        .expect("a free port");
    given.insert(port);
    port
}

/// Whether a test that needs `program` can run. A laptop without it skips loudly; CI fails.
pub fn available(program: &str) -> bool {
    let found = available_quietly(program);
    if !found {
        assert!(
            std::env::var("CI").as_deref() != Ok("true"),
            "CI must not skip: {program} is not installed"
        );
        eprintln!("SKIPPED: {program} is not installed; this test checked nothing");
    }
    found
}

/// A directory of this process's. Those of processes that are no more are removed: one that is killed leaves its own.
fn directory() -> tempfile::TempDir {
    const PREFIX: &str = "tollgate-test-";
    for entry in std::fs::read_dir(std::env::temp_dir())
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split_once('-'))
            .and_then(|(pid, _)| pid.parse().ok());
        if owner.is_some_and(|pid: u32| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    let prefix = format!("{PREFIX}{}-", std::process::id());
    tempfile::Builder::new()
        .prefix(&prefix)
        .tempdir()
        .expect("a directory")
}

fn available_quietly(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}

/// How long a test waits for what must happen: far longer than it takes, since servers start slowly on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits for an event.
pub fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !happened() {
        assert!(Instant::now() < deadline, "no {what} within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for an event without holding up the runtime, at most `bound`; how long it took.
pub async fn eventually(
    what: &str,
    bound: Duration,
    mut happened: impl AsyncFnMut() -> bool,
) -> Duration {
    let start = Instant::now();
    while !happened().await {
        assert!(start.elapsed() < bound, "no {what} within {bound:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    start.elapsed()
}

fn root() -> bool {
    Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|output| output.stdout == b"0\n")
}
