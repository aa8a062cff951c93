//! The certificate that the gateway orders by itself (ACME, RFC 8555), keeps in a folder and renews.
//!
//! The folder is the only channel, also from a gateway to itself. The gateway that holds its
//! lock orders, and writes challenges and the certificate there. Every gateway that shares the folder looks into it
//! each second, answers the challenges that it finds, and shows the certificate that it finds. So it
//! does not matter which of several gateways the authority reaches.
//!
//! It does not offer challenges by DNS, accounts bound to other accounts, and revocation.

mod authority;
mod certificate;
mod folder;
mod order;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustls::Error as TlsError;
use tokio::task::{JoinError, JoinSet};

use crate::admin::Standing;
use crate::app::watch::FileState;
use crate::moments::second;
use crate::own_thread::OwnThread;
use certificate::Leaf;
use folder::{Challenge, Folder, Record};
use order::{Failed, Order};
use tollgate_config::settings::Acme as Settings;
use tollgate_gateway::Challenges;
use tollgate_limit::{Micros, Timestamp};
use tollgate_net::tls::ServerTls;
use tollgate_store::clock::Clock;
use tollgate_telemetry::metrics::Samples;

pub(crate) use authority::authority_tls;
pub(crate) use folder::shown;

/// What the gateway around it does for it.
pub(crate) struct Seams {
    pub(crate) clock: Clock,
    pub(crate) tls: Arc<ServerTls>,
    pub(crate) challenges: Challenges,
    /// The settings in force, which a reload may have changed.
    pub(crate) settings: Box<dyn Fn() -> Option<Settings> + Send + Sync>,
    /// Has TLS read the certificate that is shown anew. `None`: not now.
    pub(crate) reload: Box<dyn Fn() -> Option<Result<(), String>> + Send + Sync>,
}

/// What metrics and `/readyz` say. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Status(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The certificate for the hosts of the file.
    leaf: Option<Leaf>,
    /// What became of the last order, of any gateway with this folder.
    record: Record,
    /// Whether the folder does not have the record, because writing failed.
    is_record_unkept: bool,
    issued: u64,
    failed: u64,
}

impl Status {
    pub(crate) fn samples(&self, to: &mut Samples) {
        let state = self.0.lock();
        let help = "Orders of certificates by this gateway";
        for (result, count) in [("issued", state.issued), ("failed", state.failed)] {
            to.counter("acme_orders", help, &[("result", result)], count);
        }
        let help = "Whether the last order of a certificate did not fail, of all gateways that share the state";
        let good = f64::from(u8::from(state.record.error.is_none()));
        to.gauge("acme_last_order_good", help, &[], good);
    }

    pub(crate) fn standing(&self, now: Timestamp) -> Standing {
        let state = self.0.lock();
        let certificate = match &state.leaf {
            None => "none yet".to_owned(),
            Some(leaf) if leaf.ends <= now => format!("expired at {}", second(leaf.ends)),
            Some(leaf) => format!("expires at {}", second(leaf.ends)),
        };
        match &state.record.error {
            Some(error) => {
                let again = second(state.record.again());
                Standing::Strained(format!(
                    "{certificate}; the last order failed: {error}; again at {again}"
                ))
            }
            None if state.leaf.as_ref().is_none_or(|leaf| leaf.ends <= now) => {
                Standing::Strained(format!("{certificate}; one is being ordered"))
            }
            None => Standing::HoldsWith(certificate),
        }
    }
}

pub(crate) fn start(seams: Seams, status: Status) -> io::Result<OwnThread> {
    let keeper = Arc::new(Keeper {
        seams,
        status,
        jitter: fastrand::u64(0..=1000),
        seen: Mutex::default(),
    });
    OwnThread::start("acme", move |mut stopped| async move {
        tokio::select! {
            () = keeper.keep() => {}
            _ = stopped.wait_for(|stopped| *stopped) => {}
        }
    })
}

struct Keeper {
    seams: Seams,
    status: Status,
    /// From 0 to 1000: gateways with one folder, and those that started together, renew at different times.
    jitter: u64,
    seen: Mutex<Seen>,
}

/// What the last look has found, to notice changes.
#[derive(Default)]
struct Seen {
    challenges: Vec<Challenge>,
    shown: Option<(PathBuf, FileState)>,
}

impl Keeper {
    async fn keep(self: Arc<Self>) {
        let mut orders = JoinSet::new();
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(done) = orders.join_next() => self.clone().after(done).await,
                _ = ticks.tick() => {}
            }
            let (this, idle) = (Arc::clone(&self), orders.is_empty());
            // A folder on a network may hang.
            if let Ok(Some(order)) = tokio::task::spawn_blocking(move || this.look(idle)).await {
                let Settings {
                    hosts, directory, ..
                } = &order.settings;
                tracing::info!(
                    hosts = hosts.join(", "),
                    authority = directory,
                    "a certificate is ordered"
                );
                orders.spawn(order.run());
            }
        }
    }

    async fn after(self: Arc<Self>, done: Result<(Order, Result<(), Failed>), JoinError>) {
        let recorded = tokio::task::spawn_blocking(move || match done {
            Ok((order, result)) => self.ended(&order.folder, result),
            Err(panic) => {
                if let Some(settings) = (self.seams.settings)() {
                    let failed = Failed::because(panic.to_string());
                    self.ended(&Folder::of(&settings), Err(failed));
                }
            }
        });
        // A panic has been logged by its thread.
        let _ = recorded.await;
    }

    /// Takes up what is in the folder. Returns the order that this gateway has to make.
    fn look(&self, idle: bool) -> Option<Order> {
        let settings = (self.seams.settings)()?;
        let folder = Folder::of(&settings);
        let mut seen = self.seen.lock();
        let challenges = folder.challenges();
        if challenges != seen.challenges {
            self.answer(&challenges)
                .unwrap_or_else(|error| tracing::error!(%error, "challenges cannot be answered"));
            seen.challenges = challenges;
        }
        self.show(&settings, &mut seen);
        let now = self.seams.clock.wall();
        // Read before the lock is taken, on which `/readyz` waits.
        let (leaf, kept) = (folder.leaf(), folder.record());
        let record = {
            let mut state = self.status.0.lock();
            state.leaf.clone_from(&leaf);
            if !state.is_record_unkept {
                state.record = kept.unwrap_or_default();
            }
            state.record.clone()
        };
        if !idle || !self.is_due(leaf.as_ref(), now) || record.holds_back(now) {
            return None;
        }
        let lock = match folder.lock() {
            Ok(lock) => lock?,
            Err(error) => {
                let path = folder.path().display();
                self.ended(&folder, Err(Failed::because(format!("{path}: {error}"))));
                return None;
            }
        };
        // Another gateway may have ordered before this one had the lock.
        let still = folder.record().is_none_or(|record| !record.holds_back(now))
            && self.is_due(folder.leaf().as_ref(), now);
        still.then_some(Order {
            settings,
            folder,
            _lock: lock,
        })
    }

    fn answer(&self, challenges: &[Challenge]) -> Result<(), TlsError> {
        let answers = challenges.iter();
        let answers = answers.map(|one| (one.token.clone(), one.answer.clone()));
        self.seams.challenges.answer(answers.collect());
        let made = challenges.iter().filter_map(|one| {
            let made = certificate::of_challenge(&one.host, &one.answer);
            Some((one.host.clone(), made?))
        });
        self.seams.tls.answer_challenges(made.collect())
    }

    /// Has TLS show the certificate in the folder, if it is another one.
    fn show(&self, settings: &Settings, seen: &mut Seen) {
        let found = shown(settings).and_then(|path| {
            let state = FileState::of(&path)?;
            Some((path, state))
        });
        if found.is_none() || found == seen.shown {
            return;
        }
        match (self.seams.reload)() {
            None => return,
            Some(Ok(())) => {
                tracing::info!(hosts = settings.hosts.join(", "), "a certificate is in use");
            }
            Some(Err(error)) => {
                tracing::error!(
                    error,
                    "the certificate in use stays: the new one is refused"
                );
            }
        }
        seen.shown = found;
    }

    /// Whether a third of the certificate's life is left, or a little more.
    fn is_due(&self, leaf: Option<&Leaf>, now: Timestamp) -> bool {
        leaf.is_none_or(|leaf| {
            let life = leaf.ends.since(leaf.begins).0;
            leaf.ends
                .before(Micros(life / 3 + life / 30_000 * self.jitter))
                <= now
        })
    }

    fn ended(&self, folder: &Folder, result: Result<(), Failed>) {
        let now = self.seams.clock.wall();
        let leaf = folder.leaf();
        let result = match result {
            Ok(()) if self.is_due(leaf.as_ref(), now) => Err(Failed::because(
                "the new certificate is due already: is this machine's clock wrong?".to_owned(),
            )),
            result => result,
        };
        let mut state = self.status.0.lock();
        match result {
            Ok(()) => {
                state.issued += 1;
                state.record = Record::default();
                let expires = leaf.map(|leaf| second(leaf.ends)).unwrap_or_default();
                tracing::info!(expires, "a certificate was issued");
            }
            Err(Failed { error, wait }) => {
                state.failed += 1;
                let failures = state.record.failures.saturating_add(1);
                let wait = backoff(failures)
                    .max(wait.unwrap_or_default())
                    .min(WAIT_MAX);
                state.record = Record::failed(failures, now.after(wait.into()), error);
                tracing::error!(
                    error = state.record.error,
                    again = second(state.record.again()),
                    "no certificate was issued"
                );
            }
        }
        let record = state.record.clone();
        drop(state);
        let kept = folder.keep_record(&record);
        self.status.0.lock().is_record_unkept = kept.is_err();
        if let Err(error) = kept {
            tracing::warn!(%error, "what became of the order cannot be kept");
        }
    }
}

fn backoff(failures: u32) -> Duration {
    let doubled = BACKOFF.saturating_mul(1 << failures.saturating_sub(1).min(10));
    doubled
        .min(BACKOFF_MAX)
        .mul_f64(1.0 + fastrand::f64() / 4.0)
}

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Let's Encrypt allows five failed checks of a host in an hour: these are at most eight in the first
/// two hours, and one an hour from then on.
const BACKOFF: Duration = Duration::from_secs(60);
const BACKOFF_MAX: Duration = Duration::from_secs(3600);
/// The longest that an authority can have the gateway wait.
const WAIT_MAX: Duration = Duration::from_secs(7 * 86_400);
