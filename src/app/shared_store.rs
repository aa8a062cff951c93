//! The store that gateways share, as configured.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::clock::Clock;
use crate::config::settings::{Audit, Store, StoreKind};
use crate::store::audit::Weight;
use crate::store::postgres::{PostgresOptions, check_address};
use crate::store::redis::{Address, RedisOptions};
use crate::store::{Backend, RemoteStore};

/// How long a start waits for the audit; a store that is down then is the business of `when_down`.
const AUDIT_WITHIN: Duration = Duration::from_secs(3);

/// Opens the store; it connects by itself, and keeps connecting. The error is what is wrong with its settings.
pub(super) fn open(store: Option<&Store>, clock: &Clock) -> Result<Backend, String> {
    let Some(store) = store else { return Ok(Backend::None) };
    let url = with_credentials(store)?;
    let key_secret = store.key_secret.expose().as_bytes().to_vec();
    let opened = match store.kind {
        StoreKind::Redis => RedisOptions {
            address: Address::parse(&url).map_err(|error| error.to_string())?,
            answer_within: store.answer_within,
            key_secret,
            clock: clock.clone(),
            pinned: None,
            local_refusals: true,
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

/// The audit's refusals, as an error; the store's own thread says the warnings.
fn refuse_what_loses_buckets(store: &RemoteStore) -> Result<(), String> {
    // A thread of its own, as whoever starts the gateway may be in a runtime already, where none can be waited for.
    let waited = std::thread::scope(|scope| {
        let wait = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
            Ok::<_, std::io::Error>(runtime.block_on(store.ready(AUDIT_WITHIN)))
        });
        wait.join()
    });
    match waited {
        Ok(Ok(true)) => {}
        Ok(Ok(false)) => tracing::warn!("the shared store did not answer at the start: its settings are not audited"),
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err("the audit did not end well".to_owned()),
    }
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
