//! Buckets over the end of the process: a clean stop refills nobody, a crash does what `cold_start` says.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::harness::{Connection, Reply, Upstream, eventually};

/// A running `tollgate`, killed when dropped.
struct Process {
    child: Child,
    address: SocketAddr,
}

impl Process {
    fn start(folder: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["run", "--config"])
            .arg(folder.join("gateway.toml"))
            .env("NO_COLOR", "1")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let mut log = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        let address = loop {
            line.clear();
            assert_ne!(log.read_line(&mut line).expect("text"), 0, "it ended before it listened");
            if let Some((_, address)) = line.split_once("listening").and_then(|(_, rest)| rest.split_once("address=")) {
                break address.trim().parse().expect("an address");
            }
        };
        // What it says later has somewhere to go.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Self { child, address }
    }

    /// The status of a request for each of these paths.
    fn ask(&self, paths: &[&str]) -> Vec<u16> {
        let mut connection = Connection::open(self.address);
        paths.iter().map(|path| connection.request("GET", path, &[]).status).collect()
    }

    fn stop(mut self) {
        let sent = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        assert!(sent.expect("kill(1) is there").success());
        eventually("it ends", || self.child.try_wait().expect("a child").is_some());
    }

    fn crash(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn folder(cold_start: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a directory");
    let mut file = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\ncold_start = \"{cold_start}\"\nstate_file = \"state\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[log]\naccess = \"off\"\n"
    );
    for (name, algorithm) in [
        ("token", "token_bucket"),
        ("interval", "interval"),
        ("window", "fixed_window"),
        ("estimate", "sliding_window"),
        ("log", "sliding_log"),
    ] {
        file.push_str(&format!(
            "[limits.{name}]\nrate = \"3/day\"\nalgorithm = \"{algorithm}\"\nper = \"address\"\n\
             [[routes]]\nmatch = \"/{name}\"\nupstream = \"builtin:echo\"\nlimits = [\"{name}\"]\n"
        ));
    }
    std::fs::write(folder.path().join("gateway.toml"), file).expect("written");
    folder
}

const ALL: [&str; 5] = ["/token", "/interval", "/window", "/estimate", "/log"];

#[test]
fn a_clean_restart_refills_nobody_and_a_crash_starts_as_the_file_says() {
    let here = folder("full");
    let first = Process::start(here.path());
    assert_eq!(first.ask(&ALL), [200; 5]);
    assert_eq!(first.ask(&ALL), [200; 5]);
    first.stop();
    assert!(here.path().join("state").exists(), "saved beside the file");
    let second = Process::start(here.path());
    assert!(!here.path().join("state").exists(), "a crash must not find it again");
    assert_eq!(second.ask(&ALL), [200; 5], "the third of three");
    assert_eq!(second.ask(&ALL), [429; 5], "nobody is refilled");
    second.crash();
    let third = Process::start(here.path());
    assert_eq!(third.ask(&ALL), [200; 5], "after a crash every bucket is full");
}

#[test]
fn what_was_learnt_of_an_upstream_is_known_after_a_clean_restart() {
    let upstream = Upstream::start(|seen| match seen.line().split(' ').nth(1) {
        Some("/later") => Reply::new(503, &[("retry-after", "60")], "later"),
        _ => Reply::ok("done"),
    });
    let here = tempfile::tempdir().expect("a directory");
    let file = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\nstate_file = \"state\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[log]\naccess = \"off\"\n\
         [limits.gentle]\nrate = \"8000/hour\"\nfollow_upstream = {{ least = \"1000/hour\" }}\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"gentle\"]\n",
        upstream.url()
    );
    std::fs::write(here.path().join("gateway.toml"), file).expect("written");
    let left = |process: &Process| {
        let answer = Connection::open(process.address).request("GET", "/", &[]);
        let field = answer.header("ratelimit").unwrap_or_default().to_owned();
        let units = field.split("r=").nth(1).and_then(|rest| rest.split(';').next()?.parse::<u64>().ok());
        units.unwrap_or_else(|| panic!("no units in {field:?}"))
    };
    let first = Process::start(here.path());
    assert!(left(&first) > 7_900);
    assert_eq!(first.ask(&["/later"]), [503]);
    assert!((6_900..=7_000).contains(&left(&first)), "an eighth less, for a minute");
    first.stop();
    let second = Process::start(here.path());
    assert!((6_900..=7_000).contains(&left(&second)), "the new process knows");
    second.crash();
    let third = Process::start(here.path());
    assert!(left(&third) > 7_900, "after a crash it begins anew");
}

#[test]
fn after_a_crash_an_empty_start_gives_nobody_anything() {
    let here = folder("empty");
    let first = Process::start(here.path());
    assert_eq!(first.ask(&ALL), [429; 5]);
    first.stop();
    assert_eq!(Process::start(here.path()).ask(&ALL), [429; 5]);
}
