//! The composition root: a running gateway, from its start over reloads to its end.
//!
//! [`start()`] creates a [`RunningGateway`]; tests call it, and so does [`run()`] for the command
//! line, which adds signals and the service manager. A reload compiles everything beside the state
//! in force, and replaces that in one step or not at all: connections stay open, requests in
//! progress end under the snapshot they began with, buckets are carried over.

mod admin_listener;
pub(crate) mod changes;
mod handover;
pub(crate) mod key_names;
mod listeners;
mod mapped;
pub(crate) mod memory;
mod observe;
mod opening;
#[cfg(feature = "otlp")]
mod otlp;
mod options;
mod reload;
mod run;
mod shared_store;
mod start;
pub(crate) mod state_file;
mod stop;
mod upstreams;
pub(crate) mod watch;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::acme;
use crate::admin::{self, Admin, Readiness};
use crate::jwt_keys::JwtKeys;
use crate::overrides::Overrides;
use crate::own_thread::OwnThread;
use handover::{Relay, Successor};
use reload::{Reloads, State};
use tollgate_gateway::decide::Permits;
use tollgate_gateway::{Challenges, GatewayState, Snapshot};
use tollgate_net::listener::{Address, ListenerSockets};
use tollgate_net::server;
use tollgate_net::tls::ServerTls;
use tollgate_net::worker::Workers;
use tollgate_rls::Serving;
use tollgate_telemetry::AccessLog;
use tollgate_telemetry::access::KeyNames;

pub use handover::{Anew, Origin};
pub(crate) use opening::unopened;
pub use options::{ConfigSource, Environment, Options, preflight};
pub use run::run;
pub use start::{StartError, start};

/// A gateway that serves. Dropping it stops it at once; [`RunningGateway::shutdown`] drains first.
#[derive(Debug)]
pub struct RunningGateway {
    core: Arc<Core>,
    addresses: Vec<Address>,
    /// Where it decides for other proxies.
    deciding: Vec<Address>,
    admin: Option<Admin>,
    workers: Option<Workers>,
    watcher: Option<OwnThread>,
    /// Its listening sockets, to be handed over; empty once it drains.
    kept: Mutex<Vec<ListenerSockets>>,
    /// The addresses of the sockets that a service manager holds.
    activated: Vec<String>,
    /// Takes the corrections that the previous gateway process sends, if there was one.
    relay: Option<Relay>,
    overrides: Option<OwnThread>,
    /// Orders and renews the certificate, where the file says so.
    acme: Option<OwnThread>,
    handed_over: AtomicBool,
    /// The process that is about to replace it.
    successor: Mutex<Successor>,
    /// Sends spans to a collector; dropped after the workers.
    #[cfg(feature = "otlp")]
    exporter: Option<OwnThread>,
    /// The end of the drain, once one has begun.
    drained_by: OnceLock<Instant>,
}

/// The parts of a running gateway that a reload and the admin listener need.
struct Core {
    options: Options,
    gateway: GatewayState,
    server: Arc<server::ServerState>,
    decide_server: Arc<server::ServerState>,
    /// The requests admitted for other programs whose end has not been reported.
    permits: Arc<Permits>,
    serving: Serving,
    tls: Option<Arc<ServerTls>>,
    challenges: Challenges,
    acme: acme::Status,
    readiness: Readiness,
    names: KeyNames,
    events: admin::Events,
    overrides: Overrides,
    jwt_keys: JwtKeys,
    state: Mutex<State>,
    reloads: Mutex<Reloads>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("source", &self.options.source)
            .finish_non_exhaustive()
    }
}

impl RunningGateway {
    /// The addresses on which it listens, in the order of the file; port 0 is replaced by the
    /// actual port.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    pub fn deciding(&self) -> &[Address] {
        &self.deciding
    }

    pub fn admin(&self) -> Option<&admin::Listen> {
        self.admin.as_ref().map(Admin::address)
    }

    /// Loads the configuration again and puts it in force; returns a summary.
    /// The error: why it is invalid; then the configuration in force stays.
    pub fn reload(&self) -> Result<String, String> {
        self.core.reload()
    }

    /// Replaces the text from which it was started, for the next reload. Has no effect on a gateway
    /// that reads a file.
    pub fn replace_text(&self, text: &str) {
        self.core.state.lock().text = Some(text.to_owned());
    }

    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.core.gateway.current.load_full()
    }

    /// State that its workers share: enough for a [`Gateway`](tollgate_gateway::Gateway) behind another server.
    pub fn shared(&self) -> &GatewayState {
        &self.core.gateway
    }

    pub fn access_log(&self) -> Option<&AccessLog> {
        self.core.gateway.access.as_ref()
    }

    pub fn server(&self) -> &server::ServerState {
        &self.core.server
    }

    /// Whether another process has replaced it.
    pub fn has_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Acquire)
    }

    pub fn ended(&self) -> bool {
        self.workers.as_ref().is_none_or(Workers::ended)
    }
}
