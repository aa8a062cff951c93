//! The gateway as a container's first process, and the probe that the container runs beside it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::harness::eventually;

const FILE: &str = r#"
[server]
listen = "127.0.0.1:0"
workers = 1
timeouts = { drain_delay = "0s" }
[admin]
listen = "unix:admin.sock"
[log]
access = "off"
[[routes]]
match = "/**"
upstream = "builtin:echo"
"#;

/// `unshare`, whose only child is process 1 of its own namespace; both are killed when it is dropped.
struct Container(Child);

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `tollgate health`, as the image's HEALTHCHECK does; its exit code.
fn health(folder: &Path, words: &[&str]) -> Option<i32> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command
        .current_dir(folder)
        .arg("health")
        .args(words)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
        .env_remove("TOLLGATE_CONFIG")
        .env_remove("TOLLGATE_ADMIN")
        .status()
        .expect("the program runs")
        .code()
}

#[test]
fn container_process_1_serves_is_healthy_and_ends_on_sigterm() {
    let namespace = ["--pid", "--fork", "--kill-child"];
    let tried = Command::new("unshare")
        .args(namespace)
        .arg("true")
        .stderr(Stdio::null())
        .status();
    if !tried.is_ok_and(|status| status.success()) {
        eprintln!("!!! SKIPPED: no process namespace may be made here");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("gateway.toml"), FILE).expect("written");
    assert_eq!(health(folder.path(), &[]), Some(1), "no gateway runs yet");
    let child = Command::new("unshare")
        .args(namespace)
        .args([env!("CARGO_BIN_EXE_tollgate"), "run"])
        .current_dir(folder.path())
        .env_remove("TOLLGATE_CONFIG")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut container = Container(child);
    let outside = container.0.id();
    let mut log = BufReader::new(container.0.stderr.take().expect("piped")).lines();
    let said = log
        .by_ref()
        .map_while(Result::ok)
        .any(|line| line.contains("the admin listener"));
    assert!(said, "it serves");
    eventually("it is ready", || health(folder.path(), &[]) == Some(0));
    assert_eq!(health(folder.path(), &["--live"]), Some(0));

    let children = std::fs::read_to_string(format!("/proc/{outside}/task/{outside}/children"))
        .expect("it has a child");
    let first = children.trim().to_owned();
    let status = std::fs::read_to_string(format!("/proc/{first}/status")).expect("it lives");
    let inside = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))
        .and_then(|ids| ids.split('\t').next_back());
    assert_eq!(inside, Some("1"), "{status}");
    // The kernel drops a signal to process 1 that has no handler for it.
    assert!(
        Command::new("kill")
            .args(["-TERM", &first])
            .status()
            .expect("kill(1) is there")
            .success()
    );
    let mut ended = None;
    eventually("it ends", || {
        ended = container.0.try_wait().expect("a child");
        ended.is_some()
    });
    assert_eq!(ended.and_then(|status| status.code()), Some(0));
    assert_eq!(health(folder.path(), &[]), Some(1), "it has ended");
}
