//! The admin listener: health, metrics, status, reload. It has an address and a thread of its own
//! and is never on the public port, so that it responds to a scrape or a probe while every worker
//! is busy. [`routes::ENDPOINTS`] lists what there is.

mod api;
pub mod audit;
mod callers;
mod changes;
pub mod decisions;
pub mod events;
pub mod figures;
mod guard;
pub mod keys;
pub mod limits;
mod listener;
pub mod live;
pub mod log_level;
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
mod thresholds;
pub mod waits;
mod webhook;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use socket2::Socket;
use tokio::sync::watch;

use crate::own_thread::OwnThread;
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
pub use tollgate_config::settings::Listener as Listen;
pub use waits::Waits;
pub use webhook::Webhook;

#[derive(Clone)]
pub struct Options {
    /// Allowed host names, besides `localhost` and addresses.
    pub hosts: Vec<String>,
    pub metrics: Metrics,
    pub readiness: Readiness,
    pub status: Arc<dyn Fn() -> Status + Send + Sync>,
    /// The source of the other resources under `/api/v1/`.
    pub live: Live,
    /// Who may change buckets, by the configuration in force: a token that a reload removes is
    /// worth nothing from then on.
    pub operators: Arc<dyn Fn() -> Vec<Operator> + Send + Sync>,
    pub audit: Audit,
    pub log_levels: LogLevels,
    pub webhook: Option<Webhook>,
    /// Loads the configuration again; returns a summary.
    pub reload: Arc<dyn Fn() -> Result<String, String> + Send + Sync>,
}

/// A bound socket of the admin listener that accepts no connections yet.
pub struct Door {
    socket: Socket,
    address: Listen,
}

impl Door {
    pub fn bind(listen: &Listen) -> io::Result<Self> {
        listener::bind(listen).and_then(Self::adopt)
    }

    /// Uses an inherited socket, from a service manager or the process that this one replaces.
    pub fn adopt(socket: Socket) -> io::Result<Self> {
        let address = listener::address(&socket)?;
        Ok(Self { socket, address })
    }

    /// Duplicates the descriptor of its socket, to hand it over.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone().map(OwnedFd::from)
    }
}

/// The running admin listener; it ends when this is dropped.
#[derive(Debug)]
pub struct Admin {
    address: Listen,
    /// Dropped before the thread, which waits for it.
    open: watch::Sender<bool>,
    thread: OwnThread,
}

impl Admin {
    /// Starts it on a socket. It accepts nothing until it is opened.
    pub fn serve(door: Door, options: Options) -> io::Result<Self> {
        let Door { socket, address } = door;
        let (open, mut opened) = watch::channel(false);
        let thread = OwnThread::start("admin", move |stopped| async move {
            if opened.wait_for(|opened| *opened).await.is_ok() {
                serve::serve(socket, Arc::new(options), stopped).await;
            }
        })?;
        Ok(Self {
            address,
            open,
            thread,
        })
    }

    pub fn open(&self) {
        self.open.send_replace(true);
    }

    pub fn stop(&self) {
        self.thread.stop();
    }

    pub fn address(&self) -> &Listen {
        &self.address
    }
}
