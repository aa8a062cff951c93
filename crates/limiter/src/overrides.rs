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
use tollgate_store::local::LocalStore;
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

impl Effect {
    /// Whether the bucket may have other numbers than the limit's own when the
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
}

#[derive(Debug)]
struct Table {
    /// Names the buckets in the process.
    local: HashKey,
    /// The limits with overrides. Only keys of these are hashed.
    limits: Vec<WithOverrides>,
    by_bucket: HashMap<(bool, u128), Entry, RandomState>,
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

/// An override, and whether its bucket has been told of its beginning and end.
#[derive(Debug)]
struct Entry {
    own: Override,
    /// Since when the buckets of this process are drawn under it: a bucket in a table does not tell
    /// which of its units were drawn since an earlier moment.
    from: Timestamp,
    begun: AtomicBool,
    ended: AtomicBool,
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
    pub(super) since: Timestamp,
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
        local: &LocalStore,
        now: Timestamp,
    ) -> Option<Found> {
        let table = self.table.load();
        // Most requests have none, and get no list.
        let mut found: Option<Found> = None;
        for (place, claim) in claims.iter().enumerate() {
            if let Some(entry) = table.of(claim.limit, claim.key, store)
                && let Some(hit) = entry.hit(claim, store, local, now)
            {
                found.get_or_insert_with(|| SmallVec::from_elem(None, claims.len()))[place] =
                    Some(hit);
            }
        }
        found
    }
}

impl Table {
    fn of(&self, limit: &Limit, key: &[u8], store: &impl Store) -> Option<&Entry> {
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

impl Entry {
    /// What it does to the claim at `now`.
    fn hit(
        &self,
        claim: &Claim<'_>,
        store: &impl Store,
        local: &LocalStore,
        now: Timestamp,
    ) -> Option<Hit> {
        let Override {
            effect,
            since,
            until,
            ..
        } = self.own;
        let turns = effect.may_leave_numbers();
        let take_own = |since: Timestamp| {
            if is_shared(claim.limit.placement) {
                store.take_numbers(claim.limit, claim.key, now.since(since));
            } else {
                local.take_numbers(claim.limit, claim.key, since, None);
            }
        };
        if until <= now {
            if turns && !self.ended.swap(true, Ordering::Relaxed) {
                take_own(until);
            }
            return None;
        }
        let since = match claim.limit.placement {
            Placement::Local => self.from,
            Placement::Shared => since,
        };
        // Told here, and not by the draw: another claim may refuse the request before.
        if turns && !self.begun.swap(true, Ordering::Relaxed) {
            match effect {
                Effect::Numbers { rate, burst } if is_shared(claim.limit.placement) => {
                    if let Ok(limit) = claim.limit.with_numbers(rate, burst) {
                        store.take_numbers(&limit, claim.key, now.since(since));
                    }
                }
                // A bucket of the process takes them on with each draw.
                Effect::Numbers { .. } => {}
                _ => take_own(since),
            }
        }
        Some(Hit {
            effect,
            since,
            until,
        })
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
        let before = own.table.load();
        let now = self.generation.local.clock().now();
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
            let known = before
                .by_bucket
                .get(&bucket)
                .filter(|known| known.own == one);
            let flag = |of: fn(&Entry) -> &AtomicBool| {
                AtomicBool::new(known.is_some_and(|known| of(known).load(Ordering::Relaxed)))
            };
            let entry = Entry {
                from: known.map_or(now.max(one.since), |known| known.from),
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

    /// Whether buckets have other numbers than their tables, so that [`Limiter::bring_back`] has to be
    /// called when the overrides have ended.
    pub fn has_buckets_aside(&self) -> bool {
        self.generation.local.has_aside() || self.generation.shares.has_aside()
    }

    /// Moves the buckets of overrides that have ended back to their tables; to be called now and
    /// then.
    pub fn bring_back(&self) {
        self.generation.local.bring_back();
        self.generation.shares.bring_back();
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
        (found.own.until > now).then(|| found.own.clone())
    }
}
