//! The level of the operations log, changed while the program runs.

use std::process::Command;

use serde_json::Value;

use crate::harness::{Connection, eventually};
use crate::process::Process;

/// The token is `test`.
const FILE: &str = "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\naudit = \"audit.log\"\n\
    operators = [{ name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }]\n\
    [log]\naccess = \"off\"\n[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n";

struct Running {
    process: Process,
    admin: String,
}

impl Running {
    fn start() -> Self {
        let mut process = Process::with(FILE, 1024);
        let line = process.line("the admin listener");
        let admin = line
            .rsplit("http://")
            .next()
            .expect("an address")
            .trim()
            .to_owned();
        Self { process, admin }
    }

    /// `tollgate log-level` with these words; its exit code and what it printed.
    fn log_level(&self, words: &[&str]) -> (Option<i32>, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["log-level", "--admin", &self.admin, "--timeout", "20000"])
            .args(words)
            .env("TOLLGATE_TOKEN", "test")
            .output()
            .expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    fn level(&self) -> Value {
        let address = self.admin.parse().expect("an address");
        let answer = Connection::open(address).request("GET", "/api/v1/log-level", &[]);
        answer.json()
    }

    fn reload(&self) {
        let address = self.admin.parse().expect("an address");
        let answer = Connection::open(address).request("POST", "/-/reload", &[]);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

#[test]
fn log_level_is_changed_while_the_gateway_runs_and_audited() {
    let mut running = Running::start();
    let (code, told) = running.log_level(&[]);
    assert!(
        code == Some(0) && told.contains("log level  info\n"),
        "{told}"
    );
    let (code, told) = running.log_level(&["error", "--reason", "quiet", "--dry-run"]);
    assert!(
        code == Some(0) && told.contains("error (would be)"),
        "{told}"
    );
    assert_eq!(running.level()["level"], "info");
    let (code, told) = running.log_level(&["error", "--reason", "quiet"]);
    assert_eq!(code, Some(0), "{told}");
    // Not logged: its number is 2.
    running.reload();
    let (code, told) = running.log_level(&["info", "--reason", "loud again"]);
    assert_eq!(code, Some(0), "{told}");
    running.reload();
    let line = running.process.line("generation=");
    assert!(line.contains("generation=3"), "{line}");
    let audit = running.process.directory.path().join("audit.log");
    let audit = std::fs::read_to_string(audit).expect("it is there");
    let entries: Vec<Value> = audit
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let told: Vec<_> = entries
        .iter()
        .map(|entry| {
            [
                &entry["action"],
                &entry["operator"],
                &entry["reason"],
                &entry["before"]["level"],
                &entry["after"]["level"],
            ]
        })
        .collect();
    assert_eq!(
        told,
        [
            ["log_level", "ann", "quiet", "info", "error"],
            ["log_level", "ann", "loud again", "error", "info"]
        ]
    );
}

#[test]
fn log_level_for_a_while_falls_back_by_itself() {
    let mut running = Running::start();
    // A change without an end outlives the end of the one before it.
    for words in [
        &["trace", "--for", "1s", "--reason", "a look"][..],
        &["warn", "--reason", "quiet"],
    ] {
        let (code, told) = running.log_level(words);
        assert_eq!(code, Some(0), "{told}");
    }
    let (code, told) = running.log_level(&["debug", "--for", "1s", "--reason", "a look"]);
    assert!(code == Some(0) && told.contains(", then info\n"), "{told}");
    running
        .process
        .line("the log level is that of the file again");
    let level = running.level();
    assert_eq!(
        (level["level"].as_str(), &level["until"]),
        (Some("info"), &Value::Null)
    );
}

#[test]
fn log_level_invalid_or_without_an_operator_changes_nothing() {
    let running = Running::start();
    for (words, says) in [
        (&["loud", "--reason", "r"][..], "`loud` is no level"),
        (
            &["debug", "--reason", " "],
            "`reason` has 1 to 200 characters",
        ),
        (
            &["debug", "--reason", "r", "--for", "0s"],
            "`for` is above 0s",
        ),
        (&["debug", "--reason", "r", "--for", "31d"], "at most 30d"),
        (&["debug", "--reason", "r", "--for", "soon"], "duration"),
    ] {
        let (code, told) = running.log_level(words);
        assert!(code == Some(1) && told.contains(says), "{words:?}: {told}");
    }
    assert_eq!(running.log_level(&["debug"]).0, Some(2), "without a reason");
    let address = running.admin.parse().expect("an address");
    let mut connection = Connection::open(address);
    let body = "{\"level\":\"debug\",\"reason\":\"r\"}";
    let length = body.len();
    connection.send(format!("PUT /api/v1/log-level HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"));
    assert_eq!(connection.answer("PUT").status, 401);
    eventually("the level is that of the file", || {
        running.level()["level"] == "info"
    });
}
