//! The admin listener: health, metrics, status, reload. It has an address and a thread of its own
//! and is never on the public port, so that it responds to a scrape or a probe while every worker
//! is busy.
//!
//! - `/`: a page that shows what is limited now.
//! - `/livez`: the process runs.
//! - `/readyz`: it accepts requests (503 before that, while it drains, and while a condition fails;
//!   `?verbose` says which).
//! - `/metrics`, `/api/v1/status`, `POST /-/reload`.
//! - `POST /api/v1/keys/{identity}/{value}/reset`, `PUT` or `DELETE …/override`,
//!   `PUT /api/v1/log-level`, for operators; `/api/v1/overrides`, `/api/v1/audit`.
//! - `/api/v1/openapi.json`: the description of all this.
//! - `/api/v1/limits`, `/api/v1/keys`, `/api/v1/decisions`: who is limited now, and why.
//! - `/api/v1/events`: what changes; `/api/v1/figures`: all counters in one document.

mod api;
pub mod audit;
mod callers;
pub mod decisions;
pub mod events;
pub mod figures;
mod guard;
pub mod keys;
pub mod limits;
mod listener;
pub mod live;
pub mod log_level;
mod notes;
mod once;
mod operators;
mod page;
pub mod overrides;
pub mod penalties;
mod readiness;
pub mod resets;
pub mod routes;
mod samples;
mod serve;
pub mod status;
mod webhook;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::watch;

use tollgate_config::settings::Operator;
use tollgate_telemetry::Metrics;

pub use audit::{Audit, TARGET as AUDIT_TARGET};
pub use events::{Events, Kind};
pub use live::Live;
pub use log_level::LogLevels;
pub use penalties::Penalties;
pub use readiness::{Phase, Readiness, Report, Standing};
pub use samples::samples as limit_samples;
pub use status::Status;
pub use webhook::Webhook;

/// The settings and data sources of the admin listener.
#[derive(Clone)]
pub struct Options {
    /// Its address; port 0 uses a free one.
    pub listen: Listen,
    /// Allowed host names, besides `localhost` and addresses.
    pub hosts: Vec<String>,
    /// The source of `/metrics`.
    pub metrics: Metrics,
    /// The source of `/readyz`.
    pub readiness: Readiness,
    /// The source of `/api/v1/status`.
    pub status: Arc<dyn Fn() -> Status + Send + Sync>,
    /// The source of the other resources under `/api/v1/`.
    pub live: Live,
    /// Who may change buckets, by the configuration in force: a token that a reload removes is
    /// worth nothing from then on.
    pub operators: Arc<dyn Fn() -> Vec<Operator> + Send + Sync>,
    /// The record of changes.
    pub audit: Audit,
    /// The level of the operations log.
    pub log_levels: LogLevels,
    /// Where events are sent.
    pub webhook: Option<Webhook>,
    /// Loads the configuration again, with `true` whatever its effect on recent requests; returns a
    /// summary.
    pub reload: Arc<dyn Fn(bool) -> Result<String, String> + Send + Sync>,
}

/// The address of the admin listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A Unix socket; its file is created anew, with access for its owner and group only.
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

/// A bound socket of the admin listener that accepts no connections yet.
pub struct Door {
    listener: listener::Bound,
    address: Listen,
}

impl Door {
    /// Binds.
    ///
    /// # Errors
    /// If it is not possible to listen on the address.
    pub fn bind(listen: &Listen) -> io::Result<Self> {
        listener::bind(listen).map(|(listener, address)| Self { listener, address })
    }

    /// Uses an inherited socket, from a service manager or the process that this one replaces.
    ///
    /// # Errors
    /// If the address of the socket cannot be read.
    pub fn adopt(socket: socket2::Socket) -> io::Result<Self> {
        listener::Bound::adopt(socket).map(|(listener, address)| Self { listener, address })
    }

    /// Duplicates the descriptor of its socket, to hand it over.
    ///
    /// # Errors
    /// If the process has no free descriptor.
    pub fn duplicate(&self) -> io::Result<std::os::fd::OwnedFd> {
        self.listener.duplicate()
    }
}

/// The running admin listener; it ends when this is dropped.
#[derive(Debug)]
pub struct Admin {
    address: Listen,
    open: watch::Sender<bool>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Admin {
    /// Starts it.
    ///
    /// # Errors
    /// If it is not possible to listen on the address, or if no thread or runtime can be created.
    pub fn start(options: Options) -> io::Result<Self> {
        let admin = Door::bind(&options.listen).and_then(|door| Self::serve(door, options))?;
        admin.open();
        Ok(admin)
    }

    /// Starts it on an existing socket; `options.listen` is ignored. It accepts nothing until it is
    /// opened.
    ///
    /// # Errors
    /// If no thread or runtime can be created.
    pub fn serve(door: Door, options: Options) -> io::Result<Self> {
        let Door { listener, address } = door;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(2)
            .build()?;
        let (stop, stopped) = watch::channel(false);
        let (open, mut opened) = watch::channel(false);
        let thread = std::thread::Builder::new()
            .name("admin".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    if opened.wait_for(|opened| *opened).await.is_ok() {
                        serve::serve(listener, Arc::new(options), stopped).await;
                    }
                });
                // A reload that hangs must not delay the end of the process.
                runtime.shutdown_background();
            })?;
        Ok(Self {
            address,
            open,
            stop,
            thread: Some(thread),
        })
    }

    /// Lets it accept connections from now on.
    pub fn open(&self) {
        self.open.send_replace(true);
    }

    /// Tells it to end, without waiting.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Its address.
    pub fn address(&self) -> &Listen {
        &self.address
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        // A listener that was never opened waits for this before it looks whether to stop.
        self.open();
        if let Some(thread) = self.thread.take() {
            // A panic has already been logged by its thread.
            let _ = thread.join();
        }
    }
}
