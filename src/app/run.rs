//! The process around a gateway: signals, the service manager, the descriptor limit, the operations log.

use std::backtrace::BacktraceStatus;
use std::io::{IsTerminal, Write as _};
use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::options::notes;
use super::start::start_with;
use super::{Anew, Options, Origin, RunningGateway, StartError};
use tollgate_config::settings::{Log, LogLevel, OperationsFormat, Word as _};
use tollgate_telemetry::{AccessLog, log};

/// Runs a gateway until SIGTERM or SIGINT, and then drains it, after SIGTERM with the configured
/// delay for load balancers. A second such signal ends it at once, unless it arrives within a
/// second of the first. SIGHUP reloads, SIGUSR1 reopens the access log's file, SIGUSR2 hands over
/// to a new process. Blocks the thread.
pub fn run(options: Options, origin: Origin) -> Result<(), StartError> {
    let anew = origin.anew.clone();
    let config = options.load().map_err(StartError::Config)?;
    // Dropped last, so that the final messages of the other values are written.
    let mut log = start_log(&config.log);
    raise_descriptor_limit();
    for warning in &config.warnings {
        tracing::warn!("{}", warning.strip_prefix("warning: ").unwrap_or(warning));
    }
    for note in notes(&config) {
        tracing::warn!("{note}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(StartError::system("the runtime cannot be started"))?;
    // Installed before anything listens: from here on no signal is lost or ends the process halfway.
    let mut signals = {
        let _inside = runtime.enter();
        Signals::new().map_err(StartError::system("signals cannot be received"))?
    };
    let gateway = Arc::new(start_with(config, options, origin)?);
    for address in gateway.addresses() {
        tracing::info!(%address, "listening");
    }
    for address in gateway.deciding() {
        tracing::info!(%address, "deciding for other proxies");
    }
    if let Some(admin) = gateway.admin() {
        tracing::info!(address = %admin, "the admin listener");
    }
    notify(&[NotifyState::Ready]);
    let in_time = runtime.block_on(signals.serve(&gateway, anew.as_ref()));
    // A reload that hangs is not awaited.
    runtime.shutdown_background();
    match Arc::try_unwrap(gateway) {
        Ok(gateway) if in_time => {
            let left = gateway.shutdown();
            if let Some(log) = &mut log {
                log.set_patience(left);
            }
        }
        // A second signal: the process ends at once.
        _ => tracing::warn!("stopped at once"),
    }
    Ok(())
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    reopen: Signal,
    upgrade: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            reopen: signal(SignalKind::user_defined1())?,
            upgrade: signal(SignalKind::user_defined2())?,
        })
    }

    /// Serves until the gateway has drained; returns whether it finished in time.
    async fn serve(&mut self, gateway: &Arc<RunningGateway>, anew: Option<&Anew>) -> bool {
        let delay = self.until_stopped(gateway, anew).await;
        let first = Instant::now();
        if !gateway.has_handed_over() {
            // Otherwise the service continues in another process.
            notify(&[NotifyState::Stopping]);
        }
        if !delay.is_zero() {
            tracing::info!(drain_delay = ?delay, "not ready any more: requests are accepted for the drain delay");
            tokio::select! {
                () = self.stopped_again(first) => return false,
                () = tokio::time::sleep(delay) => {}
            }
        }
        tracing::info!("draining");
        gateway.drain();
        let drained = async {
            while !gateway.ended() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        tokio::select! {
            () = self.stopped_again(first) => false,
            () = drained => true,
        }
    }

    /// Serves until a signal ends it, or until it has handed over to a new process; returns how long
    /// requests are still accepted.
    async fn until_stopped(
        &mut self,
        gateway: &Arc<RunningGateway>,
        anew: Option<&Anew>,
    ) -> Duration {
        // Both may take long, and must not keep the other signals from being handled.
        let mut reloading: Option<JoinHandle<()>> = None;
        let mut upgrading: Option<JoinHandle<bool>> = None;
        let mut again = false;
        let delay = loop {
            tokio::select! {
                _ = self.terminate.recv() => break gateway.announce_drain(),
                // Sent from a terminal: there is no load balancer that must notice.
                _ = self.interrupt.recv() => break Duration::ZERO,
                _ = self.hang_up.recv() => {
                    again = reloading.is_some();
                    if !again {
                        reloading = Some(reload(gateway));
                    }
                }
                _ = finished(&mut reloading) => {
                    reloading = std::mem::take(&mut again).then(|| reload(gateway));
                    if reloading.is_none() {
                        notify(&[NotifyState::Ready]);
                    }
                }
                _ = self.reopen.recv() => {
                    if let Some(access) = gateway.access_log() {
                        AccessLog::reopen(access);
                    }
                }
                _ = self.upgrade.recv() => {
                    if upgrading.is_none() {
                        upgrading = anew.map(|anew| upgrade(gateway, anew));
                    }
                }
                handed_over = finished(&mut upgrading) => {
                    if handed_over == Some(true) {
                        return Duration::ZERO;
                    }
                }
            }
        };
        if upgrading.is_some() {
            gateway.abandon_handover();
            if finished(&mut upgrading).await == Some(true) {
                return Duration::ZERO;
            }
        }
        delay
    }

    /// Ready when a second signal asks it to end. Service managers and shells may send one signal both
    /// to the process (at `first`) and to its group: signals within a second count as one.
    async fn stopped_again(&mut self, first: Instant) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
            }
            if first.elapsed() >= ONE_SIGNAL {
                return;
            }
        }
    }
}

fn reload(gateway: &Arc<RunningGateway>) -> JoinHandle<()> {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(_) => notify(&[NotifyState::Reloading]),
    }
    // A reload that hangs must not keep the gateway from being shut down.
    let core = Arc::clone(&gateway.core);
    // The reload reads files, so it runs on another thread while signals are still handled. It logs
    // its own result.
    tokio::task::spawn_blocking(move || {
        let _ = core.reload();
    })
}

/// The result of `task` when it has ended, which is then taken out; never ready if there is none.
/// `None`: it panicked, which its thread has already logged.
async fn finished<T>(task: &mut Option<JoinHandle<T>>) -> Option<T> {
    let result = match task {
        Some(task) => task.await.ok(),
        None => std::future::pending().await,
    };
    *task = None;
    result
}

fn upgrade(gateway: &Arc<RunningGateway>, anew: &Anew) -> JoinHandle<bool> {
    let (gateway, anew) = (Arc::clone(gateway), anew.clone());
    tokio::task::spawn_blocking(move || {
        let announce = |pid| notify(&[NotifyState::MainPid(pid)]);
        match gateway.hand_over(&anew, &announce) {
            Ok(pid) => {
                tracing::info!(pid, "a new process has taken over");
                true
            }
            Err(error) => {
                announce(std::process::id());
                tracing::error!(%error, "no new process has taken over: this one serves on");
                false
            }
        }
    })
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager was not notified");
    }
}

fn start_log(settings: &Log) -> Option<log::OperationsLog> {
    let style = match settings.operations {
        OperationsFormat::Text => log::Style::Human {
            colour: std::io::stderr().is_terminal(),
        },
        OperationsFormat::Json => log::Style::Json,
    };
    let started = log::start(style, &filter(settings.level));
    // Without this hook a panic would write to standard error directly, and block there if nothing
    // reads it.
    if started.is_ok() {
        std::panic::set_hook(Box::new(|panic| {
            let backtrace = std::backtrace::Backtrace::capture();
            match backtrace.status() {
                BacktraceStatus::Captured => {
                    tracing::error!(%panic, %backtrace, "a thread panicked")
                }
                _ => tracing::error!(%panic, "a thread panicked"),
            }
        }));
    }
    started
        .inspect_err(|error| {
            // Standard error may be closed.
            let _ = writeln!(std::io::stderr(), "tollgate: no operations log: {error}");
        })
        .ok()
}

fn filter(level: LogLevel) -> String {
    let (audit, level) = (crate::admin::AUDIT_TARGET, level.word());
    format!("{QUIET},{audit}=info,{level}")
}

/// Puts a level of the operations log in force.
/// The error: the process has no operations log.
pub(super) fn set_log_level(level: LogLevel) -> Result<(), String> {
    log::set_filter(&filter(level))
}

/// A connection takes one descriptor, and two when it is forwarded, so raise the limit as far as
/// the system allows.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, current = ?limit.current, "the descriptor limit cannot be raised");
        }
    }
}

/// Signals to end the process count as one if they arrive within this time.
const ONE_SIGNAL: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The protocol libraries warn about a client's input, such as an unrequested HTTP/2 ping response:
/// one line for every nine bytes. Log only their errors.
const QUIET: &str = "h2=error,hyper=error,hyper_util=error,rustls=error";
