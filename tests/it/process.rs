//! The process as an operator sees it: signals, exit codes, descriptors that run out.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::harness::{Connection, Upstream, eventually};
use crate::hostile::{ask, dial};

const FILE: &str = r#"
[server]
listen = "127.0.0.1:0"
workers = 1
timeouts = { drain_delay = "0s" }
[admin]
listen = "127.0.0.1:0"
[log]
access = "off"
[limits.all]
rate = "1000000/second"
per = "everyone"
[[routes]]
match = "/**"
upstream = "builtin:echo"
limits = ["all"]
"#;

/// A running `tollgate`, killed when dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    log: BufReader<std::process::ChildStderr>,
    pub(crate) directory: tempfile::TempDir,
}

impl Process {
    /// Starts it with at most `descriptors` open files.
    fn start(descriptors: u32) -> Self {
        Self::with(FILE, descriptors)
    }

    /// Starts it on this configuration.
    pub(crate) fn with(config: &str, descriptors: u32) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("gateway.toml"), config).expect("written");
        // The name is the one it looks for by itself.
        Self::run(&[], descriptors, directory)
    }

    /// Starts it with these words on its command line, in `directory`.
    fn run(words: &[&str], descriptors: u32, directory: tempfile::TempDir) -> Self {
        let mut child = Command::new("sh")
            .args([
                "-c",
                &format!("ulimit -n {descriptors}; exec \"$0\" run \"$@\""),
            ])
            .arg(env!("CARGO_BIN_EXE_tollgate"))
            .args(words)
            .current_dir(directory.path())
            .env("NO_COLOR", "1")
            .env_remove("TOLLGATE_CONFIG")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let mut log = BufReader::new(child.stderr.take().expect("piped"));
        let line = line_with(&mut log, "listening");
        let address = line
            .rsplit("address=")
            .next()
            .and_then(|rest| rest.trim().parse().ok());
        let address = address.unwrap_or_else(|| panic!("no address in {line:?}"));
        Self {
            child,
            address,
            log,
            directory,
        }
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status();
        assert!(sent.expect("kill(1) is there").success());
    }

    /// The next line of its log with these words in it.
    pub(crate) fn line(&mut self, words: &str) -> String {
        line_with(&mut self.log, words)
    }

    fn connect(&self) -> TcpStream {
        dial(self.address)
    }

    pub(crate) fn exit_code(&mut self) -> i32 {
        for _ in 0..PATIENCE.as_millis() / 10 {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status.code().expect("not killed by a signal");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it does not end");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn line_with(log: &mut impl BufRead, words: &str) -> String {
    let mut all = String::new();
    loop {
        let mut line = String::new();
        assert_ne!(
            log.read_line(&mut line).expect("text"),
            0,
            "it ended without saying {words:?}:\n{all}"
        );
        if line.contains(words) {
            return line;
        }
        all.push_str(&line);
    }
}

#[test]
fn descriptors_that_run_out_end_nothing() {
    let mut process = Process::start(48);
    let mut bystander = process.connect();
    assert_eq!(ask(&mut bystander), Some(200));
    // Far more than it has descriptors for; the kernel queues what it cannot take.
    let flood: Vec<TcpStream> = (0..120).map(|_| process.connect()).collect();
    line_with(&mut process.log, "cannot accept connections");
    assert_eq!(ask(&mut bystander), Some(200), "who is there is served on");
    drop(flood);
    assert_eq!(
        ask(&mut process.connect()),
        Some(200),
        "who comes later is let in again"
    );
}

#[test]
fn a_terminated_gateway_drains_and_says_good() {
    let mut process = Process::start(1024);
    let mut idle = process.connect();
    assert_eq!(ask(&mut idle), Some(200));
    process.signal("TERM");
    assert_eq!(process.exit_code(), 0);
    assert_eq!(
        crate::harness::read(&mut idle, &mut [0]).expect("closed in order"),
        0
    );
}

#[test]
fn a_hang_up_reloads_and_a_bad_file_changes_nothing() {
    let mut process = Process::start(1024);
    let mut stream = process.connect();
    let file = process.directory.path().join("gateway.toml");
    std::fs::write(&file, FILE.replace("builtin:echo", "nonsense")).expect("written");
    process.signal("HUP");
    line_with(&mut process.log, "the new one is refused");
    assert_eq!(ask(&mut stream), Some(200));
    std::fs::write(&file, FILE.replace("/**", "/elsewhere")).expect("written");
    process.signal("HUP");
    line_with(&mut process.log, "the new configuration is in force");
    assert_eq!(
        ask(&mut stream),
        Some(404),
        "the same connection, the new routes"
    );
}

#[test]
fn reload_file_that_vanished_and_returned_is_read() {
    let mut process = Process::start(1024);
    let mut stream = process.connect();
    let path = |name: &str| process.directory.path().join(name);
    let file = path("gateway.toml");
    std::fs::remove_file(&file).expect("removed");
    line_with(&mut process.log, "cannot read");
    std::fs::write(&file, FILE.replace("/**", "/second")).expect("written");
    line_with(&mut process.log, "the new configuration is in force");
    assert_eq!(ask(&mut stream), Some(404), "by itself, without a signal");

    // A file that it names and that is not there: when it comes, everything is right.
    std::fs::write(
        &file,
        format!(
            "include = [\"more.toml\", \"d/*.toml\"]\n{}",
            FILE.replace("/**", "/third")
        ),
    )
    .expect("written");
    line_with(&mut process.log, "cannot read `more.toml`");
    std::fs::create_dir(path("d")).expect("made");
    std::fs::write(path("more.toml"), "").expect("written");
    line_with(&mut process.log, "the new configuration is in force");
    assert_eq!(ask(&mut stream), Some(404));

    // And one more that a pattern names.
    let route = "[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n";
    std::fs::write(path("d/route.toml"), route).expect("written");
    line_with(&mut process.log, "the new configuration is in force");
    assert_eq!(ask(&mut stream), Some(200));
    std::fs::remove_file(path("d/route.toml")).expect("removed");
    line_with(&mut process.log, "the new configuration is in force");
    assert_eq!(ask(&mut stream), Some(404));
    std::fs::write(path("d/route.toml"), route).expect("written");
    line_with(&mut process.log, "the new configuration is in force");
    assert_eq!(ask(&mut stream), Some(200));
}

#[test]
fn it_starts_without_a_file() {
    let upstream = Upstream::hello();
    let words = [
        "--upstream",
        &upstream.url(),
        "--limit",
        "2/hour",
        "--per",
        "address",
    ];
    let ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let directory = tempfile::tempdir().expect("an empty directory");
    let process = Process::run(&[&words[..], &ports[..]].concat(), 1024, directory);
    let mut stream = process.connect();
    assert_eq!(
        [ask(&mut stream), ask(&mut stream), ask(&mut stream)],
        [Some(200), Some(200), Some(429)]
    );
    assert_eq!(upstream.seen().len(), 2);
}

#[test]
fn start_error_is_printed_with_its_place_and_exits_1() {
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = taken.local_addr().expect("its address").to_string();
    for (listener, words) in [("admin", "the admin listener"), ("server", "")] {
        let other = if listener == "admin" {
            "server"
        } else {
            "admin"
        };
        let config = format!(
            "[{listener}]\nlisten = \"{port}\"\n[{other}]\nlisten = \"127.0.0.1:0\"\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n"
        );
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("gateway.toml");
        std::fs::write(&file, config).expect("written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let output = command
            .arg("--config")
            .arg(&file)
            .output()
            .expect("the program runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&port) && said.contains(words), "{said}");
    }
}

/// Far above what any of these takes.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn sigterm_and_sigint_while_a_reload_hangs_save_the_buckets_and_status_responds() {
    for (first, last) in [(Some("HUP"), "TERM"), (Some("HUP"), "INT"), (None, "TERM")] {
        let config = FILE.replace("workers = 1", "workers = 1\nstate_file = \"state\"");
        let mut process = Process::with(&config, 1024);
        let line = process.line("the admin listener");
        let admin = line.rsplit("http://").next().map(str::trim);
        let admin = admin
            .and_then(|admin| admin.parse().ok())
            .expect("an address");
        let (pipe, file) = (
            process.directory.path().join("pipe"),
            process.directory.path().join("gateway.toml"),
        );
        let made = Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("mkfifo(1) is there").success());
        std::fs::rename(&pipe, &file).expect("replaced");
        // Without a signal the thread that watches the file reads it.
        first.into_iter().for_each(|first| process.signal(first));
        let mut writer = None;
        eventually("it reads the pipe", || {
            use rustix::fs::{Mode, OFlags, open};
            writer = open(
                &file,
                OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC,
                Mode::empty(),
            )
            .ok();
            writer.is_some()
        });
        let status = Connection::open(admin).request("GET", "/api/v1/status", &[]);
        assert_eq!(status.status, 200, "{first:?} {last}");
        process.signal(last);
        assert_eq!(process.exit_code(), 0, "{first:?} {last}");
        assert!(
            process.directory.path().join("state").exists(),
            "{first:?} {last}: the buckets are saved"
        );
        drop(writer);
    }
}
