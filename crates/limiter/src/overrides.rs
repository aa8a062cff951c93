//! Overrides of operators: other numbers, no limit, or a block, for one key of a limit and until a
//! moment. This module knows which are in force; [`super::decide`] decides by them.
//!
//! The table is replaced as a whole, by any thread, and is the same for every generation of a limiter: it
//! names buckets by limit and key, never by the numbers of a policy. No key is hashed while there are none.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;

use tollgate_limit::{Limit, Placement, Rate, Timestamp};
use tollgate_store::{HashKey, Store};

/// An override of one key of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The name of the limit.
    pub limit: Arc<str>,
    /// Where the buckets of the limit are.
    pub placement: Placement,
    /// The name of the bucket, by [`Limiter::bucket_hash`](super::Limiter::bucket_hash).
    pub bucket: u128,
    /// What the override does to the key.
    pub effect: Effect,
    /// The moment at which the override begins.
    pub since: Timestamp,
    /// The moment at which the override ends.
    pub until: Timestamp,
}

/// What an override does to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The limit has this rate, or this burst, or both.
    Numbers {
        /// The rate; `None`: the limit's own.
        rate: Option<Rate>,
        /// The burst; `None`: see [`Limit::with_numbers`].
        burst: Option<u64>,
    },
    /// The concurrency limit has so many places.
    Places(u64),
    /// The limit does not apply.
    Unlimited,
    /// Every request of the key is refused.
    Block,
}

/// The overrides in force, shared by the generations of a limiter.
#[derive(Debug)]
pub(super) struct Overrides(ArcSwap<Table>);

#[derive(Debug)]
struct Table {
    local: HashKey,
    by_bucket: HashMap<(Placement, u128), Override, RandomState>,
}

impl Default for Overrides {
    fn default() -> Self {
        Self(ArcSwap::from_pointee(Table {
            local: HashKey::new(b""),
            by_bucket: HashMap::default(),
        }))
    }
}

impl Overrides {
    pub(super) fn of(
        &self,
        limit: &Limit,
        key: &[u8],
        store: &impl Store,
        now: Timestamp,
    ) -> Option<Override> {
        let Table { local, by_bucket } = &**self.0.load();
        if by_bucket.is_empty() {
            return None;
        }
        let bucket = match limit.placement {
            Placement::Local => local.bucket(limit, key),
            Placement::Shared => store.bucket_hash(limit, key)?,
        };
        let found = by_bucket.get(&(limit.placement, bucket))?;
        (found.until > now).then(|| found.clone())
    }

    pub(super) fn put(&self, overrides: impl IntoIterator<Item = Override>) {
        let overrides = overrides.into_iter();
        self.0.store(Arc::new(Table {
            local: self.0.load().local,
            by_bucket: overrides
                .map(|one| ((one.placement, one.bucket), one))
                .collect(),
        }));
    }

    /// Names the buckets of the process by this secret. Overrides that were put before are dropped,
    /// because they name other buckets.
    pub(super) fn name_buckets_by(&self, secret: &[u8]) {
        self.0.store(Arc::new(Table {
            local: HashKey::new(secret),
            by_bucket: HashMap::default(),
        }));
    }

    /// The name of a bucket in the process.
    pub(super) fn local_name(&self, limit: &Limit, key: &[u8]) -> u128 {
        self.0.load().local.bucket(limit, key)
    }
}
