//! The real NGINX as a neighbour.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::eventually;

/// A running NGINX; it ends when dropped.
pub struct Nginx {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Nginx {
    /// Starts one on a free port: `http` writes the content of its `http` block, for that port. `None`: it is not
    /// installed here; in CI that is a failure.
    pub fn start(http: impl FnOnce(u16) -> String) -> Option<Self> {
        let program = program()?;
        let folder = tempfile::tempdir().expect("a folder");
        let port = TcpListener::bind(("127.0.0.1", 0))
            .expect("a port")
            .local_addr()
            .expect("its address")
            .port();
        let root = folder.path().display();
        let config = format!(
            "daemon off; master_process off; pid {root}/pid; error_log stderr;\n\
             events {{ worker_connections 512; }}\n\
             http {{ access_log off; client_body_temp_path {root}/t1; proxy_temp_path {root}/t2;\n\
             fastcgi_temp_path {root}/t3; uwsgi_temp_path {root}/t4; scgi_temp_path {root}/t5;\n{} }}\n",
            http(port)
        );
        let file = folder.path().join("nginx.conf");
        std::fs::write(&file, config).expect("written");
        let mut command = Command::new(program);
        command
            .arg("-p")
            .arg(folder.path())
            .arg("-c")
            .arg(file)
            .args(["-e", "stderr"]);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("nginx starts");
        let nginx = Self {
            child,
            port,
            _folder: folder,
        };
        eventually("nginx listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Some(nginx)
    }

    /// Where it listens.
    pub const fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program() -> Option<PathBuf> {
    let known = ["/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/sbin/nginx"].map(Path::new);
    let found = known
        .into_iter()
        .find(|path| path.exists())
        .map(Path::to_path_buf);
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "nginx is not installed");
        eprintln!("!!! SKIPPED: nginx is not installed");
    }
    found
}
