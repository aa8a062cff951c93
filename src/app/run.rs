//! The process around a gateway: signals, the service manager, the descriptor limit, the operations log.

use std::backtrace::BacktraceStatus;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use super::options::notes;
use super::{Anew, Options, Origin, RunningGateway, StartError, start_with};
use tollgate_config::settings::{Log, LogLevel, OperationsFormat};
use tollgate_telemetry::{AccessLog, log};

/// Runs a gateway until SIGTERM or SIGINT, and then drains it, after SIGTERM with the delay that the file gives load
/// balancers; another one ends it at once, unless it comes within a second of the first. SIGHUP reloads, SIGUSR1 opens the
/// access log's file anew, SIGUSR2 leaves everything to a new process. Blocks the thread.
///
/// # Errors
/// Everything that keeps it from serving.
pub fn run(options: Options, origin: Origin) -> Result<(), StartError> {
    let anew = origin.anew.clone();
    let config = options.load().map_err(StartError::Config)?;
    // Dropped last: what the others log at their end is written.
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
        .map_err(|source| StartError::System {
            what: "the runtime cannot be started",
            source,
        })?;
    // Before anything listens: a signal from here on is not lost, and ends nothing in the middle.
    let mut signals = {
        let _inside = runtime.enter();
        Signals::new().map_err(|source| StartError::System {
            what: "signals cannot be received",
            source,
        })?
    };
    let gateway = Arc::new(start_with(config, options, origin)?);
    for address in gateway.addresses() {
        tracing::info!(%address, "listening");
    }
    if let Some(admin) = gateway.admin() {
        tracing::info!(address = %admin, "the admin listener");
    }
    notify(&[NotifyState::Ready]);
    let in_time = runtime.block_on(signals.serve(&gateway, anew.as_ref()));
    runtime.shutdown_background();
    match Arc::try_unwrap(gateway) {
        Ok(gateway) if in_time => {
            let left = gateway.shutdown();
            if let Some(log) = &mut log {
                log.set_patience(left);
            }
        }
        // Told twice, or a reload hangs: the process ends as it is.
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

    /// Serves until the gateway has drained; whether it had the time to.
    async fn serve(&mut self, gateway: &Arc<RunningGateway>, anew: Option<&Anew>) -> bool {
        let delay = self.until_stopped(gateway, anew).await;
        let told = Instant::now();
        if !gateway.has_handed_over() {
            // Otherwise the service goes on: in another process.
            notify(&[NotifyState::Stopping]);
        }
        if !delay.is_zero() {
            tracing::info!(drain_delay = ?delay, "not ready any more: requests are accepted for the drain delay");
            tokio::select! {
                () = self.stopped_again(told) => return false,
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
            () = self.stopped_again(told) => false,
            () = drained => true,
        }
    }

    /// Serves until it is told to end, or has left its place to a new process; how long requests are accepted after that.
    async fn until_stopped(
        &mut self,
        gateway: &Arc<RunningGateway>,
        anew: Option<&Anew>,
    ) -> Duration {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return gateway.announce_drain(),
                // Somebody at a terminal: no load balancer is to notice.
                _ = self.interrupt.recv() => return Duration::ZERO,
                _ = self.hang_up.recv() => reload(gateway).await,
                _ = self.reopen.recv() => {
                    if let Some(access) = gateway.access_log() {
                        AccessLog::reopen(access);
                    }
                }
                _ = self.upgrade.recv() => {
                    if upgrade(gateway, anew).await {
                        return Duration::ZERO;
                    }
                }
            }
        }
    }

    /// Ready when it is told to end once more. Service managers and shells may send the signal that was `told` to the
    /// process and to its group: those that come within a second are one.
    async fn stopped_again(&mut self, told: Instant) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
            }
            if told.elapsed() >= ONE_SIGNAL {
                return;
            }
        }
    }
}

async fn reload(gateway: &Arc<RunningGateway>) {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(_) => notify(&[NotifyState::Reloading]),
    }
    let gateway = Arc::clone(gateway);
    // It reads files: signals go on being heard meanwhile. What came of it has been said.
    let _ = tokio::task::spawn_blocking(move || gateway.reload().is_ok()).await;
    notify(&[NotifyState::Ready]);
}

/// Leaves everything to a new process; whether it did.
async fn upgrade(gateway: &Arc<RunningGateway>, anew: Option<&Anew>) -> bool {
    let Some(anew) = anew.cloned() else {
        return false;
    };
    let gateway = Arc::clone(gateway);
    let handed = tokio::task::spawn_blocking(move || {
        let announce = |pid| notify(&[NotifyState::MainPid(pid)]);
        gateway
            .hand_over(&anew, &announce)
            .inspect_err(|_| announce(std::process::id()))
    });
    match handed.await {
        Ok(Ok(pid)) => {
            tracing::info!(pid, "a new process has taken over");
            true
        }
        Ok(Err(error)) => {
            tracing::error!(%error, "no new process has taken over: this one serves on");
            false
        }
        Err(_) => false,
    }
}

/// Tells the service manager, if there is one.
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager was not told");
    }
}

fn start_log(settings: &Log) -> Option<log::OperationsLog> {
    let style = match settings.operations {
        OperationsFormat::Text => log::Style::Human {
            colour: std::io::stderr().is_terminal(),
        },
        OperationsFormat::Json => log::Style::Json,
    };
    let level = match settings.level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    };
    let started = log::start(style, &format!("{QUIET},{level}"));
    // A panic would write to standard error itself, and wait there if nobody reads.
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
        .inspect_err(|error| eprintln!("tollgate: no operations log: {error}"))
        .ok()
}

/// A connection is a descriptor, and two when it is forwarded: take what the system grants.
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

/// Signals that tell the process to end are one when they come within this time.
const ONE_SIGNAL: Duration = Duration::from_secs(1);
/// How often a drain is looked after.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What speaks the protocols warns of what strangers send, such as an HTTP/2 ping's answer that nobody asked for: a line
/// for each nine bytes. Errors are enough.
const QUIET: &str = "h2=error,hyper=error,hyper_util=error,rustls=error";
