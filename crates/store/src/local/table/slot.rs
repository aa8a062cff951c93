//! One bucket in its locked shard: judged, written, corrected.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollgate_limit::bucket::{Next, Report};
use tollgate_limit::{Algorithm, Change, Conditions, Limit, Timestamp, Verdict};

use super::{Bucket, LATE, Shard, Table};

/// One bucket of a table. Its methods take its shard, which is locked: several claims of a request
/// may be on buckets of one shard.
pub(in crate::local) struct Slot<'t> {
    table: &'t Table,
    tag: u64,
    /// The numbers of the draw, as the table has them.
    variant: u16,
    /// Those of a draw under an override, or of an earlier policy.
    other: Option<&'t Algorithm>,
    conditions: Option<&'t Conditions>,
    place: Option<usize>,
    next: Option<Next>,
}

impl<'t> Slot<'t> {
    /// The bucket of `tag`, for a draw from `limit` under an upstream's conditions.
    pub(in crate::local) fn new(
        table: &'t Table,
        shard: &Shard,
        tag: u64,
        limit: &'t Limit,
        conditions: Option<&'t Conditions>,
    ) -> Self {
        let variant = table.variant_of(limit.tier.as_deref());
        let (own, asked) = (table.algorithm(variant), &limit.algorithm);
        // (An earlier policy may have had another algorithm by this name.)
        let is_other = match (own, asked) {
            (Algorithm::InFlight(own), Algorithm::InFlight(asked)) => own != asked,
            _ => own.quota() != asked.quota() && own.has_buckets_of(asked),
        };
        Self {
            other: is_other.then_some(asked),
            conditions,
            ..Self::of_table(table, shard, tag, variant)
        }
    }

    pub(super) fn of_table(table: &'t Table, shard: &Shard, tag: u64, variant: u16) -> Self {
        Self {
            table,
            tag,
            variant,
            other: None,
            conditions: None,
            place: shard.find(tag),
            next: None,
        }
    }

    /// The bucket's verdict; nothing is written before [`Slot::commit`].
    pub(in crate::local) fn judge(&mut self, shard: &Shard, cost: u64, now: Timestamp) -> Verdict {
        let bucket = self.bucket(shard, now);
        let state = bucket.as_deref().map(|bucket| &bucket.state);
        let judged = self.conditioned().judge(state, cost, now);
        if self.place.is_none() && shard.has_floor() && judged.is_err() {
            let counter = &self.table.counts.inherited_refusals;
            counter.fetch_add(1, Ordering::Relaxed);
        }
        let verdict = Verdict::from(&judged);
        self.next = judged.ok().map(|granted| granted.next).filter(|_| cost > 0);
        verdict
    }

    pub(in crate::local) fn report(&self, shard: &Shard, now: Timestamp) -> Report {
        let bucket = self.bucket(shard, now);
        let state = bucket.as_deref().map(|bucket| &bucket.state);
        self.conditioned().report(state, now)
    }

    pub(in crate::local) fn commit(&mut self, shard: &mut Shard, now: Timestamp) {
        let Some(next) = self.next.take() else { return };
        // Another claim of the request may have taken its place.
        self.place = shard.find(self.tag);
        let before = self.take(shard, now);
        let largest = before.as_ref().map_or(0, |bucket| bucket.largest);
        let own = before.as_ref().and_then(|bucket| bucket.own.clone());
        let mut state = before.map(|bucket| bucket.state);
        self.algorithm().apply(&mut state, next);
        let bucket = state.map(|state| Bucket {
            state,
            largest,
            variant: self.variant,
            own: self.own_numbers(own),
        });
        self.put(shard, bucket, now);
    }

    /// Corrects an earlier grant, in the numbers the bucket is kept in, without clamping.
    pub(in crate::local) fn settle(&mut self, shard: &mut Shard, change: Change, now: Timestamp) {
        let drawn = self.conditioned();
        let found = self.found(shard, self.table.birth.get());
        let kept = found.filter(|bucket| self.has_scale() && !self.is_plain(bucket));
        let bucket = match kept.map(Cow::into_owned) {
            Some(bucket) => {
                let mut kept = bucket.kept(self.table.algorithm(bucket.variant));
                let is_full = kept.expiry().is_some_and(|expiry| expiry <= now);
                kept.settle(&drawn, change, now);
                // One that was full takes the numbers of its draw.
                let (variant, own) = match is_full {
                    true => (self.variant, self.own_numbers(None)),
                    false => (bucket.variant, bucket.own),
                };
                kept.state().map(|state| {
                    let bucket = Bucket {
                        own: own.clone(),
                        ..Bucket::new(state.clone(), variant)
                    };
                    let numbers = own.as_deref().unwrap_or(self.table.algorithm(variant));
                    bucket.of_largest(kept.largest(), numbers)
                })
            }
            None => {
                let mut state = self.take(shard, now).map(|bucket| bucket.state);
                drawn.settle(&mut state, change, now);
                state.map(|state| Bucket {
                    own: self.own_numbers(None),
                    ..Bucket::new(state, self.variant)
                })
            }
        };
        self.put(shard, bucket, now);
    }

    pub(super) fn adopt(&mut self, shard: &mut Shard, adopted: &Bucket, now: Timestamp) {
        // A key with a moved bucket is known: it does not get the debt of an unknown key.
        let bucket = match self.bucket_or(shard, None, now) {
            Some(bucket) => self.table.join(&bucket, adopted, now),
            None => adopted.clone(),
        };
        self.put(shard, Some(bucket), now);
    }

    fn algorithm(&self) -> &'t Algorithm {
        self.other.unwrap_or(self.table.algorithm(self.variant))
    }

    /// The numbers of the draw, under the upstream's conditions.
    fn conditioned(&self) -> Cow<'t, Algorithm> {
        self.algorithm().under(self.conditions)
    }

    /// Whether the state of a bucket depends on its numbers. (What was used has no scale.)
    fn has_scale(&self) -> bool {
        matches!(self.algorithm(), Algorithm::TokenBucket(_))
    }

    /// Whether a bucket is kept in the numbers of the draw.
    fn is_plain(&self, bucket: &Bucket) -> bool {
        bucket.largest == 0
            && bucket.variant == self.variant
            && bucket.own.is_none()
            && self.other.is_none()
    }

    /// The numbers to keep the bucket in where they are not the table's. `before`: those it had.
    fn own_numbers(&self, before: Option<Arc<Algorithm>>) -> Option<Arc<Algorithm>> {
        let other = self.other.filter(|_| self.has_scale())?;
        let known = before.filter(|before| **before == *other);
        Some(known.unwrap_or_else(|| Arc::new(other.clone())))
    }

    /// The bucket at `now`, unless it equals no bucket.
    fn bucket<'s>(&self, shard: &'s Shard, now: Timestamp) -> Option<Cow<'s, Bucket>>
    where
        't: 's,
    {
        self.bucket_or(shard, self.table.birth.get(), now)
    }

    /// The stored bucket, or the debt of an unknown key (the floor or `birth`), in any numbers.
    fn found<'s>(&self, shard: &'s Shard, birth: Option<&'s Bucket>) -> Option<Cow<'s, Bucket>> {
        match self.place {
            Some(place) => shard.load(self.table, place),
            None => shard.floor(self.table).or(birth.map(Cow::Borrowed)),
        }
    }

    /// The same, converted to the numbers of the draw.
    fn bucket_or<'s>(
        &self,
        shard: &'s Shard,
        birth: Option<&'s Bucket>,
        now: Timestamp,
    ) -> Option<Cow<'s, Bucket>> {
        let bucket = match (self.place, shard.floor(self.table), birth) {
            (None, Some(floor), Some(birth)) => Cow::Owned(self.table.join(&floor, birth, now)),
            _ => self.found(shard, birth)?,
        };
        self.in_numbers(bucket, now)
    }

    /// A bucket in the numbers of the draw; `None`: it is full.
    fn in_numbers<'s>(&self, bucket: Cow<'s, Bucket>, now: Timestamp) -> Option<Cow<'s, Bucket>> {
        if !self.has_scale() || self.is_plain(&bucket) {
            return Some(bucket);
        }
        let kept = bucket.kept(self.table.algorithm(bucket.variant));
        let kept = kept.under(self.algorithm(), now);
        let bucket = Bucket {
            own: bucket.own.clone(),
            ..Bucket::new(kept.state()?.clone(), self.variant)
        };
        Some(Cow::Owned(
            bucket.of_largest(kept.largest(), self.algorithm()),
        ))
    }

    /// Takes the bucket out, to be changed and [`Slot::put`] back.
    fn take(&self, shard: &mut Shard, now: Timestamp) -> Option<Bucket> {
        let bucket = match self.place {
            Some(place) => {
                let bucket = shard.take(self.table, place).map(Cow::Owned);
                bucket.and_then(|bucket| self.in_numbers(bucket, now))
            }
            None => self.bucket(shard, now),
        };
        bucket.map(Cow::into_owned)
    }

    fn put(&mut self, shard: &mut Shard, bucket: Option<Bucket>, now: Timestamp) {
        let table = self.table;
        if let Some(place) = self.place {
            shard.store(table, place, self.tag, bucket);
            return;
        }
        // A full bucket needs no place, except where a key without one would start with debt.
        let owes = shard.has_floor() || table.birth.get().is_some();
        if bucket.is_none() && !owes {
            return;
        }
        let (place, expiry) = shard.soonest_full(table);
        // Another thread may still draw as of a moment at which the bucket was not full.
        if expiry.after(LATE) > now
            && let Some(forgotten) = shard.take(table, place)
        {
            let counter = &table.counts.evictions;
            counter.fetch_add(u64::from(expiry > now), Ordering::Relaxed);
            // The floor is in the table's numbers.
            if let Some(owed) = table.in_its_numbers(&forgotten, forgotten.variant, now) {
                shard.lift_floor(table, owed, now);
            }
        }
        shard.store(table, place, self.tag, bucket);
        self.place = Some(place);
    }
}
