//! Starts a gateway. Steps that can fail for their input come before the first connection is accepted.

use std::io;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::listeners::Listeners;
use super::reload::{Reloads, State};
use super::{Core, Options, Origin, RunningGateway};
use super::{key_names, mapped, state_file};
use crate::acme;
use crate::admin::{self, Phase, Readiness};
use crate::jwt_keys::JwtKeys;
use crate::overrides::Overrides;
use crate::own_thread::OwnThread;
use tollgate_admission::shared_store;
use tollgate_config::settings::Listener;
use tollgate_config::{Config, ConfigError};
use tollgate_gateway::Challenges;
use tollgate_gateway::decide::{Decider, Permits};
use tollgate_gateway::forward::UpstreamHealth;
use tollgate_gateway::refusals::Refusals;
use tollgate_gateway::{Gateway, GatewayState};
use tollgate_net::listener::{Address, BindError, Bound};
use tollgate_net::server::{self, Sockets};
use tollgate_net::tls::{ServerTls, TlsError};
use tollgate_net::worker::{Worker, Workers};
use tollgate_rls::{Counts, RateLimitService, Serving};
use tollgate_telemetry::{AccessLog, Metrics};

/// Starts a gateway.
/// The error: why it cannot serve; then nothing was started.
pub fn start(options: Options) -> Result<RunningGateway, StartError> {
    let config = options.load().map_err(StartError::Config)?;
    start_with(config, options, Origin::default())
}

pub(super) fn start_with(
    config: Config,
    options: Options,
    origin: Origin,
) -> Result<RunningGateway, StartError> {
    let clock = options.clock.clone();
    let metrics = Metrics::new(clock.now().as_micros());
    let tls = mapped::tls(&config.server)
        .map(|settings| ServerTls::load(&settings))
        .transpose()?
        .map(Arc::new);
    let count = mapped::workers(&config.server);
    // Before anything listens: a first attempt may take its whole time.
    let state_file = config.server.state_file.as_deref();
    let jwt_keys =
        JwtKeys::start(&config.policy, state_file, &clock).map_err(StartError::Setting)?;
    let Listeners {
        public,
        deciding,
        admin,
        kept,
        activated,
        mut predecessor,
    } = Listeners::open(&config, tls.as_ref(), count, origin)?;
    let names = key_names::of_gateway(&config, predecessor.as_ref().map(|one| one.names()))?;
    let access = mapped::access_log(&config.log, names)
        .map(AccessLog::open)
        .transpose()
        .map_err(StartError::system("the access log cannot be opened"))?;
    let addresses = [addresses_of(&public), addresses_of(&deciding)];
    let backend = shared_store::open(config.store.as_ref(), &config.policy.limits, &clock);
    let backend = Arc::new(backend.map_err(StartError::Store)?);
    let (limiter, mark) = match &mut predecessor {
        Some(predecessor) => predecessor.limiter(&config, Arc::clone(&backend), &clock)?,
        None => state_file::limiter(&config, Arc::clone(&backend), &clock)?,
    };
    #[cfg(feature = "otlp")]
    let (exporter, spans) = config
        .traces
        .as_ref()
        .map(super::otlp::start)
        .transpose()
        .map_err(StartError::system("[traces]: spans cannot be exported"))?
        .unzip();
    let challenges = Challenges::default();
    let snapshot = mapped::snapshot(&config, limiter, &metrics, &challenges);
    let gateway = GatewayState {
        current: Arc::new(ArcSwap::from_pointee(snapshot)),
        clock,
        metrics,
        access,
        refusals: config.admin.listen.as_ref().map(|_| Refusals::new(count)),
        requests: Arc::default(),
        held: Arc::default(),
        held_bodies: Arc::default(),
        under_way: Arc::default(),
        usage: Arc::default(),
        untrusted_proxy: Arc::default(),
        health: UpstreamHealth::default(),
        #[cfg(feature = "otlp")]
        spans,
        #[cfg(not(feature = "otlp"))]
        spans: None,
    };
    let overrides = Overrides::start(
        Arc::clone(&gateway.current),
        gateway.clock.clone(),
        config.server.state_file.as_deref(),
        predecessor.as_ref().and_then(|one| one.overrides(names)),
        &names.name(b"overrides"),
    );
    let readiness = Readiness::new();
    let ready = readiness.clone();
    let core = Arc::new(Core {
        events: admin::Events::new(gateway.clock.clone()),
        options,
        gateway,
        server: Arc::new(server::ServerState::new(mapped::server(&config))),
        decide_server: Arc::new(server::ServerState::new(mapped::decide_server(&config))),
        permits: Arc::new(Permits::default()),
        serving: Serving::new(move || ready.report().ready()),
        tls,
        challenges,
        acme: acme::Status::default(),
        readiness,
        names,
        overrides,
        jwt_keys,
        reloads: Mutex::new(Reloads::new(&config)),
        state: Mutex::new(State::new(config, backend, mark)),
    });
    let learns = core.overrides.watch().map_err(StartError::system(
        "the thread that learns of overrides cannot be started",
    ))?;
    let workers = core
        .start_workers(public, deciding)
        .map_err(StartError::system("the workers cannot be started"))?;
    core.jwt_keys
        .fetch(core.jwt_keys.in_force())
        .map_err(StartError::system(
            "the thread that fetches keys cannot be started",
        ))?;
    core.show();
    core.require_store();
    core.require_keys();
    core.show_upstreams();
    core.show_configuration();
    core.show_untrusted_proxy();
    core.show_certificate();
    let admin = core.serve_admin(admin)?;
    let watcher = core.watch_files().map_err(StartError::system(
        "the thread that watches files cannot be started",
    ))?;
    let acme = core.keep_certificate().map_err(StartError::system(
        "the thread that keeps the certificate cannot be started",
    ))?;
    let relay = match predecessor {
        Some(predecessor) => predecessor.succeed(Arc::clone(&core.gateway.current))?,
        None => None,
    };
    // The last step that can fail: a start that fails later would lose the saved buckets.
    if let Some(mark) = &mut core.state.lock().mark {
        mark.serves().map_err(StartError::Setting)?;
    }
    workers.open();
    if let Some(admin) = &admin {
        admin.open();
    }
    core.readiness.enter(Phase::Serving);
    let [addresses, deciding] = addresses;
    Ok(RunningGateway {
        core,
        addresses,
        deciding,
        admin,
        workers: Some(workers),
        watcher,
        kept: Mutex::new(kept),
        activated,
        relay,
        overrides: Some(learns),
        acme,
        handed_over: AtomicBool::new(false),
        successor: Mutex::default(),
        #[cfg(feature = "otlp")]
        exporter,
        drained_by: OnceLock::new(),
    })
}

fn addresses_of(bound: &[Bound]) -> Vec<Address> {
    bound.iter().map(|one| one.address.clone()).collect()
}

impl Core {
    /// Starts the thread that looks for changed files; `None`: there is no file.
    fn watch_files(self: &Arc<Self>) -> io::Result<Option<OwnThread>> {
        if self.reloads.lock().watch.is_empty() {
            return Ok(None);
        }
        let core = Arc::clone(self);
        let watched = OwnThread::start("watch", move |mut stopped| async move {
            loop {
                let watching = Arc::clone(&core);
                let look = async {
                    tokio::time::sleep(WATCH_EVERY).await;
                    // Reading a file may hang, for instance a pipe without a writer. The end of the
                    // process does not wait for it.
                    tokio::task::spawn_blocking(move || watching.look()).await
                };
                tokio::select! {
                    _ = look => {}
                    _ = stopped.wait_for(|stopped| *stopped) => return,
                }
            }
        });
        watched.map(Some)
    }

    /// Starts the thread that orders and renews the certificate; `None`: the file does not say so.
    fn keep_certificate(self: &Arc<Self>) -> io::Result<Option<OwnThread>> {
        let (Some(tls), true) = (&self.tls, self.in_force().server.acme.is_some()) else {
            return Ok(None);
        };
        let (core, reloaded) = (Arc::clone(self), Arc::clone(self));
        let seams = acme::Seams {
            clock: self.gateway.clock.clone(),
            tls: Arc::clone(tls),
            challenges: self.challenges.clone(),
            settings: Box::new(move || core.in_force().server.acme.clone()),
            reload: Box::new(move || reloaded.reload_certificate()),
        };
        acme::start(seams, self.acme.clone()).map(Some)
    }

    /// Starts the workers, which serve the `public` listeners and those for decisions. They accept
    /// nothing until they are opened.
    fn start_workers(&self, public: Vec<Bound>, deciding: Vec<Bound>) -> io::Result<Workers> {
        let config = self.in_force();
        let count = mapped::workers(&config.server);
        let decides = config.decide.is_some();
        let (grpc, deciding) = mapped::by_protocol(deciding, &config);
        let public = Sockets::new(public, count, Arc::clone(&self.server));
        let deciding = Sockets::new(deciding, count, Arc::clone(&self.decide_server));
        let grpc = Sockets::new(grpc, count, Arc::clone(&self.decide_server));
        let (metrics, health) = (&self.gateway.metrics, self.gateway.health.clone());
        metrics.source("upstreams", move |samples| health.samples(samples));
        let counts = Arc::new(Counts::default());
        let counted = Arc::clone(&counts);
        metrics.source("rate_limit_service", move |samples| {
            counted.samples(samples)
        });
        let shared = Arc::new(self.gateway.clone());
        let (permits, serving) = (Arc::clone(&self.permits), self.serving.clone());
        Workers::start_held(count, move |worker: &Rc<Worker>| {
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
        })
    }
}

/// The time between two looks at the files.
const WATCH_EVERY: Duration = Duration::from_millis(250);

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}")]
    Config(ConfigError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A service manager handed over a socket for which there is no listener.
    #[error(
        "a socket on {0} was handed over, and neither server.listen nor admin.listen names that address"
    )]
    Unclaimed(String),
    #[error("cannot take over from the running gateway: {0}")]
    TakeOver(String),
    /// A setting cannot be carried out: buckets cannot be stored in the configured place, an
    /// upstream's certificates or keys are invalid, or this program cannot export spans.
    #[error("{0}")]
    Setting(String),
    #[error("[store]: {0}")]
    Store(String),
    #[error("the admin listener cannot be started on {address}: {source}")]
    Admin { address: String, source: io::Error },
    #[error("{what}: {source}")]
    System {
        what: &'static str,
        source: io::Error,
    },
}

impl StartError {
    /// The error of a system call, with the attempted operation.
    pub(super) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }

    pub(super) fn admin(listen: &Listener) -> impl Fn(io::Error) -> Self {
        let address = listen.to_string();
        move |source| Self::Admin {
            address: address.clone(),
            source,
        }
    }
}
