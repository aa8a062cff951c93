//! Child processes that end with the test.

use std::process::{Child, Command, Stdio};

use super::available_quietly;

/// A child process that is killed when it is dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts it. Should this process be killed, it is killed with it (Linux).
    pub fn spawn(command: &mut Command) -> Self {
        let mut bound = Command::new("setpriv");
        if command.get_program() == "setpriv" {
            // A change of user clears the signal: it must be asked for in the same step.
            bound.args(["--pdeathsig", "INT"]).args(command.get_args());
        } else {
            bound
                .args(["--pdeathsig", "KILL"])
                .arg(command.get_program())
                .args(command.get_args());
        }
        if let Some(directory) = command.get_current_dir() {
            bound.current_dir(directory);
        }
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => bound.env(name, value),
                None => bound.env_remove(name),
            };
        }
        let bound_to_us = available_quietly("setpriv");
        let command = if bound_to_us { &mut bound } else { command };
        Self(
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("it starts"),
        )
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([signal, &self.0.id().to_string()])
            .status()
            .expect("kill runs");
        assert!(sent.success(), "the process lives");
    }

    /// Waits until it has ended by itself.
    pub fn wait(&mut self) {
        self.0.wait().expect("it ends");
    }

    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A server for all tests of this process, which goes with it: its children are told when the thread that started them
/// ends, and that thread ends with the process.
pub fn for_the_process<S: Send + 'static>(
    start: impl FnOnce() -> S + Send + 'static,
    url: fn(&S) -> String,
) -> String {
    let (told, tells) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let server = start();
        told.send(url(&server)).expect("it is waited for");
        loop {
            std::thread::park();
        }
    });
    tells.recv().expect("the server starts")
}
