//! A gateway's process, and what it says.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// It says what a test waits for within this.
const WITHIN: Duration = Duration::from_secs(30);

/// Killed when it is dropped.
pub struct Outspoken {
    child: Child,
    said: Receiver<String>,
}

impl Outspoken {
    pub fn run(file: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["run", "--config"])
            .arg(file)
            .env("NO_COLOR", "1")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (says, said) = std::sync::mpsc::channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .try_for_each(|line| says.send(line))
        });
        Self { child, said }
    }

    /// What it says from here on, to the first line with these words.
    pub fn wait_for(&self, words: &str) -> String {
        let (mut all, end) = (String::new(), Instant::now() + WITHIN);
        while !all.contains(words) {
            match self
                .said
                .recv_timeout(end.saturating_duration_since(Instant::now()))
            {
                Ok(line) => all += &format!("{line}\n"),
                Err(error) => panic!("no {words:?} ({error}): {all}"),
            }
        }
        all
    }

    /// What it has said, if it ends by itself with an error; `None`: it serves.
    pub fn refusal(mut self) -> Option<String> {
        let (mut all, end) = (String::new(), Instant::now() + WITHIN);
        loop {
            match self
                .said
                .recv_timeout(end.saturating_duration_since(Instant::now()))
            {
                Ok(line) if line.contains("listening") => return None,
                Ok(line) => all += &format!("{line}\n"),
                Err(RecvTimeoutError::Timeout) => panic!("it neither ends nor serves: {all}"),
                Err(RecvTimeoutError::Disconnected) => {
                    assert!(!self.wait().success(), "it refused: {all}");
                    return Some(all);
                }
            }
        }
    }

    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status()
            .unwrap();
        assert!(sent.success(), "it runs");
    }

    pub fn wait(&mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Outspoken {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
