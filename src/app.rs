//! The composition root: starts a gateway from a configuration, and owns reload and drain.
//!
//! [`start`] creates a [`RunningGateway`]; tests call it, and so does [`run()`] for the command
//! line, which adds signals and the service manager. A reload compiles everything beside the state
//! in force, and replaces that in one step or not at all: connections stay open, requests in
//! progress end under the snapshot they began with, buckets are carried over.

mod changes;
mod guard;
mod handover;
pub(crate) mod key_names;
mod mapped;
pub(crate) mod memory;
mod observe;
#[cfg(feature = "otlp")]
mod otlp;
mod options;
mod reload;
mod run;
mod shared_store;
mod start_error;
pub(crate) mod state_file;
mod upstreams;
mod watch;
mod watcher;

#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::admin::{self, Admin, Phase, Readiness};
use crate::overrides::{self, Overrides};
use handover::{Predecessor, Relay, Successor};
use reload::{Reloads, State};
use tollgate_config::Config;
use tollgate_config::settings::LogKeys;
use tollgate_gateway::decide::{Decider, Permits};
use tollgate_gateway::forward::UpstreamHealth;
use tollgate_gateway::gateway::{self, Gateway, Snapshot};
use tollgate_gateway::recent::Recent;
use tollgate_gateway::refusals::Refusals;
use tollgate_limiter::Limiter;
use tollgate_net::listener::{self, Address, Bound, Inherited, Kept, Listen};
use tollgate_net::server::{self, Sockets};
use tollgate_net::tls::ServerTls;
use tollgate_net::worker::{Drain, Worker, Workers};
use tollgate_rls::{Counts, RateLimitService, Serving};
use tollgate_store::Backend;
use tollgate_telemetry::access::KeyNames;
use tollgate_telemetry::metrics::Samples;
use tollgate_telemetry::{AccessLog, Metrics};
use watcher::Watcher;

pub use handover::{Anew, Origin};
pub use options::{Environment, Options, Source, preflight};
pub use run::run;
pub use start_error::StartError;

/// A gateway that serves. Dropping it stops it at once; [`RunningGateway::shutdown`] drains first.
#[derive(Debug)]
pub struct RunningGateway {
    core: Arc<Core>,
    addresses: Vec<Address>,
    /// Where it decides for other proxies.
    deciding: Vec<Address>,
    admin: Option<Admin>,
    workers: Option<Workers>,
    watcher: Option<Watcher>,
    /// Its listening sockets, to be handed over; empty once it drains.
    kept: Mutex<Vec<Kept>>,
    /// The addresses of the sockets that a service manager holds.
    activated: Vec<String>,
    /// Serves the draws of the previous gateway process, if there was one.
    relay: Option<Relay>,
    /// Learns of overrides.
    overrides: Option<overrides::Thread>,
    /// Whether another process has replaced it.
    handed_over: AtomicBool,
    /// The process that is about to replace it.
    successor: Mutex<Successor>,
    /// Sends spans to a collector; dropped after the workers.
    #[cfg(feature = "otlp")]
    exporter: Option<otlp::Exporter>,
    /// The end of the drain, once one has begun.
    drained_by: OnceLock<Instant>,
}

/// The parts of a running gateway that a reload and the admin listener need.
struct Core {
    options: Options,
    /// State that the workers' gateways share.
    gateway: gateway::Shared,
    /// State that the workers' servers share.
    server: Arc<server::Shared>,
    /// The same for the listeners for decisions.
    decide_server: Arc<server::Shared>,
    /// What other programs have not reported the end of.
    permits: Arc<Permits>,
    /// What gRPC's health service says.
    serving: Serving,
    tls: Option<Arc<ServerTls>>,
    readiness: Readiness,
    /// The names of callers' keys in logs and pages.
    names: KeyNames,
    /// What changes, for those who read it from the admin listener.
    events: admin::Events,
    overrides: Overrides,
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

/// Starts a gateway.
///
/// # Errors
/// Every reason that prevents it from serving; then nothing was started.
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
    let names = key_names::of_gateway(&config)?;
    let access = mapped::access_log(&config.log, names)
        .map(AccessLog::open)
        .transpose()
        .map_err(system("the access log cannot be opened"))?;
    let tls = mapped::tls(&config.server)
        .map(|settings| ServerTls::load(&settings))
        .transpose()?
        .map(Arc::new);
    upstreams::check(&config.policy).map_err(StartError::Upstream)?;
    let count = mapped::workers(&config.server);
    let public = config.server.listen.iter();
    let mut listen: Vec<Listen> = public
        .map(|one| mapped::listen(one, tls.as_ref()))
        .collect();
    let publics = listen.len();
    let deciding = config.decide.iter().flat_map(|decide| &decide.listen);
    listen.extend(deciding.map(|one| mapped::listen(&one.listener, None)));
    let Origin {
        sockets: mut inherited,
        predecessor,
        ..
    } = origin;
    let activated = inherited.iter().map(Inherited::place).collect();
    let mut predecessor =
        predecessor
            .map(Predecessor::greet)
            .transpose()?
            .map(|(predecessor, sockets)| {
                inherited.extend(sockets);
                predecessor
            });
    let (mut bound, mut kept) = listener::bind_or_adopt(&listen, count, &mut inherited)?;
    let deciding = bound.split_off(publics);
    let addresses_of = |bound: &[Bound]| bound.iter().map(|one| one.address.clone()).collect();
    let addresses = (addresses_of(&bound), addresses_of(&deciding));
    let admin_door = config.admin.listen.as_ref().map(|listen| {
        let failed = |source| StartError::Admin {
            address: listen.to_string(),
            source,
        };
        admin_door(&mapped::admin(listen), &mut inherited, &mut kept).map_err(failed)
    });
    let admin_door = admin_door.transpose()?;
    // Listeners of the predecessor that this configuration does not name are closed.
    if let (Some(unclaimed), None) = (inherited.first(), &predecessor) {
        return Err(StartError::Unclaimed(unclaimed.place()));
    }
    drop(inherited);
    let backend = Arc::new(
        tollgate_limiter::shared_store::open(config.store.as_ref(), &config.policy.limits, &clock)
            .map_err(StartError::Store)?,
    );
    options::check_traces(&config).map_err(StartError::Traces)?;
    let (limiter, mut mark) = match &mut predecessor {
        Some(predecessor) => predecessor.limiter(&config, Arc::clone(&backend), &clock)?,
        None => state_file::limiter(&config, Arc::clone(&backend), &clock)?,
    };
    #[cfg(feature = "otlp")]
    let (exporter, spans) = config
        .traces
        .as_ref()
        .map(otlp::Exporter::start)
        .transpose()
        .map_err(system("[traces]: spans cannot be exported"))?
        .unzip();
    let recent = Recent::default();
    let snapshot = snapshot(&config, limiter, &metrics, &recent);
    let gateway = gateway::Shared {
        current: Arc::new(ArcSwap::from_pointee(snapshot)),
        clock,
        metrics: metrics.clone(),
        access,
        refusals: config.admin.listen.as_ref().map(|_| Refusals::new(count)),
        requests: Arc::default(),
        held: Arc::default(),
        held_bodies: Arc::default(),
        fleet: UpstreamHealth::default(),
        recent,
        #[cfg(feature = "otlp")]
        spans,
    };
    let state_file = config.server.state_file.as_deref();
    let overrides = Overrides::start(
        Arc::clone(&gateway.current),
        gateway.clock.clone(),
        state_file,
        &names.name(b"overrides"),
    );
    let learns = overrides::Thread::start(&overrides).map_err(system(
        "the thread that learns of overrides cannot be started",
    ))?;
    let fleet = gateway.fleet.clone();
    metrics.source("upstreams", move |samples| fleet.samples(samples));
    let server = Arc::new(server::Shared::new(mapped::server(&config)));
    let permits = Arc::new(Permits::default());
    let decide_server = Arc::new(server::Shared::new(mapped::decide_server(&config)));
    let serving = Serving::default();
    let serve = {
        let shared = Arc::new(gateway.clone());
        let public = Sockets::new(bound, count, Arc::clone(&server));
        let decides = config.decide.is_some();
        let (grpc, deciding) = mapped::by_protocol(deciding, &config);
        let deciding = Sockets::new(deciding, count, Arc::clone(&decide_server));
        let grpc = Sockets::new(grpc, count, Arc::clone(&decide_server));
        let permits = Arc::clone(&permits);
        let counts = Arc::new(Counts::default());
        let counted = Arc::clone(&counts);
        metrics.source("rate_limit_service", move |samples| {
            counted.samples(samples)
        });
        let serving = serving.clone();
        move |worker: &Rc<Worker>| {
            let gateway = Rc::new(Gateway::new(&shared));
            public.open(worker, &gateway)?;
            if decides {
                let (serving, counts) = (serving.clone(), Arc::clone(&counts));
                let service = RateLimitService::new(Rc::clone(&gateway), serving, counts);
                grpc.open(worker, &Rc::new(service))?;
                let decider = Decider::new(gateway, Arc::clone(&permits));
                deciding.open(worker, &Rc::new(decider))?;
            }
            Ok(())
        }
    };
    let workers =
        Workers::start_held(count, serve).map_err(system("the workers cannot be started"))?;
    let relay = match predecessor {
        Some(predecessor) => predecessor.succeed(Arc::clone(&gateway.current))?,
        None => None,
    };
    if let Some(mark) = &mut mark {
        mark.serves().map_err(StartError::State)?;
    }
    workers.open();
    let admin_listen = config.admin.listen.clone();
    let reloads = Mutex::new(Reloads::new(&config));
    let state = Mutex::new(State::new(config, backend, mark));
    let core = Arc::new(Core {
        events: admin::Events::new(gateway.clock.clone()),
        options,
        gateway,
        server,
        decide_server,
        permits,
        serving,
        tls,
        readiness: Readiness::new(),
        names,
        overrides,
        state,
        reloads,
    });
    core.show();
    let events = core.events.clone();
    core.overrides
        .on_change(move |event| admin::overrides::emit(&events, event));
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
    let (addresses, deciding) = addresses;
    let (kept, handed_over) = (Mutex::new(kept), AtomicBool::new(false));
    Ok(RunningGateway {
        core,
        addresses,
        deciding,
        admin,
        workers: Some(workers),
        watcher,
        kept,
        activated,
        relay,
        overrides: Some(learns),
        handed_over,
        successor: Mutex::default(),
        #[cfg(feature = "otlp")]
        exporter,
        drained_by: OnceLock::new(),
    })
}

/// The admin listener's socket: an inherited one, or a new one. It is also kept, to be handed over.
fn admin_door(
    listen: &admin::Listen,
    inherited: &mut Vec<Inherited>,
    kept: &mut Vec<Kept>,
) -> io::Result<admin::Door> {
    let wanted = handover::admin_place(listen);
    // A predecessor names it; a service manager's socket is found by its address.
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

/// The snapshot of `config`, with the buckets of `limiter`.
fn snapshot(
    config: &Config,
    limiter: Limiter<Backend>,
    metrics: &Metrics,
    recent: &Recent,
) -> Snapshot {
    let bytes = config.server.reload.map_or(0, |guard| guard.bytes);
    let snapshot = Snapshot::new(
        Arc::clone(&config.policy),
        limiter,
        metrics,
        mapped::conduct(&config.server),
    );
    snapshot
        .recorded_as(recent.numbers(&config.policy, bytes))
        .deciding(mapped::deciding(config))
}

impl RunningGateway {
    /// The addresses on which it listens, in the order of the file; port 0 is replaced by the
    /// actual port.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The addresses on which it decides for other proxies.
    pub fn deciding(&self) -> &[Address] {
        &self.deciding
    }

    /// The address of its admin listener.
    pub fn admin(&self) -> Option<&admin::Listen> {
        self.admin.as_ref().map(Admin::address)
    }

    /// Loads the configuration again and puts it in force; returns a summary.
    ///
    /// # Errors
    /// The reason why it is invalid, or would newly limit too many callers; then the configuration
    /// in force stays.
    pub fn reload(&self) -> Result<String, String> {
        self.core.reload(false)
    }

    /// Replaces the text from which it was started, for the next reload. Has no effect on a gateway
    /// that reads a file.
    pub fn replace_text(&self, text: &str) {
        self.core.state.lock().text = Some(text.to_owned());
    }

    /// The snapshot in force.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.core.gateway.current.load_full()
    }

    /// State that its workers share: enough for a [`Gateway`] behind another server.
    pub fn shared(&self) -> &gateway::Shared {
        &self.core.gateway
    }

    /// The metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.core.gateway.metrics
    }

    /// Its access log, if it has one.
    pub fn access_log(&self) -> Option<&AccessLog> {
        self.core.gateway.access.as_ref()
    }

    /// The counters and limits of the servers.
    pub fn server(&self) -> &server::Shared {
        &self.core.server
    }

    /// Reports that it is not ready any more, and keeps serving: load balancers have the returned
    /// time (`drain_delay`) to notice before [`Self::drain`].
    pub fn announce_drain(&self) -> Duration {
        self.core.readiness.enter(Phase::Draining);
        self.core.serving.drain();
        self.core.in_force().server.timeouts.drain_delay.into()
    }

    /// Accepts nothing new and finishes the requests in progress, within the configured drain time.
    pub fn drain(&self) {
        self.core.readiness.enter(Phase::Draining);
        self.core.serving.drain();
        let whole = self.core.in_force().server.timeouts.drain.into();
        self.drained_by.get_or_init(|| Instant::now() + whole);
        // Reserve part of the drain time for logging the requests that are cut off.
        let span = whole - LAST_WORDS.min(whole / 8);
        let handed_over = self.has_handed_over();
        // The next process already serves, so there is time. Otherwise an operator waits for the
        // end.
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

    /// Whether another process has replaced it.
    pub fn has_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Acquire)
    }

    /// Whether every worker has ended.
    pub fn ended(&self) -> bool {
        self.workers.as_ref().is_none_or(Workers::ended)
    }

    /// Drains, waits, saves the local buckets and ends. Blocks the thread. Returns the rest of the
    /// configured drain time.
    pub fn shutdown(mut self) -> Duration {
        self.drain();
        if let Some(workers) = self.workers.take() {
            workers.join();
        }
        self.watcher = None;
        self.overrides = None;
        #[cfg(feature = "otlp")]
        drop(self.exporter.take());
        // A process that replaced this one has the buckets and the sockets' files too.
        let handed_over = self.has_handed_over();
        // A reload that still runs puts nothing in force after this.
        let (config, backend, mark) = {
            let mut state = self.core.state.lock();
            state.ended = true;
            let mark = if handed_over { None } else { state.mark.take() };
            let (config, backend) = (&state.in_force, &state.backend);
            (Arc::clone(config), Arc::clone(backend), mark)
        };
        // Their places are not held by any process after this.
        self.core.permits.clear();
        if let Some(store) = backend.remote() {
            store.close();
        }
        state_file::save(&config, &self.core.gateway.current.load().limiter, mark);
        if let Some(access) = &self.core.gateway.access {
            access.flush(self.time_left());
        }
        if !handed_over {
            for file in self.socket_files() {
                // The file may be gone already.
                let _ = std::fs::remove_file(file);
            }
        }
        self.time_left()
    }

    /// The files of its Unix sockets, except those that a service manager holds and passes to the
    /// next process.
    fn socket_files(&self) -> impl Iterator<Item = &Path> {
        let served = self.addresses.iter().chain(&self.deciding);
        let public = served.filter_map(|address| match address {
            Address::Unix(path) => Some(path.as_path()),
            Address::Tcp(_) => None,
        });
        let admin = self.admin().and_then(|address| match address {
            admin::Listen::Unix(path) => Some(path.as_path()),
            admin::Listen::Tcp(_) => None,
        });
        let own = |path: &&Path| {
            let place = Address::Unix(path.to_path_buf()).to_string();
            !self.activated.contains(&place)
        };
        public.chain(admin).filter(own)
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
        let (status, reload, operators) = (Arc::clone(self), Arc::clone(self), Arc::clone(self));
        let in_force = self.in_force();
        let webhook = in_force.admin.webhook.as_ref().map(|settings| {
            admin::Webhook::new(settings, self.gateway.clock.clone()).map_err(io::Error::other)
        });
        let webhook = webhook.transpose()?;
        if let Some(webhook) = webhook.clone() {
            let samples = move |samples: &mut Samples| webhook.samples(samples);
            self.gateway.metrics.source("webhook", samples);
        }
        let options = admin::Options {
            listen: mapped::admin(listen),
            hosts: in_force.admin.hosts.clone(),
            operators: Arc::new(move || operators.in_force().admin.operators.clone()),
            audit: admin::Audit::new(in_force.admin.audit.clone(), self.gateway.clock.clone()),
            log_levels: admin::LogLevels::new(
                in_force.log.level,
                self.gateway.clock.clone(),
                run::set_log_level,
            ),
            webhook,
            live: admin::Live {
                current: Arc::clone(&self.gateway.current),
                clock: self.gateway.clock.clone(),
                events: self.events.clone(),
                refusals: self.gateway.refusals.clone(),
                names: self.names,
                plain_keys: in_force.log.keys == LogKeys::Plain,
                asks_until: None,
                overrides: self.overrides.clone(),
                penalties: admin::Penalties::default(),
            },
            metrics: self.gateway.metrics.clone(),
            readiness: self.readiness.clone(),
            status: Arc::new(move || status.status()),
            reload: Arc::new(move |force| reload.reload(force)),
        };
        Admin::serve(door, options)
    }
}

/// How long an idle connection is kept during a drain, for a request that may be on its way.
const LAST_REQUEST: Duration = Duration::from_secs(1);
/// The largest part of a drain that is reserved for writing the logs.
const LAST_WORDS: Duration = Duration::from_secs(5);
