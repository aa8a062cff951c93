//! One bucket in its locked shard: judged, written, corrected.

use std::borrow::Cow;
use std::sync::atomic::Ordering;

use tollgate_limit::bucket::{Next, Report, State};
use tollgate_limit::{Algorithm, Change, Conditions, Kept, Timestamp, Verdict};

use super::{Bucket, LATE, Shard, Table};

/// One bucket of a table. Its methods take its shard, which is locked: several claims of a request
/// may be on buckets of one shard.
pub(in crate::local) struct Slot<'t> {
    table: &'t Table,
    tag: u64,
    /// The numbers of the draw.
    by: u16,
    conditions: Option<&'t Conditions>,
    place: Option<usize>,
    next: Option<Next>,
}

impl<'t> Slot<'t> {
    /// The bucket of `tag`, for a draw under the numbers at `by` and an upstream's conditions.
    pub(in crate::local) fn new(
        table: &'t Table,
        shard: &Shard,
        tag: u64,
        by: u16,
        conditions: Option<&'t Conditions>,
    ) -> Self {
        Self {
            table,
            tag,
            by,
            conditions,
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

    /// The bucket's numbers.
    pub(in crate::local) fn report(&self, shard: &Shard, now: Timestamp) -> Report {
        let bucket = self.bucket(shard, now);
        let state = bucket.as_deref().map(|bucket| &bucket.state);
        self.conditioned().report(state, now)
    }

    /// Writes the result of [`Slot::judge`].
    pub(in crate::local) fn commit(&mut self, shard: &mut Shard, now: Timestamp) {
        let Some(next) = self.next.take() else { return };
        // Another claim of the request may have taken its place.
        self.place = shard.find(self.tag);
        let (mut state, beyond) = self.take(shard, now);
        self.algorithm().apply(&mut state, next);
        let bucket = state.map(|state| Bucket::new(state, beyond, self.by));
        self.put(shard, bucket, now);
    }

    /// Takes the bucket out as of `since`, and leaves an empty one.
    pub(in crate::local) fn lift(
        &mut self,
        shard: &mut Shard,
        since: Timestamp,
        now: Timestamp,
    ) -> Kept {
        let algorithm = self.algorithm().clone();
        let kept = match self.state(shard, since) {
            Some((state, beyond)) => Kept::from_parts(algorithm, Some(state), beyond),
            None => Kept::full(algorithm),
        };
        let more = self.report(shard, now).remaining;
        self.settle(shard, Change::Charge { more }, now);
        kept
    }

    /// Whether the bucket is full.
    pub(in crate::local) fn is_full(&self, shard: &Shard, now: Timestamp) -> bool {
        self.state(shard, now).is_none()
    }

    /// The numbers of the draw.
    pub(in crate::local) fn algorithm(&self) -> &'t Algorithm {
        self.table.algorithm(self.by)
    }

    /// Corrects an earlier grant, in the numbers the bucket is kept in, without clamping.
    pub(in crate::local) fn settle(&mut self, shard: &mut Shard, change: Change, now: Timestamp) {
        let drawn = self.by;
        let found = self.found(shard, None).map(Cow::into_owned);
        if let Some(bucket) = found.filter(|bucket| bucket.own.is_some()) {
            let (mut kept, by, own) = (self.table.kept(&bucket), bucket.by, bucket.own);
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
            self.put(shard, bucket, now);
            return;
        }
        if self.table.numbers.len() > 1 {
            // A bucket that is full again takes the numbers of its draw.
            let kept = self.found(shard, self.table.birth.get());
            let kept = kept.filter(|bucket| self.table.under(bucket, bucket.by, now).is_some());
            self.by = kept.map_or(drawn, |bucket| bucket.by);
        }
        let (mut state, mut beyond) = self.take(shard, now);
        if beyond == 0 && self.by == drawn {
            self.conditioned().settle(&mut state, change, now);
        } else {
            let mut kept = Kept::from_parts(self.algorithm().clone(), state, beyond);
            let drawn = self.table.algorithm(drawn).under(self.conditions);
            kept.settle(&drawn, change, now);
            (state, beyond) = (kept.state().cloned(), kept.beyond());
        }
        let bucket = state.map(|state| Bucket::new(state, beyond, self.by));
        self.put(shard, bucket, now);
    }

    /// Takes over the bucket of a predecessor.
    pub(super) fn adopt(&mut self, shard: &mut Shard, adopted: &Bucket, now: Timestamp) {
        // A key with a moved bucket is known, so it does not get the debt of a key that was never
        // seen.
        let bucket = match self.bucket_or(shard, None, now) {
            Some(bucket) => self.table.join(&bucket, adopted, now),
            None => adopted.clone(),
        };
        self.put(shard, Some(bucket), now);
    }

    /// The numbers of the draw, under the upstream's conditions.
    fn conditioned(&self) -> Cow<'t, Algorithm> {
        self.algorithm().under(self.conditions)
    }

    /// Its state in the numbers of the draw, and what it remembers; `None`: it is full.
    fn state(&self, shard: &Shard, now: Timestamp) -> Option<(State, u64)> {
        let bucket = self.bucket(shard, now)?.into_owned();
        let expiry = self.algorithm().expiry_beyond(&bucket.state, bucket.beyond);
        let is_full = expiry.is_some_and(|expiry| expiry.after(LATE) <= now);
        (!is_full).then_some((bucket.state, bucket.beyond))
    }

    /// The bucket at `now`, unless it equals no bucket.
    fn bucket<'s>(&self, shard: &'s Shard, now: Timestamp) -> Option<Cow<'s, Bucket>>
    where
        't: 's,
    {
        self.bucket_or(shard, self.table.birth.get(), now)
    }

    /// The stored bucket, or the debt of an unknown key: the floor or `birth`, whichever numbers it
    /// is in.
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
        if bucket.beyond == 0 && bucket.by == self.by && bucket.own.is_none() {
            return Some(bucket);
        }
        self.table.under(&bucket, self.by, now).map(Cow::Owned)
    }

    /// Takes the state and the remembered number out, to be changed and [`Slot::put`] back.
    fn take(&self, shard: &mut Shard, now: Timestamp) -> (Option<State>, u64) {
        let bucket = match self.place {
            Some(place) => {
                let bucket = shard.take(self.table, place).map(Cow::Owned);
                bucket.and_then(|bucket| self.in_numbers(bucket, now))
            }
            None => self.bucket(shard, now),
        };
        bucket.map_or((None, 0), |bucket| {
            let Bucket { state, beyond, .. } = bucket.into_owned();
            (Some(state), beyond)
        })
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
        shard.store(table, place, self.tag, bucket);
        self.place = Some(place);
    }
}
