//! Overrides of operators: other numbers, no limit, or a block, for one key of a limit and until a
//! moment. This module knows which are in force; [`super::resolve`] decides by them.
//!
//! A request pays one load while there are none. The table is replaced as a whole, by any thread,
//! and is the same for every generation of a limiter: it names buckets by limit and key, never by
//! the numbers of a policy.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;

use tollgate_limit::{Limit, Placement, Rate, Role, Timestamp};
use tollgate_store::{HashKey, LimitHash, Store};

/// One override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The limit's name.
    pub limit: Arc<str>,
    /// Where its buckets are.
    pub placement: Placement,
    /// The bucket, by [`Limiter::bucket_hash`](super::Limiter::bucket_hash).
    pub bucket: u128,
    /// What it does.
    pub effect: Effect,
    /// Its beginning.
    pub since: Timestamp,
    /// Its end.
    pub until: Timestamp,
}

/// What an override does.
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
    /// Every request is refused.
    Block,
}

/// The overrides in force, shared by the generations of a limiter.
#[derive(Debug)]
pub(super) struct Overrides {
    any: AtomicBool,
    table: ArcSwap<Table>,
}

#[derive(Debug)]
struct Table {
    local: HashKey,
    /// The limits with overrides. Only keys of these are hashed.
    limits: Vec<WithOverrides>,
    by_bucket: HashMap<(Placement, u128), Override, RandomState>,
}

#[derive(Debug)]
struct WithOverrides {
    name: Arc<str>,
    placement: Placement,
    hash: LimitHash,
}

impl Table {
    fn new(local: HashKey) -> Self {
        Self {
            local,
            limits: Vec::new(),
            by_bucket: HashMap::default(),
        }
    }
}

impl Default for Overrides {
    fn default() -> Self {
        Self {
            any: AtomicBool::new(false),
            table: ArcSwap::from_pointee(Table::new(HashKey::new(b""))),
        }
    }
}

impl Overrides {
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    pub(super) fn of(
        &self,
        limit: &Limit,
        key: &[u8],
        store: &impl Store,
        now: Timestamp,
    ) -> Option<Override> {
        if self.is_empty() {
            return None;
        }
        let table = self.table.load();
        let found = table.of(limit, key, store);
        found.filter(|found| found.until > now).cloned()
    }

    pub(super) fn put(&self, overrides: impl IntoIterator<Item = Override>) {
        let before = self.table.load();
        let mut table = Table::new(before.local);
        for one in overrides {
            let mut limits = table.limits.iter();
            if !limits.any(|with| with.placement == one.placement && with.name == one.limit) {
                table.limits.push(WithOverrides {
                    name: Arc::clone(&one.limit),
                    placement: one.placement,
                    hash: before.local.limit(&one.limit, Role::Live),
                });
            }
            let bucket = (one.placement, one.bucket);
            table.by_bucket.insert(bucket, one);
        }
        let any = !table.by_bucket.is_empty();
        self.table.store(Arc::new(table));
        self.any.store(any, Ordering::Release);
    }

    /// Names the buckets of the process by this secret. Overrides that were put before are dropped,
    /// because they name other buckets.
    pub(super) fn name_buckets_by(&self, secret: &[u8]) {
        self.any.store(false, Ordering::Release);
        self.table.store(Arc::new(Table::new(HashKey::new(secret))));
    }

    /// The name of a bucket in the process.
    pub(super) fn local_name(&self, limit: &Limit, key: &[u8]) -> u128 {
        self.table.load().local.bucket(limit, key)
    }
}

impl Table {
    fn of(&self, limit: &Limit, key: &[u8], store: &impl Store) -> Option<&Override> {
        let mut limits = self.limits.iter();
        let with = limits.find(|one| one.placement == limit.placement && one.name == limit.name)?;
        if limit.role != Role::Live {
            return None;
        }
        let bucket = match limit.placement {
            Placement::Local => with.hash.bucket(key),
            Placement::Shared => store.bucket_hash(limit, key)?,
        };
        self.by_bucket.get(&(limit.placement, bucket))
    }
}
