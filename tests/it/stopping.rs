//! A process that a signal stops: it reports that before it closes its listeners, and no log delays its end.

use std::io::Read;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Connection, Gateway, Upstream, eventually};
use crate::process::Process;
use crate::servers::free_port;

/// A configuration with an admin listener on `admin`, and this in its `[server]` and `[log]`.
fn file(admin: u16, server: &str, log: &str) -> String {
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n{server}\n[admin]\nlisten = \"127.0.0.1:{admin}\"\n\
         [log]\n{log}\n[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n"
    )
}

fn tell(process: &Process, signal: Signal) {
    let pid = Pid::from_child(&process.child);
    kill_process(pid, signal).expect("it lives");
}

/// A gateway with this drain delay and a request under way, which is answered once it is released.
fn busy(drain_delay: &str) -> (Process, Connection, Sender<()>, Upstream) {
    let (release, upstream) = Upstream::held();
    let timeouts = format!("timeouts = {{ drain_delay = \"{drain_delay}\" }}");
    let config = file(free_port(), &timeouts, "access = \"off\"");
    let process = Process::with(&config.replace("builtin:echo", &upstream.url()), 1024);
    let mut slow = Connection::open(process.address);
    slow.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually("the request is under way", || upstream.seen().len() == 1);
    (process, slow, release, upstream)
}

fn ready(admin: u16) -> u16 {
    Connection::open(([127, 0, 0, 1], admin).into())
        .request("GET", "/readyz", &[])
        .status
}

#[test]
fn sigterm_within_the_drain_delay_is_not_ready_and_still_accepts() {
    let admin = free_port();
    let mut process = Process::with(
        &file(
            admin,
            "timeouts = { drain_delay = \"1h\" }",
            "access = \"off\"",
        ),
        1024,
    );
    let mut before = Connection::open(process.address);
    assert_eq!(before.request("GET", "/", &[]).status, 200);
    assert_eq!(ready(admin), 200);
    tell(&process, Signal::TERM);
    eventually("it is not ready", || ready(admin) == 503);
    for _ in 0..10 {
        assert_eq!(
            before.request("GET", "/", &[]).status,
            200,
            "who is there is served on"
        );
        let answer = Connection::open(process.address).request("GET", "/", &[]);
        assert_eq!(
            (answer.status, answer.header("connection")),
            (200, None),
            "who comes is served"
        );
    }
    // Those of the first second are one with the first; a later one ends it at once, whatever the delay.
    eventually("another SIGTERM ends it", || {
        let _ = kill_process(Pid::from_child(&process.child), Signal::TERM);
        process.child.try_wait().expect("a child").is_some()
    });
    assert_eq!(process.exit_code(), 0);
}

#[test]
fn sigterm_after_the_drain_delay_closes_the_listener_and_drains() {
    let (mut process, mut slow, release, _upstream) = busy("100ms");
    tell(&process, Signal::TERM);
    eventually("the listener closes", || {
        TcpStream::connect(process.address).is_err()
    });
    release.send(()).expect("the upstream waits");
    let answer = slow.answer("GET");
    assert_eq!((answer.status, answer.text().as_str()), (200, "finished"));
    assert_eq!(process.exit_code(), 0);
}

#[test]
fn sigint_drains_at_once_whatever_the_drain_delay() {
    let config = file(
        free_port(),
        "timeouts = { drain_delay = \"1h\" }",
        "access = \"off\"",
    );
    let mut process = Process::with(&config, 1024);
    tell(&process, Signal::INT);
    assert_eq!(process.exit_code(), 0);
}

#[test]
fn sigterm_sent_twice_at_once_is_one() {
    let (mut process, mut slow, release, _upstream) = busy("0s");
    tell(&process, Signal::TERM);
    process.line("draining");
    tell(&process, Signal::TERM);
    eventually("it drains", || TcpStream::connect(process.address).is_err());
    release.send(()).expect("the upstream waits");
    assert_eq!(
        slow.answer("GET").text(),
        "finished",
        "the second one cut nothing off"
    );
    assert_eq!(process.exit_code(), 0);
}

/// A pipe without a reader: its reading end, to be held, and its writing end.
fn unread_pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe")
}

/// A gateway, which is killed when it is dropped.
struct Running {
    child: Child,
    port: u16,
    admin: u16,
    config: String,
    home: tempfile::TempDir,
}

impl Running {
    /// Starts the program with this `[log]`, and with these for its standard output and error.
    fn start(log: &str, stdout: Stdio, stderr: Stdio) -> Self {
        let (port, admin) = (free_port(), free_port());
        let config = file(admin, "timeouts = { drain_delay = \"0s\" }", log);
        let config = config.replace("127.0.0.1:0", &format!("127.0.0.1:{port}"));
        let home = tempfile::tempdir().expect("a directory");
        std::fs::write(home.path().join("gateway.toml"), &config).expect("written");
        let child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .arg("run")
            .current_dir(home.path())
            .env_remove("TOLLGATE_CONFIG")
            .stdout(stdout)
            .stderr(stderr)
            .spawn()
            .expect("started");
        eventually("it serves", || {
            TcpStream::connect(("127.0.0.1", admin)).is_ok() && ready(admin) == 200
        });
        Self {
            child,
            port,
            admin,
            config,
            home,
        }
    }

    fn connect(&self) -> Connection {
        Connection::open(([127, 0, 0, 1], self.port).into())
    }

    fn metrics(&self) -> String {
        let mut connection = Connection::open(([127, 0, 0, 1], self.admin).into());
        connection.request("GET", "/metrics", &[]).text()
    }

    /// Ends it by one SIGTERM.
    fn ends(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it lives");
        let mut ended = None;
        eventually("it ends", || {
            ended = self.child.try_wait().expect("a child");
            ended.is_some()
        });
        assert_eq!(ended.and_then(|status| status.code()), Some(0));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const ACCESS_TO_STDOUT: &str = "access = \"stdout\"\nlevel = \"error\"";

#[test]
fn access_log_in_a_pipe_without_a_reader_holds_up_no_request_and_no_end() {
    let (unread, pipe) = unread_pipe();
    let running = Running::start(ACCESS_TO_STDOUT, pipe.into(), Stdio::null());
    let mut connection = running.connect();
    // Far more than the pipe holds, and more than waits for it.
    let path = format!("/{}", "a".repeat(8_000));
    for _ in 0..400 {
        assert_eq!(connection.request("GET", &path, &[]).status, 200);
    }
    drop(connection);
    let metrics = running.metrics();
    let dropped = metrics
        .lines()
        .find_map(|line| line.strip_prefix("tollgate_access_log_dropped_total "));
    assert!(
        dropped.is_some_and(|count| count != "0"),
        "what does not fit is dropped: {dropped:?}"
    );
    running.ends();
    drop(unread);
}

#[test]
fn operations_log_in_a_pipe_without_a_reader_holds_up_no_request_no_reload_and_no_end() {
    let (unread, pipe) = unread_pipe();
    let running = Running::start("access = \"off\"", Stdio::null(), pipe.into());
    let reload = || {
        Connection::open(([127, 0, 0, 1], running.admin).into())
            .request("POST", "/-/reload", &[])
            .status
    };
    // Each mistake is a few lines of the log: more than the pipe holds.
    let mistakes: String = (0..1_500)
        .map(|number| format!("unknown_{number} = 1\n"))
        .collect();
    let written = |text: String| {
        std::fs::write(running.home.path().join("gateway.toml"), text).expect("written");
    };
    written(mistakes + &running.config);
    for _ in 0..2 {
        assert_eq!(reload(), 422);
    }
    let ask = || running.connect().request("GET", "/", &[]).status;
    assert_eq!(ask(), 200);
    written(running.config.replace("/**", "/elsewhere"));
    assert_eq!(reload(), 200);
    assert_eq!(ask(), 404, "the new file is in force");
    running.ends();
    drop(unread);
}

#[test]
fn access_log_dropped_counts_no_line_that_was_written() {
    let (from, pipe) = unread_pipe();
    // As a parent leaves it that reads without blocking: the flag is of the pipe, not of a process.
    let flags = rustix::fs::fcntl_getfl(pipe.as_fd()).expect("flags");
    rustix::fs::fcntl_setfl(pipe.as_fd(), flags | rustix::fs::OFlags::NONBLOCK).expect("set");
    let running = Running::start(ACCESS_TO_STDOUT, pipe.into(), Stdio::null());
    let mut connection = running.connect();
    let path = format!("/{}", "a".repeat(4_000));
    // More than the pipe holds, less than waits for it.
    for _ in 0..60 {
        assert_eq!(connection.request("GET", &path, &[]).status, 200);
    }
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        std::fs::File::from(from)
            .read_to_string(&mut text)
            .expect("text");
        text
    });
    let metrics = running.metrics();
    assert!(
        metrics.contains("\ntollgate_access_log_dropped_total 0\n"),
        "{metrics}"
    );
    running.ends();
    let text = reader.join().expect("read");
    assert_eq!(text.lines().count(), 60, "all of them are written");
    for line in text.lines() {
        serde_json::from_str::<serde_json::Value>(line).expect("every line is whole");
    }
}

#[test]
fn access_log_on_a_full_disk_counts_every_line_once() {
    let gateway = Gateway::start(
        "[log]\naccess = \"/dev/full\"\n[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n",
    );
    for _ in 0..7 {
        assert_eq!(gateway.get("/").status, 200);
    }
    eventually("all are counted", || {
        gateway
            .admin_get("/metrics")
            .text()
            .contains("\ntollgate_access_log_dropped_total 7\n")
    });
}
