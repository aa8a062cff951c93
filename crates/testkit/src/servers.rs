//! Servers of a test's own: started on free ports in a directory of their own, stopped when the test ends.

use std::collections::BTreeSet;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

mod maria;

pub use maria::Maria;

/// A port without a listener at this moment, nor on the one 10 000 above it, where a node of a
/// Redis Cluster wants its bus. The kernel gives none of these to a connection meanwhile: its own
/// begin at 32 768. Each port is given out once, because tests that run beside each other bind
/// theirs later.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let mut given = GIVEN.lock().expect("no test panics in here");
    let mut ports = std::iter::repeat_with(|| fastrand::u16(10_000..20_000)).take(1_000);
    let port = ports
        .find(|port| !given.contains(port) && free(*port) && free(port + 10_000))
        .expect("a free port");
    given.insert(port);
    port
}

/// Whether a test that needs `program` can run. A laptop without it skips loudly; CI fails.
pub fn available(program: &str) -> bool {
    let found = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok();
    if !found {
        assert!(
            std::env::var("CI").as_deref() != Ok("true"),
            "CI must not skip: {program} is not installed"
        );
        eprintln!("SKIPPED: {program} is not installed; this test checked nothing");
    }
    found
}

/// A directory of this process's. Those of processes that are no more are removed: one that is killed leaves its own.
fn directory() -> tempfile::TempDir {
    const PREFIX: &str = "tollgate-test-";
    for entry in std::fs::read_dir(std::env::temp_dir())
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split_once('-'))
            .and_then(|(pid, _)| pid.parse().ok());
        if owner.is_some_and(|pid: u32| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    let prefix = format!("{PREFIX}{}-", std::process::id());
    tempfile::Builder::new()
        .prefix(&prefix)
        .tempdir()
        .expect("a directory")
}

fn available_quietly(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}

/// Waits for an event, at most a minute: servers start slowly on a busy machine.
pub fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happened() {
        assert!(Instant::now() < deadline, "no {what} within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for an event without holding up the runtime, at most `bound`; how long it took.
pub async fn eventually(
    what: &str,
    bound: Duration,
    mut happened: impl AsyncFnMut() -> bool,
) -> Duration {
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
        let directory = directory();
        let arguments = arguments
            .iter()
            .map(|argument| (*argument).to_owned())
            .collect();
        let mut redis = Self {
            port: free_port(),
            directory,
            arguments,
            process: None,
        };
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
        command
            .arg("--dir")
            .arg(self.directory.path())
            .args(&self.arguments);
        self.process = Some(Process::spawn(&mut command));
        wait_until("answer of redis-server", || {
            ask(self.port, "PING").is_some_and(|answer| answer.contains("PONG"))
        });
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

/// One inline command behind a password; what comes at once of both answers.
pub fn ask_as(port: u16, password: &str, command: &str) -> String {
    ask(port, &format!("AUTH {password}\r\n{command}\r\nPING")).expect("the server answers")
}

/// Sends one inline command and reads what comes at once.
pub fn ask(port: u16, command: &str) -> Option<String> {
    use std::io::{Read, Write};
    let mut stream =
        TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), Duration::from_secs(1)).ok()?;
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .ok()?;
    stream.write_all(format!("{command}\r\n").as_bytes()).ok()?;
    let mut answer = vec![0; 65_536];
    let mut length = stream.read(&mut answer).ok()?;
    // A bulk string says how long it is; the rest may come later.
    if answer[0] == b'$'
        && let Some(end) = answer[..length].iter().position(|byte| *byte == b'\n')
    {
        let expected: usize = std::str::from_utf8(&answer[1..end - 1])
            .ok()?
            .parse()
            .ok()?;
        while length < end + 1 + expected {
            length += stream
                .read(&mut answer[length..])
                .ok()
                .filter(|read| *read > 0)?;
        }
    }
    Some(String::from_utf8_lossy(&answer[..length]).into_owned())
}

/// A PostgreSQL cluster of its own.
#[derive(Debug)]
pub struct Postgres {
    pub port: u16,
    directory: tempfile::TempDir,
    arguments: Vec<String>,
    process: Option<Process>,
}

impl Postgres {
    /// Whether a test that needs PostgreSQL can run; see [`available`].
    pub fn available() -> bool {
        if binary("initdb").is_some() {
            return true;
        }
        assert!(
            std::env::var("CI").as_deref() != Ok("true"),
            "CI must not skip: PostgreSQL is not installed"
        );
        eprintln!("SKIPPED: PostgreSQL is not installed; this test checked nothing");
        false
    }

    pub fn start_with(arguments: &[&str]) -> Self {
        Self::start_prepared(arguments, |_| ())
    }

    /// Starts it once `prepare` has changed its directory.
    pub fn start_prepared(arguments: &[&str], prepare: impl FnOnce(&Path)) -> Self {
        Self::start_made(arguments, |data| {
            let made = as_postgres(&binary("initdb").expect("initdb is installed"))
                .args([
                    "--auth=trust",
                    "--username=postgres",
                    "--no-sync",
                    "--encoding=UTF8",
                    "--locale=C",
                    "-D",
                ])
                .arg(data)
                .stdout(Stdio::null())
                .status()
                .expect("initdb runs");
            assert!(made.success(), "initdb makes a cluster");
            prepare(data);
        })
    }

    /// A hot standby of this server, which follows it from now on.
    pub fn standby(&self) -> Self {
        Self::start_made(&["fsync=off"], |data| {
            let made = as_postgres(&binary("pg_basebackup").expect("pg_basebackup is installed"))
                .args([
                    "-h",
                    "127.0.0.1",
                    "-U",
                    "postgres",
                    "-p",
                    &self.port.to_string(),
                ])
                .args(["-R", "-X", "stream", "--checkpoint=fast", "--no-sync", "-D"])
                .arg(data)
                .status()
                .expect("pg_basebackup runs");
            assert!(made.success(), "pg_basebackup makes a copy");
            let private = Command::new("chmod")
                .arg("0700")
                .arg(data)
                .status()
                .expect("chmod runs");
            assert!(private.success(), "the directory is the server's alone");
        })
    }

    /// Writes what pg_dump says to a file.
    pub fn dump(&self, arguments: &[&str]) -> std::path::PathBuf {
        let output = Command::new(binary("pg_dump").expect("pg_dump is installed"))
            .args([
                "-h",
                "127.0.0.1",
                "-U",
                "postgres",
                "-p",
                &self.port.to_string(),
            ])
            .args(arguments)
            .arg("postgres")
            .output()
            .expect("pg_dump runs");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let file = self.directory.path().join("dump.sql");
        std::fs::write(&file, output.stdout).expect("written");
        file
    }

    fn start_made(arguments: &[&str], make: impl FnOnce(&Path)) -> Self {
        let directory = directory();
        let data = directory.path().join("data");
        std::fs::create_dir(&data).expect("a directory");
        if root() {
            // The server refuses to run as root.
            for path in [directory.path(), &data] {
                let owned = Command::new("chown")
                    .arg("postgres")
                    .arg(path)
                    .status()
                    .expect("chown runs");
                assert!(owned.success(), "the user postgres exists");
            }
        }
        make(&data);
        if root() {
            let owned = Command::new("chown")
                .args(["-R", "postgres"])
                .arg(&data)
                .status()
                .expect("chown runs");
            assert!(owned.success(), "what was prepared is the server's");
        }
        let arguments = arguments
            .iter()
            .map(|argument| (*argument).to_owned())
            .collect();
        let mut postgres = Self {
            port: free_port(),
            directory,
            arguments,
            process: None,
        };
        postgres.run();
        postgres
    }

    pub fn run(&mut self) {
        let mut command = as_postgres(&binary("postgres").expect("postgres is installed"));
        command.arg("-D").arg(self.directory.path().join("data"));
        command.args([
            "-p",
            &self.port.to_string(),
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "unix_socket_directories=",
        ]);
        for argument in &self.arguments {
            command.args(["-c", argument]);
        }
        self.process = Some(Process::spawn(&mut command));
        wait_until("answer of postgres", || self.is_ready());
    }

    /// Whether it answers.
    pub fn is_ready(&self) -> bool {
        let mut ready = Command::new(binary("pg_isready").expect("pg_isready is installed"));
        let asked = ready
            .args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()])
            .status();
        asked.is_ok_and(|status| status.success())
    }

    /// The postmaster's process id: what was started may be a wrapper that changed users.
    pub fn pid(&self) -> u32 {
        let file = std::fs::read_to_string(self.directory.path().join("data/postmaster.pid"))
            .expect("it runs");
        file.lines()
            .next()
            .and_then(|line| line.parse().ok())
            .expect("its first line is the process id")
    }

    /// The postmaster and the processes it has started.
    pub fn pids(&self) -> Vec<u32> {
        let postmaster = self.pid();
        let children =
            std::fs::read_to_string(format!("/proc/{postmaster}/task/{postmaster}/children"));
        let children = children.unwrap_or_default();
        [postmaster]
            .into_iter()
            .chain(
                children
                    .split_whitespace()
                    .filter_map(|pid| pid.parse().ok()),
            )
            .collect()
    }

    pub fn signal(&self, signal: &str) {
        for pid in self.pids() {
            let _ = Command::new("kill")
                .args([signal, &pid.to_string()])
                .stderr(Stdio::null())
                .status();
        }
    }

    /// Has it end as an operator does, with everything written.
    pub fn stop(&mut self) {
        let told = Command::new("kill")
            .args(["-INT", &self.pid().to_string()])
            .status()
            .expect("kill runs");
        assert!(told.success(), "the server runs");
        if let Some(mut process) = self.process.take() {
            process.wait();
        }
    }

    /// Stops it at once, as a crash does.
    pub fn crash(&mut self) {
        self.signal("-KILL");
        self.process = None;
        let _ = std::fs::remove_file(self.directory.path().join("data/postmaster.pid"));
    }

    /// Runs statements as `user` with psql; what it printed, unaligned.
    pub fn psql(&self, user: &str, statements: &str) -> String {
        self.try_psql(user, statements)
            .unwrap_or_else(|error| panic!("{statements}: {error}"))
    }

    /// The same of a server that may not answer.
    pub fn try_psql(&self, user: &str, statements: &str) -> Result<String, String> {
        let output = self
            .psql_command(user)
            .args(["-c", statements])
            .output()
            .expect("psql runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stderr))
        }
    }

    /// Runs the statements of a file in one transaction; whether all of them succeeded.
    pub fn try_psql_file(&self, file: &Path) -> bool {
        let mut command = self.psql_command("postgres");
        let output = command
            .arg("-1")
            .arg("-f")
            .arg(file)
            .output()
            .expect("psql runs");
        output.status.success()
    }

    fn psql_command(&self, user: &str) -> Command {
        let mut command = Command::new(binary("psql").expect("psql is installed"));
        command.args([
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
            "127.0.0.1",
            "-U",
            user,
            "-d",
            "postgres",
        ]);
        command.args(["-p", &self.port.to_string()]);
        command
    }

    /// The address for another user.
    pub fn url_of(&self, user: &str) -> String {
        format!(
            "postgres://{user}@127.0.0.1:{}/postgres?sslmode=disable",
            self.port
        )
    }

    pub fn url(&self) -> String {
        format!(
            "postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable",
            self.port
        )
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.process.is_some() && self.directory.path().join("data/postmaster.pid").exists() {
            self.signal("-KILL");
        }
    }
}

/// A pgbouncer in transaction mode before a PostgreSQL: two connections to it for all clients.
#[derive(Debug)]
pub struct Pooler {
    pub port: u16,
    _directory: tempfile::TempDir,
    _process: Process,
}

impl Pooler {
    /// Whether a test that needs it can run; see [`available`].
    pub fn available() -> bool {
        available("pgbouncer")
    }

    pub fn start(server: &Postgres) -> Self {
        let (directory, port) = (directory(), free_port());
        let file = directory.path().join("pgbouncer.ini");
        let users = directory.path().join("users.txt");
        std::fs::write(&users, "\"postgres\" \"\"\n").expect("written");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = transaction\ndefault_pool_size = 2\n\
             server_login_retry = 1\n",
            server.port,
            users.display()
        );
        std::fs::write(&file, text).expect("written");
        if root() {
            let owned = Command::new("chown")
                .args(["-R", "postgres"])
                .arg(directory.path())
                .status();
            assert!(
                owned.expect("chown runs").success(),
                "the user postgres exists"
            );
        }
        let process = Process::spawn(as_postgres(Path::new("pgbouncer")).arg(&file));
        let ready = binary("pg_isready").expect("pg_isready is installed");
        wait_until("answer of pgbouncer", || {
            let asked = Command::new(&ready)
                .args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()])
                .status();
            asked.is_ok_and(|status| status.success())
        });
        Self {
            port,
            _directory: directory,
            _process: process,
        }
    }

    pub fn url(&self) -> String {
        format!(
            "postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable",
            self.port
        )
    }
}

fn root() -> bool {
    Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|output| output.stdout == b"0\n")
}

fn as_postgres(program: &Path) -> Command {
    if !root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    // PostgreSQL goes back to where it was started, which root's own directories do not let it.
    command
        .current_dir("/")
        .args(["--reuid=postgres", "--regid=postgres", "--clear-groups"])
        .arg(program);
    command
}

/// A program of PostgreSQL: in the directory of TOLLGATE_TEST_POSTGRES (to try another version), where Debian keeps each
/// version's, or on the path.
fn binary(name: &str) -> Option<std::path::PathBuf> {
    let wanted = std::env::var_os("TOLLGATE_TEST_POSTGRES")
        .map(|directory| Path::new(&directory).join(name));
    if let Some(wanted) = wanted.filter(|wanted| wanted.exists()) {
        return Some(wanted);
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let mut found: Vec<_> = versions
        .map(|version| version.path().join("bin").join(name))
        .filter(|p| p.exists())
        .collect();
    found.sort();
    found.pop().or_else(|| {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path)
            .map(|directory| directory.join(name))
            .find(|program| program.exists())
    })
}
