//! Penalties as an operator sees them: whether a key is blocked, and the end of a block.

use tollgate_limit::{Limit, Timestamp};
use tollgate_store::{Deadline, Store, StoreError};

use crate::Limiter;
use crate::penalties::{Imposed, PenaltyCounts};

impl<S: Store + Send + Sync> Limiter<S> {
    /// The end of the penalty of `key` under `limit`, by the store that keeps it; `None`: it has
    /// none.
    ///
    /// # Errors
    /// When the store does not respond and this gateway knows of no penalty.
    pub async fn penalty(
        &self,
        limit: &Limit,
        key: &[u8],
    ) -> Result<Option<Timestamp>, StoreError> {
        let generation = &self.generation;
        let now = generation.local.clock().now();
        if limit.penalty.is_none() {
            return Ok(None);
        }
        let known = || {
            let bucket = generation.penalties.name(limit, key);
            generation.penalties.block(bucket, now)
        };
        let Some(bucket) = generation.penalty_bucket(limit) else {
            return Ok(known().map(|block| block.until));
        };
        match generation
            .blocked_for(bucket, key, &Deadline::default())
            .await
        {
            Ok(left) => Ok(left.map(|left| generation.local.clock().now().after(left))),
            Err(error) => match known() {
                Some(block) => Ok(Some(block.until)),
                None => Err(error),
            },
        }
    }

    /// Lifts the penalty of `key` under `limit`. Other gateways learn of it by asking the store,
    /// which they do again after a second, and at once after [`Limiter::ask_again`].
    pub fn lift_penalty(&self, limit: &Limit, key: &[u8]) {
        let generation = &self.generation;
        if let Some(bucket) = generation.penalty_bucket(limit) {
            self.reset(bucket, key);
        }
        let name = generation.penalties.name(limit, key);
        generation.penalties.forget(name);
    }

    /// Has the shared store asked about every block there, because one was lifted.
    pub fn ask_again(&self) {
        self.generation.penalties.ask_again();
    }

    /// The blocks that this gateway has imposed since the last call.
    pub fn take_penalties(&self) -> Vec<Imposed> {
        self.generation.penalties.take()
    }

    /// Counters of penalties.
    pub fn penalty_counts(&self) -> PenaltyCounts {
        self.generation.penalties.counts()
    }
}
