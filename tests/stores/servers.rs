//! Servers of a test's own: started on free ports in a directory of their own, stopped when the test ends.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A port nobody listens on at this moment.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port()
}

/// Whether a test that needs `program` can run. A laptop without it skips loudly; CI fails.
pub fn available(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "CI must not skip: {program} is not installed");
        eprintln!("SKIPPED: {program} is not installed; this test checked nothing");
    }
    found
}

/// Waits for an event, at most ten seconds.
pub fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !happened() {
        assert!(Instant::now() < deadline, "no {what} within ten seconds");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for an event without holding up the runtime, at most `bound`; how long it took.
pub async fn eventually(what: &str, bound: Duration, mut happened: impl AsyncFnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !happened().await {
        assert!(start.elapsed() < bound, "no {what} within {bound:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    start.elapsed()
}

/// A child process that is killed when it is dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    pub fn spawn(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"))
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.0.id().to_string()]).status().expect("kill runs");
        assert!(sent.success(), "the process lives");
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

/// A redis-server.
#[derive(Debug)]
pub struct Redis {
    pub port: u16,
    directory: tempfile::TempDir,
    arguments: Vec<String>,
    process: Option<Process>,
}

impl Redis {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let mut redis = Self { port: free_port(), directory, arguments, process: None };
        redis.run();
        redis
    }

    pub fn run(&mut self) {
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            &self.port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendfsync",
            "always",
        ]);
        command.arg("--dir").arg(self.directory.path()).args(&self.arguments);
        self.process = Some(Process::spawn(&mut command));
        wait_until("answer of redis-server", || ask(self.port, "PING").is_some_and(|answer| answer.contains("PONG")));
    }

    pub fn process(&self) -> &Process {
        self.process.as_ref().expect("the server runs")
    }

    pub fn kill(&mut self) {
        self.process = None;
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    pub fn ask(&self, command: &str) -> String {
        ask(self.port, command).expect("the server answers")
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }
}

/// Sends one inline command and reads what comes at once.
pub fn ask(port: u16, command: &str) -> Option<String> {
    use std::io::{Read, Write};
    let mut stream = TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), Duration::from_secs(1)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    stream.write_all(format!("{command}\r\n").as_bytes()).ok()?;
    let mut answer = vec![0; 65_536];
    let mut length = stream.read(&mut answer).ok()?;
    // A bulk string says how long it is; the rest may come later.
    if answer[0] == b'$'
        && let Some(end) = answer[..length].iter().position(|byte| *byte == b'\n')
    {
        let expected: usize = std::str::from_utf8(&answer[1..end - 1]).ok()?.parse().ok()?;
        while length < end + 1 + expected {
            length += stream.read(&mut answer[length..]).ok().filter(|read| *read > 0)?;
        }
    }
    Some(String::from_utf8_lossy(&answer[..length]).into_owned())
}
