//! The closed set of shared stores. An enum and not `dyn`: the set is known, matches are exhaustive, and the trait's
//! futures stay unboxed.

use crate::limit::{Claim, Draw, Settlement, Standing};

use super::batch::{Counters, Health};
use super::postgres::PostgresStore;
use super::redis::RedisStore;
use super::{Store, StoreError};

/// The shared store of one gateway, or none.
#[derive(Debug, Default)]
pub enum Backend {
    /// No `[store]` is configured: every limit is local, and a draw here is an error of whoever compiled the policy.
    #[default]
    None,
    /// Redis or Valkey.
    Redis(RedisStore),
    /// PostgreSQL, or what speaks it.
    Postgres(PostgresStore),
}

impl Backend {
    /// How it does and what it has counted; `None`: there is none.
    pub fn seen(&self) -> Option<(Health, &Counters)> {
        match self {
            Self::None => None,
            Self::Redis(store) => Some((store.health(), store.counters())),
            Self::Postgres(store) => Some((store.health(), store.counters())),
        }
    }

    /// How many gateways share the store, this one included: what one gateway's local share is a part of.
    pub fn replicas(&self) -> u32 {
        match self {
            Self::None => 1,
            Self::Redis(store) => store.replicas(),
            Self::Postgres(store) => store.replicas(),
        }
    }
}

impl Store for Backend {
    async fn draw<'a>(&'a self, claims: &'a [Claim<'a>]) -> Result<Draw, StoreError> {
        match self {
            Self::None => Err(none()),
            Self::Redis(store) => store.draw(claims).await,
            Self::Postgres(store) => store.draw(claims).await,
        }
    }

    fn settle(&self, settlements: &[Settlement<'_>]) {
        match self {
            Self::None => {}
            Self::Redis(store) => store.settle(settlements),
            Self::Postgres(store) => store.settle(settlements),
        }
    }

    async fn peek<'a>(&'a self, claims: &'a [Claim<'a>]) -> Result<Vec<Standing>, StoreError> {
        match self {
            Self::None => Err(none()),
            Self::Redis(store) => store.peek(claims).await,
            Self::Postgres(store) => store.peek(claims).await,
        }
    }

    fn replicas(&self) -> u32 {
        Self::replicas(self)
    }
}

fn none() -> StoreError {
    StoreError::Unavailable("no shared store is configured".to_owned())
}
