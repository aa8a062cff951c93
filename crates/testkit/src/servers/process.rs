//! Child processes that end with the test.

use std::io;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use super::available_quietly;

/// A child process that is killed when it is dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts it. Should this process be killed, it is killed with it (Linux).
    pub fn spawn(command: &mut Command) -> Self {
        let program = command.get_program();
        let mut bound = Command::new(program);
        if available_quietly("setpriv") {
            // A change of user clears the signal: it must be asked for in the same step.
            let changes_user = program == "setpriv";
            bound = Command::new("setpriv");
            bound.args(["--pdeathsig", if changes_user { "QUIT" } else { "KILL" }]);
            bound.args((!changes_user).then_some(program));
        }
        bound.args(command.get_args());
        if let Some(directory) = command.get_current_dir() {
            bound.current_dir(directory);
        }
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => bound.env(name, value),
                None => bound.env_remove(name),
            };
        }
        bound
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let (started, child) = channel();
        STARTER.send((bound, started)).expect("it goes on");
        Self(child.recv().expect("a reply").expect("it starts"))
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

type Start = (Command, Sender<io::Result<Child>>);

/// Starts programs in a thread that lives as long as this process: the kernel signals a child when the thread that
/// started it ends.
static STARTER: LazyLock<Sender<Start>> = LazyLock::new(|| {
    let (starts, starting) = channel::<Start>();
    thread::spawn(move || {
        for (mut command, started) in starting {
            let _ = started.send(command.spawn());
        }
    });
    starts
});
