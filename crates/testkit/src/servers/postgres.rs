//! A PostgreSQL server of a test's own.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{Process, directory, free_port, root, wait_until};

/// A PostgreSQL cluster of its own.
#[derive(Debug)]
pub struct Postgres {
    pub port: u16,
    directory: tempfile::TempDir,
    arguments: Vec<String>,
    process: Option<Process>,
}

impl Postgres {
    /// Whether a test that needs PostgreSQL can run; see [`super::available`].
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

    /// Stops it at once, as a crash does. Its processes are waited for: the next server does not start while one of them
    /// has its shared memory.
    pub fn crash(&mut self) {
        let pids = self.pids();
        self.signal("-KILL");
        self.process = None;
        wait_until("end of postgres", || !pids.iter().any(|pid| runs(*pid)));
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

/// Whether a process runs: one that ended may wait for its parent to learn of it.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|state| !state.starts_with(['Z', 'X']))
}

pub(super) fn as_postgres(program: &Path) -> Command {
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
pub(super) fn binary(name: &str) -> Option<std::path::PathBuf> {
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
