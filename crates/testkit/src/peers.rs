//! Real clients and servers in Python: a script that reads commands and writes its results line by line.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

/// A running script; it ends when dropped.
pub struct Peers {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Peers {
    /// Starts `script` (a path within the repository). `None`: there is no Python with `module` here; in CI that is a
    /// failure.
    pub fn start(module: &str, script: &str, words: &[&Path]) -> Option<Self> {
        // The system's own Python is the one that has the distribution's package.
        let python = ["python3", "/usr/bin/python3"].into_iter().find(|python| {
            let tried = Command::new(python)
                .args(["-c", &format!("import {module}")])
                .stderr(Stdio::null())
                .status();
            tried.is_ok_and(|status| status.success())
        });
        let Some(python) = python else {
            assert!(std::env::var_os("CI").is_none(), "no Python has {module}");
            eprintln!("!!! SKIPPED: no Python has {module}");
            return None;
        };
        let mut child = Command::new(python)
            .arg(super::repository().join(script))
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python runs");
        let (to, from) = (
            child.stdin.take().expect("piped"),
            child.stdout.take().expect("piped"),
        );
        Some(Self {
            child,
            to,
            from: BufReader::new(from),
        })
    }

    /// Starts `script`, which needs what `./check` installs as `tool`. `None`: it is not installed; in CI that is a failure.
    pub fn with_tool(tool: &str, script: &str) -> Option<Self> {
        let folder = super::repository().join("target/tools").join(tool);
        if !folder.is_dir() {
            assert!(std::env::var_os("CI").is_none(), "no {}", folder.display());
            eprintln!("!!! SKIPPED: ./check installs {}", folder.display());
            return None;
        }
        Self::start("json", script, &[folder.as_path()])
    }

    /// The next line.
    ///
    /// # Panics
    /// When it has ended.
    pub fn hear(&mut self) -> Value {
        self.hear_if_alive().expect("it has ended")
    }

    /// The next line; `None`: it has ended.
    pub fn hear_if_alive(&mut self) -> Option<Value> {
        let mut line = String::new();
        let read = self.from.read_line(&mut line).expect("text");
        (read > 0).then(|| {
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
        })
    }

    /// Tells it something.
    pub fn say(&mut self, what: &Value) {
        writeln!(self.to, "{what}").expect("it listens");
    }

    /// Tells it something, and hears what it says to that.
    pub fn tell(&mut self, what: &Value) -> Value {
        self.say(what);
        self.hear()
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
