//! Opens and checks the configured store that gateways and services share.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

#[cfg(any(feature = "redis", feature = "postgres", feature = "mysql"))]
use tollgate_config::settings::StoreKind;
use tollgate_config::settings::{Audit, Secret, Store};
use tollgate_limit::printable::percent_encoded;
use tollgate_limit::{Limit, Micros, Placement};
#[cfg(any(feature = "redis", feature = "postgres", feature = "mysql"))]
use tollgate_store::RemoteOptions;
use tollgate_store::audit::Weight;
use tollgate_store::clock::Clock;
#[cfg(feature = "mysql")]
use tollgate_store::mysql;
#[cfg(feature = "postgres")]
use tollgate_store::postgres;
#[cfg(feature = "redis")]
use tollgate_store::redis::{self, Address};
use tollgate_store::tls::Tls;
use tollgate_store::{Backend, RemoteStore};

/// How long a start waits for the audit; `when_down` handles a store that does not respond by then.
const AUDIT_WITHIN: Duration = Duration::from_secs(3);

/// How long a start or a reload waits until another store is connected or has failed.
const FIRST_TRY_WITHIN: Duration = Duration::from_secs(1);

/// A store that is checked as far as possible without connecting.
enum Checked {
    #[cfg(feature = "redis")]
    Redis(Address),
    #[cfg(feature = "postgres")]
    Postgres(String, Tls),
    #[cfg(feature = "mysql")]
    Mysql(String, Tls),
}

/// Checks the settings as [`open`] does, without connecting.
pub fn check(store: &Store) -> Result<(), String> {
    checked(store).map(drop)
}

fn checked(store: &Store) -> Result<Checked, String> {
    let (url, tls) = (with_credentials(store), tls(store)?);
    match store.kind {
        #[cfg(feature = "redis")]
        StoreKind::Redis => {
            let address = Address::parse(&url)
                .and_then(|address| address.with_tls(&tls))
                .and_then(|address| {
                    address.check()?;
                    Ok(address)
                });
            address
                .map(Checked::Redis)
                .map_err(|error| error.to_string())
        }
        #[cfg(feature = "postgres")]
        StoreKind::Postgres => {
            postgres::check_address(&url).map_err(|error| error.to_string())?;
            Ok(Checked::Postgres(url, tls))
        }
        #[cfg(feature = "mysql")]
        StoreKind::Mysql => {
            mysql::check_address(&url).map_err(|error| error.to_string())?;
            Ok(Checked::Mysql(url, tls))
        }
        #[cfg(not(all(feature = "redis", feature = "postgres", feature = "mysql")))]
        kind => {
            drop((url, tls));
            Err(format!(
                "this build has no store of the kind `{}`: enable its feature",
                tollgate_config::settings::Word::word(&kind)
            ))
        }
    }
}

/// Opens the store and waits for its first connection; later it reconnects by itself. `limits` are
/// those that use the store: the audit checks whether it could lose their state, and refuses it then.
pub fn open(
    store: Option<&Store>,
    limits: &[Arc<Limit>],
    clock: &Clock,
) -> Result<Backend, String> {
    let Some(store) = store else {
        return Ok(Backend::None);
    };
    let opened = start(store, has_long_quotas(limits), clock)?;
    // Otherwise the first requests would be granted from local shares in addition.
    wait_for(async {
        opened.tried(FIRST_TRY_WITHIN).await;
        true
    })?;
    if store.audit == Audit::Refuse {
        refuse_what_loses_buckets(&opened)?;
    }
    Ok(Backend::Remote(opened.with_replicas(store.replicas)))
}

#[cfg(any(feature = "redis", feature = "postgres", feature = "mysql"))]
fn start(store: &Store, long_quotas: bool, clock: &Clock) -> Result<RemoteStore, String> {
    let options = RemoteOptions {
        long_quotas,
        create: store.create,
        synchronous_commit: store.synchronous_commit,
        ..RemoteOptions::new(
            store.answer_within,
            store.key_secret.expose(),
            clock.clone(),
        )
    };
    let started = match checked(store)? {
        #[cfg(feature = "redis")]
        Checked::Redis(address) => redis::start(address, options),
        #[cfg(feature = "postgres")]
        Checked::Postgres(url, tls) => postgres::start(&url, &tls, options),
        #[cfg(feature = "mysql")]
        Checked::Mysql(url, tls) => mysql::start(&url, &tls, options),
    };
    started.map_err(|error| error.to_string())
}

#[cfg(not(any(feature = "redis", feature = "postgres", feature = "mysql")))]
fn start(store: &Store, _: bool, _: &Clock) -> Result<RemoteStore, String> {
    match checked(store)? {}
}

/// Changes the limits while the store stays the same. The audit checks whether limits of a day or
/// longer are now among them and, if it refuses, whether the store has changed; then nothing has
/// changed here.
pub fn change_limits(
    settings: Option<&Store>,
    store: &Backend,
    before: &[Arc<Limit>],
    limits: &[Arc<Limit>],
) -> Result<(), String> {
    let (Some(settings), Some(store)) = (settings, store.remote()) else {
        return Ok(());
    };
    let (had, has) = (has_long_quotas(before), has_long_quotas(limits));
    let refuses = settings.audit == Audit::Refuse;
    if had == has && !refuses {
        return Ok(());
    }
    let audited = wait_for(store.audit_again(has, AUDIT_WITHIN))?;
    let outcome = if audited {
        no_refusal(store)
    } else {
        let warning =
            "the shared store did not respond: its settings are not audited for the new limits";
        tracing::warn!("{warning}");
        // `when_down` handles a silent store, which this reload may be meant to repair.
        if has && !had {
            Err(format!("{warning} (audit = \"refuse\")"))
        } else {
            Ok(())
        }
    };
    if !refuses {
        return Ok(());
    }
    if outcome.is_err() && had != has {
        // A store that does not respond is not awaited again; it is audited once it does.
        let within = if audited {
            AUDIT_WITHIN
        } else {
            Duration::ZERO
        };
        wait_for(store.audit_again(had, within))?;
    }
    outcome
}

fn has_long_quotas(limits: &[Arc<Limit>]) -> bool {
    let is_long = |limit: &Limit| limit.algorithm.fill_time() >= Some(DAY);
    limits
        .iter()
        .any(|limit| limit.placement == Placement::Shared && is_long(limit))
}

/// The reason why the store does not respond; `None`: it does.
pub fn why_not(store: &RemoteStore) -> Option<String> {
    let health = store.health();
    match (health.up, health.last_error.is_empty()) {
        (true, _) => None,
        (false, false) => Some(health.last_error),
        (false, true) => Some("not connected yet".to_owned()),
    }
}

const DAY: Micros = Micros::from_secs(86_400);

fn tls(store: &Store) -> Result<Tls, String> {
    let read = |file: &Path| {
        std::fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))
    };
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

fn refuse_what_loses_buckets(store: &RemoteStore) -> Result<(), String> {
    if !wait_for(store.ready(AUDIT_WITHIN))? {
        // If the store was audited and is refused, the audit has given the reason.
        if store.findings().is_empty() {
            let error = why_not(store).unwrap_or_default();
            tracing::warn!(%error, "the shared store did not respond at the start: its settings are not audited");
        }
    }
    no_refusal(store)
}

fn wait_for(done: impl Future<Output = bool> + Send) -> Result<bool, String> {
    // A separate thread, because the calling code may be inside a runtime, where blocking on a
    // future is not possible.
    let waited = std::thread::scope(|scope| {
        let wait = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()?;
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
    let findings = store.findings().into_iter();
    let refusals = findings.filter(|finding| finding.weight == Weight::Refusal);
    let refusals: Vec<String> = refusals.map(|finding| finding.message).collect();
    if refusals.is_empty() {
        return Ok(());
    }
    Err(format!("{} (audit = \"refuse\")", refusals.join("; ")))
}

fn with_credentials(store: &Store) -> String {
    let url = store.url.expose();
    if store.username.is_none() && store.password.is_none() {
        return url.to_owned();
    }
    if url.starts_with("unix:") || url.starts_with("redis+unix:") {
        return with_parameters(store, url);
    }
    // A URL without a scheme is invalid; its parser reports that.
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let (known, hosts) = rest.split_once('@').unwrap_or(("", rest));
    let (known_user, known_password) = known.split_once(':').unwrap_or((known, ""));
    let user = store.username.as_deref();
    let user = user.map_or_else(|| known_user.to_owned(), encoded);
    let password = store.password.as_ref().map(|one| encoded(one.expose()));
    let password = password.unwrap_or_else(|| known_password.to_owned());
    let password = if password.is_empty() {
        password
    } else {
        format!(":{password}")
    };
    format!("{scheme}://{user}{password}@{hosts}")
}

/// A socket's address has them in its query.
fn with_parameters(store: &Store, url: &str) -> String {
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    let ours = [
        ("user", store.username.as_deref()),
        ("pass", store.password.as_ref().map(Secret::expose)),
    ];
    let replaced = |one: &str| {
        ours.iter()
            .any(|(name, value)| value.is_some() && one.split('=').next() == Some(name))
    };
    let parts = query
        .split('&')
        .filter(|one| !one.is_empty() && !replaced(one));
    let mut parts: Vec<String> = parts.map(str::to_owned).collect();
    parts.extend(
        ours.iter()
            .filter_map(|(name, value)| Some(format!("{name}={}", encoded((*value)?)))),
    );
    format!("{path}?{}", parts.join("&"))
}

/// `text` with everything but ASCII letters and digits percent-encoded.
fn encoded(text: &str) -> String {
    percent_encoded(text, |byte| byte.is_ascii_alphanumeric())
}
