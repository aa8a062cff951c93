//! The shared store of one gateway, or none: an enum, so that futures of the trait stay unboxed.

use std::sync::Weak;

use tollgate_limit::{Claim, Draw, Limit, Settlement, Standing};

use super::remote::RemoteStore;
use super::{Deadline, StandIn, Store, StoreError};

#[derive(Debug, Default)]
pub enum Backend {
    /// No `[store]` is configured: a draw here is an error in the compiled policy.
    #[default]
    None,
    Remote(RemoteStore),
}

impl Backend {
    pub fn remote(&self) -> Option<&RemoteStore> {
        match self {
            Self::None => None,
            Self::Remote(store) => Some(store),
        }
    }
}

impl Store for Backend {
    async fn draw_until<'a>(
        &'a self,
        claims: &'a [Claim<'a>],
        deadline: &'a Deadline,
    ) -> Result<Draw, StoreError> {
        match self {
            Self::None => Err(none()),
            Self::Remote(store) => store.draw_until(claims, deadline).await,
        }
    }

    fn forgo(&self, deadline: &Deadline) {
        if let Self::Remote(store) = self {
            store.forgo(deadline);
        }
    }

    fn settle(&self, settlements: &[Settlement<'_>]) {
        if let Self::Remote(store) = self {
            store.settle(settlements);
        }
    }

    async fn peek_until<'a>(
        &'a self,
        claims: &'a [Claim<'a>],
        deadline: &'a Deadline,
    ) -> Result<Vec<Standing>, StoreError> {
        match self {
            Self::None => Err(none()),
            Self::Remote(store) => store.peek_until(claims, deadline).await,
        }
    }

    fn replicas(&self) -> u32 {
        self.remote().map_or(1, Store::replicas)
    }

    fn assume_replicas(&self, replicas: u32) {
        if let Self::Remote(store) = self {
            store.assume_replicas(replicas);
        }
    }

    fn at_most(&self, claim: &Claim<'_>) -> Option<u64> {
        self.remote()?.at_most(claim)
    }

    fn bucket_hash(&self, limit: &Limit, key: &[u8]) -> Option<u128> {
        Store::bucket_hash(self.remote()?, limit, key)
    }

    fn substitute(&self, stand_in: Weak<dyn StandIn>) {
        if let Self::Remote(store) = self {
            store.substitute(stand_in);
        }
    }
}

fn none() -> StoreError {
    StoreError::Unavailable("no shared store is configured".to_owned())
}
