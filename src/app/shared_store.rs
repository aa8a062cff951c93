//! The store that gateways share, as configured.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::clock::Clock;
use crate::config::settings::{Audit, Store, StoreKind};
use crate::limit::lease::Terms;
use crate::limit::{Algorithm, Limit, Micros, Placement, Role};
use crate::store::audit::Weight;
use crate::store::postgres::{PostgresOptions, check_address};
use crate::store::redis::{Address, RedisOptions};
use crate::store::tls::Tls;
use crate::store::{Backend, RemoteStore};
use crate::telemetry::metrics::Samples;

/// How long a start waits for the audit; a store that is down then is the business of `when_down`.
const AUDIT_WITHIN: Duration = Duration::from_secs(3);

/// Opens the store; it connects by itself, and keeps connecting. The error is what is wrong with its settings.
/// `limits` are those it is opened for: the audit minds what they cannot lose.
pub(super) fn open(store: Option<&Store>, limits: &[Arc<Limit>], clock: &Clock) -> Result<Backend, String> {
    let Some(store) = store else { return Ok(Backend::None) };
    let url = with_credentials(store)?;
    let key_secret = store.key_secret.expose().as_bytes().to_vec();
    let tls = tls(store)?;
    let long_quotas = has_long_quotas(limits);
    let opened = match store.kind {
        StoreKind::Redis => RedisOptions {
            address: Address::parse(&url)
                .and_then(|address| address.with_tls(&tls))
                .map_err(|error| error.to_string())?,
            answer_within: store.answer_within,
            key_secret,
            clock: clock.clone(),
            pinned: None,
            local_refusals: true,
            long_quotas,
        }
        .start(),
        StoreKind::Postgres => {
            check_address(&url).map_err(|error| error.to_string())?;
            let options = PostgresOptions {
                url,
                answer_within: store.answer_within,
                key_secret,
                clock: clock.clone(),
                pinned: None,
                local_refusals: true,
                create: store.create,
                synchronous_commit: store.synchronous_commit,
                tls,
                long_quotas,
            };
            options.start()
        }
    };
    let opened = opened.map_err(|error| error.to_string())?;
    if store.audit == Audit::Refuse {
        refuse_what_loses_buckets(&opened)?;
    }
    Ok(Backend::Remote(opened.with_replicas(store.replicas)))
}

/// Limits change while the store stays as it is: the audit minds whether some of a day or longer are among them now, and
/// where it refuses, whether the store still is what it was. The error is what is refused; then nothing has changed.
pub(super) fn change_limits(
    settings: Option<&Store>,
    store: &Backend,
    before: &[Arc<Limit>],
    limits: &[Arc<Limit>],
) -> Result<(), String> {
    let (Some(settings), Some(store)) = (settings, store.remote()) else { return Ok(()) };
    let (had, has) = (has_long_quotas(before), has_long_quotas(limits));
    let refuses = settings.audit == Audit::Refuse;
    if had == has && !refuses {
        return Ok(());
    }
    let audited = wait_for(store.audit_again(has, AUDIT_WITHIN))?;
    let outcome = if audited {
        no_refusal(store)
    } else {
        let told = "the shared store did not answer: its settings are not audited for the new limits";
        tracing::warn!("{told}");
        // A store that is down is the business of `when_down`, and mending that may be what this reload is for.
        if has && !had { Err(format!("{told} (audit = \"refuse\")")) } else { Ok(()) }
    };
    if !refuses {
        return Ok(());
    }
    if outcome.is_err() && had != has {
        // Who does not answer is not waited for again: it is audited once it does.
        let within = if audited { AUDIT_WITHIN } else { Duration::ZERO };
        wait_for(store.audit_again(had, within))?;
    }
    outcome
}

fn has_long_quotas(limits: &[Arc<Limit>]) -> bool {
    limits.iter().any(|limit| limit.placement == Placement::Shared && period(limit) >= DAY)
}

/// What leases have brought and cost, and how much may lie idle in them.
#[expect(clippy::cast_precision_loss, reason = "gauges to be read by people")]
pub(super) fn lease_samples(store: &RemoteStore, limits: &[Arc<Limit>], samples: &mut Samples) {
    let leased = || limits.iter().filter(|limit| limit.lease && limit.placement == Placement::Shared);
    let Some(counters) = store.lease_counters().filter(|_| leased().next().is_some()) else { return };
    let out = counters.out.load(Ordering::Relaxed);
    samples.gauge("store_leases_out", "Leases held now", &[], out as f64);
    for (name, help, count) in counters.named() {
        samples.counter(name, help, &[], count);
    }
    for (limit, terms) in leased().filter_map(|limit| Some((limit, Terms::of(&limit.algorithm).ok()?))) {
        let help = "Units of each bucket that may lie idle in leases, all gateways together";
        let mut labels = vec![("limit", &*limit.name)];
        labels.extend(limit.tier.as_deref().map(|tier| ("tier", tier)));
        if limit.role == Role::Live {
            samples.gauge("limit_lease_bound_units", help, &labels, terms.most as f64);
        }
    }
}

const DAY: Micros = Micros::from_secs(86_400);

/// The time in which a limit gives back what it allows at once.
fn period(limit: &Limit) -> Micros {
    match &limit.algorithm {
        Algorithm::TokenBucket(bucket) => bucket.quota().time_for(bucket.quota().burst),
        Algorithm::WarmUp(_) | Algorithm::InFlight(_) => Micros::ZERO,
        Algorithm::Interval(bucket) | Algorithm::FixedWindow(bucket) => bucket.quota().period,
        Algorithm::SlidingWindow(window) => window.quota().period,
        Algorithm::SlidingLog(log) => log.quota().period,
    }
}

/// The files of the store's TLS.
fn tls(store: &Store) -> Result<Tls, String> {
    let read = |file: &Path| std::fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()));
    let tls = Tls {
        ca: store.tls.ca.as_deref().map(read).transpose()?,
        client: store
            .tls
            .client
            .as_ref()
            .map(|(chain, key)| Ok::<_, String>((read(chain)?, read(key)?)))
            .transpose()?,
    };
    tls.check()?;
    Ok(tls)
}

/// The audit's refusals, as an error; the store's own thread says the warnings.
fn refuse_what_loses_buckets(store: &RemoteStore) -> Result<(), String> {
    if !wait_for(store.ready(AUDIT_WITHIN))? {
        tracing::warn!("the shared store did not answer at the start: its settings are not audited");
    }
    no_refusal(store)
}

/// Waits for what a store does on its own thread.
fn wait_for(done: impl Future<Output = bool> + Send) -> Result<bool, String> {
    // A thread of its own, as whoever starts the gateway may be in a runtime already, where none can be waited for.
    let waited = std::thread::scope(|scope| {
        let wait = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
            Ok::<_, std::io::Error>(runtime.block_on(done))
        });
        wait.join()
    });
    match waited {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the audit did not end well".to_owned()),
    }
}

fn no_refusal(store: &RemoteStore) -> Result<(), String> {
    let refusals: Vec<String> = store
        .findings()
        .into_iter()
        .filter(|finding| finding.weight == Weight::Refusal)
        .map(|finding| finding.message)
        .collect();
    if refusals.is_empty() {
        return Ok(());
    }
    Err(format!("{} (audit = \"refuse\")", refusals.join("; ")))
}

/// The URL with the user and password that are written beside it.
fn with_credentials(store: &Store) -> Result<String, String> {
    let url = store.url.expose();
    if store.username.is_none() && store.password.is_none() {
        return Ok(url.to_owned());
    }
    let (scheme, rest) = url.split_once("://").ok_or("`username` and `password` need a URL with `://`")?;
    let (known, hosts) = rest.split_once('@').unwrap_or(("", rest));
    let (known_user, known_password) = known.split_once(':').unwrap_or((known, ""));
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let user = store.username.as_deref().map_or_else(|| known_user.to_owned(), encoded);
    let password = store.password.as_ref().map_or_else(|| known_password.to_owned(), |one| encoded(one.expose()));
    let password = if password.is_empty() { password } else { format!(":{password}") };
    Ok(format!("{scheme}://{user}{password}@{hosts}"))
}
