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
use smallvec::SmallVec;

use tollgate_limit::{Claim, Limit, Placement, Rate, Role, Timestamp};
use tollgate_store::{HashKey, LimitHash, Store};

use super::Limiter;

/// One override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The limit's name.
    pub limit: Arc<str>,
    /// Where its buckets are.
    pub placement: Placement,
    /// The bucket, by [`Limiter::bucket_hash`].
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
    /// Names the buckets in the process.
    local: HashKey,
    /// The limits with overrides. Only keys of these are hashed.
    limits: Vec<WithOverrides>,
    by_bucket: HashMap<(bool, u128), Override, RandomState>,
}

/// A limit with overrides.
#[derive(Debug)]
struct WithOverrides {
    name: Arc<str>,
    placement: Placement,
    /// Names its buckets in the process.
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

/// What an override does to a claim.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hit {
    pub(super) effect: Effect,
    pub(super) until: Timestamp,
}

/// The override of each claim, in the order of the claims.
pub(super) type Found = SmallVec<[Option<Hit>; 4]>;

impl Overrides {
    /// Whether there are none.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// The overrides of `claims` at `now`; `None`: none has one.
    pub(super) fn find(
        &self,
        claims: &[Claim<'_>],
        store: &impl Store,
        now: Timestamp,
    ) -> Option<Found> {
        let table = self.table.load();
        // Most requests have none, and get no list.
        let mut found: Option<Found> = None;
        for (place, claim) in claims.iter().enumerate() {
            let Some(own) = table.of(claim.limit, claim.key, store) else {
                continue;
            };
            if own.until > now {
                found.get_or_insert_with(|| SmallVec::from_elem(None, claims.len()))[place] =
                    Some(Hit {
                        effect: own.effect,
                        until: own.until,
                    });
            }
        }
        found
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
        self.by_bucket.get(&(is_shared(limit.placement), bucket))
    }
}

fn is_shared(placement: Placement) -> bool {
    placement == Placement::Shared
}

impl<S: Store + Send + Sync> Limiter<S> {
    /// Puts these overrides in force instead of all earlier ones.
    pub fn put_overrides(&self, overrides: impl IntoIterator<Item = Override>) {
        let own = &self.generation.overrides;
        let before = own.table.load();
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
            let bucket = (is_shared(one.placement), one.bucket);
            table.by_bucket.insert(bucket, one);
        }
        let any = !table.by_bucket.is_empty();
        own.table.store(Arc::new(table));
        own.any.store(any, Ordering::Release);
    }

    /// Names the buckets of the process by this secret, which must be the same after a restart for
    /// overrides to be found again. Overrides that were put under other names are gone.
    pub fn name_buckets_by(&self, secret: &[u8]) {
        let own = &self.generation.overrides;
        own.any.store(false, Ordering::Release);
        own.table.store(Arc::new(Table::new(HashKey::new(secret))));
    }

    /// The name by which an override knows the bucket of `limit` for `key`; `None`: its store is not
    /// there.
    pub fn bucket_hash(&self, limit: &Limit, key: &[u8]) -> Option<u128> {
        let generation = &self.generation;
        match limit.placement {
            Placement::Local => Some(generation.overrides.table.load().local.bucket(limit, key)),
            Placement::Shared => generation.shared.bucket_hash(limit, key),
        }
    }

    /// The override in force for the bucket of `limit` for `key`.
    pub fn overridden(&self, limit: &Limit, key: &[u8]) -> Option<Override> {
        let generation = &self.generation;
        let overrides = &generation.overrides;
        if overrides.is_empty() {
            return None;
        }
        let (table, now) = (overrides.table.load(), generation.local.clock().now());
        let found = table.of(limit, key, &*generation.shared)?;
        (found.until > now).then(|| found.clone())
    }
}
