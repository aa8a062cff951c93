//! Overrides of operators: other numbers, no limit, or a block, for one key of a limit and until a
//! moment. This module knows which are in force; [`super::overridden`] decides by them.
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
use tollgate_store::{HashKey, Store};

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

impl Effect {
    /// Whether the bucket in the shared store may have other numbers than the limit's own when the
    /// override begins or ends: its own, or those of an override that it replaced.
    pub fn may_leave_numbers(&self) -> bool {
        match self {
            Self::Numbers { .. } | Self::Unlimited | Self::Block => true,
            Self::Places(_) => false,
        }
    }
}

/// The overrides in force, shared by the generations of a limiter.
#[derive(Debug)]
pub(super) struct Overrides {
    any: AtomicBool,
    table: ArcSwap<Table>,
    /// Names the buckets in the process.
    local: ArcSwap<HashKey>,
}

#[derive(Debug, Default)]
struct Table {
    /// The limits with overrides. Only keys of these are hashed.
    limits: Vec<(Arc<str>, Placement)>,
    by_bucket: HashMap<(bool, u128), Entry, RandomState>,
}

/// An override, and whether its bucket in the shared store has been told of its beginning and end.
#[derive(Debug)]
struct Entry {
    own: Override,
    begun: AtomicBool,
    ended: AtomicBool,
}

impl Default for Overrides {
    fn default() -> Self {
        Self {
            any: AtomicBool::new(false),
            table: ArcSwap::default(),
            local: ArcSwap::from_pointee(HashKey::new(b"")),
        }
    }
}

/// What an override does to a claim.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hit {
    pub(super) effect: Effect,
    pub(super) until: Timestamp,
    /// Whether the bucket in the shared store does not have these numbers yet.
    pub(super) begins: bool,
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
        let mut any = false;
        let find = |claim: &Claim<'_>| {
            let found = self.of(&table, claim.limit, claim.key, store)?;
            let Override { effect, until, .. } = found.own;
            let turns = effect.may_leave_numbers() && is_shared(claim.limit.placement);
            if until <= now {
                if turns && !found.ended.swap(true, Ordering::Relaxed) {
                    store.take_numbers(claim.limit, claim.key);
                }
                return None;
            }
            let begins = turns && !found.begun.swap(true, Ordering::Relaxed);
            let has_numbers = matches!(effect, Effect::Numbers { .. });
            if begins && !has_numbers {
                store.take_numbers(claim.limit, claim.key);
            }
            Some(Hit {
                effect,
                until,
                begins: begins && has_numbers,
            })
        };
        let found: Found = claims
            .iter()
            .map(find)
            .inspect(|found| any |= found.is_some())
            .collect();
        any.then_some(found)
    }

    fn of<'t>(
        &self,
        table: &'t Table,
        limit: &Limit,
        key: &[u8],
        store: &impl Store,
    ) -> Option<&'t Entry> {
        let is_of = |(name, placement): &(Arc<str>, Placement)| {
            *placement == limit.placement && *name == limit.name
        };
        if limit.role != Role::Live || !table.limits.iter().any(is_of) {
            return None;
        }
        let bucket = self.hash(limit, key, store)?;
        table.by_bucket.get(&(is_shared(limit.placement), bucket))
    }

    /// The name of a bucket in the process, also of one in the shared store.
    pub(super) fn name(&self, limit: &Limit, key: &[u8]) -> u128 {
        self.local.load().bucket(limit, key)
    }

    fn hash(&self, limit: &Limit, key: &[u8], store: &impl Store) -> Option<u128> {
        match limit.placement {
            Placement::Local => Some(self.name(limit, key)),
            Placement::Shared => store.bucket_hash(limit, key),
        }
    }
}

fn is_shared(placement: Placement) -> bool {
    placement == Placement::Shared
}

impl<S: Store + Send + Sync> Limiter<S> {
    /// Puts these overrides in force instead of all earlier ones. Those that have ended of late are
    /// among them: their buckets still have their numbers.
    pub fn put_overrides(&self, overrides: impl IntoIterator<Item = Override>) {
        let own = &self.generation.overrides;
        let (before, mut table) = (own.table.load(), Table::default());
        for one in overrides {
            let limit = (Arc::clone(&one.limit), one.placement);
            if !table.limits.contains(&limit) {
                table.limits.push(limit);
            }
            let bucket = (is_shared(one.placement), one.bucket);
            let known = before
                .by_bucket
                .get(&bucket)
                .filter(|known| known.own == one);
            let flag = |of: fn(&Entry) -> &AtomicBool| {
                AtomicBool::new(known.is_some_and(|known| of(known).load(Ordering::Relaxed)))
            };
            let entry = Entry {
                begun: flag(|entry| &entry.begun),
                ended: flag(|entry| &entry.ended),
                own: one,
            };
            table.by_bucket.insert(bucket, entry);
        }
        let any = !table.by_bucket.is_empty();
        own.table.store(Arc::new(table));
        own.any.store(any, Ordering::Release);
    }

    /// Moves the buckets of overrides that have ended back to their tables; to be called now and
    /// then.
    pub fn bring_back(&self) {
        self.generation.local.bring_back();
        self.generation.shares.bring_back();
    }

    /// Names the buckets of the process by this secret, which must be the same after a restart for
    /// overrides to be found again.
    pub fn name_buckets_by(&self, secret: &[u8]) {
        let key = HashKey::new(secret);
        self.generation.overrides.local.store(Arc::new(key));
    }

    /// The name by which an override knows the bucket of `limit` for `key`; `None`: its store is not
    /// there.
    pub fn bucket_hash(&self, limit: &Limit, key: &[u8]) -> Option<u128> {
        let generation = &self.generation;
        generation.overrides.hash(limit, key, &*generation.shared)
    }

    /// The override in force for the bucket of `limit` for `key`.
    pub fn overridden(&self, limit: &Limit, key: &[u8]) -> Option<Override> {
        let generation = &self.generation;
        let overrides = &generation.overrides;
        if overrides.is_empty() {
            return None;
        }
        let (table, now) = (overrides.table.load(), generation.local.clock().now());
        let found = overrides.of(&table, limit, key, &*generation.shared)?;
        (found.own.until > now).then(|| found.own.clone())
    }
}
