//! The composition root: configuration in, running gateway out; owns reload and drain.
//!
//! [`start`] makes a [`RunningGateway`]: the tests do, and [`run()`] does for the command line, adding signals and the
//! service manager. A reload compiles everything anew beside what is in force, and swaps it in one step or not at all:
//! connections stay, requests under way end under the snapshot they began with, buckets are carried over.

mod changes;
mod handover;
mod mapped;
pub(crate) mod memory;
mod observe;
mod options;
mod reload;
mod run;
mod shared_store;
mod state_file;
mod upstreams;
mod watch;
mod watcher;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::admin::{self, Admin, Phase, Readiness};
use handover::{Predecessor, Relay};
use reload::State;
use tollgate_config::{Config, ConfigError};
use tollgate_gateway::forward::UpstreamHealth;
use tollgate_gateway::gateway::{self, Gateway, Snapshot};
use tollgate_limiter::Limiter;
use tollgate_net::listener::{self, Address, BindError, Inherited, Kept, Listen};
use tollgate_net::server;
use tollgate_net::tls::{ServerTls, TlsError};
use tollgate_net::worker::{Drain, Workers};
use tollgate_store::Backend;
use tollgate_telemetry::{AccessLog, Metrics};
use watcher::Watcher;

pub use handover::{Anew, Origin};
pub use options::{Environment, Options, Source, preflight};
pub use run::run;

/// Why a gateway did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is wrong.
    #[error("{0}")]
    Config(ConfigError),
    /// A listener cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A certificate, key or authority cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A service manager handed a socket over that nothing listens on.
    #[error(
        "a socket on {0} was handed over, and neither server.listen nor admin.listen names that address"
    )]
    Unclaimed(String),
    /// The place of a running gateway cannot be taken.
    #[error("cannot take over from the running gateway: {0}")]
    TakeOver(String),
    /// Buckets cannot be kept where the configuration says.
    #[error("{0}")]
    State(String),
    /// An upstream's certificates or keys are none.
    #[error("{0}")]
    Upstream(String),
    /// The shared store cannot be set up.
    #[error("[store]: {0}")]
    Store(String),
    /// The admin listener cannot be bound.
    #[error("the admin listener cannot be started on {address}: {source}")]
    Admin {
        /// Where it was to listen.
        address: String,
        /// Why it does not.
        source: io::Error,
    },
    /// Something of the system failed.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

/// A gateway that serves. Dropped, it stops at once; [`RunningGateway::shutdown`] drains first.
#[derive(Debug)]
pub struct RunningGateway {
    core: Arc<Core>,
    addresses: Vec<Address>,
    admin: Option<Admin>,
    workers: Option<Workers>,
    watcher: Option<Watcher>,
    /// Its listening sockets, to be handed over; none once it drains.
    kept: Mutex<Vec<Kept>>,
    /// What answers the gateway before this one, if there was one.
    relay: Option<Relay>,
    /// Another process has its place.
    handed_over: AtomicBool,
    /// When the end of a drain must have come, once one has begun.
    drained_by: OnceLock<Instant>,
}

/// What a reload and the admin listener need of a running gateway.
struct Core {
    options: Options,
    /// What the workers' gateways share.
    gateway: gateway::Shared,
    /// What the workers' servers share.
    server: Arc<server::Shared>,
    tls: Option<Arc<ServerTls>>,
    readiness: Readiness,
    /// What a reload compares with; the lock serialises reloads.
    state: Mutex<State>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("source", &self.options.source)
            .finish_non_exhaustive()
    }
}

/// Starts a gateway.
///
/// # Errors
/// Everything that keeps it from serving; then nothing was started.
pub fn start(options: Options) -> Result<RunningGateway, StartError> {
    let config = options.load().map_err(StartError::Config)?;
    start_with(config, options, Origin::default())
}

fn start_with(
    config: Config,
    options: Options,
    origin: Origin,
) -> Result<RunningGateway, StartError> {
    let system = |what| move |source| StartError::System { what, source };
    let clock = options.clock.clone();
    let metrics = Metrics::new(clock.now().as_micros());
    let access = mapped::access_log(&config.log)
        .map(AccessLog::open)
        .transpose()
        .map_err(system("the access log cannot be opened"))?;
    let tls = mapped::tls(&config.server)
        .map(|settings| ServerTls::load(&settings))
        .transpose()?
        .map(Arc::new);
    upstreams::check(&config.policy).map_err(StartError::Upstream)?;
    let count = mapped::workers(&config.server);
    let listen: Vec<Listen> = config
        .server
        .listen
        .iter()
        .map(|one| mapped::listen(one, tls.as_ref()))
        .collect();
    let Origin {
        sockets: mut inherited,
        predecessor,
        ..
    } = origin;
    let mut predecessor =
        predecessor
            .map(Predecessor::greet)
            .transpose()?
            .map(|(predecessor, sockets)| {
                inherited.extend(sockets);
                predecessor
            });
    let (bound, mut kept) = listener::bind_or_adopt(&listen, count, &mut inherited)?;
    let addresses: Vec<Address> = bound.iter().map(|one| one.address.clone()).collect();
    let admin_door = config.admin.listen.as_ref().map(|listen| {
        let failed = |source| StartError::Admin {
            address: listen.to_string(),
            source,
        };
        admin_door(&mapped::admin(listen), &mut inherited, &mut kept).map_err(failed)
    });
    let admin_door = admin_door.transpose()?;
    // What a predecessor listened on and this configuration does not name ends with it.
    if let (Some(unclaimed), None) = (inherited.first(), &predecessor) {
        return Err(StartError::Unclaimed(unclaimed.place()));
    }
    drop(inherited);
    let backend = Arc::new(
        shared_store::open(config.store.as_ref(), &config.policy.limits, &clock)
            .map_err(StartError::Store)?,
    );
    let (limiter, mark) = match &mut predecessor {
        Some(predecessor) => predecessor.limiter(&config, Arc::clone(&backend), &clock)?,
        None => state_file::limiter(&config, Arc::clone(&backend), &clock)?,
    };
    let snapshot = snapshot(&config, limiter, &metrics);
    let gateway = gateway::Shared {
        current: Arc::new(ArcSwap::from_pointee(snapshot)),
        clock,
        metrics: metrics.clone(),
        access,
        requests: Arc::default(),
        held: Arc::default(),
        fleet: UpstreamHealth::default(),
    };
    let fleet = gateway.fleet.clone();
    metrics.source("upstreams", move |samples| fleet.samples(samples));
    let server = Arc::new(server::Shared::new(mapped::server(&config)));
    let make = {
        let shared = Arc::new(gateway.clone());
        move |_| Gateway::new(&shared)
    };
    let workers = server::serve_held(bound, count, Arc::clone(&server), make)
        .map_err(system("the workers cannot be started"))?;
    let relay = match predecessor {
        Some(predecessor) => predecessor.succeed(Arc::clone(&gateway.current))?,
        None => None,
    };
    workers.open();
    let admin_listen = config.admin.listen.clone();
    let state = Mutex::new(State::new(config, backend, mark));
    let core = Arc::new(Core {
        options,
        gateway,
        server,
        tls,
        readiness: Readiness::new(),
        state,
    });
    core.show();
    core.require_store();
    core.show_upstreams();
    let admin = match admin_listen.zip(admin_door) {
        None => None,
        Some((listen, door)) => {
            let failed = |source| StartError::Admin {
                address: listen.to_string(),
                source,
            };
            Some(core.admin(&listen, door).map_err(failed)?)
        }
    };
    let watcher =
        Watcher::start(&core).map_err(system("the thread that watches files cannot be started"))?;
    core.readiness.enter(Phase::Serving);
    let (kept, handed_over) = (Mutex::new(kept), AtomicBool::new(false));
    Ok(RunningGateway {
        core,
        addresses,
        admin,
        workers: Some(workers),
        watcher,
        kept,
        relay,
        handed_over,
        drained_by: OnceLock::new(),
    })
}

/// The admin listener's socket: one that somebody else bound, or a new one. It is kept too, to be handed on.
fn admin_door(
    listen: &admin::Listen,
    inherited: &mut Vec<Inherited>,
    kept: &mut Vec<Kept>,
) -> io::Result<admin::Door> {
    let wanted = handover::admin_place(listen);
    // As the gateway before this one names it, or else by its address, as a service manager would.
    let mut sockets = Inherited::take(inherited, &wanted);
    if sockets.is_empty() {
        sockets = Inherited::take(inherited, wanted.trim_start_matches("admin "));
    }
    let door = match sockets.pop() {
        Some(socket) => admin::Door::adopt(socket)?,
        None => admin::Door::bind(listen)?,
    };
    kept.push(Kept {
        wanted,
        sockets: vec![door.duplicate()?],
    });
    Ok(door)
}

/// What decides about requests as `config` says, with the buckets of `limiter`.
fn snapshot(config: &Config, limiter: Limiter<Backend>, metrics: &Metrics) -> Snapshot {
    Snapshot::new(
        Arc::clone(&config.policy),
        limiter,
        metrics,
        mapped::conduct(&config.server),
    )
}

impl RunningGateway {
    /// Where it listens, in the order of the file; port 0 has become a port.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Where its admin listener listens.
    pub fn admin(&self) -> Option<&admin::Listen> {
        self.admin.as_ref().map(Admin::address)
    }

    /// Loads the configuration again and puts it in force; says what came of it.
    ///
    /// # Errors
    /// What is wrong with it; then what was in force stays.
    pub fn reload(&self) -> Result<String, String> {
        self.core.reload()
    }

    /// Puts `text` in the place of the text it was started with, at the next reload. Nothing happens to a gateway that
    /// reads a file.
    pub fn replace_text(&self, text: &str) {
        self.core.state.lock().text = Some(text.to_owned());
    }

    /// The snapshot in force.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.core.gateway.current.load_full()
    }

    /// What its workers share: enough for a [`Gateway`] behind another server than ours.
    pub fn shared(&self) -> &gateway::Shared {
        &self.core.gateway
    }

    /// What is counted.
    pub fn metrics(&self) -> &Metrics {
        &self.core.gateway.metrics
    }

    /// Its access log, if it keeps one.
    pub fn access_log(&self) -> Option<&AccessLog> {
        self.core.gateway.access.as_ref()
    }

    /// What the servers count and bound.
    pub fn server(&self) -> &server::Shared {
        &self.core.server
    }

    /// Says that it is not ready any more, and goes on as before: load balancers have the returned time
    /// (`drain_delay`) to notice before [`Self::drain`].
    pub fn announce_drain(&self) -> Duration {
        self.core.readiness.enter(Phase::Draining);
        self.core
            .state
            .lock()
            .in_force
            .server
            .timeouts
            .drain_delay
            .into()
    }

    /// Takes nothing new and finishes what is under way, within the time that the file gives a drain.
    pub fn drain(&self) {
        self.core.readiness.enter(Phase::Draining);
        let whole: Duration = self.core.state.lock().in_force.server.timeouts.drain.into();
        self.drained_by.get_or_init(|| Instant::now() + whole);
        // What is cut off at the end is still logged within the time that the file gives.
        let span = whole - LAST_WORDS.min(whole / 8);
        let handed_over = self.has_handed_over();
        // The next process serves already: there is time. Otherwise somebody waits for the end.
        let grace = if handed_over {
            span - span / 8
        } else {
            LAST_REQUEST.min(span / 2)
        };
        self.kept.lock().clear();
        if let Some(admin) = self.admin.as_ref().filter(|_| handed_over) {
            admin.stop();
        }
        if let Some(workers) = &self.workers {
            workers.drain(Drain {
                span,
                grace,
                handed_over,
            });
        }
    }

    /// Whether another process has its place.
    pub fn has_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Acquire)
    }

    /// Whether every worker has ended.
    pub fn ended(&self) -> bool {
        self.workers.as_ref().is_none_or(Workers::ended)
    }

    /// Drains, waits, saves the local buckets, and is gone. Blocks the thread. What is left of the time that the file gives
    /// a drain.
    pub fn shutdown(mut self) -> Duration {
        self.drain();
        if let Some(workers) = self.workers.take() {
            workers.join();
        }
        self.watcher = None;
        let mut state = self.core.state.lock();
        if let Some(store) = state.backend.remote() {
            store.close();
        }
        // The process that has the place has the buckets and the sockets' files too.
        let handed_over = self.has_handed_over();
        if !handed_over {
            let mark = state.mark.take();
            state_file::save(
                &state.in_force,
                &self.core.gateway.current.load().limiter,
                mark,
            );
        }
        if let Some(access) = &self.core.gateway.access {
            access.flush(self.time_left());
        }
        for address in &self.addresses {
            if let (Address::Unix(path), false) = (address, handed_over) {
                // Another gateway may have taken the place already; then this is not ours to say anything about.
                let _ = std::fs::remove_file(path);
            }
        }
        self.time_left()
    }

    fn time_left(&self) -> Duration {
        let end = self.drained_by.get();
        end.map_or(LAST_WORDS, |end| {
            end.saturating_duration_since(Instant::now())
                .min(LAST_WORDS)
        })
    }
}

impl Core {
    fn admin(
        self: &Arc<Self>,
        listen: &tollgate_config::settings::Listener,
        door: admin::Door,
    ) -> io::Result<Admin> {
        let (status, reload) = (Arc::clone(self), Arc::clone(self));
        let options = admin::Options {
            listen: mapped::admin(listen),
            hosts: self.state.lock().in_force.admin.hosts.clone(),
            metrics: self.gateway.metrics.clone(),
            readiness: self.readiness.clone(),
            status: Arc::new(move || status.status()),
            reload: Arc::new(move || reload.reload()),
        };
        Admin::serve(door, options)
    }
}

/// How long an idle connection is kept in a drain, for a request that may be under way.
const LAST_REQUEST: Duration = Duration::from_secs(1);
/// The part of a drain that is kept for writing the logs, at most.
const LAST_WORDS: Duration = Duration::from_secs(5);
