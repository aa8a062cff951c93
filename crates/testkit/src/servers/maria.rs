//! A MariaDB of a test's own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::{Process, available_quietly, directory, free_port, root, wait_until};

/// A MariaDB server with the database `tollgate` and the user `root` without a password.
#[derive(Debug)]
pub struct Maria {
    pub port: u16,
    directory: tempfile::TempDir,
    arguments: Vec<String>,
    /// Whether it runs as the user `mysql`, as the copy of a node's data demands, where this is root.
    as_mysql: bool,
    process: Option<Process>,
}

impl Maria {
    /// Whether a test that needs MariaDB can run; see [`super::available`].
    pub fn available() -> bool {
        super::available("mariadbd") && super::available("mariadb")
    }

    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts it with settings like `innodb-flush-log-at-trx-commit=0`.
    pub fn start_with(arguments: &[&str]) -> Self {
        Self::start_as(arguments, false)
    }

    /// The same as the user `mysql`, where this is root.
    pub(super) fn start_as_mysql(arguments: &[&str]) -> Self {
        Self::start_as(arguments, root())
    }

    /// Replaces the last argument for when it is started again.
    pub(super) fn replace_argument(&mut self, argument: &str) {
        self.arguments.pop();
        self.arguments.push(format!("--{argument}"));
    }

    fn start_as(arguments: &[&str], as_mysql: bool) -> Self {
        let directory = directory();
        let copied = Command::new("cp")
            .arg("-r")
            .arg(template())
            .arg(directory.path().join("data"))
            .status();
        assert!(copied.expect("cp runs").success(), "the data is copied");
        let mut maria = Self {
            port: free_port(),
            directory,
            arguments: arguments
                .iter()
                .map(|argument| format!("--{argument}"))
                .collect(),
            as_mysql,
            process: None,
        };
        if as_mysql {
            let owned = Command::new("chown")
                .args(["-R", "mysql"])
                .arg(maria.directory.path())
                .status();
            assert!(
                owned.expect("chown runs").success(),
                "the user mysql exists"
            );
        }
        maria.run();
        maria.sql("CREATE DATABASE IF NOT EXISTS tollgate");
        maria
    }

    /// A replica of this server, which has its binary log on, with what it has at this moment.
    pub fn replica(&self) -> Self {
        let replica = Self::start_with(&["server-id=2", "read-only=1", "log-bin=binlog"]);
        replica.sql(&format!(
            "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {}, MASTER_USER = 'root',
                 MASTER_LOG_FILE = 'binlog.000001', MASTER_LOG_POS = 4; START SLAVE",
            self.port
        ));
        replica
    }

    pub fn run(&mut self) {
        let data = self.directory.path();
        let mut command = Command::new(if self.as_mysql { "setpriv" } else { "mariadbd" });
        if self.as_mysql {
            command.args([
                "--reuid=mysql",
                "--regid=mysql",
                "--clear-groups",
                "mariadbd",
            ]);
        }
        command
            .arg("--no-defaults")
            .arg(format!("--datadir={}", data.join("data").display()))
            .arg(format!("--socket={}", data.join("socket").display()))
            .arg(format!("--pid-file={}", data.join("pid").display()))
            .arg(format!("--port={}", self.port))
            .args([
                "--bind-address=127.0.0.1",
                "--innodb-buffer-pool-size=16M",
                "--innodb-log-file-size=8M",
                "--skip-stack-trace",
            ])
            .args(user().filter(|_| !self.as_mysql))
            .args(&self.arguments);
        self.process = Some(Process::spawn(&mut command));
        wait_until("answer of mariadbd", || self.try_sql("SELECT 1").is_ok());
    }

    /// The address for `root`.
    pub fn url(&self) -> String {
        self.url_of("root")
    }

    /// The address for another user.
    pub fn url_of(&self, user: &str) -> String {
        format!("mysql://{user}@127.0.0.1:{}/tollgate", self.port)
    }

    /// Where its socket is.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    pub fn process(&self) -> &Process {
        self.process.as_ref().expect("the server runs")
    }

    /// Stops it at once, as a crash does.
    pub fn crash(&mut self) {
        self.process = None;
    }

    /// Has it end as an operator does, with everything written.
    pub fn stop(&mut self) {
        self.process().signal("-TERM");
        if let Some(mut process) = self.process.take() {
            process.wait();
        }
    }

    /// Runs statements; what was printed, without headings.
    pub fn sql(&self, statements: &str) -> String {
        self.try_sql(statements)
            .unwrap_or_else(|error| panic!("{statements}: {error}"))
    }

    /// The same of a server that may not answer.
    pub fn try_sql(&self, statements: &str) -> Result<String, String> {
        let database = self.directory.path().join("data/tollgate").exists();
        let output = self
            .client("mariadb")
            .args(["-N", "-B", "-e", statements])
            .args(database.then_some("tollgate"))
            .output()
            .expect("mariadb runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stderr))
        }
    }

    /// What mariadb-dump says of the database.
    pub fn dump(&self, arguments: &[&str]) -> String {
        let output = self
            .client("mariadb-dump")
            .args(arguments)
            .arg("tollgate")
            .output()
            .expect("mariadb-dump runs");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{error}");
        String::from_utf8(output.stdout).expect("text")
    }

    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let (port, host) = (self.port, "--host=127.0.0.1");
        command.args(["--no-defaults", host, "--user=root", "--connect-timeout=5"]);
        if program == "mariadb-dump" {
            command = Command::new(program);
            command.args(["--no-defaults", host, "--user=root", "--hex-blob"]);
        }
        command.arg(format!("--port={port}"));
        command
    }
}

/// The data of a new server, made once for all tests of this process.
fn template() -> &'static Path {
    static MADE: OnceLock<tempfile::TempDir> = OnceLock::new();
    MADE.get_or_init(|| {
        let directory = directory();
        let made = Command::new("mariadb-install-db")
            .args([
                "--no-defaults",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--innodb-log-file-size=8M",
            ])
            .arg(format!("--datadir={}", directory.path().display()))
            .args(user())
            .output()
            .expect("mariadb-install-db runs");
        assert!(
            made.status.success(),
            "the data of a new server is not made: {}{}",
            String::from_utf8_lossy(&made.stdout),
            String::from_utf8_lossy(&made.stderr)
        );
        directory
    })
    .path()
}

/// The server refuses to run as root without this argument.
fn user() -> Option<&'static str> {
    (root() && available_quietly("mariadbd")).then_some("--user=root")
}
