//! The real Envoy as a neighbour.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::eventually;

/// A running Envoy; it ends when dropped.
pub struct Envoy {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Envoy {
    /// Starts one on a free port: `config` writes its configuration for that port. `None`: it is not installed here
    /// (`tests/neighbours/install`); in CI that is a failure.
    pub fn start(config: impl FnOnce(u16) -> String) -> Option<Self> {
        let program = program()?;
        let folder = tempfile::tempdir().expect("a folder");
        let address = free_address();
        let file = folder.path().join("envoy.yaml");
        std::fs::write(&file, config(address.port())).expect("written");
        let child = Command::new(program)
            .arg("--config-path")
            .arg(file)
            .args(["--use-dynamic-base-id", "--concurrency", "2"])
            .args(["--log-level", "error"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("Envoy starts");
        let envoy = Self {
            child,
            address,
            _folder: folder,
        };
        eventually("Envoy listens", || TcpStream::connect(address).is_ok());
        Some(envoy)
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An address of this machine that no program listens on.
pub fn free_address() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.local_addr().expect("its address")
}

fn program() -> Option<PathBuf> {
    let packages = super::repository().join("target/neighbours/lib");
    let versions = std::fs::read_dir(packages).into_iter().flatten().flatten();
    let found = versions
        .map(|version| version.path().join("site-packages/envoy/_bin/envoy"))
        .find(|program| program.exists());
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "Envoy is not installed");
        eprintln!("!!! SKIPPED: Envoy is not installed: tests/neighbours/install");
    }
    found
}
