//! A pgbouncer of a test's own.

use std::path::Path;
use std::process::Command;

use super::postgres::{Postgres, as_postgres, binary};
use super::{Process, available, directory, free_port, root, wait_until};

/// A pgbouncer in transaction mode before a PostgreSQL: two connections to it for all clients.
#[derive(Debug)]
pub struct Pooler {
    pub port: u16,
    _directory: tempfile::TempDir,
    _process: Process,
}

impl Pooler {
    /// Whether a test that needs it can run; see [`super::available`].
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
