//! One bucket of a wide table with its shard locked: judged, written, corrected.

use std::borrow::Cow;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;

use crate::local::packed::LATE;
use tollgate_limit::bucket::{Next, Report, State};
use tollgate_limit::{Algorithm, Change, Conditions, Kept, Timestamp, Verdict};

use super::{Bucket, SHARD_ENTRIES, Shard, WideTable};

/// One bucket with its shard locked.
pub(crate) struct WideSlot<'t> {
    pub(super) table: &'t WideTable,
    pub(super) tag: u64,
    /// The numbers of the draw.
    pub(super) by: u16,
    pub(super) conditions: Option<&'t Conditions>,
    pub(super) place: Option<usize>,
    pub(super) shard: MutexGuard<'t, Shard>,
    pub(super) next: Option<Next>,
}

impl<'t> WideSlot<'t> {
    /// The bucket's verdict; nothing is written before [`WideSlot::commit`].
    pub(crate) fn judge(&mut self, cost: u64, now: Timestamp) -> Verdict {
        let judged = self.conditioned().judge(
            self.bucket(now).as_deref().map(|bucket| &bucket.state),
            cost,
            now,
        );
        if self.place.is_none() && self.shard.floor.is_some() && judged.is_err() {
            let counter = &self.table.counts.inherited_refusals;
            counter.fetch_add(1, Ordering::Relaxed);
        }
        let verdict = Verdict::from(&judged);
        self.next = judged.ok().map(|granted| granted.next).filter(|_| cost > 0);
        verdict
    }

    /// The bucket's numbers.
    pub(crate) fn report(&self, now: Timestamp) -> Report {
        self.conditioned()
            .report(self.bucket(now).as_deref().map(|bucket| &bucket.state), now)
    }

    /// Writes the result of [`WideSlot::judge`].
    pub(crate) fn commit(&mut self, now: Timestamp) {
        let Some(next) = self.next.take() else { return };
        let (mut state, beyond) = self.take(now);
        self.algorithm().apply(&mut state, next);
        self.put(state.map(|state| Bucket::new(state, beyond, self.by)), now);
    }

    /// Its state in the numbers of the draw, and what it remembers; `None`: it is full.
    pub(crate) fn state(&self, now: Timestamp) -> Option<(State, u64)> {
        let bucket = self.bucket(now)?.into_owned();
        let expiry = self.algorithm().expiry_beyond(&bucket.state, bucket.beyond);
        let is_full = expiry.is_some_and(|expiry| expiry.after(LATE) <= now);
        (!is_full).then_some((bucket.state, bucket.beyond))
    }

    fn algorithm(&self) -> &'t Algorithm {
        self.table.algorithm(self.by)
    }

    /// The numbers of the draw, under the upstream's conditions.
    fn conditioned(&self) -> Cow<'t, Algorithm> {
        self.algorithm().under(self.conditions)
    }

    /// Corrects an earlier grant, in the numbers the bucket is kept in, without clamping.
    pub(crate) fn settle(&mut self, change: Change, now: Timestamp) {
        let drawn = self.by;
        if let Some(bucket) = self.found(None).filter(|bucket| bucket.own.is_some()) {
            let (mut kept, by, own) = (self.table.kept(bucket), bucket.by, bucket.own.clone());
            kept.settle(&self.conditioned(), change, now);
            // A bucket that is full again takes the numbers of its draw.
            let own = own.filter(|own| **own == *kept.algorithm());
            let by = if own.is_some() { by } else { drawn };
            let bucket = kept.state().map(|state| Bucket {
                state: state.clone(),
                beyond: kept.beyond(),
                by,
                own,
            });
            self.put(bucket, now);
            return;
        }
        if self.table.numbers.len() > 1 {
            // A bucket that is full again takes the numbers of its draw.
            let kept = self.found(self.table.birth.get());
            let kept = kept.filter(|bucket| self.table.under(bucket, bucket.by, now).is_some());
            self.by = kept.map_or(drawn, |bucket| bucket.by);
        }
        let (mut state, mut beyond) = self.take(now);
        if beyond == 0 && self.by == drawn {
            self.conditioned().settle(&mut state, change, now);
        } else {
            let mut kept = Kept::from_parts(self.algorithm().clone(), state, beyond);
            let drawn = self.table.algorithm(drawn).under(self.conditions);
            kept.settle(&drawn, change, now);
            (state, beyond) = (kept.state().cloned(), kept.beyond());
        }
        self.put(state.map(|state| Bucket::new(state, beyond, self.by)), now);
    }

    pub(super) fn adopt(&mut self, adopted: &Bucket, now: Timestamp) {
        // A key with a moved bucket is known, so it does not get the debt of a key that was never
        // seen.
        let bucket = match self.bucket_or(None, now) {
            Some(bucket) => self.table.join(&bucket, adopted, now),
            None => adopted.clone(),
        };
        self.put(Some(bucket), now);
    }

    /// The bucket at `now`, unless it equals no bucket.
    fn bucket(&self, now: Timestamp) -> Option<Cow<'_, Bucket>> {
        self.bucket_or(self.table.birth.get(), now)
    }

    /// The stored bucket, or the debt of an unknown key: the floor or `birth`, whichever numbers it
    /// is in.
    fn found<'s>(&'s self, birth: Option<&'s Bucket>) -> Option<&'s Bucket> {
        match self.place {
            Some(place) => self.shard.buckets[place].as_ref(),
            None => self.shard.floor.as_ref().or(birth),
        }
    }

    /// The same, converted to the numbers of the draw.
    fn bucket_or<'s>(
        &'s self,
        birth: Option<&'s Bucket>,
        now: Timestamp,
    ) -> Option<Cow<'s, Bucket>> {
        let bucket = match (self.place, &self.shard.floor, birth) {
            (None, Some(floor), Some(birth)) => Cow::Owned(self.table.join(floor, birth, now)),
            _ => Cow::Borrowed(self.found(birth)?),
        };
        if bucket.beyond == 0 && bucket.by == self.by && bucket.own.is_none() {
            return Some(bucket);
        }
        self.table.under(&bucket, self.by, now).map(Cow::Owned)
    }

    /// Takes the state and the remembered number out, to be changed and [`WideSlot::put`] back.
    fn take(&mut self, now: Timestamp) -> (Option<State>, u64) {
        let by = self.by;
        let plain =
            |bucket: &mut Bucket| bucket.beyond == 0 && bucket.by == by && bucket.own.is_none();
        let bucket = match self
            .place
            .and_then(|place| self.shard.buckets[place].take_if(plain))
        {
            Some(bucket) => Some(bucket),
            None => self.bucket(now).map(Cow::into_owned),
        };
        bucket.map_or((None, 0), |Bucket { state, beyond, .. }| {
            (Some(state), beyond)
        })
    }

    fn put(&mut self, bucket: Option<Bucket>, now: Timestamp) {
        if let Some(place) = self.place {
            self.shard.buckets[place] = bucket;
            return;
        }
        // A full bucket needs no entry, except where a key without one would start with debt.
        let owes = self.shard.floor.is_some() || self.table.birth.get().is_some();
        if bucket.is_none() && !owes {
            return;
        }
        let table = self.table;
        let shard = &mut *self.shard;
        if shard.tags.len() >= SHARD_ENTRIES
            && let Some((victim, expiry)) = shard.soonest_full(table)
        {
            // Another thread may still draw as of a moment at which the bucket was not full.
            if expiry.after(LATE) > now
                && let Some(forgotten) = shard.buckets[victim].take()
            {
                let owes = table
                    .kept_in(&forgotten)
                    .expiry(&forgotten.state)
                    .is_some_and(|expiry| expiry > now);
                let counter = &table.counts.evictions;
                counter.fetch_add(u64::from(owes), Ordering::Relaxed);
                // The floor is in the table's numbers.
                let owed = match forgotten.own {
                    Some(_) => table.under(&forgotten, forgotten.by, now),
                    None => Some(forgotten),
                };
                if let Some(owed) = owed {
                    shard.lift_floor(table, owed, now);
                }
            }
            shard.tags[victim] = self.tag;
            shard.buckets[victim] = bucket;
            self.place = Some(victim);
            return;
        }
        shard.tags.push(self.tag);
        shard.buckets.push(bucket);
        self.place = Some(shard.tags.len() - 1);
    }
}
