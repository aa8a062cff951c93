//! Buckets over the end of the process: a clean stop refills no bucket, a crash does what `cold_start` says.

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
        Self::start_with(folder, |_| ())
    }

    fn start_with(folder: &Path, change: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command
            .args(["run", "--config"])
            .arg(folder.join("gateway.toml"))
            .env("NO_COLOR", "1");
        command
            .env_remove("STATE_DIRECTORY")
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().expect("started");
        let mut log = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        let address = loop {
            line.clear();
            assert_ne!(
                log.read_line(&mut line).expect("text"),
                0,
                "it ended before it listened"
            );
            if let Some((_, address)) = line
                .split_once("listening")
                .and_then(|(_, rest)| rest.split_once("address="))
            {
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
        paths
            .iter()
            .map(|path| connection.request("GET", path, &[]).status)
            .collect()
    }

    fn stop(mut self) {
        let sent = Command::new("kill")
            .args(["-TERM", &self.child.id().to_string()])
            .status();
        assert!(sent.expect("kill(1) is there").success());
        eventually("it ends", || {
            self.child.try_wait().expect("a child").is_some()
        });
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
fn a_clean_restart_refills_no_bucket_and_a_crash_starts_as_the_file_says() {
    let here = folder("full");
    let first = Process::start(here.path());
    assert_eq!(first.ask(&ALL), [200; 5]);
    assert_eq!(first.ask(&ALL), [200; 5]);
    first.stop();
    assert!(here.path().join("state").exists(), "saved beside the file");
    let second = Process::start(here.path());
    assert!(
        !here.path().join("state").exists(),
        "a crash must not find it again"
    );
    assert_eq!(second.ask(&ALL), [200; 5], "the third of three");
    assert_eq!(second.ask(&ALL), [429; 5], "no bucket is refilled");
    second.crash();
    let third = Process::start(here.path());
    assert_eq!(
        third.ask(&ALL),
        [200; 5],
        "after a crash every bucket is full"
    );
}

#[test]
fn restart_keeps_learnt_limits_of_upstreams() {
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
        answer.left().unwrap_or_else(|| panic!("{answer:?}"))
    };
    let first = Process::start(here.path());
    assert!(left(&first) > 7_900);
    assert_eq!(first.ask(&["/later"]), [503]);
    assert!(
        (6_900..=7_000).contains(&left(&first)),
        "an eighth less, for a minute"
    );
    first.stop();
    let second = Process::start(here.path());
    assert!(
        (6_900..=7_000).contains(&left(&second)),
        "the new process knows"
    );
    second.crash();
    let third = Process::start(here.path());
    assert!(left(&third) > 7_900, "after a crash it begins anew");
}

#[test]
fn after_a_crash_an_empty_start_gives_no_units_and_the_first_start_is_none() {
    let here = folder("empty");
    let first = Process::start(here.path());
    assert_eq!(first.ask(&ALL), [200; 5], "no request has drawn before");
    first.stop();
    let second = Process::start(here.path());
    assert_eq!(second.ask(&ALL), [200; 5], "a clean stop");
    second.crash();
    let third = Process::start(here.path());
    assert_eq!(third.ask(&ALL), [429; 5]);
    third.stop();
    assert_eq!(
        Process::start(here.path()).ask(&ALL),
        [429; 5],
        "what the crash left is kept as well"
    );
}

#[test]
fn buckets_are_kept_in_the_state_directory_where_the_file_names_none() {
    let (here, kept) = (folder("full"), tempfile::tempdir().expect("a directory"));
    let file = here.path().join("gateway.toml");
    let text = std::fs::read_to_string(&file)
        .expect("written")
        .replace("state_file = \"state\"\n", "");
    std::fs::write(&file, text).expect("written");
    let start = || {
        Process::start_with(here.path(), |command| {
            command.env("STATE_DIRECTORY", kept.path());
        })
    };
    let first = start();
    for _ in 0..3 {
        assert_eq!(first.ask(&ALL), [200; 5]);
    }
    first.stop();
    assert!(
        kept.path().join("gateway.state").exists()
            && !kept.path().join("gateway.state.running").exists()
    );
    assert_eq!(start().ask(&ALL), [429; 5], "no bucket is refilled");
}

#[test]
fn a_state_file_that_cannot_be_written_keeps_a_gateway_from_starting() {
    let here = folder("full");
    let file = here.path().join("gateway.toml");
    let text = std::fs::read_to_string(&file).expect("written");
    let run = |verb: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args([verb, "--config"])
            .arg(&file)
            .output();
        let output = output.expect("the program runs");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    std::fs::write(&file, text.replace("\"state\"", "\"nowhere/state\"")).expect("written");
    for verb in ["check", "run"] {
        let (code, said) = run(verb);
        assert!(
            code == Some(1) && said.contains("state_file") && said.contains("nowhere"),
            "{verb}: {said}"
        );
    }
    // Two gateways would each save over the other's buckets.
    std::fs::write(&file, text).expect("written");
    let first = Process::start(here.path());
    let (code, said) = run("run");
    assert!(
        code == Some(1) && said.contains("another gateway keeps its buckets"),
        "{said}"
    );
    assert_eq!(first.ask(&ALL), [200; 5]);
}

#[test]
fn restart_after_a_start_that_failed_refills_no_bucket() {
    let here = folder("full");
    let file = here.path().join("gateway.toml");
    let text = std::fs::read_to_string(&file).expect("written");
    let first = Process::start(here.path());
    // Every limit admits three.
    let before: Vec<_> = (0..4).map(|_| first.ask(&ALL)).collect();
    assert_eq!(before[3], [429; 5]);
    first.stop();
    std::fs::write(&file, format!("{text}\n[no_such_table]\n")).expect("written");
    let failed = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["run", "--config"])
        .arg(&file)
        .env_remove("STATE_DIRECTORY")
        .output()
        .expect("the program runs");
    assert_eq!(failed.status.code(), Some(1));
    std::fs::write(&file, text).expect("written");
    assert_eq!(Process::start(here.path()).ask(&ALL), [429; 5]);
}

/// The webhook's TLS is set up late in a start: nothing is lost when it fails.
#[test]
fn restart_after_an_admin_listener_that_failed_refills_no_bucket() {
    let here = folder("full");
    let file = here.path().join("gateway.toml");
    let text = std::fs::read_to_string(&file).expect("written");
    let first = Process::start(here.path());
    let before: Vec<_> = (0..4).map(|_| first.ask(&ALL)).collect();
    assert_eq!(before[3], [429; 5]);
    first.stop();
    let admin = "[admin]\n";
    let webhook = format!("{admin}webhook = {{ url = \"https://localhost:1/\" }}\n");
    std::fs::write(&file, text.replacen(admin, &webhook, 1)).expect("written");
    let no_roots = here.path().join("no-roots.pem");
    std::fs::write(&no_roots, "").expect("written");
    let failed = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["run", "--config"])
        .arg(&file)
        .env_remove("STATE_DIRECTORY")
        .env("SSL_CERT_FILE", &no_roots)
        .env("SSL_CERT_DIR", here.path())
        .output()
        .expect("the program runs");
    let said = String::from_utf8_lossy(&failed.stderr);
    assert_eq!(failed.status.code(), Some(1), "{said}");
    assert!(said.contains("the platform's roots"), "{said}");
    std::fs::write(&file, text).expect("written");
    assert_eq!(Process::start(here.path()).ask(&ALL), [429; 5]);
}

/// One a minute; the second refusal blocks for an hour.
const PENALTY: &str = "[limits.each]\nrate = \"1/minute\"\nper = \"address\"\n\
    penalty = { after = \"2 refusals in 1h\", block = \"1h\" }\n\
    [[routes]]\nmatch = \"/each\"\nupstream = \"builtin:echo\"\nlimits = [\"each\"]\n";

#[test]
fn restart_keeps_penalties() {
    let here = folder("full");
    let file = here.path().join("gateway.toml");
    let text = std::fs::read_to_string(&file).expect("written");
    std::fs::write(&file, text + PENALTY).expect("written");
    let wait = |process: &Process| {
        let refused = Connection::open(process.address).request("GET", "/each", &[]);
        let wait = refused.header("retry-after").expect("a wait").to_owned();
        wait.parse::<u64>().expect("seconds")
    };
    let first = Process::start(here.path());
    assert_eq!(first.ask(&["/each"; 3]), [200, 429, 429]);
    assert!(wait(&first) > 60);
    first.stop();
    let second = Process::start(here.path());
    assert!(
        wait(&second) > 60,
        "blocked, not only refused by the bucket"
    );
    second.crash();
    let third = Process::start(here.path());
    assert_eq!(
        third.ask(&["/each"]),
        [200],
        "a crash loses it with the buckets"
    );
}

#[test]
fn restart_refilled_limits_are_named_by_check_and_start() {
    let here = folder("full");
    let file = here.path().join("gateway.toml");
    let text = std::fs::read_to_string(&file).expect("written");
    let check = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command
            .args(["check", "--config"])
            .arg(&file)
            .env_remove("STATE_DIRECTORY");
        let output = command.output().expect("the program runs");
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(!check().contains("restart refills"));
    std::fs::write(&file, text.replace("state_file = \"state\"\n", "")).expect("written");
    let said = check();
    assert!(
        said.contains("a restart refills these limits") && said.contains("token, interval"),
        "{said}"
    );
    std::fs::write(
        &file,
        text.replace("state_file = \"state\"\n", "")
            .replace("3/day", "3/second"),
    )
    .expect("written");
    assert!(
        !check().contains("restart refills"),
        "they are full a second later anyway"
    );
}

#[test]
fn state_files_are_private_and_no_link_in_their_place_is_followed() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let here = folder("full");
    let path = |name: &str| here.path().join(name);
    let mode = |name: &str| {
        path(name)
            .symlink_metadata()
            .expect("it is there")
            .permissions()
            .mode()
            & 0o777
    };
    std::fs::write(path("victim"), "precious").expect("written");
    symlink(path("victim"), path("state.new")).expect("a link");
    let first = Process::start(here.path());
    assert_eq!(mode("state.running"), 0o600);
    assert_eq!(
        [first.ask(&ALL), first.ask(&ALL), first.ask(&ALL)],
        [[200; 5]; 3]
    );
    first.stop();
    assert_eq!(mode("state"), 0o600);
    assert_eq!(
        Process::start(here.path()).ask(&ALL),
        [429; 5],
        "saved and restored all the same"
    );
    // The process was killed: its mark is there. A link in its place is not written through.
    std::fs::remove_file(path("state.running")).expect("the mark");
    symlink(path("nowhere"), path("state.running")).expect("a link");
    let mut run = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let output = run
        .args(["run", "--config"])
        .arg(path("gateway.toml"))
        .output()
        .expect("the program runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(1) && said.contains("state_file"),
        "{said}"
    );
    assert!(!path("nowhere").exists());
    // Nor are buckets read by one.
    std::fs::remove_file(path("state.running")).expect("the link");
    symlink(path("victim"), path("state")).expect("a link");
    Process::start(here.path()).stop();
    assert_eq!(
        std::fs::read_to_string(path("victim")).expect("still there"),
        "precious"
    );
    assert_eq!(
        mode("state"),
        0o600,
        "the link was replaced, not what it points to"
    );
}
