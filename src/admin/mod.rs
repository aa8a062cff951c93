//! The admin listener: health, metrics, status, reload; on an address and a thread of its own, never on the public
//! port, so that a scrape or a probe is answered while every worker is busy.
//!
//! `/livez` the process answers · `/readyz` it takes requests (503 before it does, while it drains, and while a
//! condition fails; `?verbose` says which) · `/metrics` · `/api/v1/status` · `POST /-/reload`.

mod guard;
mod limits;
mod listener;
mod readiness;
mod serve;
pub mod status;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::watch;

use tollgate_telemetry::Metrics;

pub use limits::samples as limit_samples;
pub use readiness::{Phase, Readiness, Report, Standing};
pub use status::Status;

/// What the admin listener shows and does.
#[derive(Clone)]
pub struct Options {
    /// Where it listens; port 0 takes a free one.
    pub listen: Listen,
    /// Host names it may be asked by, besides `localhost` and addresses.
    pub hosts: Vec<String>,
    /// What `/metrics` shows.
    pub metrics: Metrics,
    /// What `/readyz` tells.
    pub readiness: Readiness,
    /// What `/api/v1/status` shows.
    pub status: Arc<dyn Fn() -> Status + Send + Sync>,
    /// Loads the configuration again; says what came of it.
    pub reload: Arc<dyn Fn() -> Result<String, String> + Send + Sync>,
}

/// Where the admin listener is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A Unix socket; its file is made anew, for its owner and group only.
    Unix(PathBuf),
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("listen", &self.listen)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

/// A bound socket for the admin listener, which nobody is accepted on yet.
pub struct Door {
    listener: listener::Bound,
    address: Listen,
}

impl Door {
    /// Binds.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub fn bind(listen: &Listen) -> io::Result<Self> {
        listener::bind(listen).map(|(listener, address)| Self { listener, address })
    }

    /// From a socket that somebody else bound: a service manager, or the process that this one replaces.
    ///
    /// # Errors
    /// When the socket cannot be asked for its address.
    pub fn adopt(socket: socket2::Socket) -> io::Result<Self> {
        listener::Bound::adopt(socket).map(|(listener, address)| Self { listener, address })
    }

    /// Another descriptor of its socket, to be handed on.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn duplicate(&self) -> io::Result<std::os::fd::OwnedFd> {
        self.listener.duplicate()
    }
}

/// The running admin listener; it ends when this is dropped.
#[derive(Debug)]
pub struct Admin {
    address: Listen,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Admin {
    /// Starts it.
    ///
    /// # Errors
    /// When the address cannot be listened on, or no thread or runtime can be had.
    pub fn start(options: Options) -> io::Result<Self> {
        Door::bind(&options.listen).and_then(|door| Self::serve(door, options))
    }

    /// Starts it on a socket that is already there; `options.listen` is not looked at.
    ///
    /// # Errors
    /// When no thread or runtime can be had.
    pub fn serve(door: Door, options: Options) -> io::Result<Self> {
        let Door { listener, address } = door;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(2)
            .build()?;
        let (stop, stopped) = watch::channel(false);
        let thread = std::thread::Builder::new()
            .name("admin".to_owned())
            .spawn(move || {
                runtime.block_on(serve::serve(listener, Arc::new(options), stopped));
                // A reload that hangs must not hold up the end of the process.
                runtime.shutdown_background();
            })?;
        Ok(Self {
            address,
            stop,
            thread: Some(thread),
        })
    }

    /// Has it end, without waiting for that.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Where it listens.
    pub fn address(&self) -> &Listen {
        &self.address
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // If it panicked it has said so; there is nothing left to do about it.
            let _ = thread.join();
        }
    }
}
