//! The store that gateways share, as configured.

use crate::clock::Clock;
use crate::config::settings::{Store, StoreKind};
use crate::store::Backend;
use crate::store::redis::{Address, RedisOptions, RedisStore};

/// Opens the store; it connects by itself, and keeps connecting. The error is what is wrong with its settings.
pub(super) fn open(store: Option<&Store>, clock: &Clock) -> Result<Backend, String> {
    let Some(store) = store else { return Ok(Backend::None) };
    match store.kind {
        StoreKind::Redis => redis(store, clock),
        StoreKind::Postgres => Err("PostgreSQL is not part of this build".to_owned()),
    }
}

fn redis(store: &Store, clock: &Clock) -> Result<Backend, String> {
    let address = Address::parse(store.url.expose()).map_err(|error| error.to_string())?;
    let options = RedisOptions {
        address,
        answer_within: store.answer_within,
        key_secret: store.key_secret.expose().as_bytes().to_vec(),
        clock: clock.clone(),
        pinned: None,
        local_refusals: true,
    };
    RedisStore::start(options).map(Backend::Redis).map_err(|error| error.to_string())
}
