//! The store that gateways share, as configured.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::clock::Clock;
use crate::config::settings::{Store, StoreKind};
use crate::store::Backend;
use crate::store::postgres::{PostgresOptions, PostgresStore, check_address};
use crate::store::redis::{Address, RedisOptions, RedisStore};

/// Opens the store; it connects by itself, and keeps connecting. The error is what is wrong with its settings.
pub(super) fn open(store: Option<&Store>, clock: &Clock) -> Result<Backend, String> {
    let Some(store) = store else { return Ok(Backend::None) };
    let url = with_credentials(store)?;
    let key_secret = store.key_secret.expose().as_bytes().to_vec();
    match store.kind {
        StoreKind::Redis => {
            let options = RedisOptions {
                address: Address::parse(&url).map_err(|error| error.to_string())?,
                answer_within: store.answer_within,
                key_secret,
                clock: clock.clone(),
                pinned: None,
                local_refusals: true,
            };
            let opened = RedisStore::start(options).map_err(|error| error.to_string())?;
            Ok(Backend::Redis(opened.with_replicas(store.replicas)))
        }
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
            let opened = PostgresStore::start(options).map_err(|error| error.to_string())?;
            Ok(Backend::Postgres(opened.with_replicas(store.replicas)))
        }
    }
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
